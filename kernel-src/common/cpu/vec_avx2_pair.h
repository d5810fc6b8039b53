// What vec_pair.h leaves to AVX2: sixteen bfloat16 become the even ones and the odd ones by an instruction
// each, where keeping their order takes four to six. Include vec_avx2.h first.
#pragma once

namespace padfree {
namespace {

constexpr bool interleaves(const BFloat16*) {
  return true;
}
inline void load_pair(const BFloat16* p, Vec& even, Vec& odd) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  even.v = _mm256_castsi256_ps(_mm256_slli_epi32(bits, 16));
  odd.v = _mm256_castsi256_ps(_mm256_and_si256(bits, _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
}
// To nearest even, as narrow does, without its care for a NaN whose payload is all ones.
inline __m256i rounded_upwards(Vec a) {
  const __m256i bits = _mm256_castps_si256(a.v);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  return _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
}
inline void store_pair(BFloat16* p, Vec even, Vec odd) {
  const __m256i low = _mm256_srli_epi32(rounded_upwards(even), 16);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_blend_epi16(low, rounded_upwards(odd), 0xaa));
}

}  // namespace
}  // namespace padfree
