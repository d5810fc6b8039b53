// What each kernel_<isa>.cpp exports. All run one task with one worker's workspace.
#pragma once

#include "attention/params.h"

namespace padfree::attention {

// What is cut into tiles: all but decoding.
struct TileKernels {
  void (*forward)(const Params& params, const Task& task, float* workspace);
  void (*backward)(const Params& params, const Task& task, float* workspace);
  int64_t (*forward_workspace)(const Params& params);   // floats for one worker
  int64_t (*backward_workspace)(const Params& params);  // of prepare_backward too
};

struct Kernels {
  TileKernels tiles;
  void (*stream)(const Params& params, const Task& task, float* workspace);
  void (*stream_finish)(const Params& params, const Task& task, float* workspace);
  void (*prepare_backward)(const Params& params, const Task& task, float* workspace);
  int64_t (*stream_workspace)(const Params& params);  // of stream_finish too
  int panel;                                          // head dims are padded to a multiple of this
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
namespace avx512bf16 {
extern const TileKernels tiles;  // of bfloat16 tensors
}

}  // namespace padfree::attention
