// Four neighbouring values of each of kLanes places, place by place in one piece: the window of a step of
// decoding. Include a vec_<isa>.h first, and what overloads these for a storage type (vec_avx2_quads.h).
#pragma once

namespace padfree {
namespace {

// Lane i of q[k] is p[4 * i + k].
template <typename T>
inline void load_dense_quads(const T* p, Vec (&q)[4]) {
  load_quads(p, 4, q);
}

// Drops the first value of each place and appends next[i] to place i, in memory and in q, which holds what
// load_dense_quads would then give.
template <typename T>
inline void advance_dense_quads(T* p, const T* next, Vec (&q)[4]) {
  Vec held[4];
  load_quads(p, 4, held);
  for (int k = 0; k < 3; ++k) q[k] = held[k + 1];
  q[3] = load(next);
  store_quads(p, 4, q);
}

}  // namespace
}  // namespace padfree
