// Where rows live in memory, and how a chunk of them becomes float32 operands.
#pragma once

#include "gated_delta_rule/params.h"

namespace padfree::gated_delta_rule {
namespace {

// Added to the squared norm, as flash-linear-attention and transformers do.
constexpr float kNormEpsilon = 1e-6f;

// Pointers to rows [begin, begin + n) of one head.
inline void row_pointers(DType dtype, const View& view, const Sequence& s, int64_t head, int64_t begin, int n,
                         void** rows) {
  const int64_t size = dtype == DType::kFloat32 ? 4 : 2;
  const int64_t first =
      s.batch * view.batch_stride + (s.begin + begin) * view.row_stride + head * view.head_stride;
  char* row = static_cast<char*>(view.data) + first * size;
  for (int i = 0; i < n; ++i, row += view.row_stride * size) rows[i] = row;
}

// The element (or first channel) of row `row` of one head.
inline float* element(const FloatView& view, const Sequence& s, int64_t head, int64_t row) {
  return view.data + s.batch * view.batch_stride + (s.begin + row) * view.row_stride +
         head * view.head_stride;
}

// Rows of one head as float32, with zeros in columns [dim, ld).
inline void load_rows(const Params& p, const View& view, const Sequence& s, int64_t head, int64_t begin,
                      int n, int dim, float* out, int ld) {
  void* rows[kChunk];
  row_pointers(p.dtype, view, s, head, begin, n, rows);
  for (int i = 0; i < n; ++i) {
    for (int d = dim; d < ld; ++d) out[i * ld + d] = 0.0f;
  }
  convert_rows(p.dtype, rows, n, dim, 1.0f, out, ld);
}

inline void store_rows(const Params& p, const View& view, const Sequence& s, int64_t head, int64_t begin,
                       int n, int dim, const float* in, int ld) {
  void* rows[kChunk];
  row_pointers(p.dtype, view, s, head, begin, n, rows);
  const float one = 1.0f;
  padfree::store_rows(p.dtype, rows, n, dim, in, ld, &one, 0);
}

inline float dot(const float* a, const float* b, int n) {
  Vec total = zero();
  for (int d = 0; d < n; d += Vec::kLanes) total = fma(load(a + d), load(b + d), total);
  return sum(total);
}

inline void scale_row(float* row, float factor, int n) {
  for (int d = 0; d < n; d += Vec::kLanes) store(row + d, splat(factor) * load(row + d));
}

// Divides each row by sqrt(|row|^2 + epsilon); inverse_norm[i] is what it was multiplied by.
inline void normalize_rows(float* rows, int n, int ld, float* inverse_norm) {
  for (int i = 0; i < n; ++i) {
    float* row = rows + i * ld;
    inverse_norm[i] = 1.0f / __builtin_sqrtf(dot(row, row, ld) + kNormEpsilon);
    scale_row(row, inverse_norm[i], ld);
  }
}

}  // namespace
}  // namespace padfree::gated_delta_rule
