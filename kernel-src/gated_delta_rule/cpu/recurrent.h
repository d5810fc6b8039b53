// The recurrence itself, token by token: decoding. One task owns some value heads of one sequence, one after
// the other. A token walks a head's state twice, row by row, in the order of memory:
//
//   first walk    read_k = S^T (decay k),  read_q = S^T (decay q)     delta = beta (v - read_k)
//   second walk   S <- decay S + k delta^T                            o = read_q + (k . q) delta
//
// so that the output needs no third, and the second walk finds the state in L2. A step costs what fetching
// the state costs: each walk asks for one half of the next head's, across the pages at which the hardware
// stops.
#pragma once

#include <type_traits>

#include "gated_delta_rule/cpu/gate.h"

namespace padfree::gated_delta_rule {
namespace {

struct RecurrentSpace {
  float *q, *k;  // one row each, ld
  float *q_decayed, *k_decayed, *decay;
  float *v, *delta, *out;  // one row of values; delta and out begin as read_k and read_q
  int ld, width;
};

inline RecurrentSpace recurrent_space(const Params& p, Arena& arena) {
  RecurrentSpace space;
  space.ld = round_up(p.head_dim, kPanel);
  space.width = round_up(p.head_dim_v, kPanel);
  for (float** row : {&space.q, &space.k, &space.q_decayed, &space.k_decayed, &space.decay}) {
    *row = arena.take(space.ld);
  }
  for (float** row : {&space.v, &space.delta, &space.out}) *row = arena.take(space.width);
  return space;
}

// Query, key and decay of one token.
inline void load_token(const Params& p, const Sequence& s, int key_head, int head, int64_t row,
                       RecurrentSpace& space) {
  float unused;
  load_rows(p, p.q, s, key_head, row, 1, p.head_dim, space.q, space.ld);
  load_rows(p, p.k, s, key_head, row, 1, p.head_dim, space.k, space.ld);
  if (p.l2norm) {
    normalize_rows(space.q, 1, space.ld, &unused);
    normalize_rows(space.k, 1, space.ld, &unused);
  }
  scale_row(space.q, p.scale, space.ld);
  const float* g = element(p.g, s, head, row);
  for (int d = 0; d < space.ld; d += Vec::kLanes) {
    const int left = p.head_dim - d;
    Vec gate = splat(*g);
    if (p.gate_per_channel) gate = left > 0 ? load_upto(g + d, left) : zero();
    const Vec decay = exp(gate);
    store(space.decay + d, decay);
    store(space.q_decayed + d, decay * load(space.q + d));
    store(space.k_decayed + d, decay * load(space.k + d));
  }
}

// step(c, lanes) for each vector of a row of values; `lanes` of it count.
template <typename Step>
inline void for_columns(int dim_v, Step&& step) {
  int c = 0;
  for (; c + Vec::kLanes <= dim_v; c += Vec::kLanes) step(c, Vec::kLanes);
  if (c < dim_v) step(c, dim_v - c);
}

// Rows d to d + kRows of `state` into the sums of the first walk.
template <int kRows>
[[gnu::noinline, gnu::flatten]] void read_rows(const RecurrentSpace& space, int d, const float* state,
                                               int dim_v) {
  Vec k[kRows], q[kRows];
#pragma GCC unroll 4
  for (int j = 0; j < kRows; ++j) k[j] = splat(space.k_decayed[d + j]), q[j] = splat(space.q_decayed[d + j]);
  state += static_cast<int64_t>(d) * dim_v;
  for_columns(dim_v, [&](int c, int lanes) {
    Vec read_k = load(space.delta + c), read_q = load(space.out + c);
#pragma GCC unroll 4
    for (int j = 0; j < kRows; ++j) {
      const Vec x = load_upto(state + j * dim_v + c, lanes);
      read_k = fma(k[j], x, read_k);
      read_q = fma(q[j], x, read_q);
    }
    store(space.delta + c, read_k);
    store(space.out + c, read_q);
  });
}

// Rows d to d + kRows of the state after the token, from those before it; the two may be one. A null `in`
// stands for zeros.
template <int kRows>
[[gnu::noinline, gnu::flatten]] void write_rows(const RecurrentSpace& space, int d, const float* in,
                                                float* state, int dim_v) {
  Vec k[kRows], decay[kRows];
#pragma GCC unroll 4
  for (int j = 0; j < kRows; ++j) k[j] = splat(space.k[d + j]), decay[j] = splat(space.decay[d + j]);
  const int64_t first = static_cast<int64_t>(d) * dim_v;
  for_columns(dim_v, [&](int c, int lanes) {
    const Vec delta = load(space.delta + c);
#pragma GCC unroll 4
    for (int j = 0; j < kRows; ++j) {
      const int64_t at = first + j * dim_v + c;
      const Vec old = in == nullptr ? zero() : load_upto(in + at, lanes);
      store_upto(state + at, fma(k[j], delta, decay[j] * old), lanes);
    }
  });
}

// walk(count, d) for rows d to d + count() of a state, four at a time. Along the way it asks for half as many
// floats from `ahead` on; null asks for nothing.
template <typename Walk>
inline void walk_rows(int dim, int dim_v, const float* ahead, Walk&& walk) {
  constexpr int kRows = 4;
  int d = 0;
  for (; d + kRows <= dim; d += kRows) {
    if (ahead != nullptr)
      prefetch_row(ahead + d * dim_v / 2, kRows * dim_v / 2 * static_cast<int>(sizeof(float)));
    walk(std::integral_constant<int, kRows>{}, d);
  }
  for (; d < dim; ++d) walk(std::integral_constant<int, 1>{}, d);
}

// One token of one head, out into `space`. `next`: the state that is needed after this one, or null.
inline void step_head(const Params& p, const RecurrentSpace& space, float beta, const float* in, float* state,
                      const float* next) {
  const int dim = p.head_dim, dim_v = p.head_dim_v;
  for (int c = 0; c < space.width; c += Vec::kLanes) {
    store(space.delta + c, zero());
    store(space.out + c, zero());
  }
  if (in != nullptr) {
    walk_rows(dim, dim_v, next, [&](auto rows, int d) { read_rows<rows()>(space, d, in, dim_v); });
  }
  const Vec factor = splat(beta), kq = splat(dot(space.k, space.q, space.ld));
  for (int c = 0; c < space.width; c += Vec::kLanes) {
    const Vec delta = factor * (load(space.v + c) - load(space.delta + c));
    store(space.delta + c, delta);
    store(space.out + c, fma(kq, delta, load(space.out + c)));
  }
  const float* rest = next == nullptr ? nullptr : next + dim * dim_v / 2;
  walk_rows(dim, dim_v, rest, [&](auto rows, int d) { write_rows<rows()>(space, d, in, state, dim_v); });
}

// A sequence without tokens keeps its state.
inline void copy_state(const Params& p, const float* in, float* state) {
  const int64_t bytes = sizeof(float) * p.head_dim * p.head_dim_v;
  if (in == nullptr)
    __builtin_memset(state, 0, bytes);
  else if (in != state)
    __builtin_memcpy(state, in, bytes);
}

void recurrent(const Params& p, const Task& task, float* workspace) {
  Arena arena{workspace};
  RecurrentSpace space = recurrent_space(p, arena);
  const Sequence& s = p.sequences[task.sequence];
  const int64_t size = static_cast<int64_t>(p.head_dim) * p.head_dim_v;
  const int64_t first = s.index * p.heads_k * p.group;
  for (int head = task.head_begin; head < task.head_end; ++head) {
    const float* in = p.initial_state == nullptr ? nullptr : p.initial_state + (first + head) * size;
    const float* next = in == nullptr || head + 1 == task.head_end ? nullptr : in + size;
    float* state = p.final_state + (first + head) * size;
    if (s.length == 0) copy_state(p, in, state);
    for (int64_t row = 0; row < s.length; ++row) {
      load_token(p, s, head / p.group, head, row, space);
      load_rows(p, p.v, s, head, row, 1, p.head_dim_v, space.v, space.width);
      step_head(p, space, *element(p.beta, s, head, row), in, state, row + 1 == s.length ? next : nullptr);
      store_rows(p, p.out, s, head, row, 1, p.head_dim_v, space.out, space.width);
      in = state;
    }
  }
}

}  // namespace
}  // namespace padfree::gated_delta_rule
