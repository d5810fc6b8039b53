// States of the caller as panels of operands, and back.
#pragma once

#include "common/cpu/token_rows.h"
#include "state_space/params.h"

namespace padfree::state_space {
namespace {

static_assert(kChunk <= kMostRows);

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
