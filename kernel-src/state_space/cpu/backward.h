// Backward: one task walks the chunks of a sequence from the last to the first, for some heads of one group.
// Its part of dB and dC sums over these heads in order; `gather` sums the parts. The derivation is in
// README.md; names here are those of steps.h, with a d in front of gradients.
//
// Needs the state before each chunk, which the forward saved. Everything else of a chunk is computed again.
// dB and dC are kept transposed, (state_dim, tokens): then the states, which are (state_dim, head_dim), stand
// on the left of their products as they are, and only rows of x and dout have to be turned.
#pragma once

#include "state_space/cpu/forward.h"
#include "state_space/cpu/pairs.h"

namespace padfree::state_space {
namespace {

struct BackwardSpace {
  Shared shared;
  Steps steps;
  Pairs pairs;
  float* dstates;  // one for each head of the task: the gradient of the state after the chunk
  int state_floats;
  float* first_state;            // the initial state of one head
  float *x, *dy, *du, *scratch;  // rows of width
  Panels x_panels, dy_panels, in_dy_panels;
  Panels x_transposed, dy_transposed, weighted_x_transposed;  // (width, kChunk)
  Panels db, dc, dc_head;                                     // (ld, kChunk): transposed
  Panels dcb, dcb_transposed;                                 // (kChunk, kChunk)
  Panels turned;                                              // (kChunk, ld)
  float *dg, *ddt;                                            // kChunk
};

inline BackwardSpace backward_space(const Params& p, Arena& arena) {
  const int ld = round_up(p.state_dim, kPanel), width = round_up(p.head_dim, kPanel);
  const auto panels = [&](int rows, int columns) {
    return Panels{arena.take(rows * columns), rows * kPanel};
  };
  BackwardSpace space;
  space.shared = shared_space(p, true, arena);
  space.steps = steps_space(p, true, arena);
  space.pairs = pairs_space(arena);
  space.state_floats = p.state_dim * width;
  space.dstates = arena.take(static_cast<int64_t>(p.group) * space.state_floats);
  space.first_state = arena.take(space.state_floats);
  for (float** rows : {&space.x, &space.dy, &space.du, &space.scratch}) *rows = arena.take(kChunk * width);
  for (Panels* x : {&space.x_panels, &space.dy_panels, &space.in_dy_panels}) *x = panels(kChunk, width);
  for (Panels* x : {&space.x_transposed, &space.dy_transposed, &space.weighted_x_transposed}) {
    *x = panels(width, kChunk);
  }
  for (Panels* x : {&space.db, &space.dc, &space.dc_head}) *x = panels(ld, kChunk);
  for (Panels* x : {&space.dcb, &space.dcb_transposed}) *x = panels(kChunk, kChunk);
  space.turned = panels(kChunk, ld);
  space.dg = arena.take(kChunk);
  space.ddt = arena.take(kChunk);
  return space;
}

// dy := dout * silu(z), and y := dout * y * silu'(z) = dz, rows of width
template <typename T>
[[gnu::noinline]] void pull_gate_of(void* const* z_rows, int n, int dim, float* dy, float* y, int width) {
  const Vec one = splat(1.0f);
  for (int i = 0; i < n; ++i) {
    const T* row = static_cast<const T*>(z_rows[i]);
    for (int d = 0; d < dim; d += Vec::kLanes) {
      const Vec z = load_upto(row + d, dim - d), dout = load(dy + i * width + d), open = sigmoid(z);
      store(y + i * width + d, dout * load(y + i * width + d) * (open * fma(z, one - open, one)));
      store(dy + i * width + d, dout * (z * open));
    }
  }
}

// Where there is a gate: y again, then dz, and dy without the gate.
inline void pull_gate(const Params& p, const Sequence& s, int head, int64_t begin, int width,
                      const Panels* state, BackwardSpace& space) {
  if (p.z.data == nullptr) return;
  const int n = space.shared.n;
  float* mix = space.pairs.dmix;  // free until dmix itself is computed
  mix_of(p, head, space.shared, space.steps, mix);
  copy(rows_result(space.x, width), n, width / kPanel, panels_result(space.x_panels));
  scan_rows(p, space.shared, space.steps, mix, space.x_panels, state, space.scratch, width);
  add_skip(p, s, head, begin, n, space.scratch, width);
  void* rows[kChunk];
  row_pointers(p.dtype, p.z, s, head, begin, n, rows);
  with_dtype(p.dtype, [&](auto tag) {
    pull_gate_of<typename decltype(tag)::type>(rows, n, p.head_dim, space.dy, space.scratch, width);
  });
  store_rows(p, p.dz, s, head, begin, n, p.head_dim, space.scratch, width);
}

// <a, b> of two states
inline float dot_states(const Params& p, Panels a, Panels b, int panels) {
  float total = 0.0f;
  for (int i = 0; i < panels; ++i)
    total += dot(a.data + i * a.step, b.data + i * b.step, p.state_dim * kPanel);
  return total;
}

// du_j = sum_i (C_i.B_j) decay(j..i) dY_i + out_j dS^T B_j, the gradient of dt_j x_j; what of it reaches dt_j
// and the decay from j to the chunk's end; dx.
inline void pull_values(const Params& p, const Sequence& s, int head, int64_t begin, int width,
                        const Panels* dstate, BackwardSpace& space) {
  const Steps& steps = space.steps;
  const int n = steps.n, panels = width / kPanel;
  const Result du = rows_result(space.du, width);
  if (dstate != nullptr) {
    product<Update::kOverwrite, Layout::kRows>(n, panels, p.state_dim, space.shared.b, space.shared.ld,
                                               *dstate, du);
    for (int j = 0; j < n; ++j) {
      space.pairs.to_state[j] = steps.weight[j] * dot(space.x + j * width, space.du + j * width, width);
    }
    product<Update::kScaleAdd, Layout::kTransposed, Shape::kUpper>(n, panels, n, space.pairs.decayed_cb,
                                                                   kChunk, space.dy_panels, du, steps.out);
  } else {
    clear(space.pairs.to_state, 0, n);
    product<Update::kOverwrite, Layout::kTransposed, Shape::kUpper>(n, panels, n, space.pairs.decayed_cb,
                                                                    kChunk, space.dy_panels, du);
  }
  const float* skip =
      p.D == nullptr ? nullptr : p.D + static_cast<int64_t>(head) * (p.d_per_channel ? p.head_dim : 1);
  for (int j = 0; j < n; ++j) {
    float* row = space.du + j * width;
    const float* dy = space.dy + j * width;
    const Vec dt = splat(steps.dt[j]);
    Vec direct = zero();
    for (int d = 0; d < width; d += Vec::kLanes) {
      const Vec gradient = load(row + d);
      direct = fma(load(space.x + j * width + d), gradient, direct);
      Vec dx = dt * gradient;
      if (skip != nullptr && p.d_per_channel) {
        if (d < p.head_dim) dx = fma(load_upto(skip + d, p.head_dim - d), load(dy + d), dx);
      } else if (skip != nullptr) {
        dx = fma(splat(*skip), load(dy + d), dx);
      }
      store(row + d, dx);
    }
    space.pairs.direct[j] = sum(direct);
  }
  store_rows(p, p.dx, s, head, begin, n, p.head_dim, space.du, width);
}

// dD, from dmix where it is one number a head.
inline void pull_skip(const Params& p, int64_t sequence, int head, int width, BackwardSpace& space) {
  if (p.dD == nullptr) return;
  const int n = space.steps.n;
  const int64_t owner = sequence * p.heads + head;
  if (!p.d_per_channel) {
    for (int i = 0; i < n; ++i) p.dD[owner] += space.pairs.dmix[i * kChunk + i];
    return;
  }
  float* dskip = p.dD + owner * p.head_dim;
  for (int d = 0; d < p.head_dim; d += Vec::kLanes) {
    Vec total = zero();
    for (int i = 0; i < n; ++i)
      total = fma(load(space.dy + i * width + d), load(space.x + i * width + d), total);
    store_upto(dskip + d, load_upto(dskip + d, p.head_dim - d) + total, p.head_dim - d);
  }
}

// dC += in * (S dY^T), and what of it the decays from the chunk's start get.
inline void pull_queries(const Params& p, Panels state, BackwardSpace& space) {
  const Steps& steps = space.steps;
  const int panels = ceil_div(steps.n, kPanel);
  product<Update::kOverwrite, Layout::kPanels>(p.state_dim, panels, p.head_dim, state.data, state.step,
                                               space.dy_transposed, panels_result(space.dc_head));
  for (int column = 0; column < panels * kPanel; column += Vec::kLanes) {
    const int at = column / kPanel * space.dc.step + column % kPanel;
    const Vec in = load(steps.in + column);
    Vec along = zero();
    for (int d = at; d < at + p.state_dim * kPanel; d += kPanel) {
      const Vec part = load(space.dc_head.data + d);
      along = fma(load(space.shared.c_transposed.data + d), part, along);
      store(space.dc.data + d, fma(in, part, load(space.dc.data + d)));
    }
    store(space.pairs.from_state + column, in * along);
  }
}

// dB += weight * (dS X^T)
inline void pull_keys(const Params& p, Panels dstate, int width, BackwardSpace& space) {
  const int panels = ceil_div(space.steps.n, kPanel);
  for (int column = 0; column < panels * kPanel; column += Vec::kLanes) {
    const int at = column / kPanel * space.x_transposed.step + column % kPanel;
    const Vec weight = load(space.steps.weight + column);
    for (int d = at; d < at + width * kPanel; d += kPanel) {
      store(space.weighted_x_transposed.data + d, weight * load(space.x_transposed.data + d));
    }
  }
  product<Update::kAdd, Layout::kPanels>(p.state_dim, panels, p.head_dim, dstate.data, dstate.step,
                                         space.weighted_x_transposed, panels_result(space.db));
}

// dS <- decay * dS + C^T (in * dY)
inline void step_state_gradient(const Params& p, bool has_dstate, int panels, Panels dstate,
                                BackwardSpace& space) {
  const Steps& steps = space.steps;
  scale_rows(space.dy_panels, steps.in, steps.n, panels, space.in_dy_panels);
  const Result to = panels_result(dstate);
  if (has_dstate) {
    product<Update::kScaleAdd, Layout::kTransposed>(p.state_dim, panels, steps.n, space.shared.c,
                                                    space.shared.ld, space.in_dy_panels, to, steps.decay);
  } else {
    product<Update::kOverwrite, Layout::kTransposed>(p.state_dim, panels, steps.n, space.shared.c,
                                                     space.shared.ld, space.in_dy_panels, to);
  }
}

// ddt of the chunk; what it adds to dA and ddt_bias.
inline void pull_steps(const Params& p, const Sequence& s, int64_t sequence, int head, int64_t begin,
                       BackwardSpace& space) {
  const Steps& steps = space.steps;
  double dA = 0.0, bias = 0.0;
  for (int i = 0; i < steps.n; ++i) {
    const float ddt = (space.pairs.direct[i] + p.A[head] * space.dg[i]) * steps.slope[i];
    *element(p.ddt, s, head, begin + i) = ddt;
    dA += static_cast<double>(space.dg[i]) * steps.dt[i];
    bias += ddt;
  }
  p.dA[sequence * p.heads + head] += dA;
  p.dt_bias_sums[sequence * p.heads + head] += bias;
}

inline void backward_chunk(const Params& p, const Task& task, int head, int64_t begin, const Panels* state,
                           bool has_dstate, Panels dstate, BackwardSpace& space) {
  const Sequence& s = p.sequences[task.sequence];
  const int n = space.shared.n, width = round_up(p.head_dim, kPanel), panels = width / kPanel;
  load_steps(p, s, head, begin, n, space.steps);
  load_rows(p, p.x, s, head, begin, n, p.head_dim, space.x, width);
  load_rows(p, p.dout, s, head, begin, n, p.head_dim, space.dy, width);
  pull_gate(p, s, head, begin, width, state, space);
  copy(rows_result(space.dy, width), n, panels, panels_result(space.dy_panels));
  decay_pairs(space.shared, space.steps, space.pairs);
  pull_values(p, s, head, begin, width, has_dstate ? &dstate : nullptr, space);
  transpose(rows_result(space.x, width), n, panels, space.x_transposed);
  transpose(rows_result(space.dy, width), n, panels, space.dy_transposed);
  product<Update::kOverwrite, Layout::kRows, Shape::kLowerOut>(n, ceil_div(n, kPanel), p.head_dim, space.dy,
                                                               width, space.x_transposed,
                                                               rows_result(space.pairs.dmix, kChunk));
  pull_skip(p, task.sequence, head, width, space);
  if (state != nullptr) {
    pull_queries(p, *state, space);
  } else {
    clear(space.pairs.from_state, 0, n);
  }
  if (has_dstate) pull_keys(p, dstate, width, space);
  const bool through = state != nullptr && has_dstate;
  space.pairs.through = through ? space.steps.decay[0] * dot_states(p, dstate, *state, panels) : 0.0f;
  pull_pairs(space.steps, space.pairs, space.dg);
  pull_steps(p, s, task.sequence, head, begin, space);
  if (begin > 0 || (s.initial >= 0 && p.dinitial_states != nullptr)) {
    step_state_gradient(p, has_dstate, panels, dstate, space);
  }
}

// One part of dB or dC of the chunk's rows, out of its transpose.
inline void save_part(const Params& p, const Task& task, int64_t begin, Panels transposed, float* parts,
                      BackwardSpace& space) {
  const Sequence& s = p.sequences[task.sequence];
  const int n = space.shared.n;
  transpose(panels_result(transposed), p.state_dim, ceil_div(n, kPanel), space.turned);
  const int64_t groups = p.heads / p.group, group = task.head_begin / p.group;
  const int64_t first = (task.part * p.batch + s.batch) * p.rows + s.begin + begin;
  for (int i = 0; i < n; ++i) {
    float* row = parts + ((first + i) * groups + group) * p.state_dim;
    for (int d = 0; d < p.state_dim; d += Vec::kLanes) {
      const float* from = space.turned.data + d / kPanel * space.turned.step + i * kPanel + d % kPanel;
      store_upto(row + d, load(from), p.state_dim - d);
    }
  }
}

// What C_i . B_j gives to both, for all heads at once: dC += dcb B, dB += dcb^T C, transposed.
inline void pull_products(const Params& p, BackwardSpace& space) {
  const int n = space.shared.n, ld = space.shared.ld, panels = ceil_div(n, kPanel);
  copy(rows_result(space.pairs.dcb, kChunk), n, panels, panels_result(space.dcb));
  transpose(rows_result(space.pairs.dcb, kChunk), n, panels, space.dcb_transposed);
  for (int i = 0; i < panels; ++i) {
    const int first = i * kPanel, end = min_int(n, first + kPanel), step = space.dc.step;
    const Panels earlier{space.dcb_transposed.data + i * space.dcb_transposed.step, 0};
    product<Update::kAdd, Layout::kTransposed>(p.state_dim, 1, end, space.shared.b, ld, earlier,
                                               panels_result({space.dc.data + i * step, step}));
    const Panels later{space.dcb.data + i * space.dcb.step + first * kPanel, 0};
    product<Update::kAdd, Layout::kTransposed>(p.state_dim, 1, n - first, space.shared.c + first * ld, ld,
                                               later, panels_result({space.db.data + i * step, step}));
  }
}

void backward(const Params& p, const Task& task, float* workspace) {
  Arena arena{workspace};
  BackwardSpace space = backward_space(p, arena);
  const Sequence& s = p.sequences[task.sequence];
  Shared& shared = space.shared;
  const int width = round_up(p.head_dim, kPanel), panels = width / kPanel, step = p.state_dim * kPanel;
  const auto dstate_of = [&](int head) {
    return Panels{space.dstates + static_cast<int64_t>(head - task.head_begin) * space.state_floats, step};
  };
  bool has_dstate = s.final >= 0 && p.dfinal_states != nullptr;
  for (int head = task.head_begin; head < task.head_end; ++head) {
    if (has_dstate) {
      load_state(p, p.dfinal_states + outside(p, s.final, head), dstate_of(head));
    } else if (s.length == 0) {
      clear_state(dstate_of(head), panels);
    }
  }
  // The state before the first chunk comes as the caller gave it, one head after another.
  const Panels first_state{space.first_state, step};
  for (int64_t chunk = (s.length + kChunk - 1) / kChunk - 1; chunk >= 0; --chunk) {
    const int64_t begin = chunk * kChunk;
    load_shared(p, s, task.head_begin / p.group, begin, min_int(kChunk, s.length - begin), shared);
    transpose(rows_result(shared.c, shared.ld), shared.n, shared.ld / kPanel, shared.c_transposed);
    for (Panels x : {space.db, space.dc}) clear(x.data, 0, shared.ld * round_up(shared.n, kPanel));
    clear(space.pairs.dcb, 0, kChunk * kChunk);
    for (int head = task.head_begin; head < task.head_end; ++head) {
      Panels state = first_state;
      if (begin > 0) {
        state.data = p.states + ((s.first_state + chunk - 1) * p.heads + head) * p.state_stride;
      } else if (s.initial >= 0) {
        load_state(p, p.initial_states + outside(p, s.initial, head), state);
      }
      const bool has_state = begin > 0 || s.initial >= 0;
      backward_chunk(p, task, head, begin, has_state ? &state : nullptr, has_dstate, dstate_of(head), space);
    }
    has_dstate = true;
    pull_products(p, space);
    save_part(p, task, begin, space.db, p.dB_parts, space);
    save_part(p, task, begin, space.dc, p.dC_parts, space);
  }
  if (s.initial < 0 || p.dinitial_states == nullptr) return;
  for (int head = task.head_begin; head < task.head_end; ++head) {
    store_state(p, dstate_of(head), p.dinitial_states + outside(p, s.initial, head));
  }
}

// Row `row` of the flattened (batch, row) of one group, summed over the parts in order and rounded.
template <typename T>
[[gnu::noinline]] void gather_row(const Params& p, const float* parts, const View& view, int64_t row) {
  const int groups = p.heads / p.group;
  const int64_t step = p.batch * p.rows * groups * p.state_dim;
  for (int group = 0; group < groups; ++group) {
    const float* in = parts + (row * groups + group) * p.state_dim;
    T* out = static_cast<T*>(view.data) + row / p.rows * view.batch_stride + row % p.rows * view.row_stride +
             group * view.head_stride;
    for (int d = 0; d < p.state_dim; d += Vec::kLanes) {
      const int left = p.state_dim - d;
      Vec total = load_upto(in + d, left);
      for (int part = 1; part < p.parts; ++part) total = total + load_upto(in + part * step + d, left);
      store_upto(out + d, total, left);
    }
  }
}

void gather(const Params& p, int64_t begin, int64_t end) {
  with_dtype(p.dtype, [&](auto tag) {
    for (int64_t row = begin; row < end; ++row) {
      gather_row<typename decltype(tag)::type>(p, p.dB_parts, p.dB, row);
      gather_row<typename decltype(tag)::type>(p, p.dC_parts, p.dC, row);
    }
  });
}

}  // namespace
}  // namespace padfree::state_space
