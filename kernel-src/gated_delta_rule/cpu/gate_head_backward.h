// From the gradients of what gate_head.h made back to those of q, k, g and beta.
//
// g enters through decays between two points of time, each of which spans every gate in between. Summing
// those spans directly (below, `crossing`) rather than as q.dq - k.dk keeps a gate's gradient free of
// cancellation between pairs that do not span it: it is exactly zero where the decay is.
#pragma once

#include "gated_delta_rule/cpu/gate_gradients.h"
#include "gated_delta_rule/cpu/gate_head.h"

namespace padfree::gated_delta_rule {
namespace {

// The head's gate needs no more than GateGradients holds.
struct HeadScratch {};

inline void scratch_space(const Params&, Arena&, HeadGate&, HeadScratch&) {}

// Parts of dq and dk that came through the state, and their effect on g.
inline void pull_rows(const Keys& keys, const HeadGate& gate, GateGradients& g, float* dq, float* dk) {
  for (int i = 0; i < keys.n; ++i) {
    const int row = i * keys.ld;
    const Vec in = splat(gate.in[i]), k_in = splat(-gate.gated.beta[i] * gate.in[i]),
              out = splat(gate.out[i]);
    Vec from_state = zero(), to_state = zero();
    for (int d = row; d < row + keys.ld; d += Vec::kLanes) {
      const Vec q = load(keys.q + d), k = load(keys.k + d);
      const Vec q_part = in * load(g.q_in + d), k_part = k_in * load(g.k_in + d),
                out_part = out * load(g.k_out + d);
      from_state = fma(q, q_part, fma(k, k_part, from_state));
      to_state = fma(k, out_part, to_state);
      store(dq + d, load(dq + d) + q_part);
      store(dk + d, load(dk + d) + (k_part + out_part));
    }
    g.from_state[i] = sum(from_state);
    g.to_state[i] = sum(to_state);
  }
}

// g.a, g.p become the gradients of k_i . k_j and q_i . k_j; finishes dbeta; writes dg.
inline void pull_pairs(const Keys& keys, const HeadGate& gate, GateGradients& g, float* dg, int64_t dg_step) {
  const int n = keys.n;
  float* crossing = g.crossing;  // [j]: sum over i >= t of the pairs (i, j)
  clear(crossing, 0, kChunk);
  float later = 0.0f, through = 0.0f;
  for (int d = 0; d < keys.dim; ++d) through = g.decay[d] * gate.state_decay + through;
  for (int i = n - 1; i >= 0; --i) {
    const int row = i * kChunk, reach = tile_reach(i);
    clear(g.a + row, i, reach);
    clear(g.p + row, i + 1, reach);
    Vec beta = zero();
    const Vec minus_beta = splat(-gate.gated.beta[i]);
    for (int j = 0; j <= i; j += Vec::kLanes) {
      const Vec pair = load(gate.pairs + row + j), kk = load(keys.kk + row + j);
      const Vec da = pair * load(g.a + row + j), dqk = pair * load(g.p + row + j), dkk = minus_beta * da;
      beta = fma(da, kk, beta);
      store(crossing + j, load(crossing + j) + fma(dqk, load(keys.qk + row + j), dkk * kk));
      store(g.a + row + j, dkk);
      store(g.p + row + j, dqk);
    }
    g.beta[i] -= sum(beta);
    later += g.from_state[i];
    float earlier = 0.0f;
    for (int j = 0; j < i; ++j) earlier += crossing[j] + g.to_state[j];
    dg[i * dg_step] = later + earlier + through;
  }
}

// dq, dk, dbeta, dg of one chunk of one value head; dq and dk are added to.
inline void pull_back(const Params& p, const Sequence& s, const Keys& keys, Panels q_panels, Panels k_panels,
                      int head, int64_t begin, HeadGate& gate, GateGradients& g, HeadScratch&, float* dq,
                      float* dk) {
  const int n = keys.n, panels = keys.ld / kPanel;
  pull_rows(keys, gate, g, dq, dk);
  pull_pairs(keys, gate, g, element(p.dg, s, head, begin), p.dg.row_stride);
  const Result to_q = rows_result(dq, keys.ld), to_k = rows_result(dk, keys.ld);
  product<Update::kAdd, Layout::kRows, Shape::kLower>(n, panels, n, g.p, kChunk, k_panels, to_q);
  product<Update::kAdd, Layout::kRows, Shape::kLower>(n, panels, n, g.a, kChunk, k_panels, to_k);
  product<Update::kAdd, Layout::kTransposed, Shape::kUpper>(n, panels, n, g.a, kChunk, k_panels, to_k);
  product<Update::kAdd, Layout::kTransposed, Shape::kUpper>(n, panels, n, g.p, kChunk, q_panels, to_k);
  for (int i = 0; i < n; ++i) *element(p.dbeta, s, head, begin + i) = g.beta[i];
}

}  // namespace
}  // namespace padfree::gated_delta_rule
