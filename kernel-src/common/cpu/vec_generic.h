// Four float32 lanes on whatever the platform's baseline is (SSE2 on x86-64, NEON on aarch64), by the
// compiler's vector extension. Same names as vec_avx2.h: kernel bodies are written once against them.
//
// Included only by kernel_generic.cpp files; everything in an unnamed namespace, as in every vec_<isa>.h.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "../types.h"

namespace padfree {
namespace {

typedef float Float4 __attribute__((vector_size(16)));
typedef int32_t Int4 __attribute__((vector_size(16)));
typedef uint32_t Bits4 __attribute__((vector_size(16)));

struct Vec {
  static constexpr int kLanes = 4;
  Float4 v;
};

struct Mask {
  Int4 v;
};

inline Vec splat(float x) {
  return {Float4{x, x, x, x}};
}
inline Vec zero() {
  return splat(0.0f);
}
inline Vec operator+(Vec a, Vec b) {
  return {a.v + b.v};
}
inline Vec operator-(Vec a, Vec b) {
  return {a.v - b.v};
}
inline Vec operator*(Vec a, Vec b) {
  return {a.v * b.v};
}
inline Vec operator/(Vec a, Vec b) {
  return {a.v / b.v};
}
inline Vec operator-(Vec a) {
  return {-a.v};
}
inline Vec abs(Vec a) {
  return {(Float4)((Int4)a.v & 0x7fffffff)};
}
inline Vec sqrt(Vec a) {
  for (int i = 0; i < Vec::kLanes; ++i) a.v[i] = __builtin_sqrtf(a.v[i]);
  return a;
}
// a * b + c; the baseline has no fused form, so the product is rounded on its own.
inline Vec fma(Vec a, Vec b, Vec c) {
  return {a.v * b.v + c.v};
}
inline Vec fnma(Vec a, Vec b, Vec c) {
  return {c.v - a.v * b.v};
}
// NaN in b is kept, NaN in a is not.
inline Vec max(Vec a, Vec b) {
  return {a.v > b.v ? a.v : b.v};
}
inline Vec min(Vec a, Vec b) {
  return {a.v < b.v ? a.v : b.v};
}
inline Vec round_nearest(Vec a) {
  // Adding and taking away 1.5 * 2^23 rounds any |a| < 2^22 to the nearest whole number, ties to even.
  const Float4 magic = splat(12582912.0f).v;
  return {(a.v + magic) - magic};
}
inline Mask less(Vec a, Vec b) {
  return {a.v < b.v};
}
inline Vec select(Mask mask, Vec a, Vec b) {
  return {mask.v ? a.v : b.v};
}
inline Vec scale_exponent(Vec p, Vec n) {
  // Unsigned, which may wrap: a caller's wrong numbers reach this with any exponent.
  const Bits4 shift = (Bits4) __builtin_convertvector(n.v, Int4) << 23;
  return {(Float4)((Bits4)p.v + shift)};
}

inline float sum(Vec a) {
  return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]);
}
inline float max_lane(Vec a) {
  const float x = a.v[0] > a.v[2] ? a.v[0] : a.v[2];
  const float y = a.v[1] > a.v[3] ? a.v[1] : a.v[3];
  return x > y ? x : y;
}

inline float float_of_bits(uint32_t bits) {
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}
inline uint32_t bits_of_float(float f) {
  uint32_t bits;
  std::memcpy(&bits, &f, sizeof bits);
  return bits;
}

inline float to_float(float x) {
  return x;
}
inline float to_float(BFloat16 x) {
  return float_of_bits(static_cast<uint32_t>(x.bits) << 16);
}
inline float to_float(Float16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16;
  const uint32_t rest = x.bits & 0x7fff;
  if (rest >= 0x7c00) return float_of_bits(sign | 0x7f800000 | ((rest & 0x3ff) << 13));  // infinity, NaN
  // Reading the half's exponent and mantissa as a float gives value * 2^-112; the product restores it
  // exactly, also for subnormal halves.
  return float_of_bits(sign | bits_of_float(float_of_bits(rest << 13) * float_of_bits(0x77800000)));
}

template <typename T>
inline T from_float(float x);
template <>
inline float from_float<float>(float x) {
  return x;
}
template <>
inline BFloat16 from_float<BFloat16>(float x) {
  const uint32_t bits = bits_of_float(x);
  if (x != x) return {static_cast<uint16_t>((bits | 0x400000) >> 16)};
  return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}
template <>
inline Float16 from_float<Float16>(float x) {
  const uint32_t bits = bits_of_float(x);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return {static_cast<uint16_t>(sign | 0x7e00 | ((magnitude >> 13) & 0x3ff))};
  if (magnitude >= 0x477ff000)
    return {static_cast<uint16_t>(sign | 0x7c00)};  // rounds to 65520 or more: infinity
  if (magnitude < 0x38800000) {
    // Subnormal half: adding 0.5 puts the wanted bits, rounded to nearest even, at the bottom of the sum's
    // mantissa.
    return {static_cast<uint16_t>(sign | (bits_of_float(float_of_bits(magnitude) + 0.5f) - 0x3f000000))};
  }
  const uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return {static_cast<uint16_t>(sign | ((rounded - 0x38000000) >> 13))};
}

inline Vec load(const float* p) {
  Vec a;
  std::memcpy(&a.v, p, sizeof a.v);
  return a;
}
inline void store(float* p, Vec a) {
  std::memcpy(p, &a.v, sizeof a.v);
}
template <typename T>
inline Vec load(const T* p) {
  Vec a;
  for (int i = 0; i < Vec::kLanes; ++i) a.v[i] = to_float(p[i]);
  return a;
}
template <typename T>
inline void store(T* p, Vec a) {
  for (int i = 0; i < Vec::kLanes; ++i) p[i] = from_float<T>(a.v[i]);
}

// The first n lanes (0 <= n < kLanes) from memory, the rest zero; nothing past p[n - 1] is touched.
template <typename T>
inline Vec load_partial(const T* p, int n) {
  Vec a = zero();
  for (int i = 0; i < n; ++i) a.v[i] = to_float(p[i]);
  return a;
}
template <typename T>
inline void store_partial(T* p, Vec a, int n) {
  for (int i = 0; i < n; ++i) p[i] = from_float<T>(a.v[i]);
}

// In-register transpose of a 4 x 4 block held in rows[0..3].
inline void transpose_lanes(Vec (&rows)[Vec::kLanes]) {
  for (int i = 0; i < Vec::kLanes; ++i) {
    for (int j = i + 1; j < Vec::kLanes; ++j) {
      const float swapped = rows[i].v[j];
      rows[i].v[j] = rows[j].v[i];
      rows[j].v[i] = swapped;
    }
  }
}

// Four neighbours from each of kLanes places: lane i of q[k] is p[i * stride + k].
template <typename T>
inline void load_quads(const T* p, int64_t stride, Vec (&q)[4]) {
  for (int i = 0; i < Vec::kLanes; ++i) q[i] = load(p + i * stride);
  transpose_lanes(q);
}
template <typename T>
inline void store_quads(T* p, int64_t stride, const Vec (&q)[4]) {
  Vec rows[4] = {q[0], q[1], q[2], q[3]};
  transpose_lanes(rows);
  for (int i = 0; i < Vec::kLanes; ++i) store(p + i * stride, rows[i]);
}

// Lane i is the sum of rows[i].
inline Vec lane_totals(const Vec (&rows)[Vec::kLanes]) {
  Vec totals;
  for (int i = 0; i < Vec::kLanes; ++i) totals.v[i] = sum(rows[i]);
  return totals;
}

}  // namespace
}  // namespace padfree
