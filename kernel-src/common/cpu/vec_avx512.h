// Sixteen float32 lanes on AVX-512 F + BW + DQ + VL. Same names as vec_generic.h: kernel bodies are written
// once against them.
//
// Included only by kernel_avx512.cpp files and vec_avx512bf16.h. Everything sits in an unnamed namespace, so
// that no weak symbol built with AVX-512 flags can replace a baseline one at link time. Nothing but
// intrinsics touches a vector: `bundle build --emulate-avx512` runs them on a CPU without AVX-512.
//
// avx512_bf16 stays out on purpose (docs/decisions/0012-avx512.md): its conversions and its dot product take
// denormals for zero, and would round operands that are not stored in bfloat16. vec_avx512bf16.h is for those
// that are.
#pragma once

#if defined(__GNUC__) && !defined(__clang__)
// gcc 12 takes the "undefined" operand of its own intrinsics for a mistake of ours.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#include <immintrin.h>
#pragma GCC diagnostic pop
#else
#include <immintrin.h>
#endif

#include <cstdint>

#include "../types.h"

namespace padfree {
namespace {

struct Vec {
  static constexpr int kLanes = 16;
  __m512 v;
};

// Lane-wise comparison result: one bit a lane.
struct Mask {
  __mmask16 v;
};

inline Vec splat(float x) {
  return {_mm512_set1_ps(x)};
}
inline Vec zero() {
  return {_mm512_setzero_ps()};
}
inline Vec operator+(Vec a, Vec b) {
  return {_mm512_add_ps(a.v, b.v)};
}
inline Vec operator-(Vec a, Vec b) {
  return {_mm512_sub_ps(a.v, b.v)};
}
inline Vec operator*(Vec a, Vec b) {
  return {_mm512_mul_ps(a.v, b.v)};
}
inline Vec operator/(Vec a, Vec b) {
  return {_mm512_div_ps(a.v, b.v)};
}
inline Vec operator-(Vec a) {
  return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f))};
}
inline Vec abs(Vec a) {
  return {_mm512_abs_ps(a.v)};
}
inline Vec sqrt(Vec a) {
  return {_mm512_sqrt_ps(a.v)};
}
// a * b + c, rounded once
inline Vec fma(Vec a, Vec b, Vec c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}
// c - a * b, rounded once
inline Vec fnma(Vec a, Vec b, Vec c) {
  return {_mm512_fnmadd_ps(a.v, b.v, c.v)};
}
// NaN in b is kept, NaN in a is not.
inline Vec max(Vec a, Vec b) {
  return {_mm512_max_ps(a.v, b.v)};
}
inline Vec min(Vec a, Vec b) {
  return {_mm512_min_ps(a.v, b.v)};
}
inline Vec round_nearest(Vec a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
inline Mask less(Vec a, Vec b) {
  return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)};
}
// Where mask is true a, else b.
inline Vec select(Mask mask, Vec a, Vec b) {
  return {_mm512_mask_blend_ps(mask.v, b.v, a.v)};
}
// 1.0f * 2^n added to the exponent of p: p * 2^n for whole n, without a check.
inline Vec scale_exponent(Vec p, Vec n) {
  const __m512i shift = _mm512_slli_epi32(_mm512_cvtps_epi32(n.v), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p.v), shift))};
}

inline __m256 upper_half(__m512 a) {
  return _mm512_castps512_ps256(_mm512_shuffle_f32x4(a, a, 0x0e));
}
inline float sum(Vec a) {
  const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(a.v), upper_half(a.v));
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}
inline float max_lane(Vec a) {
  const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(a.v), upper_half(a.v));
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

inline Vec load(const float* p) {
  return {_mm512_loadu_ps(p)};
}
// Sixteen 16-bit values; the pointer says how to read them.
inline Vec widen(__m256i bits, const BFloat16*) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
inline Vec widen(__m256i bits, const Float16*) {
  return {_mm512_cvtph_ps(bits)};
}
template <typename T>
inline Vec load(const T* p) {
  return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)), p);
}

inline void store(float* p, Vec a) {
  _mm512_storeu_ps(p, a.v);
}
inline __m256i narrow(Vec a, const BFloat16*) {
  // Round to nearest even on the integer bits. A NaN becomes the one of all ones, so that the carry of the
  // rounding cannot turn it into an infinity or a zero.
  const __m512i bits = _mm512_castps_si512(a.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(
      _mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, _mm512_set1_epi32(-1)), 16));
}
inline __m256i narrow(Vec a, const Float16*) {
  return _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT);
}
template <typename T>
inline void store(T* p, Vec a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(a, p));
}

// The first n lanes (0 <= n < kLanes).
inline __mmask16 first_lanes(int n) {
  return static_cast<__mmask16>((1u << n) - 1);
}
// The first n lanes from memory, the rest zero; nothing past p[n - 1] is touched.
inline Vec load_partial(const float* p, int n) {
  return {_mm512_maskz_loadu_ps(first_lanes(n), p)};
}
template <typename T>
inline Vec load_partial(const T* p, int n) {
  return widen(_mm256_maskz_loadu_epi16(first_lanes(n), p), p);
}
inline void store_partial(float* p, Vec a, int n) {
  _mm512_mask_storeu_ps(p, first_lanes(n), a.v);
}
template <typename T>
inline void store_partial(T* p, Vec a, int n) {
  _mm256_mask_storeu_epi16(p, first_lanes(n), narrow(a, p));
}

