// Backward: one task walks the chunks of one sequence and key head from the last to the first, all value
// heads of the group in turn, so that dq and dk sum over the group in a fixed order. The derivation is in
// README.md; names here are those of gate.h, with a d in front of gradients, and Y the gradient of beta * X.
//
// Needs the state before each chunk, which the forward saved. Everything else of a chunk is computed again.
#pragma once

#include "gated_delta_rule/cpu/gate_channel_backward.h"
#include "gated_delta_rule/cpu/gate_head_backward.h"
#include "gated_delta_rule/cpu/values.h"

namespace padfree::gated_delta_rule {
namespace {

template <typename Gate, typename Scratch>
struct BackwardSpace {
  Keys keys;
  Panels q_panels, k_panels;
  Gate gate;
  GateGradients gradients;
  Scratch scratch_of_gate;
  float *dq, *dk;  // rows, summed over the group
  float* dstates;  // one for each value head: the gradient of the state after the chunk
  int state_floats;
  Panels state_transposed, dstate_transposed;
  Panels x, d, y, dout, scratch;  // kChunk rows of value columns
  Panels d_transposed;
  float *d_rows, *y_rows, *dout_rows;
  float* dv;
};

template <typename Gate, typename Scratch>
inline BackwardSpace<Gate, Scratch> backward_space(const Params& p, Arena& arena) {
  const int ld = round_up(p.head_dim, kPanel), width = round_up(p.head_dim_v, kPanel);
  const auto panels = [&](int rows, int columns) {
    return Panels{arena.take(rows * columns), rows * kPanel};
  };
  BackwardSpace<Gate, Scratch> space;
  space.keys = keys_space(p, arena);
  space.q_panels = panels(kChunk, ld);
  space.k_panels = panels(kChunk, ld);
  gate_space(p, true, arena, space.gate);
  scratch_space(p, arena, space.gate, space.scratch_of_gate);
  space.gradients = gate_gradients_space(p, arena);
  space.dq = arena.take(kChunk * ld);
  space.dk = arena.take(kChunk * ld);
  space.state_floats = p.head_dim * width;
  space.dstates = arena.take(static_cast<int64_t>(p.group) * space.state_floats);
  space.state_transposed = panels(width, ld);
  space.dstate_transposed = panels(width, ld);
  for (Panels* x : {&space.x, &space.d, &space.y, &space.dout, &space.scratch}) *x = panels(kChunk, width);
  space.d_transposed = panels(width, kChunk);
  for (float** x : {&space.d_rows, &space.y_rows, &space.dout_rows, &space.dv})
    *x = arena.take(kChunk * width);
  return space;
}

// Y = (1 - A^T)^-1 (P^T dO + out * (K_out dS)), and its rows, and dv = beta * Y.
template <typename Space>
inline void solve_right_side_gradient(const Params& p, const Gated& gated, int ld, const Panels* dstate,
                                      Space& space) {
  const int n = gated.n, width = round_up(p.head_dim_v, kPanel), panels = width / kPanel;
  const Result y = panels_result(space.y);
  if (dstate != nullptr) {
    product<Update::kOverwrite, Layout::kRows>(n, panels, p.head_dim, gated.k_out, ld, *dstate, y);
    product<Update::kScaleAdd, Layout::kTransposed, Shape::kUpper>(n, panels, n, gated.p, kChunk, space.dout,
                                                                   y, gated.out);
  } else {
    product<Update::kOverwrite, Layout::kTransposed, Shape::kUpper>(n, panels, n, gated.p, kChunk, space.dout,
                                                                    y);
  }
  solve_lower_transposed(n, panels, gated.a, kChunk, space.y);
}

// g.beta = Y . X, by rows
inline void dot_rows(Panels a, Panels b, int n, int panels, float* out) {
  for (int i = 0; i < n; ++i) {
    Vec total = zero();
    for (int p = 0; p < panels; ++p) {
      for (int half = 0; half < kPanel; half += Vec::kLanes) {
        const int at = p * a.step + i * kPanel + half;
        total = fma(load(a.data + at), load(b.data + at), total);
      }
    }
    out[i] = sum(total);
  }
}

// What reaches the gate: the products of Y, dO and D with states and with each other.
template <typename Space>
inline void gate_gradients(const Params& p, const Gated& gated, int ld, const Panels* state,
                           const Panels* dstate, Space& space) {
  const int n = gated.n, width = round_up(p.head_dim_v, kPanel), panels = width / kPanel;
  GateGradients& g = space.gradients;
  const auto times = [&](const float* rows, Panels transposed, float* out) {
    product<Update::kOverwrite, Layout::kRows>(n, ld / kPanel, p.head_dim_v, rows, width, transposed,
                                               rows_result(out, ld));
  };
  if (state != nullptr) {
    transpose(panels_result(*state), p.head_dim, panels, space.state_transposed);
    times(space.dout_rows, space.state_transposed, g.q_in);
    times(space.y_rows, space.state_transposed, g.k_in);
  } else {
    clear(g.q_in, 0, n * ld);
    clear(g.k_in, 0, n * ld);
  }
  if (dstate != nullptr) {
    transpose(panels_result(*dstate), p.head_dim, panels, space.dstate_transposed);
    times(space.d_rows, space.dstate_transposed, g.k_out);
  } else {
    clear(g.k_out, 0, n * ld);
  }
  if (state != nullptr && dstate != nullptr) {
    dot_rows(*state, *dstate, p.head_dim, panels, g.decay);
  } else {
    clear(g.decay, 0, p.head_dim);
  }
  dot_rows(space.y, space.x, n, panels, g.beta);
  transpose(rows_result(space.d_rows, width), n, panels, space.d_transposed);
  const auto lower = [&](const float* rows, float* out) {
    product<Update::kOverwrite, Layout::kRows, Shape::kLowerOut>(
        n, ceil_div(n, kPanel), p.head_dim_v, rows, width, space.d_transposed, rows_result(out, kChunk));
  };
  lower(space.y_rows, g.a);
  lower(space.dout_rows, g.p);
}

// dS <- decay * dS + Q_in^T (in * dO) - K_in^T (in * beta * Y); overwrites dout and y.
template <typename Space>
inline void step_state_gradient(const Params& p, const Gated& gated, int ld, bool has_dstate, Panels dstate,
                                Space& space) {
  const int n = gated.n, panels = round_up(p.head_dim_v, kPanel) / kPanel;
  float factor[kChunk];
  for (int i = 0; i < n; ++i) factor[i] = -gated.in[i] * gated.beta[i];
  scale_rows(space.dout, gated.in, n, panels, space.dout);
  scale_rows(space.y, factor, n, panels, space.y);
  const Result to = panels_result(dstate);
  if (has_dstate) {
    product<Update::kScaleAdd, Layout::kTransposed>(p.head_dim, panels, n, gated.q_in, ld, space.dout, to,
                                                    gated.decay);
  } else {
    product<Update::kOverwrite, Layout::kTransposed>(p.head_dim, panels, n, gated.q_in, ld, space.dout, to);
  }
  product<Update::kAdd, Layout::kTransposed>(p.head_dim, panels, n, gated.k_in, ld, space.y, to);
}

template <typename Space>
inline void backward_chunk(const Params& p, const Sequence& s, int head, int64_t begin, const Panels* state,
                           bool has_dstate, Panels dstate, Space& space) {
  const int n = space.keys.n, ld = space.keys.ld;
  const int width = round_up(p.head_dim_v, kPanel), panels = width / kPanel;
  const Gated& gated = space.gate.gated;
  prepare(p, s, space.keys, head, begin, space.gate);
  solve_values(p, s, head, begin, gated, ld, {0, p.head_dim_v, panels}, state != nullptr,
               state != nullptr ? *state : Panels{}, space.d, &space.x, Nothing{});
  load_rows(p, p.dout, s, head, begin, n, p.head_dim_v, space.dout_rows, width);
  copy(rows_result(space.dout_rows, width), n, panels, panels_result(space.dout));
  solve_right_side_gradient(p, gated, ld, has_dstate ? &dstate : nullptr, space);
  copy(panels_result(space.d), n, panels, rows_result(space.d_rows, width));
  copy(panels_result(space.y), n, panels, rows_result(space.y_rows, width));
  scale_rows(space.y, gated.beta, n, panels, space.scratch);
  copy(panels_result(space.scratch), n, panels, rows_result(space.dv, width));
  store_rows(p, p.dv, s, head, begin, n, p.head_dim_v, space.dv, width);
  gate_gradients(p, gated, ld, state, has_dstate ? &dstate : nullptr, space);
  pull_back(p, s, space.keys, space.q_panels, space.k_panels, head, begin, space.gate, space.gradients,
            space.scratch_of_gate, space.dq, space.dk);
  step_state_gradient(p, gated, ld, has_dstate, dstate, space);
}

// The gradient of x where `rows` hold y = factor * x, or y = factor * x / |x|: in place in dy.
inline void pull_norm(const float* rows, int n, int ld, float factor, const float* inverse_norm, float* dy) {
  for (int i = 0; i < n; ++i) {
    if (inverse_norm == nullptr) {
      scale_row(dy + i * ld, factor, ld);
      continue;
    }
    const float along = dot(rows + i * ld, dy + i * ld, ld) / (factor * factor);
    const Vec all = splat(factor * inverse_norm[i]);
    for (int d = i * ld; d < i * ld + ld; d += Vec::kLanes) {
      store(dy + d, all * fnma(splat(along), load(rows + d), load(dy + d)));
    }
  }
}

template <typename Gate, typename Scratch>
void backward(const Params& p, const Task& task, float* workspace) {
  Arena arena{workspace};
  BackwardSpace<Gate, Scratch> space = backward_space<Gate, Scratch>(p, arena);
  const Sequence& s = p.sequences[task.sequence];
  Keys& keys = space.keys;
  const int ld = keys.ld, panels = ld / kPanel, step = p.head_dim * kPanel, heads = p.heads_k * p.group;
  const auto dstate_of = [&](int r) { return Panels{space.dstates + r * space.state_floats, step}; };
  const auto outside = [&](int r) {
    return (s.index * heads + task.key_head * p.group + r) * p.head_dim * p.head_dim_v;
  };
  for (int r = 0; r < p.group; ++r) {
    if (p.dfinal_state != nullptr) {
      load_state(p.dfinal_state + outside(r), p.head_dim_v, p.head_dim, p.head_dim_v, dstate_of(r));
    } else {
      clear_state(dstate_of(r), round_up(p.head_dim_v, kPanel) / kPanel);
    }
  }
  bool has_dstate = p.dfinal_state != nullptr;
  for (int64_t chunk = (s.length + kChunk - 1) / kChunk - 1; chunk >= 0; --chunk) {
    const int64_t begin = chunk * kChunk;
    const int n = min_int(kChunk, s.length - begin);
    load_keys(p, s, task.key_head, begin, n, keys);
    copy(rows_result(keys.q, ld), n, panels, panels_result(space.q_panels));
    copy(rows_result(keys.k, ld), n, panels, panels_result(space.k_panels));
    clear(space.dq, 0, n * ld);
    clear(space.dk, 0, n * ld);
    for (int r = 0; r < p.group; ++r) {
      const int head = task.key_head * p.group + r;
      const Panels state{p.states + ((s.first_chunk + chunk) * heads + head) * p.state_stride, step};
      const bool has_state = begin > 0 || p.initial_state != nullptr;
      backward_chunk(p, s, head, begin, has_state ? &state : nullptr, has_dstate, dstate_of(r), space);
    }
    has_dstate = true;
    pull_norm(keys.q, n, ld, p.scale, p.l2norm ? keys.q_inverse_norm : nullptr, space.dq);
    pull_norm(keys.k, n, ld, 1.0f, p.l2norm ? keys.k_inverse_norm : nullptr, space.dk);
    store_rows(p, p.dq, s, task.key_head, begin, n, p.head_dim, space.dq, ld);
    store_rows(p, p.dk, s, task.key_head, begin, n, p.head_dim, space.dk, ld);
  }
  if (p.dinitial_state == nullptr) return;
  for (int r = 0; r < p.group; ++r) {
    store_state(dstate_of(r), p.head_dim, p.head_dim_v, p.dinitial_state + outside(r), p.head_dim_v);
  }
}

}  // namespace
}  // namespace padfree::gated_delta_rule
