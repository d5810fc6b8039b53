// What each kernel_<isa>.cpp exports. All run one task with one worker's workspace.
#pragma once

#include "gated_delta_rule/params.h"

namespace padfree::gated_delta_rule {

struct Kernels {
  void (*forward)(const Params& params, const Task& task, float* workspace);
  void (*backward)(const Params& params, const Task& task, float* workspace);
  void (*recurrent)(const Params& params, const Task& task, float* workspace);
  int64_t (*forward_workspace)(const Params& params);  // floats for one worker
  int64_t (*backward_workspace)(const Params& params);
  int64_t (*recurrent_workspace)(const Params& params);
  int panel;  // value columns of a panel
};

namespace generic {
extern const Kernels kernels;
}
namespace avx2 {
extern const Kernels kernels;
}

}  // namespace padfree::gated_delta_rule
