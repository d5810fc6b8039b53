// Where rows and states live in memory, and how a chunk of them becomes float32 operands.
#pragma once

#include "state_space/params.h"

namespace padfree::state_space {
namespace {

// Pointers to rows [begin, begin + n) of one head (or group).
inline void row_pointers(DType dtype, const View& view, const Sequence& s, int64_t head, int64_t begin, int n,
                         void** rows) {
  const int64_t size = dtype == DType::kFloat32 ? 4 : 2;
  const int64_t first =
      s.batch * view.batch_stride + (s.begin + begin) * view.row_stride + head * view.head_stride;
  char* row = static_cast<char*>(view.data) + first * size;
  for (int i = 0; i < n; ++i, row += view.row_stride * size) rows[i] = row;
}

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

// Rounds rows to the storage type.
inline void save_rows(const Params& p, const View& view, const Sequence& s, int64_t head, int64_t begin,
                      int n, int dim, const float* in, int ld) {
  void* rows[kChunk];
  row_pointers(p.dtype, view, s, head, begin, n, rows);
  const float one = 1.0f;
  store_rows(p.dtype, rows, n, dim, in, ld, &one, 0);
}

inline void clear(float* x, int from, int to) {
  for (int i = from; i < to; ++i) x[i] = 0.0f;
}

// A state (head_dim, state_dim) of the caller becomes panels of its transpose, columns past head_dim zero.
inline void load_state(const Params& p, const float* from, Panels state) {
  const void* rows[kMaxHeadDim];
  for (int d = 0; d < p.head_dim; ++d) rows[d] = from + static_cast<int64_t>(d) * p.state_dim;
  pack_transposed(DType::kFloat32, rows, p.head_dim, p.state_dim, state.data);
}

inline void store_state(const Params& p, Panels state, float* to) {
  constexpr int kLanes = Vec::kLanes;
  for (int d = 0; d < p.head_dim; d += kLanes) {
    const float* column = state.data + d / kPanel * state.step + d % kPanel;
    for (int n = 0; n < p.state_dim; n += kLanes) {
      Vec block[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        block[i] = n + i < p.state_dim ? load(column + (n + i) * kPanel) : zero();
      }
      transpose_lanes(block);
      for (int i = 0; i < kLanes && d + i < p.head_dim; ++i) {
        store_upto(to + static_cast<int64_t>(d + i) * p.state_dim + n, block[i], p.state_dim - n);
      }
    }
  }
}

inline void clear_state(Panels state, int panels) {
  for (int i = 0; i < panels * state.step; i += Vec::kLanes) store(state.data + i, zero());
}

}  // namespace
}  // namespace padfree::state_space
