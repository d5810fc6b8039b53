// Step sizes of one chunk of one head, and the decays they make.
//
//   dt = clamp(softplus(dt + dt_bias))    g = A dt    decay(j..i) = exp(G_i - G_j),  G the cumulative sum of
//   g
//
// Sums are taken in double, in units of log 2, and kept as a float and its remainder, so that a difference is
// as exact as the steps between j and i, however large those before j were. Only differences with i >= j are
// used: no exponential of a positive number unless A is positive.
#pragma once

#include "state_space/cpu/shared.h"

namespace padfree::state_space {
namespace {

// exp(-1e4) is 0 in float32 by far; as a bound it keeps cumulative sums small enough that differences of
// later tokens stay exact.
constexpr double kSmallestExponent = -1e4;
constexpr double kLog2EDouble = 1.4426950408889634;

struct Steps {
  int n = 0;
  float* dt;                  // kChunk; zero from n on
  float* slope;               // d dt / d (dt given); for the backward only
  float *sum_high, *sum_low;  // G = high + low
  float *in, *out;            // decay from the chunk's start to i; from j to its end
  float* weight;              // out * dt: what a token adds to the state after the chunk
  float* decay;               // state_dim times the decay of the whole chunk
};

inline Steps steps_space(const Params& p, bool backward, Arena& arena) {
  Steps steps;
  for (float** line : {&steps.dt, &steps.sum_high, &steps.sum_low, &steps.in, &steps.out, &steps.weight}) {
    *line = arena.take(kChunk);
  }
  steps.slope = backward ? arena.take(kChunk) : nullptr;
  steps.decay = arena.take(p.state_dim);
  return steps;
}

// steps.dt, and slope where there is room for it.
inline void load_dt(const Params& p, const Sequence& s, int head, int64_t begin, int n, Steps& steps) {
  const float bias = p.dt_bias == nullptr ? 0.0f : p.dt_bias[head];
  const float* dt = element(p.dt, s, head, begin);
  for (int i = 0; i < n; ++i) steps.dt[i] = dt[i * p.dt.row_stride] + bias;
  clear(steps.dt, n, kChunk);
  const Vec least = splat(p.dt_min), most = splat(p.dt_max);
  for (int i = 0; i < n; i += Vec::kLanes) {
    const Vec raw = load(steps.dt + i), step = p.dt_softplus ? softplus(raw) : raw;
    store(steps.dt + i, min(most, max(least, step)));
    if (steps.slope == nullptr) continue;
    const Vec slope = p.dt_softplus ? sigmoid(raw) : splat(1.0f);
    store(steps.slope + i, select(less(step, least), zero(), select(less(most, step), zero(), slope)));
  }
  clear(steps.dt, n, round_up(n, Vec::kLanes));
}

inline void load_steps(const Params& p, const Sequence& s, int head, int64_t begin, int n, Steps& steps) {
  steps.n = n;
  load_dt(p, s, head, begin, n, steps);
  double total = 0.0;
  for (int i = 0; i < kChunk; ++i) {
    const double g = static_cast<double>(p.A[head]) * steps.dt[i];
    if (i < n) total += (g < kSmallestExponent ? kSmallestExponent : g) * kLog2EDouble;
    steps.sum_high[i] = static_cast<float>(total);
    steps.sum_low[i] = static_cast<float>(total - steps.sum_high[i]);
  }
  const Vec last_high = splat(steps.sum_high[n - 1]), last_low = splat(steps.sum_low[n - 1]);
  for (int i = 0; i < n; i += Vec::kLanes) {
    const Vec high = load(steps.sum_high + i), low = load(steps.sum_low + i);
    const Vec out = exp2((last_high - high) + (last_low - low));
    store(steps.in + i, exp2(high + low));
    store(steps.out + i, out);
    store(steps.weight + i, out * load(steps.dt + i));
  }
  for (int d = 0; d < p.state_dim; ++d) steps.decay[d] = steps.in[n - 1];
}

// decay(j..i) for a vector of j
inline Vec decays_to(const Steps& steps, int i, int j) {
  const Vec high = splat(steps.sum_high[i]), low = splat(steps.sum_low[i]);
  return exp2((high - load(steps.sum_high + j)) + (low - load(steps.sum_low + j)));
}

// What a tile may read past the diagonal of row i: zeros in columns (i, here).
inline int tile_reach(int i) {
  return min_int(round_up(i + 1 + kGemmRows, Vec::kLanes), kChunk);
}

// M_ij = (C_i . B_j) decay(j..i) dt_j, lower, with D on the diagonal: what the chunk's own tokens add to y.
inline void mix_of(const Params& p, int head, const Shared& shared, const Steps& steps, float* mix) {
  for (int i = 0; i < steps.n; ++i) {
    const int row = i * kChunk;
    for (int j = 0; j <= i; j += Vec::kLanes) {
      store(mix + row + j, decays_to(steps, i, j) * (load(shared.cb + row + j) * load(steps.dt + j)));
    }
    clear(mix + row, i + 1, tile_reach(i));
    if (p.D != nullptr && !p.d_per_channel) mix[row + i] += p.D[head];
  }
}

}  // namespace
}  // namespace padfree::state_space
