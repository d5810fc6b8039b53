// Products of two stored tensors, q k^T and dO v^T, in float32: how their operands lie and what multiplies
// them. dots_bfloat16.h has the same names; a kernel_<isa>.cpp includes one of the two.
//
// The right operand is packed once for a block of keys, a column for each. The left one is rows of q or of
// dO: in the forward by themselves, in the backward as the panels that other products read too.
#pragma once

#include "attention/params.h"
#include "common/cpu/arena.h"

namespace padfree::attention {
namespace {

// Lanes that a row of `dim` values takes, and floats from one row of the left operand to the next.
inline int dot_depth(int dim) {
  return dim;
}
inline int dot_ld(int dim) {
  return round_up(dim, kPanel);
}

inline void pack_dot_columns(DType dtype, const void* const* rows, int n, int dim, float* out) {
  pack_transposed(dtype, rows, n, dim, out);
}

// The factor of dot_rows is multiplied in here.
inline void pack_dot_rows(DType dtype, const void* const* rows, int n, int dim, float factor, float* out) {
  convert_rows(dtype, rows, n, dim, factor, out, dot_ld(dim));
}

// C = factor * A B for n rows of the left operand and a panel of the right one.
inline void dot_rows(int n, int dim, const float* a, const float* b, float* c, int ldc, float) {
  gemm_tile<Update::kOverwrite, Layout::kRows>(n, dim, a, dot_ld(dim), b, c, ldc);
}

// The left operand of the backward, of up to `rows` rows: no memory and no packing of its own.
inline float* take_left(Arena&, int, int, float* panels) {
  return panels;
}
inline void pack_left(const void* const*, int, int, float*) {}

// The same product of rows [i, i + n) of a left operand of m rows.
inline void dot_left(int n, int dim, const float* left, int i, int m, const float* b, float* c, int ldc,
                     float) {
  gemm_tile<Update::kOverwrite, Layout::kPanels>(n, dim, left + i * kPanel, m * kPanel, b, c, ldc);
}

}  // namespace
}  // namespace padfree::attention
