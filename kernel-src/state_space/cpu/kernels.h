// What each kernel_<isa>.cpp exports.
#pragma once

#include "state_space/params.h"

namespace padfree::state_space {

// Rows that one call of Kernels::gather sums the parts of.
constexpr int kGatherRows = 64;

struct Kernels {
  using Run = void (*)(const Params& params, const Task& task, float* workspace);
  using Floats = int64_t (*)(const Params& params);  // of one worker's workspace

  Run forward, backward;  // one task, with one worker's workspace
  Floats forward_workspace, backward_workspace;
  // dB and dC of rows [begin, end) of the flattened (batch, row), out of their parts.
  void (*gather)(const Params& params, int64_t begin, int64_t end);
  int panel;  // columns of a panel
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

}  // namespace padfree::state_space
