// Gradients that pass through decays: of pairs of tokens within a chunk, and of what enters and leaves it.
//
// g_t = A dt_t is in every decay that spans t. With T_ij = dM_ij M_ij, what the pair (i, j) adds for each of
// them,
//
//   dg_t = sum_{i >= t > j} T_ij + sum_{i >= t} from_state_i + sum_{j < t} to_state_j + decay <dS, S>
//
// is summed as it stands: a difference of sums over the chunk would leave rounding errors where the decays
// are zero and so should be their gradients.
#pragma once

#include "state_space/cpu/steps.h"

namespace padfree::state_space {
namespace {

struct Pairs {
  float* decayed_cb;             // (kChunk, kChunk), lower: (C_i . B_j) decay(j..i)
  float* decayed;                // likewise: decay(j..i)
  float* dmix;                   // likewise: dY_i . X_j
  float* dcb;                    // likewise, zero above the diagonal: summed over the heads of the task
  float *from_state, *to_state;  // kChunk
  float* direct;                 // kChunk: gradient of dt_j but for decays
  float* crossing;               // kChunk, scratch
  float through;                 // decay <dS, S>
};

inline Pairs pairs_space(Arena& arena) {
  Pairs pairs;
  for (float** square : {&pairs.decayed_cb, &pairs.decayed, &pairs.dmix, &pairs.dcb}) {
    *square = arena.take(kChunk * kChunk);
  }
  for (float** line : {&pairs.from_state, &pairs.to_state, &pairs.direct, &pairs.crossing}) {
    *line = arena.take(kChunk);
  }
  pairs.through = 0.0f;
  return pairs;
}

inline void decay_pairs(const Shared& shared, const Steps& steps, Pairs& pairs) {
  for (int i = 0; i < steps.n; ++i) {
    const int row = i * kChunk;
    for (int j = 0; j <= i; j += Vec::kLanes) {
      const Vec decay = decays_to(steps, i, j);
      store(pairs.decayed + row + j, decay);
      store(pairs.decayed_cb + row + j, decay * load(shared.cb + row + j));
    }
    clear(pairs.decayed + row, i + 1, round_up(i + 1, Vec::kLanes));
    clear(pairs.decayed_cb + row, i + 1, tile_reach(i));
  }
}

// Adds to dcb; dg[t], the gradient of g_t.
inline void pull_pairs(const Steps& steps, Pairs& pairs, float* dg) {
  float* crossing = pairs.crossing;  // [j]: sum over i >= t of T_ij
  clear(crossing, 0, kChunk);
  float later = 0.0f, earlier = 0.0f;
  for (int i = 0; i < steps.n; ++i) {
    dg[i] = earlier + pairs.through;
    earlier += pairs.to_state[i];
  }
  for (int i = steps.n - 1; i >= 0; --i) {
    const int row = i * kChunk, whole = i / Vec::kLanes * Vec::kLanes;
    clear(pairs.dmix + row, i + 1, round_up(i + 1, Vec::kLanes));
    Vec across = zero();
    for (int j = 0; j <= i; j += Vec::kLanes) {
      const Vec share = load(pairs.dmix + row + j) * load(steps.dt + j);
      const Vec sums = fma(share, load(pairs.decayed_cb + row + j), load(crossing + j));
      if (j < whole) across = across + sums;
      store(crossing + j, sums);
      store(pairs.dcb + row + j, fma(share, load(pairs.decayed + row + j), load(pairs.dcb + row + j)));
    }
    across = across + load_partial(crossing + whole, i - whole);
    later += pairs.from_state[i];
    dg[i] += later + sum(across);
  }
}

}  // namespace
}  // namespace padfree::state_space
