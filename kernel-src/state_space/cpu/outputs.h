// Outputs of one chunk of one head, from the state before it.
#pragma once

#include "state_space/cpu/steps.h"

namespace padfree::state_space {
namespace {

// y = in * (C S) + M X, rows of `width`. D per channel is not in it yet.
inline void scan_rows(const Params& p, const Shared& shared, const Steps& steps, const float* mix, Panels x,
                      const Panels* state, float* y, int width) {
  const int n = steps.n, panels = width / kPanel;
  const Result to = rows_result(y, width);
  if (state == nullptr) {
    product<Update::kOverwrite, Layout::kRows, Shape::kLower>(n, panels, n, mix, kChunk, x, to);
    return;
  }
  product<Update::kOverwrite, Layout::kRows>(n, panels, p.state_dim, shared.c, shared.ld, *state, to);
  product<Update::kScaleAdd, Layout::kRows, Shape::kLower>(n, panels, n, mix, kChunk, x, to, steps.in);
}

// y += D * x where D has a value a channel
template <typename T>
[[gnu::noinline]] void add_skip_of(void* const* x_rows, const float* skip, int n, int dim, float* y,
                                   int width) {
  for (int i = 0; i < n; ++i) {
    const T* x = static_cast<const T*>(x_rows[i]);
    for (int d = 0; d < dim; d += Vec::kLanes) {
      const int left = dim - d;
      store(y + i * width + d,
            fma(load_upto(skip + d, left), load_upto(x + d, left), load(y + i * width + d)));
    }
  }
}

// y *= silu(z)
template <typename T>
[[gnu::noinline]] void apply_gate_of(void* const* z_rows, int n, int dim, float* y, int width) {
  for (int i = 0; i < n; ++i) {
    const T* z = static_cast<const T*>(z_rows[i]);
    for (int d = 0; d < dim; d += Vec::kLanes) {
      store(y + i * width + d, load(y + i * width + d) * silu(load_upto(z + d, dim - d)));
    }
  }
}

inline void add_skip(const Params& p, const Sequence& s, int head, int64_t begin, int n, float* y,
                     int width) {
  if (p.D == nullptr || !p.d_per_channel) return;
  void* rows[kChunk];
  row_pointers(p.dtype, p.x, s, head, begin, n, rows);
  const float* skip = p.D + static_cast<int64_t>(head) * p.head_dim;
  with_dtype(p.dtype, [&](auto tag) {
    add_skip_of<typename decltype(tag)::type>(rows, skip, n, p.head_dim, y, width);
  });
}

inline void apply_gate(const Params& p, const Sequence& s, int head, int64_t begin, int n, float* y,
                       int width) {
  if (p.z.data == nullptr) return;
  void* rows[kChunk];
  row_pointers(p.dtype, p.z, s, head, begin, n, rows);
  with_dtype(p.dtype,
             [&](auto tag) { apply_gate_of<typename decltype(tag)::type>(rows, n, p.head_dim, y, width); });
}

}  // namespace
}  // namespace padfree::state_space
