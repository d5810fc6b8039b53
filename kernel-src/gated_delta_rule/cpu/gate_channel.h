// A gate per channel (Kimi delta attention): decay(j..i) is a vector, the product of exp(g) over the tokens
// between.
//
// Decays are running products, never exponentials of sums: each factor is at most 1 where g is not positive,
// and a closed gate only makes what it should vanish vanish. K K^T and Q K^T with a decay inside are made
// block by block of kBlock tokens: against earlier blocks as a product of rows decayed from the block's start
// and columns decayed up to it; within the block pair by pair.
#pragma once

#include "gated_delta_rule/cpu/gate.h"

namespace padfree::gated_delta_rule {
namespace {

constexpr int kBlock = kPanel < 16 ? 16 : kPanel;
static_assert(kBlock % kPanel == 0 && kChunk % kBlock == 0);

struct ChannelGate {
  Gated gated;
  float* step;                 // kChunk rows of ld: exp(g)
  float* from_start;           // likewise: the product of steps up to and with a token
  float *q_in, *k_in, *k_out;  // rows of ld
  float *ones, *decay;
  float *q_block, *k_block;  // kBlock rows of ld, decayed from the block's start
  float* block_decay;        // ld: the product of a block's steps
  Panels k_columns;          // transposed: keys of earlier blocks, decayed up to the block's start
  float* kk;                 // (kChunk, kChunk), strictly lower: k_i . decay k_j; kept for the backward only
};

inline void gate_space(const Params& p, bool backward, Arena& arena, ChannelGate& gate) {
  const int ld = round_up(p.head_dim, kPanel);
  for (float** rows : {&gate.step, &gate.from_start, &gate.q_in, &gate.k_in, &gate.k_out}) {
    *rows = arena.take(kChunk * ld);
  }
  for (float** rows : {&gate.q_block, &gate.k_block}) *rows = arena.take(kBlock * ld);
  gate.ones = arena.take(kChunk);
  gate.decay = arena.take(ld);
  gate.block_decay = arena.take(ld);
  gate.k_columns = {arena.take(kChunk * ld), ld * kPanel};
  gate.gated.beta = arena.take(kChunk);
  gate.gated.a = arena.take(kChunk * kChunk);
  gate.gated.p = arena.take(kChunk * kChunk);
  gate.kk = backward ? arena.take(kChunk * kChunk) : nullptr;
}

inline void load_steps(const Params& p, const Sequence& s, int head, int64_t begin, int n, int ld,
                       float* step) {
  for (int i = 0; i < n; ++i) {
    const float* g = element(p.g, s, head, begin + i);
    for (int d = 0; d < ld; d += Vec::kLanes) {
      const int left = p.head_dim - d;
      const Vec gate = left > 0 ? load_upto(g + d, left) : zero();
      store(step + i * ld + d, exp(max(splat(kSmallestGate), gate)));
    }
  }
}

// Operands that meet the state before the chunk and the one after it.
inline void decay_rows(const Keys& keys, ChannelGate& gate) {
  const int n = keys.n, ld = keys.ld;
  for (int d = 0; d < ld; d += Vec::kLanes) {
    Vec product = splat(1.0f);
    for (int at = d; at < n * ld; at += ld) {
      product = product * load(gate.step + at);
      store(gate.from_start + at, product);
      store(gate.q_in + at, product * load(keys.q + at));
      store(gate.k_in + at, product * load(keys.k + at));
    }
    store(gate.decay + d, product);
    product = splat(1.0f);
    for (int at = (n - 1) * ld + d; at >= 0; at -= ld) {
      store(gate.k_out + at, product * load(keys.k + at));
      product = product * load(gate.step + at);
    }
  }
}

// q_block, k_block and block_decay of the m tokens from `begin`.
inline void decay_block(const Keys& keys, int begin, int m, ChannelGate& gate) {
  const int ld = keys.ld;
  for (int d = 0; d < ld; d += Vec::kLanes) {
    Vec product = splat(1.0f);
    for (int i = 0; i < m; ++i) {
      const int at = (begin + i) * ld + d;
      product = product * load(gate.step + at);
      store(gate.q_block + i * ld + d, product * load(keys.q + at));
      store(gate.k_block + i * ld + d, product * load(keys.k + at));
    }
    store(gate.block_decay + d, product);
  }
}

// Pairs within a block: p_ij and a_ij (without beta) for begin <= j <= i < begin + m.
[[gnu::noinline]] inline void pairs_in_block(const Keys& keys, int begin, int m, const ChannelGate& gate) {
  const int ld = keys.ld;
  float decayed[kMaxHeadDim];  // k_j, decayed up to token i
  for (int j = begin; j < begin + m; ++j) {
    __builtin_memcpy(decayed, keys.k + j * ld, sizeof(float) * ld);
    gate.gated.p[j * kChunk + j] = dot(keys.q + j * ld, decayed, ld);
    for (int i = j + 1; i < begin + m; ++i) {
      Vec qk = zero(), kk = zero();
      for (int d = 0; d < ld; d += Vec::kLanes) {
        const Vec key = load(gate.step + i * ld + d) * load(decayed + d);
        store(decayed + d, key);
        qk = fma(load(keys.q + i * ld + d), key, qk);
        kk = fma(load(keys.k + i * ld + d), key, kk);
      }
      gate.gated.p[i * kChunk + j] = sum(qk);
      gate.gated.a[i * kChunk + j] = sum(kk);
    }
  }
}

// Lets a block's keys join k_columns: the earlier ones decay through it, its own up to its end. Overwrites
// q_block.
inline void extend_columns(const Keys& keys, int begin, ChannelGate& gate) {
  const int ld = keys.ld;
  for (int p = 0; p < begin / kPanel; ++p) {
    float* panel = gate.k_columns.data + p * gate.k_columns.step;
    for (int d = 0; d < keys.dim; ++d) {
      const Vec factor = splat(gate.block_decay[d]);
      for (int half = 0; half < kPanel; half += Vec::kLanes) {
        store(panel + d * kPanel + half, factor * load(panel + d * kPanel + half));
      }
    }
  }
  for (int d = 0; d < ld; d += Vec::kLanes) {
    Vec product = splat(1.0f);
    for (int i = kBlock - 1; i >= 0; --i) {
      const int at = (begin + i) * ld + d;
      store(gate.q_block + i * ld + d, product * load(keys.k + at));
      product = product * load(gate.step + at);
    }
  }
  const Panels own{gate.k_columns.data + begin / kPanel * gate.k_columns.step, gate.k_columns.step};
  transpose(rows_result(gate.q_block, ld), kBlock, ld / kPanel, own);
}

inline void prepare(const Params& p, const Sequence& s, const Keys& keys, int head, int64_t begin,
                    ChannelGate& gate) {
  const int n = keys.n, ld = keys.ld;
  Gated& gated = gate.gated;
  load_steps(p, s, head, begin, n, ld, gate.step);
  load_beta(p, s, head, begin, n, gated.beta);
  decay_rows(keys, gate);
  for (int first = 0; first < n; first += kBlock) {
    const int m = min_int(kBlock, n - first);
    decay_block(keys, first, m, gate);
    const auto against_earlier = [&](const float* rows, float* to) {
      product<Update::kOverwrite, Layout::kRows>(m, first / kPanel, keys.dim, rows, ld, gate.k_columns,
                                                 rows_result(to + first * kChunk, kChunk));
    };
    against_earlier(gate.q_block, gated.p);
    against_earlier(gate.k_block, gated.a);
    pairs_in_block(keys, first, m, gate);
    if (first + kBlock < n) extend_columns(keys, first, gate);
  }
  for (int i = 0; i < n; ++i) {
    float* row = gated.a + i * kChunk;
    clear(row, i, tile_reach(i));
    clear(gated.p + i * kChunk, i + 1, tile_reach(i));
    if (gate.kk != nullptr) __builtin_memcpy(gate.kk + i * kChunk, row, sizeof(float) * tile_reach(i));
    for (int j = 0; j < i; ++j) row[j] *= -gated.beta[i];
    gate.ones[i] = 1.0f;
  }
  gated.n = n;
  gated.q_in = gate.q_in;
  gated.k_in = gate.k_in;
  gated.k_out = gate.k_out;
  gated.in = gated.out = gate.ones;
  gated.decay = gate.decay;
}

}  // namespace
}  // namespace padfree::gated_delta_rule
