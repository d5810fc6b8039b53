// What vec_quads.h leaves to AVX2: two registers hold the 16-bit quads of eight places, and moving them on is
// a shift of 64 bits. Nothing is rounded again, and a NaN keeps its payload. Include vec_avx2.h first.
#pragma once

namespace padfree {
namespace {

// Places 0, 1, 4, 5 and places 2, 3, 6, 7 of eight that lie side by side: so cut, what unpacks within the
// halves of a register comes out in order.
struct DenseQuads {
  __m256i even, odd;
};

inline __m256i two_pieces(const void* low, const void* high) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(low))),
                                 _mm_loadu_si128(static_cast<const __m128i*>(high)), 1);
}
template <typename T>
inline DenseQuads load_dense(const T* p) {
  return {two_pieces(p, p + 16), two_pieces(p + 8, p + 24)};
}
template <typename T>
inline void store_dense(T* p, DenseQuads quads) {
  __m128i* to = reinterpret_cast<__m128i*>(p);
  _mm_storeu_si128(to, _mm256_castsi256_si128(quads.even));
  _mm_storeu_si128(to + 1, _mm256_castsi256_si128(quads.odd));
  _mm_storeu_si128(to + 2, _mm256_extracti128_si256(quads.even, 1));
  _mm_storeu_si128(to + 3, _mm256_extracti128_si256(quads.odd, 1));
}

// q[k]: value k of each place.
inline void widen_quads(DenseQuads quads, const BFloat16*, Vec (&q)[4]) {
  const auto values = [](__m256i bits) { return _mm256_castsi256_ps(bits); };
  const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xffff0000u));
  const __m256 even02 = values(_mm256_slli_epi32(quads.even, 16)),
               odd02 = values(_mm256_slli_epi32(quads.odd, 16)),
               even13 = values(_mm256_and_si256(quads.even, upper)),
               odd13 = values(_mm256_and_si256(quads.odd, upper));
  q[0].v = _mm256_shuffle_ps(even02, odd02, 0x88);
  q[1].v = _mm256_shuffle_ps(even13, odd13, 0x88);
  q[2].v = _mm256_shuffle_ps(even02, odd02, 0xdd);
  q[3].v = _mm256_shuffle_ps(even13, odd13, 0xdd);
}
inline void widen_quads(DenseQuads quads, const Float16*, Vec (&q)[4]) {
  const __m256i in_pairs = _mm256_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15,  //
                                            0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
  const __m256i even = _mm256_shuffle_epi8(quads.even, in_pairs),
                odd = _mm256_shuffle_epi8(quads.odd, in_pairs);
  const __m256i rows[2] = {_mm256_permute4x64_epi64(_mm256_unpacklo_epi32(even, odd), 0xd8),
                           _mm256_permute4x64_epi64(_mm256_unpackhi_epi32(even, odd), 0xd8)};
  for (int i = 0; i < 2; ++i) {
    q[2 * i].v = _mm256_cvtph_ps(_mm256_castsi256_si128(rows[i]));
    q[2 * i + 1].v = _mm256_cvtph_ps(_mm256_extracti128_si256(rows[i], 1));
  }
}

// next[i] behind the last three values of place i.
template <typename T>
inline DenseQuads advanced(DenseQuads quads, const T* next) {
  const __m256i even = _mm256_setr_epi8(-1, -1, -1, -1, -1, -1, 0, 1, -1, -1, -1, -1, -1, -1, 2, 3,  //
                                        -1, -1, -1, -1, -1, -1, 8, 9, -1, -1, -1, -1, -1, -1, 10, 11);
  const __m256i odd = _mm256_setr_epi8(-1, -1, -1, -1, -1, -1, 4, 5, -1, -1, -1, -1, -1, -1, 6, 7,  //
                                       -1, -1, -1, -1, -1, -1, 12, 13, -1, -1, -1, -1, -1, -1, 14, 15);
  const __m256i all = two_pieces(next, next);
  return {_mm256_or_si256(_mm256_srli_epi64(quads.even, 16), _mm256_shuffle_epi8(all, even)),
          _mm256_or_si256(_mm256_srli_epi64(quads.odd, 16), _mm256_shuffle_epi8(all, odd))};
}

inline void load_dense_quads(const BFloat16* p, Vec (&q)[4]) {
  widen_quads(load_dense(p), p, q);
}
inline void load_dense_quads(const Float16* p, Vec (&q)[4]) {
  widen_quads(load_dense(p), p, q);
}

template <typename T>
inline void advance_dense_quads_16(T* p, const T* next, Vec (&q)[4]) {
  const DenseQuads moved = advanced(load_dense(p), next);
  store_dense(p, moved);
  widen_quads(moved, p, q);
}
inline void advance_dense_quads(BFloat16* p, const BFloat16* next, Vec (&q)[4]) {
  advance_dense_quads_16(p, next, q);
}
inline void advance_dense_quads(Float16* p, const Float16* next, Vec (&q)[4]) {
  advance_dense_quads_16(p, next, q);
}

}  // namespace
}  // namespace padfree
