// What each kernel_<isa>.cpp exports.
#pragma once

#include "selective_scan/params.h"

namespace padfree::selective_scan {

struct Kernels {
  using Run = void (*)(const Params& params, const Task& task, float* workspace);
  using Floats = int64_t (*)(const Params& params);  // of one worker's workspace

  Run forward, backward;
  Floats forward_workspace, backward_workspace;
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

}  // namespace padfree::selective_scan
