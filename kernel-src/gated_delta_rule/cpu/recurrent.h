// The recurrence itself, token by token: decoding. One task owns one value head of one sequence and some of
// its value columns, and reads and writes its part of the state twice a token, in blocks that stay in L1:
//
//   first pass   S^T k, S^T q          second pass   S <- decay * S + k delta^T,    o = S^T q = ... + (k . q)
//   delta
//
// so that the output needs no third.
#pragma once

#include "gated_delta_rule/cpu/gate.h"

namespace padfree::gated_delta_rule {
namespace {

struct RecurrentSpace {
  float *q, *k;  // one row each, ld
  float *q_decayed, *k_decayed, *decay;
  float *v, *out;  // one row of values
  int ld, width;
};

inline RecurrentSpace recurrent_space(const Params& p, Arena& arena) {
  RecurrentSpace space;
  space.ld = round_up(p.head_dim, kPanel);
  space.width = round_up(p.head_dim_v, kPanel);
  for (float** row : {&space.q, &space.k, &space.q_decayed, &space.k_decayed, &space.decay}) {
    *row = arena.take(space.ld);
  }
  for (float** row : {&space.v, &space.out}) *row = arena.take(space.width);
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

// kVectors vectors of value columns of one token; in and out point at the state's first row (they may be one,
// and `in` null stands for zeros). The last vector may reach past the state's end: `last` lanes of it count.
template <int kVectors>
[[gnu::noinline]] void step_columns(const RecurrentSpace& space, int head_dim, float beta, float kq,
                                    const float* in, float* state, int ld, int last, const float* v,
                                    float* out) {
  constexpr int kLanes = Vec::kLanes;
  Vec read_k[kVectors], read_q[kVectors], delta[kVectors];
  const auto load_column = [&](const float* row, int c) {
    return c + 1 < kVectors || last >= kLanes ? load(row + c * kLanes) : load_partial(row + c * kLanes, last);
  };
#pragma GCC unroll 4
  for (int c = 0; c < kVectors; ++c) read_k[c] = read_q[c] = zero();
  if (in != nullptr) {
    for (int d = 0; d < head_dim; ++d) {
      const Vec k = splat(space.k_decayed[d]), q = splat(space.q_decayed[d]);
#pragma GCC unroll 4
      for (int c = 0; c < kVectors; ++c) {
        const Vec x = load_column(in + static_cast<int64_t>(d) * ld, c);
        read_k[c] = fma(k, x, read_k[c]);
        read_q[c] = fma(q, x, read_q[c]);
      }
    }
  }
#pragma GCC unroll 4
  for (int c = 0; c < kVectors; ++c) {
    delta[c] = splat(beta) * (load(v + c * kLanes) - read_k[c]);
    store(out + c * kLanes, fma(splat(kq), delta[c], read_q[c]));
  }
  for (int d = 0; d < head_dim; ++d) {
    const Vec k = splat(space.k[d]), decay = splat(space.decay[d]);
    const int64_t row = static_cast<int64_t>(d) * ld;
#pragma GCC unroll 4
    for (int c = 0; c < kVectors; ++c) {
      const Vec old = in == nullptr ? zero() : load_column(in + row, c);
      store_upto(state + row + c * kLanes, fma(k, delta[c], decay * old), c + 1 < kVectors ? kLanes : last);
    }
  }
}

void recurrent(const Params& p, const Task& task, float* workspace) {
  constexpr int kBlock = 4;  // vectors of columns a pass: with their accumulators they fill the registers
  Arena arena{workspace};
  RecurrentSpace space = recurrent_space(p, arena);
  const Sequence& s = p.sequences[task.sequence];
  const int head = task.key_head * p.group + task.head_begin;
  const int64_t state_at = (s.index * p.heads_k * p.group + head) * p.head_dim * p.head_dim_v;
  const float* in = p.initial_state == nullptr ? nullptr : p.initial_state + state_at;
  float* state = p.final_state + state_at;
  if (s.length == 0 && in != state) {
    const int64_t bytes = sizeof(float) * p.head_dim * p.head_dim_v;
    if (in != nullptr)
      __builtin_memcpy(state, in, bytes);
    else
      __builtin_memset(state, 0, bytes);
  }
  for (int64_t row = 0; row < s.length; ++row) {
    load_token(p, s, task.key_head, head, row, space);
    load_rows(p, p.v, s, head, row, 1, p.head_dim_v, space.v, space.width);
    const float beta = *element(p.beta, s, head, row), kq = dot(space.k, space.q, space.ld);
    for (int c = 0; c < p.head_dim_v; c += kBlock * Vec::kLanes) {
      const int left = p.head_dim_v - c, vectors = min_int(kBlock, ceil_div(left, Vec::kLanes));
      const int last = left - (vectors - 1) * Vec::kLanes;
      with_one_of<1, 2, 3, 4>(vectors, [&](auto count) {
        step_columns<count()>(space, p.head_dim, beta, kq, in == nullptr ? nullptr : in + c, state + c,
                              p.head_dim_v, last, space.v + c, space.out + c);
      });
    }
    store_rows(p, p.out, s, head, row, 1, p.head_dim_v, space.out, space.width);
    in = state;
  }
}

}  // namespace
}  // namespace padfree::gated_delta_rule
