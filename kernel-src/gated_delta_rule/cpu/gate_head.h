// A gate per head: decay(j..i) = exp(G_i - G_j), G the cumulative sum of g within the chunk.
//
// The sums are taken in double and kept as a float and its remainder, so that a difference is as exact as the
// gates between j and i, however negative the gates before j were. Only differences with i >= j are used: no
// exponential of a positive number unless g itself is positive.
#pragma once

#include "gated_delta_rule/cpu/gate.h"

namespace padfree::gated_delta_rule {
namespace {

struct HeadGate {
  Gated gated;
  float *sum_high, *sum_low;  // G = high + low, kChunk
  float *in, *out, *decay;
  float* pairs;       // (kChunk, kChunk): decay(j..i), lower; kept for the backward only
  float state_decay;  // exp(G of the last token)
};

inline void gate_space(const Params& p, bool backward, Arena& arena, HeadGate& gate) {
  gate.sum_high = arena.take(kChunk);
  gate.sum_low = arena.take(kChunk);
  gate.in = arena.take(kChunk);
  gate.out = arena.take(kChunk);
  gate.decay = arena.take(p.head_dim);
  gate.gated.beta = arena.take(kChunk);
  gate.gated.a = arena.take(kChunk * kChunk);
  gate.gated.p = arena.take(kChunk * kChunk);
  gate.pairs = backward ? arena.take(kChunk * kChunk) : nullptr;
}

inline void sum_gates(const Params& p, const Sequence& s, int head, int64_t begin, int n, HeadGate& gate) {
  double total = 0.0;
  for (int i = 0; i < kChunk; ++i) {
    if (i < n) {
      const float g = *element(p.g, s, head, begin + i);
      total += g < kSmallestGate ? kSmallestGate : g;
    }
    gate.sum_high[i] = static_cast<float>(total);
    gate.sum_low[i] = static_cast<float>(total - gate.sum_high[i]);
  }
}

inline void prepare(const Params& p, const Sequence& s, const Keys& keys, int head, int64_t begin,
                    HeadGate& gate) {
  const int n = keys.n;
  Gated& gated = gate.gated;
  sum_gates(p, s, head, begin, n, gate);
  load_beta(p, s, head, begin, n, gated.beta);
  const Vec last_high = splat(gate.sum_high[n - 1]), last_low = splat(gate.sum_low[n - 1]);
  for (int j = 0; j < n; j += Vec::kLanes) {
    const Vec high = load(gate.sum_high + j), low = load(gate.sum_low + j);
    store(gate.in + j, exp(high + low));
    store(gate.out + j, exp((last_high - high) + (last_low - low)));
  }
  gate.state_decay = gate.in[n - 1];
  for (int d = 0; d < p.head_dim; ++d) gate.decay[d] = gate.state_decay;

  for (int i = 0; i < n; ++i) {
    const Vec high = splat(gate.sum_high[i]), low = splat(gate.sum_low[i]),
              minus_beta = splat(-gated.beta[i]);
    const int row = i * kChunk, reach = tile_reach(i);
    for (int j = 0; j <= i; j += Vec::kLanes) {
      const Vec pair = exp((high - load(gate.sum_high + j)) + (low - load(gate.sum_low + j)));
      store(gated.p + row + j, pair * load(keys.qk + row + j));
      store(gated.a + row + j, minus_beta * (pair * load(keys.kk + row + j)));
      if (gate.pairs != nullptr) store(gate.pairs + row + j, pair);
    }
    clear(gated.p + row, i + 1, reach);
    clear(gated.a + row, i, reach);
    if (gate.pairs != nullptr) clear(gate.pairs + row, i + 1, reach);
  }
  gated.n = n;
  gated.q_in = keys.q;
  gated.k_in = gated.k_out = keys.k;
  gated.in = gate.in;
  gated.out = gate.out;
  gated.decay = gate.decay;
}

}  // namespace
}  // namespace padfree::gated_delta_rule
