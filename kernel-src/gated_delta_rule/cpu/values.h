// Values, states and outputs of one value head: the recurrence over chunks, on a range of value columns.
#pragma once

#include "gated_delta_rule/cpu/ahead.h"
#include "gated_delta_rule/cpu/gate.h"
#include "gated_delta_rule/cpu/solve.h"

namespace padfree::gated_delta_rule {
namespace {

// Columns [first, first + dim) of the value dimension, in whole panels.
struct Columns {
  int first, dim, panels;
};

inline Columns columns_of(const Params& p, int panel_begin, int panel_end) {
  const int first = panel_begin * kPanel;
  return {first, min_int(p.head_dim_v, panel_end * kPanel) - first, panel_end - panel_begin};
}

// A state (head_dim, dim) at `from`, rows `ld` apart, becomes panels; columns past dim are zero.
inline void load_state(const float* from, int ld, int head_dim, int dim, Panels state) {
  for (int d = 0; d < dim; d += kPanel) {
    float* panel = state.data + d / kPanel * state.step;
    for (int row = 0; row < head_dim; ++row) {
      const float* in = from + static_cast<int64_t>(row) * ld + d;
      for (int half = 0; half < kPanel; half += Vec::kLanes) {
        const int left = dim - d - half;
        store(panel + row * kPanel + half, left > 0 ? load_upto(in + half, left) : zero());
      }
    }
  }
}

inline void store_state(Panels state, int head_dim, int dim, float* to, int ld) {
  for (int d = 0; d < dim; d += kPanel) {
    const float* panel = state.data + d / kPanel * state.step;
    for (int row = 0; row < head_dim; ++row) {
      float* out = to + static_cast<int64_t>(row) * ld + d;
      for (int half = 0; half < kPanel && d + half < dim; half += Vec::kLanes) {
        store_upto(out + half, load(panel + row * kPanel + half), dim - d - half);
      }
    }
  }
}

inline void clear_state(Panels state, int panels) {
  for (int i = 0; i < panels * state.step; i += Vec::kLanes) store(state.data + i, zero());
}

// x := beta * (v - in * x); x holds K_in S. Without a state, x is taken as zero and not read. Where
// `residual` is given, it receives v - in * x.
template <typename T>
[[gnu::noinline]] void right_side_of(void* const* rows, const Gated& gated, Columns columns, bool has_state,
                                     Panels x, const Panels* residual) {
  for (int p = 0; p < columns.panels; ++p) {
    for (int i = 0; i < gated.n; ++i) {
      const T* v = static_cast<const T*>(rows[i]) + columns.first + p * kPanel;
      float* out = x.data + p * x.step + i * kPanel;
      for (int half = 0; half < kPanel; half += Vec::kLanes) {
        const int left = columns.dim - p * kPanel - half;
        Vec value = left > 0 ? load_upto(v + half, left) : zero();
        if (has_state) value = fnma(splat(gated.in[i]), load(out + half), value);
        if (residual != nullptr) store(residual->data + p * residual->step + i * kPanel + half, value);
        store(out + half, splat(gated.beta[i]) * value);
      }
    }
  }
}

// D, and v - in * (K_in S) where wanted, from the state before the chunk.
template <typename Between>
inline void solve_values(const Params& p, const Sequence& s, int head, int64_t begin, const Gated& gated,
                         int ld, Columns columns, bool has_state, Panels state, Panels d,
                         const Panels* residual, Between&& between) {
  void* rows[kChunk];
  row_pointers(p.dtype, p.v, s, head, begin, gated.n, rows);
  if (has_state) {
    product<Update::kOverwrite, Layout::kRows>(gated.n, columns.panels, p.head_dim, gated.k_in, ld, state,
                                               panels_result(d), nullptr, between);
  }
  with_dtype(p.dtype, [&](auto tag) {
    right_side_of<typename decltype(tag)::type>(rows, gated, columns, has_state, d, residual);
  });
  solve_lower(gated.n, columns.panels, gated.a, kChunk, d);
}

}  // namespace
}  // namespace padfree::gated_delta_rule
