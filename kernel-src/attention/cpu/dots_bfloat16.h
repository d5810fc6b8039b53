// The products of dots.h where both tensors are bfloat16 and the CPU has a dot product for them. Its operands
// are pairs of neighbours along the head dim, of an odd one the last with a zero: half the memory of float32,
// and twice the products an instruction. They cannot hold a scaled q, so the factor meets the sums.
//
// Softmax weights and their gradients are no operands here: 8 bits would not hold them.
#pragma once

#include "attention/params.h"
#include "common/cpu/arena.h"

namespace padfree::attention {
namespace {

inline int dot_depth(int dim) {
  return (dim + 1) / 2;
}
inline int dot_ld(int dim) {
  return round_up(dot_depth(dim), Vec::kLanes);
}

inline void pack_dot_columns(DType, const void* const* rows, int n, int dim, float* out) {
  with_bool(dim % 2 == 1,
            [&](auto odd) { pack_transposed_of<BFloat16Pair<odd>>(rows, n, dot_depth(dim), out); });
}

[[gnu::noinline]] inline void pack_dot_rows(DType, const void* const* rows, int n, int dim, float,
                                            float* out) {
  for (int i = 0; i < n; ++i, out += dot_ld(dim)) {
    const BFloat16* row = static_cast<const BFloat16*>(rows[i]);
    if (i + kRowsAhead < n) prefetch_row(rows[i + kRowsAhead], dim * static_cast<int>(sizeof(BFloat16)));
    for (int d = 0; d < dot_depth(dim); d += Vec::kLanes)
      store(out + d, load_pairs(row + 2 * d, dim - 2 * d));
  }
}

inline void dot_rows(int n, int dim, const float* a, const float* b, float* c, int ldc, float factor) {
  gemm_tile<Update::kScaled, Layout::kRows, DotBFloat16>(n, dot_depth(dim), a, dot_ld(dim), b, c, ldc,
                                                         &factor);
}

// The left operand of the backward: rows beside the float32 panels.
inline float* take_left(Arena& arena, int rows, int dim, float*) {
  return arena.take(static_cast<int64_t>(rows) * dot_ld(dim));
}
inline void pack_left(const void* const* rows, int n, int dim, float* left) {
  pack_dot_rows(DType::kBFloat16, rows, n, dim, 1.0f, left);
}
inline void dot_left(int n, int dim, const float* left, int i, int, const float* b, float* c, int ldc,
                     float factor) {
  dot_rows(n, dim, left + i * dot_ld(dim), b, c, ldc, factor);
}

}  // namespace
}  // namespace padfree::attention