inline float to_float(float x) {
  return x;
}
inline float to_float(BFloat16 x) {
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(x.bits << 16)));
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

// Four lanes from each of four places.
inline Vec load_quarters(const float* p, int64_t step) {
  __m512 v = _mm512_castps128_ps512(_mm_loadu_ps(p));
  v = _mm512_insertf32x4(v, _mm_loadu_ps(p + step), 1);
  v = _mm512_insertf32x4(v, _mm_loadu_ps(p + 2 * step), 2);
  return {_mm512_insertf32x4(v, _mm_loadu_ps(p + 3 * step), 3)};
}
template <typename T>
inline Vec load_quarters(const T* p, int64_t step) {
  const auto quarter = [&](int i) { return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + i * step)); };
  const __m128i low = _mm_unpacklo_epi64(quarter(0), quarter(1));
  const __m128i high = _mm_unpacklo_epi64(quarter(2), quarter(3));
  return widen(_mm256_set_m128i(high, low), p);
}
inline void store_quarters(float* p, int64_t step, Vec a) {
  _mm_storeu_ps(p, _mm512_castps512_ps128(a.v));
  _mm_storeu_ps(p + step, _mm512_extractf32x4_ps(a.v, 1));
  _mm_storeu_ps(p + 2 * step, _mm512_extractf32x4_ps(a.v, 2));
  _mm_storeu_ps(p + 3 * step, _mm512_extractf32x4_ps(a.v, 3));
}
template <typename T>
inline void store_quarters(T* p, int64_t step, Vec a) {
  const __m256i bits = narrow(a, p);
  const __m128i halves[2] = {_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1)};
  for (int i = 0; i < 4; i += 2) {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p + i * step), halves[i / 2]);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p + (i + 1) * step), _mm_srli_si128(halves[i / 2], 8));
  }
}

// In each 128-bit quarter by itself, the transpose of the 4 x 4 block that lies in q[0..3].
inline void transpose_quads(Vec* q) {
  const __m512 a = _mm512_unpacklo_ps(q[0].v, q[1].v), b = _mm512_unpackhi_ps(q[0].v, q[1].v);
  const __m512 c = _mm512_unpacklo_ps(q[2].v, q[3].v), d = _mm512_unpackhi_ps(q[2].v, q[3].v);
  q[0].v = _mm512_shuffle_ps(a, c, 0x44);
  q[1].v = _mm512_shuffle_ps(a, c, 0xee);
  q[2].v = _mm512_shuffle_ps(b, d, 0x44);
  q[3].v = _mm512_shuffle_ps(b, d, 0xee);
}
// Four neighbours from each of kLanes places: lane i of q[k] is p[i * stride + k].
template <typename T>
inline void load_quads(const T* p, int64_t stride, Vec (&q)[4]) {
  for (int i = 0; i < 4; ++i) q[i] = load_quarters(p + i * stride, 4 * stride);
  transpose_quads(q);
}
template <typename T>
inline void store_quads(T* p, int64_t stride, const Vec (&q)[4]) {
  Vec rows[4] = {q[0], q[1], q[2], q[3]};
  transpose_quads(rows);
  for (int i = 0; i < 4; ++i) store_quarters(p + i * stride, 4 * stride, rows[i]);
}

// In-register transpose of a 16 x 16 block held in rows[0..15]: the 4 x 4 blocks first, each within its
// quarter, then the quarters among the four rows that have the same column of them.
inline void transpose_lanes(Vec (&rows)[Vec::kLanes]) {
  for (int i = 0; i < 16; i += 4) transpose_quads(rows + i);
  for (int i = 0; i < 4; ++i) {
    const __m512 even_low = _mm512_shuffle_f32x4(rows[i].v, rows[i + 4].v, 0x88);
    const __m512 odd_low = _mm512_shuffle_f32x4(rows[i].v, rows[i + 4].v, 0xdd);
    const __m512 even_high = _mm512_shuffle_f32x4(rows[i + 8].v, rows[i + 12].v, 0x88);
    const __m512 odd_high = _mm512_shuffle_f32x4(rows[i + 8].v, rows[i + 12].v, 0xdd);
    rows[i].v = _mm512_shuffle_f32x4(even_low, even_high, 0x88);
    rows[i + 4].v = _mm512_shuffle_f32x4(odd_low, odd_high, 0x88);
    rows[i + 8].v = _mm512_shuffle_f32x4(even_low, even_high, 0xdd);
    rows[i + 12].v = _mm512_shuffle_f32x4(odd_low, odd_high, 0xdd);
  }
}

// Lane i is the sum of rows[i].
inline Vec lane_totals(const Vec (&rows)[Vec::kLanes]) {
  Vec columns[Vec::kLanes];
  for (int i = 0; i < Vec::kLanes; ++i) columns[i] = rows[i];
  transpose_lanes(columns);
  for (int n = Vec::kLanes / 2; n > 0; n /= 2) {
    for (int i = 0; i < n; ++i) columns[i] = columns[i] + columns[i + n];
  }
  return columns[0];
}

}  // namespace
}  // namespace padfree
