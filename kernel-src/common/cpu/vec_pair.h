// Two vectors' worth of neighbouring values at a time, in whatever order suits the instruction set: where an
// order is not needed, 16-bit values need not be brought into one. Include a vec_<isa>.h first, and what
// overloads these for a storage type (vec_avx2_pair.h).
#pragma once

namespace padfree {
namespace {

constexpr int kPair = 2 * Vec::kLanes;

// Whether load_pair gives the even values and the odd ones rather than the first half and the second.
template <typename T>
constexpr bool interleaves(const T*) {
  return false;
}

// Where in a pair (two vectors, one after the other) value `i` of kPair neighbours comes to lie.
template <typename T>
constexpr int place_in_pair(int i) {
  return interleaves(static_cast<const T*>(nullptr)) ? i % 2 * Vec::kLanes + i / 2 : i;
}

template <typename T>
inline void load_pair(const T* p, Vec& a, Vec& b) {
  a = load(p);
  b = load(p + Vec::kLanes);
}

// A NaN must have the upper 16 bits of its payload not all ones, or the lower ones zero: what arithmetic
// makes and what 16-bit storage holds.
template <typename T>
inline void store_pair(T* p, Vec a, Vec b) {
  store(p, a);
  store(p + Vec::kLanes, b);
}

// The first n values (0 <= n <= kPair), the rest zero; nothing past p[n - 1] is touched.
template <typename T>
inline void load_pair(const T* p, Vec& a, Vec& b, int n) {
  if (n == kPair) return load_pair(p, a, b);
  T values[kPair] = {};
  __builtin_memcpy(values, p, static_cast<size_t>(n) * sizeof(T));
  load_pair(values, a, b);
}
template <typename T>
inline void store_pair(T* p, Vec a, Vec b, int n) {
  if (n == kPair) return store_pair(p, a, b);
  T values[kPair];
  store_pair(values, a, b);
  __builtin_memcpy(p, values, static_cast<size_t>(n) * sizeof(T));
}

}  // namespace
}  // namespace padfree
