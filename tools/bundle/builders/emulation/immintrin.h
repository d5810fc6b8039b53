// Stands before the compiler's own <immintrin.h> in `bundle build --emulate-avx512`: the AVX-512 intrinsics
// that vec_avx512.h uses become SIMDe's functions (Debian: libsimde-dev), which run them on AVX2. SIMDe is an
// authority of its own on what each intrinsic means; the few that its version 0.7.4 lacks are below, from
// Intel's description.
#pragma once

#include_next <immintrin.h>

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>
#include <simde/x86/f16c.h>

#include <cstdint>
#include <cstring>

namespace emulated {

namespace {

// Two AVX2 halves: how an intrinsic of eight lanes becomes one of sixteen.
inline simde__m512 halves(__m256 low, __m256 high) {
  simde__m512 whole;
  std::memcpy(&whole, &low, sizeof low);
  std::memcpy(reinterpret_cast<char*>(&whole) + sizeof low, &high, sizeof high);
  return whole;
}
inline simde__m512i halves(__m256i low, __m256i high) {
  simde__m512i whole;
  std::memcpy(&whole, &low, sizeof low);
  std::memcpy(reinterpret_cast<char*>(&whole) + sizeof low, &high, sizeof high);
  return whole;
}
template <typename Half, typename Whole>
inline Half half(const Whole& whole, int which) {
  Half part;
  std::memcpy(&part, reinterpret_cast<const char*>(&whole) + which * sizeof part, sizeof part);
  return part;
}

inline simde__m512i cvtps_epi32(simde__m512 a) {
  return halves(_mm256_cvtps_epi32(half<__m256>(a, 0)), _mm256_cvtps_epi32(half<__m256>(a, 1)));
}
inline simde__m512 cvtph_ps(__m256i a) {
  return halves(_mm256_cvtph_ps(half<__m128i>(a, 0)), _mm256_cvtph_ps(half<__m128i>(a, 1)));
}
template <int kRounding>
inline __m256i cvtps_ph(simde__m512 a) {
  return _mm256_set_m128i(_mm256_cvtps_ph(half<__m256>(a, 1), kRounding),
                          _mm256_cvtps_ph(half<__m256>(a, 0), kRounding));
}
inline simde__m512i cvtepu16_epi32(__m256i a) {
  return halves(_mm256_cvtepu16_epi32(half<__m128i>(a, 0)), _mm256_cvtepu16_epi32(half<__m128i>(a, 1)));
}
inline __m256i cvtepi32_epi16(simde__m512i a) {
  int32_t wide[16];
  int16_t narrow[16];
  std::memcpy(wide, &a, sizeof wide);
  for (int i = 0; i < 16; ++i) narrow[i] = static_cast<int16_t>(wide[i]);
  return half<__m256i>(narrow, 0);
}

// Masked accesses touch no byte of a lane whose bit is clear. Only leading runs of bits are used.
template <typename Register, typename Lane>
inline Register maskz_loadu(uint32_t mask, const Lane* p) {
  constexpr int kLanes = sizeof(Register) / sizeof(Lane);
  Lane lanes[kLanes] = {};
  for (int i = 0; i < kLanes; ++i) {
    if (mask >> i & 1) lanes[i] = p[i];
  }
  return half<Register>(lanes, 0);
}
template <typename Lane, typename Register>
inline void mask_storeu(Lane* p, simde__mmask16 mask, const Register& a) {
  Lane lanes[16];
  std::memcpy(lanes, &a, sizeof lanes);
  for (int i = 0; i < 16; ++i) {
    if (mask >> i & 1) p[i] = lanes[i];
  }
}

// Zero, with its sign, for a denormal.
inline __m256 flushed(__m256 x) {
  const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  const __m256 denormal = _mm256_cmp_ps(_mm256_and_ps(x, magnitude), _mm256_set1_ps(0x1p-126f), _CMP_LT_OQ);
  return _mm256_andnot_ps(_mm256_and_ps(denormal, magnitude), x);
}
// Of each pair of bfloat16 the upper, the lower.
inline __m256 upper(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}
inline __m256 lower(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
}
inline __m256 dpbf16_ps(__m256 sum, __m256i a, __m256i b) {
  sum = flushed(_mm256_fmadd_ps(flushed(upper(a)), flushed(upper(b)), flushed(sum)));
  return flushed(_mm256_fmadd_ps(flushed(lower(a)), flushed(lower(b)), sum));
}
// SIMDe's own keeps denormals and adds the lower product first.
template <typename Pairs>
inline simde__m512 dpbf16_ps(simde__m512 sum, const Pairs& a, const Pairs& b) {
  return halves(dpbf16_ps(half<__m256>(sum, 0), half<__m256i>(a, 0), half<__m256i>(b, 0)),
                dpbf16_ps(half<__m256>(sum, 1), half<__m256i>(a, 1), half<__m256i>(b, 1)));
}

}  // namespace
}  // namespace emulated

#define _mm512_shuffle_f32x4(a, b, imm8) simde_mm512_shuffle_f32x4(a, b, imm8)
#define _mm512_cvtps_epi32(a) emulated::cvtps_epi32(a)
#define _mm512_cvtph_ps(a) emulated::cvtph_ps(a)
#define _mm512_cvtps_ph(a, rounding) emulated::cvtps_ph<rounding>(a)
#define _mm512_cvtepu16_epi32(a) emulated::cvtepu16_epi32(a)
#define _mm512_cvtepi32_epi16(a) emulated::cvtepi32_epi16(a)
#undef _mm512_dpbf16_ps
#define _mm512_dpbf16_ps(sum, a, b) emulated::dpbf16_ps(sum, a, b)
#define _mm512_maskz_loadu_epi16(mask, p) \
  emulated::maskz_loadu<simde__m512i>(mask, reinterpret_cast<const int16_t*>(p))
#define _mm512_maskz_loadu_ps(mask, p) emulated::maskz_loadu<simde__m512>(mask, static_cast<const float*>(p))
#define _mm512_mask_storeu_ps(p, mask, a) emulated::mask_storeu(static_cast<float*>(p), mask, a)
#define _mm256_maskz_loadu_epi16(mask, p) \
  emulated::maskz_loadu<__m256i>(mask, reinterpret_cast<const int16_t*>(p))
#define _mm256_mask_storeu_epi16(p, mask, a) emulated::mask_storeu(reinterpret_cast<int16_t*>(p), mask, a)
