// Forward: one task walks the chunks of a sequence, for some heads of one group. Their states stay in the
// workspace (L2) from chunk to chunk. Heads do not depend on each other, so cutting them into tasks changes
// no bit.
#pragma once

#include "state_space/cpu/outputs.h"

namespace padfree::state_space {
namespace {

struct ForwardSpace {
  Shared shared;
  Steps steps;
  float* mix;
  float* states;  // one for each head of the task
  int state_floats;
  Panels x, weighted_x;
  float* y;
};

inline ForwardSpace forward_space(const Params& p, Arena& arena) {
  const int width = round_up(p.head_dim, kPanel);
  ForwardSpace space;
  space.shared = shared_space(p, false, arena);
  space.steps = steps_space(p, false, arena);
  space.mix = arena.take(kChunk * kChunk);
  space.state_floats = p.state_dim * width;
  space.states = arena.take(static_cast<int64_t>(p.group) * space.state_floats);
  space.x = {arena.take(kChunk * width), kChunk * kPanel};
  space.weighted_x = {arena.take(kChunk * width), kChunk * kPanel};
  space.y = arena.take(kChunk * width);
  return space;
}

// Rows of x as panels; rows past n are not written.
inline void load_panels(const Params& p, const Sequence& s, int head, int64_t begin, int n, float* rows,
                        int width, Panels panels) {
  load_rows(p, p.x, s, head, begin, n, p.head_dim, rows, width);
  copy(rows_result(rows, width), n, width / kPanel, panels_result(panels));
}

// S <- decay * S + B^T (weight * X)
inline void step_state(const Params& p, const Shared& shared, const Steps& steps, Panels x, Panels weighted_x,
                       bool has_state, int panels, Panels state) {
  scale_rows(x, steps.weight, steps.n, panels, weighted_x);
  const Result to = panels_result(state);
  if (has_state) {
    product<Update::kScaleAdd, Layout::kTransposed>(p.state_dim, panels, steps.n, shared.b, shared.ld,
                                                    weighted_x, to, steps.decay);
  } else {
    product<Update::kOverwrite, Layout::kTransposed>(p.state_dim, panels, steps.n, shared.b, shared.ld,
                                                     weighted_x, to);
  }
}

inline void forward_chunk(const Params& p, const Sequence& s, int head, int64_t begin, Panels state,
                          ForwardSpace& space) {
  const int n = space.shared.n, width = round_up(p.head_dim, kPanel), panels = width / kPanel;
  const bool has_state = begin > 0 || s.initial >= 0;
  load_steps(p, s, head, begin, n, space.steps);
  mix_of(p, head, space.shared, space.steps, space.mix);
  load_panels(p, s, head, begin, n, space.y, width, space.x);
  scan_rows(p, space.shared, space.steps, space.mix, space.x, has_state ? &state : nullptr, space.y, width);
  add_skip(p, s, head, begin, n, space.y, width);
  apply_gate(p, s, head, begin, n, space.y, width);
  store_rows(p, p.out, s, head, begin, n, p.head_dim, space.y, width);
  if (begin + n < s.length || s.final >= 0) {
    step_state(p, space.shared, space.steps, space.x, space.weighted_x, has_state, panels, state);
  }
}

// Offset of a head's state in initial_states and final_states.
inline int64_t outside(const Params& p, int64_t row, int head) {
  return (row * p.heads + head) * p.head_dim * p.state_dim;
}

void forward(const Params& p, const Task& task, float* workspace) {
  Arena arena{workspace};
  ForwardSpace space = forward_space(p, arena);
  const Sequence& s = p.sequences[task.sequence];
  const int panels = round_up(p.head_dim, kPanel) / kPanel, step = p.state_dim * kPanel;
  const auto state_of = [&](int head) {
    return Panels{space.states + static_cast<int64_t>(head - task.head_begin) * space.state_floats, step};
  };
  for (int head = task.head_begin; head < task.head_end; ++head) {
    if (s.initial >= 0) {
      load_state(p, p.initial_states + outside(p, s.initial, head), state_of(head));
    } else if (s.length == 0) {
      clear_state(state_of(head), panels);
    }
  }
  for (int64_t begin = 0, chunk = 0; begin < s.length; begin += kChunk, ++chunk) {
    load_shared(p, s, task.head_begin / p.group, begin, min_int(kChunk, s.length - begin), space.shared);
    for (int head = task.head_begin; head < task.head_end; ++head) {
      if (chunk > 0 && p.states != nullptr) {
        float* saved = p.states + ((s.first_state + chunk - 1) * p.heads + head) * p.state_stride;
        __builtin_memcpy(saved, state_of(head).data, sizeof(float) * panels * step);
      }
      forward_chunk(p, s, head, begin, state_of(head), space);
    }
  }
  if (s.final < 0) return;
  for (int head = task.head_begin; head < task.head_end; ++head) {
    store_state(p, state_of(head), p.final_states + outside(p, s.final, head));
  }
}

}  // namespace
}  // namespace padfree::state_space
