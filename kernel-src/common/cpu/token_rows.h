// Where the rows of one head lie in a (batch, token, head, dim) tensor, and how a chunk of them becomes
// float32 operands. Params, View and Sequence are those of the op: `p.dtype`, the strides of `view`,
// `s.batch` and `s.begin`.
#pragma once

#include "common/types.h"

namespace padfree {
namespace {

constexpr int kMostRows = 64;  // of one call: the chunk of every op that works chunk by chunk

// Pointers to rows [begin, begin + n) of one head (or group) of a sequence.
template <typename View, typename Sequence>
inline void row_pointers(DType dtype, const View& view, const Sequence& s, int64_t head, int64_t begin, int n,
                         void** rows) {
  const int64_t size = dtype == DType::kFloat32 ? 4 : 2;
  const int64_t first =
      s.batch * view.batch_stride + (s.begin + begin) * view.row_stride + head * view.head_stride;
  char* row = static_cast<char*>(view.data) + first * size;
  for (int i = 0; i < n; ++i, row += view.row_stride * size) rows[i] = row;
}

// The float32 element (or first channel) of row `row` of one head.
template <typename FloatView, typename Sequence>
inline float* element(const FloatView& view, const Sequence& s, int64_t head, int64_t row) {
  return view.data + s.batch * view.batch_stride + (s.begin + row) * view.row_stride +
         head * view.head_stride;
}

// Rows of one head as float32, with zeros in columns [dim, ld).
template <typename Params, typename View, typename Sequence>
inline void load_rows(const Params& p, const View& view, const Sequence& s, int64_t head, int64_t begin,
                      int n, int dim, float* out, int ld) {
  void* rows[kMostRows];
  row_pointers(p.dtype, view, s, head, begin, n, rows);
  for (int i = 0; i < n; ++i) {
    for (int d = dim; d < ld; ++d) out[i * ld + d] = 0.0f;
  }
  convert_rows(p.dtype, rows, n, dim, 1.0f, out, ld);
}

// Rounds rows to the storage type.
template <typename Params, typename View, typename Sequence>
inline void store_rows(const Params& p, const View& view, const Sequence& s, int64_t head, int64_t begin,
                       int n, int dim, const float* in, int ld) {
  void* rows[kMostRows];
  row_pointers(p.dtype, view, s, head, begin, n, rows);
  const float one = 1.0f;
  store_rows(p.dtype, rows, n, dim, in, ld, &one, 0);
}

}  // namespace
}  // namespace padfree
