// Forward and backward of bfloat16 tensors on path avx512, with products of two stored tensors by
// avx512_bf16. Everything else of a bfloat16 call is kernel_avx512.cpp's.
#include <cstdint>
#include <utility>

// In this order: each needs the names of those before it.
// clang-format off
#include "common/cpu/vec_avx512bf16.h"
#include "common/cpu/vec_math.h"
#include "common/dispatch.h"
#include "common/cpu/gemm.h"
#include "common/cpu/gemm_pack.h"
#include "attention/cpu/rows.h"
#include "attention/cpu/scores.h"
#include "attention/cpu/dots_bfloat16.h"
#include "attention/cpu/forward.h"
#include "attention/cpu/backward.h"
#include "attention/cpu/kernels.h"
// clang-format on

namespace padfree::attention::avx512bf16 {
extern const TileKernels tiles;
const TileKernels tiles = {forward, backward, forward_workspace, backward_workspace};
}  // namespace padfree::attention::avx512bf16
