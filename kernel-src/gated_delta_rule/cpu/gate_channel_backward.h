// From the gradients of what gate_channel.h made back to those of q, k, g and beta.
//
// Gradients are kept apart by the end of the decay they belong to: `row`, where the token is the later end
// (or reads the state), and `column`, where it is the earlier one. Every decay spans its gates once, so
//
//   dg_t = sum_{i >= t} (q_i dq_row_i + k_i dk_row_i - k_i dk_column_i) + sum_{j < t} k_j dk_out_j + decay *
//   <dS, S>
//
// channel by channel; where the decay of t itself is 0 so is dg_t.
#pragma once

#include "gated_delta_rule/cpu/gate_channel.h"
#include "gated_delta_rule/cpu/gate_gradients.h"

namespace padfree::gated_delta_rule {
namespace {

struct ChannelScratch {
  float* column;            // kChunk rows of ld: dk_column
  float* to_block;          // kChunk rows: the decay from a token up to the start of the block
  float* from_block;        // kBlock rows: the decay from the start of the block
  Panels k_earlier;         // keys of earlier blocks times to_block
  Panels q_block, k_block;  // kBlock rows
  float* product;           // kChunk rows
};

inline void scratch_space(const Params& p, Arena& arena, ChannelGate&, ChannelScratch& scratch) {
  const int ld = round_up(p.head_dim, kPanel);
  for (float** rows : {&scratch.column, &scratch.to_block, &scratch.product}) *rows = arena.take(kChunk * ld);
  scratch.from_block = arena.take(kBlock * ld);
  scratch.k_earlier = {arena.take(kChunk * ld), kChunk * kPanel};
  scratch.q_block = {arena.take(kBlock * ld), kBlock * kPanel};
  scratch.k_block = {arena.take(kBlock * ld), kBlock * kPanel};
}

// to += a * b, rows of ld.
inline void add_product(const float* a, const float* b, int n, float* to) {
  for (int d = 0; d < n; d += Vec::kLanes) store(to + d, fma(load(a + d), load(b + d), load(to + d)));
}

// g.q_in, g.k_in, g.k_out become parts of dq_row, dk_row and dk_out.
inline void pull_state_rows(const Keys& keys, const ChannelGate& gate, GateGradients& g) {
  for (int d = 0; d < keys.ld; d += Vec::kLanes) {
    Vec to_end = splat(1.0f);
    for (int i = keys.n - 1; i >= 0; --i) {
      const int at = i * keys.ld + d;
      const Vec from_start = load(gate.from_start + at);
      store(g.q_in + at, from_start * load(g.q_in + at));
      store(g.k_in + at, splat(-gate.gated.beta[i]) * (from_start * load(g.k_in + at)));
      store(g.k_out + at, to_end * load(g.k_out + at));
      to_end = to_end * load(gate.step + at);
    }
  }
}

// g.a becomes the gradient of k_i . decay k_j, g.p stays that of q_i . decay k_j without its diagonal, which
// no decay spans: its part goes straight to dq and dk. Finishes dbeta.
inline void pull_pairs(const Keys& keys, const ChannelGate& gate, GateGradients& g, float* dq, float* dk) {
  for (int i = 0; i < keys.n; ++i) {
    float *a = g.a + i * kChunk, *p = g.p + i * kChunk;
    const Vec own = splat(p[i]);
    for (int d = i * keys.ld; d < (i + 1) * keys.ld; d += Vec::kLanes) {
      store(dq + d, fma(own, load(keys.k + d), load(dq + d)));
      store(dk + d, fma(own, load(keys.q + d), load(dk + d)));
    }
    clear(a, i, tile_reach(i));
    clear(p, i, tile_reach(i));
    Vec beta = zero();
    for (int j = 0; j < i; j += Vec::kLanes) {
      beta = fma(load(a + j), load(gate.kk + i * kChunk + j), beta);
      store(a + j, splat(-gate.gated.beta[i]) * load(a + j));
    }
    g.beta[i] -= sum(beta);
  }
}

// Pairs of a block's tokens with those of earlier blocks.
inline void pull_earlier(const Keys& keys, const ChannelGate& gate, int first, int m, GateGradients& g,
                         ChannelScratch& scratch) {
  const int ld = keys.ld, panels = ld / kPanel;
  const Result out = rows_result(scratch.product, ld);
  const float *a = g.a + first * kChunk, *p = g.p + first * kChunk;
  product<Update::kOverwrite, Layout::kRows>(m, panels, first, p, kChunk, scratch.k_earlier, out);
  add_product(scratch.product, scratch.from_block, m * ld, g.q_in + first * ld);
  product<Update::kOverwrite, Layout::kRows>(m, panels, first, a, kChunk, scratch.k_earlier, out);
  add_product(scratch.product, scratch.from_block, m * ld, g.k_in + first * ld);
  copy(rows_result(gate.q_block, ld), m, panels, panels_result(scratch.q_block));
  copy(rows_result(gate.k_block, ld), m, panels, panels_result(scratch.k_block));
  product<Update::kOverwrite, Layout::kTransposed>(first, panels, m, p, kChunk, scratch.q_block, out);
  product<Update::kAdd, Layout::kTransposed>(first, panels, m, a, kChunk, scratch.k_block, out);
  add_product(scratch.product, scratch.to_block, first * ld, scratch.column);
}

// Pairs within a block.
[[gnu::noinline]] inline void pull_block(const Keys& keys, const ChannelGate& gate, int first, int m,
                                         GateGradients& g, float* column) {
  const int ld = keys.ld;
  for (int d = 0; d < ld; d += Vec::kLanes) {
    for (int j = first; j < first + m; ++j) {
      const Vec key = load(keys.k + j * ld + d);
      Vec decay = splat(1.0f), total = load(column + j * ld + d);
      for (int i = j + 1; i < first + m; ++i) {
        const int at = i * ld + d;
        const Vec a = splat(g.a[i * kChunk + j]), p = splat(g.p[i * kChunk + j]);
        decay = decay * load(gate.step + at);
        const Vec decayed = decay * key;
        store(g.q_in + at, fma(p, decayed, load(g.q_in + at)));
        store(g.k_in + at, fma(a, decayed, load(g.k_in + at)));
        total = fma(decay, fma(p, load(keys.q + at), a * load(keys.k + at)), total);
      }
      store(column + j * ld + d, total);
    }
  }
}

// to_block and k_earlier for the block after this one; from_block for this one.
inline void decay_to_next(const Keys& keys, const ChannelGate& gate, int first, int m,
                          ChannelScratch& scratch) {
  const int ld = keys.ld;
  for (int d = 0; d < ld; d += Vec::kLanes) {
    const Vec through = load(gate.block_decay + d);
    Vec product = splat(1.0f);
    for (int j = first + m - 1; j >= 0; --j) {
      const int at = j * ld + d;
      const Vec decay = j >= first ? product : through * load(scratch.to_block + at);
      if (j >= first) product = product * load(gate.step + at);
      store(scratch.to_block + at, decay);
      float* earlier = scratch.k_earlier.data + d / kPanel * scratch.k_earlier.step + j * kPanel + d % kPanel;
      store(earlier, decay * load(keys.k + at));
    }
  }
}

inline void products_from_block(const Keys& keys, const ChannelGate& gate, int first, int m,
                                float* from_block) {
  const int ld = keys.ld;
  for (int d = 0; d < ld; d += Vec::kLanes) {
    Vec product = splat(1.0f);
    for (int i = 0; i < m; ++i) {
      product = product * load(gate.step + (first + i) * ld + d);
      store(from_block + i * ld + d, product);
    }
  }
}

// dq, dk and dg from the parts.
inline void sum_parts(const Params& p, const Sequence& s, const Keys& keys, const ChannelGate& gate, int head,
                      int64_t begin, const GateGradients& g, const float* column, float* dq, float* dk) {
  float before[kChunk * Vec::kLanes];  // sum over earlier tokens of k dk_out
  for (int d = 0; d < keys.ld; d += Vec::kLanes) {
    const int left = keys.dim - d;
    Vec total = zero();
    for (int i = 0; i < keys.n; ++i) {
      const int at = i * keys.ld + d;
      const Vec out = load(g.k_out + at);
      store(before + i * Vec::kLanes, total);
      total = fma(load(keys.k + at), out, total);
      store(dq + at, load(dq + at) + load(g.q_in + at));
      store(dk + at, load(dk + at) + ((load(g.k_in + at) + load(column + at)) + out));
    }
    const Vec through = load(gate.decay + d) * load(g.decay + d);
    Vec later = zero();
    for (int i = keys.n - 1; i >= 0; --i) {
      const int at = i * keys.ld + d;
      const Vec ends = load(g.k_in + at) - load(column + at);
      later = fma(load(keys.q + at), load(g.q_in + at), fma(load(keys.k + at), ends, later));
      const Vec all = (later + load(before + i * Vec::kLanes)) + through;
      const Vec step = load(gate.step + at);
      if (left > 0)
        store_upto(element(p.dg, s, head, begin + i) + d, select(less(zero(), step), all, zero()), left);
    }
  }
}

// dq, dk, dbeta, dg of one chunk of one value head; dq and dk are added to.
inline void pull_back(const Params& p, const Sequence& s, const Keys& keys, Panels, Panels, int head,
                      int64_t begin, ChannelGate& gate, GateGradients& g, ChannelScratch& scratch, float* dq,
                      float* dk) {
  const int n = keys.n;
  pull_state_rows(keys, gate, g);
  pull_pairs(keys, gate, g, dq, dk);
  clear(scratch.column, 0, n * keys.ld);
  for (int first = 0; first < n; first += kBlock) {
    const int m = min_int(kBlock, n - first);
    decay_block(keys, first, m, gate);
    products_from_block(keys, gate, first, m, scratch.from_block);
    if (first > 0) pull_earlier(keys, gate, first, m, g, scratch);
    pull_block(keys, gate, first, m, g, scratch.column);
    if (first + kBlock < n) decay_to_next(keys, gate, first, m, scratch);
  }
  sum_parts(p, s, keys, gate, head, begin, g, scratch.column, dq, dk);
  for (int i = 0; i < n; ++i) *element(p.dbeta, s, head, begin + i) = g.beta[i];
}

}  // namespace
}  // namespace padfree::gated_delta_rule
