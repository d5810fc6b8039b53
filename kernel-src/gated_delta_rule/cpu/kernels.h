// What each kernel_<isa>.cpp exports. All run one task with one worker's workspace.
#pragma once

#include "gated_delta_rule/params.h"

namespace padfree::gated_delta_rule {

struct Kernels {
  using Run = void (*)(const Params& params, const Task& task, float* workspace);
  using Floats = int64_t (*)(const Params& params);  // of one worker's workspace

  Run forward[2], backward[2];  // by gate_per_channel
  Run recurrent;
  Floats forward_workspace[2], backward_workspace[2];
  Floats recurrent_workspace;
  int panel;  // value columns of a panel
};

namespace generic {
extern const Kernels kernels;
}
namespace avx2 {
extern const Kernels kernels;
}
namespace avx512 {
extern const Kernels kernels;
}

}  // namespace padfree::gated_delta_rule
