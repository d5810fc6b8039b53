// Forward: one task walks the chunks of a sequence, for some value heads of one key head and some value
// columns. States stay in the workspace (L2) from chunk to chunk. Columns do not depend on each other, so
// cutting them into tasks changes no bit.
#pragma once

#include "gated_delta_rule/cpu/gate_channel.h"
#include "gated_delta_rule/cpu/gate_head.h"
#include "gated_delta_rule/cpu/values.h"

namespace padfree::gated_delta_rule {
namespace {

template <typename Gate>
struct ForwardSpace {
  Keys keys;
  Gate gate;
  float* states;  // one for each value head of the group
  int state_floats;
  Panels d, scaled_d;
  float* out;
};

template <typename Gate>
inline ForwardSpace<Gate> forward_space(const Params& p, Arena& arena) {
  const int width = round_up(p.head_dim_v, kPanel);
  ForwardSpace<Gate> space;
  space.keys = keys_space(p, arena);
  gate_space(p, false, arena, space.gate);
  space.state_floats = p.head_dim * width;
  space.states = arena.take(static_cast<int64_t>(p.group) * space.state_floats);
  space.d = {arena.take(kChunk * width), kChunk * kPanel};
  space.scaled_d = {arena.take(kChunk * width), kChunk * kPanel};
  space.out = arena.take(kChunk * width);
  return space;
}

template <typename Gate>
inline void forward_chunk(const Params& p, const Sequence& s, int head, int64_t begin, const Gated& gated,
                          Columns columns, bool has_state, Panels state, ForwardSpace<Gate>& space,
                          Ahead& ahead) {
  const int n = gated.n, ld = space.keys.ld, width = columns.panels * kPanel;
  solve_values(p, s, head, begin, gated, ld, columns, has_state, state, space.d, nullptr, ahead);

  const Result out = rows_result(space.out, width);
  if (has_state) {
    product<Update::kOverwrite, Layout::kRows>(n, columns.panels, p.head_dim, gated.q_in, ld, state, out,
                                               nullptr, ahead);
    product<Update::kScaleAdd, Layout::kRows, Shape::kLower>(n, columns.panels, n, gated.p, kChunk, space.d,
                                                             out, gated.in);
  } else {
    product<Update::kOverwrite, Layout::kRows, Shape::kLower>(n, columns.panels, n, gated.p, kChunk, space.d,
                                                              out);
  }
  View view = p.out;
  view.data = static_cast<char*>(view.data) + columns.first * (p.dtype == DType::kFloat32 ? 4 : 2);
  store_rows(p, view, s, head, begin, n, columns.dim, space.out, width);

  scale_rows(space.d, gated.out, n, columns.panels, space.scaled_d);
  if (has_state) {
    product<Update::kScaleAdd, Layout::kTransposed>(p.head_dim, columns.panels, n, gated.k_out, ld,
                                                    space.scaled_d, panels_result(state), gated.decay, ahead);
  } else {
    product<Update::kOverwrite, Layout::kTransposed>(p.head_dim, columns.panels, n, gated.k_out, ld,
                                                     space.scaled_d, panels_result(state), nullptr, ahead);
  }
}

// What comes after `head` of the chunk at `begin`: its own outputs, then the values of the next head of the
// task, or the queries, keys and values of the next chunk.
inline void look_ahead(const Params& p, const Task& task, const Sequence& s, int r, int64_t begin, int n,
                       Columns columns, Ahead& ahead) {
  const int first_head = task.key_head * p.group;
  const auto add_values = [&](const View& view, int head, int64_t row, int rows) {
    ahead.add(p, view, s, first_head + head, row, rows, columns.first, columns.dim);
  };
  ahead.clear();
  add_values(p.out, r, begin, n);
  if (r + 1 < task.head_end) return add_values(p.v, r + 1, begin, n);
  const int64_t next = begin + n;
  const int left = min_int(kChunk, s.length - next);
  ahead.add(p, p.q, s, task.key_head, next, left, 0, p.head_dim);
  ahead.add(p, p.k, s, task.key_head, next, left, 0, p.head_dim);
  add_values(p.v, task.head_begin, next, left);
}

template <typename Gate>
void forward(const Params& p, const Task& task, float* workspace) {
  Arena arena{workspace};
  ForwardSpace<Gate> space = forward_space<Gate>(p, arena);
  const Sequence& s = p.sequences[task.sequence];
  const Columns columns = columns_of(p, task.panel_begin, task.panel_end);
  const int step = p.head_dim * kPanel, heads = p.heads_k * p.group;
  const auto state_of = [&](int r) { return Panels{space.states + r * space.state_floats, step}; };
  const auto outside = [&](int r) {  // offset of this task's part of a state in the caller's layout
    const int64_t owner = s.index * heads + task.key_head * p.group + r;
    return owner * p.head_dim * p.head_dim_v + columns.first;
  };

  for (int r = task.head_begin; r < task.head_end; ++r) {
    if (p.initial_state != nullptr) {
      load_state(p.initial_state + outside(r), p.head_dim_v, p.head_dim, columns.dim, state_of(r));
    } else {
      clear_state(state_of(r), columns.panels);
    }
  }
  Ahead ahead;
  for (int64_t begin = 0, chunk = s.first_chunk; begin < s.length; begin += kChunk, ++chunk) {
    const bool has_state = begin > 0 || p.initial_state != nullptr;
    load_keys(p, s, task.key_head, begin, min_int(kChunk, s.length - begin), space.keys);
    for (int r = task.head_begin; r < task.head_end; ++r) {
      const int head = task.key_head * p.group + r;
      if (p.states != nullptr) {
        float* saved = p.states + (chunk * heads + head) * p.state_stride + task.panel_begin * step;
        __builtin_memcpy(saved, state_of(r).data, sizeof(float) * columns.panels * step);
      }
      prepare(p, s, space.keys, head, begin, space.gate);
      look_ahead(p, task, s, r, begin, space.keys.n, columns, ahead);
      forward_chunk(p, s, head, begin, space.gate.gated, columns, has_state, state_of(r), space, ahead);
    }
  }
  if (p.final_state == nullptr) return;
  for (int r = task.head_begin; r < task.head_end; ++r) {
    store_state(state_of(r), p.head_dim, columns.dim, p.final_state + outside(r), p.head_dim_v);
  }
}

}  // namespace
}  // namespace padfree::gated_delta_rule
