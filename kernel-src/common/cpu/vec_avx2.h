// Eight float32 lanes on AVX2 + FMA + F16C. Same names as vec_generic.h: kernel bodies are written once
// against them.
//
// Included only by kernel_avx2.cpp files. Everything sits in an unnamed namespace, so that no weak symbol
// built with AVX2 flags can replace a baseline one at link time.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "../types.h"

namespace padfree {
namespace {

struct Vec {
  static constexpr int kLanes = 8;
  __m256 v;
};

// Lane-wise comparison result: all bits set where true.
struct Mask {
  __m256 v;
};

inline Vec splat(float x) {
  return {_mm256_set1_ps(x)};
}
inline Vec zero() {
  return {_mm256_setzero_ps()};
}
inline Vec operator+(Vec a, Vec b) {
  return {_mm256_add_ps(a.v, b.v)};
}
inline Vec operator-(Vec a, Vec b) {
  return {_mm256_sub_ps(a.v, b.v)};
}
inline Vec operator*(Vec a, Vec b) {
  return {_mm256_mul_ps(a.v, b.v)};
}
inline Vec operator/(Vec a, Vec b) {
  return {_mm256_div_ps(a.v, b.v)};
}
inline Vec operator-(Vec a) {
  return {_mm256_xor_ps(a.v, _mm256_set1_ps(-0.0f))};
}
inline Vec abs(Vec a) {
  return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)};
}
inline Vec sqrt(Vec a) {
  return {_mm256_sqrt_ps(a.v)};
}
// a * b + c, rounded once
inline Vec fma(Vec a, Vec b, Vec c) {
  return {_mm256_fmadd_ps(a.v, b.v, c.v)};
}
// c - a * b, rounded once
inline Vec fnma(Vec a, Vec b, Vec c) {
  return {_mm256_fnmadd_ps(a.v, b.v, c.v)};
}
// NaN in b is kept, NaN in a is not.
inline Vec max(Vec a, Vec b) {
  return {_mm256_max_ps(a.v, b.v)};
}
inline Vec min(Vec a, Vec b) {
  return {_mm256_min_ps(a.v, b.v)};
}
inline Vec round_nearest(Vec a) {
  return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline Mask less(Vec a, Vec b) {
  return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)};
}
// Where mask is true a, else b.
inline Vec select(Mask mask, Vec a, Vec b) {
  return {_mm256_blendv_ps(b.v, a.v, mask.v)};
}
// 1.0f * 2^n added to the exponent of p: p * 2^n for whole n, without a check.
inline Vec scale_exponent(Vec p, Vec n) {
  const __m256i shift = _mm256_slli_epi32(_mm256_cvtps_epi32(n.v), 23);
  return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p.v), shift))};
}

inline float sum(Vec a) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
inline float max_lane(Vec a) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

inline Vec load(const float* p) {
  return {_mm256_loadu_ps(p)};
}
// Eight 16-bit values; the pointer says how to read them.
inline Vec widen(__m128i bits, const BFloat16*) {
  // One shuffle puts each value into the upper half of its lane.
  const __m256i upper = _mm256_setr_epi8(-1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7,  //
                                         -1, -1, 8, 9, -1, -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15);
  return {_mm256_castsi256_ps(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(bits), upper))};
}
inline Vec widen(__m128i bits, const Float16*) {
  return {_mm256_cvtph_ps(bits)};
}
template <typename T>
inline Vec load(const T* p) {
  return widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), p);
}

inline void store(float* p, Vec a) {
  _mm256_storeu_ps(p, a.v);
}
inline __m128i narrow(Vec a, const BFloat16*) {
  // Round to nearest even on the integer bits. A NaN becomes the one of all ones, so that the carry of the
  // rounding cannot turn it into an infinity or a zero.
  const __m256i bits = _mm256_castps_si256(a.v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q));
  const __m256i upper = _mm256_setr_epi8(2, 3, 6, 7, 10, 11, 14, 15, -1, -1, -1, -1, -1, -1, -1, -1,  //
                                         2, 3, 6, 7, 10, 11, 14, 15, -1, -1, -1, -1, -1, -1, -1, -1);
  const __m256i halves = _mm256_shuffle_epi8(_mm256_or_si256(rounded, nan), upper);
  return _mm256_castsi256_si128(_mm256_permute4x64_epi64(halves, 0x08));
}
inline __m128i narrow(Vec a, const Float16*) {
  return _mm256_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT);
}
template <typename T>
inline void store(T* p, Vec a) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow(a, p));
}

