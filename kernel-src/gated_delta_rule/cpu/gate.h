// What a gate makes of a chunk: the operands that the recurrence over chunks is written in (README.md).
//
//   X  = V - in * (K_in S)          D = (1 - A)^-1 (beta * X)
//   O  = in * (Q_in S) + P D        S <- decay * S + K_out^T (out * D)
//
// in, out: a factor a token; decay: a factor a channel of k. A gate per head puts its decay into in and out
// and leaves K and Q as they are; a gate per channel puts it into K_in, Q_in and K_out.
#pragma once

#include "gated_delta_rule/cpu/keys.h"

namespace padfree::gated_delta_rule {
namespace {

// exp(-1e4) is 0 in float32 by far; as a bound it keeps cumulative sums small enough that differences of
// later tokens stay exact, and makes -inf a plain reset.
constexpr float kSmallestGate = -1e4f;

struct Gated {
  int n = 0;
  const float *q_in, *k_in, *k_out;  // rows of keys.ld
  const float *in, *out;             // n
  const float* decay;                // head_dim
  float* beta;                       // n
  float* a;                          // (kChunk, kChunk), strictly lower: -beta_i * decay(j..i) * k_i . k_j
  float* p;                          // (kChunk, kChunk), lower: decay(j..i) * q_i . k_j
};

inline void load_beta(const Params& p, const Sequence& s, int head, int64_t begin, int n, float* beta) {
  for (int i = 0; i < n; ++i) beta[i] = *element(p.beta, s, head, begin + i);
}

// What a tile may read past the diagonal of row i: zeros in columns [from, here).
inline int tile_reach(int i) {
  return min_int(round_up(i + 1 + kGemmRows, Vec::kLanes), kChunk);
}

inline void clear(float* row, int from, int to) {
  for (int j = from; j < to; ++j) row[j] = 0.0f;
}

}  // namespace
}  // namespace padfree::gated_delta_rule