// The first n lanes (0 <= n < kLanes) from memory, the rest zero; nothing past p[n - 1] is touched.
template <typename T>
inline Vec load_partial(const T* p, int n) {
  T lanes[Vec::kLanes] = {};
  std::memcpy(lanes, p, static_cast<size_t>(n) * sizeof(T));
  return load(lanes);
}
template <typename T>
inline void store_partial(T* p, Vec a, int n) {
  T lanes[Vec::kLanes];
  store(lanes, a);
  std::memcpy(p, lanes, static_cast<size_t>(n) * sizeof(T));
}

// The lower four lanes from one place, the upper four from another.
inline Vec load_halves(const float* low, const float* high) {
  return {_mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1)};
}
template <typename T>
inline Vec load_halves(const T* low, const T* high) {
  return widen(_mm_unpacklo_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(low)),
                                  _mm_loadl_epi64(reinterpret_cast<const __m128i*>(high))),
               low);
}
inline void store_halves(float* low, float* high, Vec a) {
  _mm_storeu_ps(low, _mm256_castps256_ps128(a.v));
  _mm_storeu_ps(high, _mm256_extractf128_ps(a.v, 1));
}
template <typename T>
inline void store_halves(T* low, T* high, Vec a) {
  const __m128i bits = narrow(a, low);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(low), bits);
  _mm_storel_epi64(reinterpret_cast<__m128i*>(high), _mm_srli_si128(bits, 8));
}

inline float to_float(float x) {
  return x;
}
inline float to_float(BFloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float f;
  std::memcpy(&f, &bits, sizeof f);
  return f;
}
inline float to_float(Float16 x) {
  return _cvtsh_ss(x.bits);
}

template <typename T>
inline T from_float(float x) {
  T lanes[Vec::kLanes];
  store(lanes, splat(x));
  return lanes[0];
}

inline void transpose_quads(Vec (&q)[4]) {
  const __m256 a = _mm256_unpacklo_ps(q[0].v, q[1].v), b = _mm256_unpackhi_ps(q[0].v, q[1].v);
  const __m256 c = _mm256_unpacklo_ps(q[2].v, q[3].v), d = _mm256_unpackhi_ps(q[2].v, q[3].v);
  q[0].v = _mm256_shuffle_ps(a, c, 0x44);
  q[1].v = _mm256_shuffle_ps(a, c, 0xee);
  q[2].v = _mm256_shuffle_ps(b, d, 0x44);
  q[3].v = _mm256_shuffle_ps(b, d, 0xee);
}
// Four neighbours from each of kLanes places: lane i of q[k] is p[i * stride + k].
template <typename T>
inline void load_quads(const T* p, int64_t stride, Vec (&q)[4]) {
  for (int i = 0; i < 4; ++i) q[i] = load_halves(p + i * stride, p + (i + 4) * stride);
  transpose_quads(q);
}
template <typename T>
inline void store_quads(T* p, int64_t stride, const Vec (&q)[4]) {
  Vec rows[4] = {q[0], q[1], q[2], q[3]};
  transpose_quads(rows);
  for (int i = 0; i < 4; ++i) store_halves(p + i * stride, p + (i + 4) * stride, rows[i]);
}

// In-register transpose of an 8 x 8 block held in rows[0..7].
inline void transpose_lanes(Vec (&rows)[Vec::kLanes]) {
  __m256 t[8], u[8];
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(rows[2 * i].v, rows[2 * i + 1].v);
    t[2 * i + 1] = _mm256_unpackhi_ps(rows[2 * i].v, rows[2 * i + 1].v);
  }
  for (int i = 0; i < 2; ++i) {
    u[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    u[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
    u[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    u[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    rows[i].v = _mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
    rows[i + 4].v = _mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
  }
}

// Lane i is the sum of rows[i].
inline Vec lane_totals(const Vec (&rows)[Vec::kLanes]) {
  __m256 halves[2];
  for (int i = 0; i < 2; ++i) {
    __m256 pairs[2];
    for (int j = 0; j < 2; ++j) {
      const __m256 a = rows[4 * i + 2 * j].v, b = rows[4 * i + 2 * j + 1].v;
      pairs[j] = _mm256_add_ps(_mm256_blend_ps(a, b, 0xcc), _mm256_shuffle_ps(a, b, 0x4e));
    }
    halves[i] = _mm256_add_ps(_mm256_shuffle_ps(pairs[0], pairs[1], 0x88),
                              _mm256_shuffle_ps(pairs[0], pairs[1], 0xdd));
  }
  return {_mm256_add_ps(_mm256_blend_ps(halves[0], halves[1], 0xf0),
                        _mm256_permute2f128_ps(halves[0], halves[1], 0x21))};
}

}  // namespace
}  // namespace padfree
