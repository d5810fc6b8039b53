// What avx512_bf16 adds to vec_avx512.h: dot products of pairs of bfloat16. A Vec of pairs is sixteen times
// two neighbours, as bits; it is loaded, moved and given to DotBFloat16, nothing else.
//
// VDPBF16PS takes denormals for zero, operands and sums, and rounds each of its two additions to nearest
// even, whatever MXCSR says. The products are exact.
//
// Included only by kernel_avx512bf16.cpp files; the rules of vec_avx512.h hold.
#pragma once

#include "vec_avx512.h"

namespace padfree {
namespace {

// The first n of 32 neighbours (n > 0, more than 32 count as 32), the rest zero; nothing past p[n - 1] is
// touched.
inline Vec load_pairs(const BFloat16* p, int n) {
  const __mmask32 mask = n >= 32 ? ~0u : (1u << n) - 1;
  return {_mm512_castsi512_ps(_mm512_maskz_loadu_epi16(mask, p))};
}

// How gemm_pack.h reads pairs: of a row with an odd number of values the last one is half empty.
template <bool kOdd>
struct BFloat16Pair {
  BFloat16 lower, upper;
};
template <bool kOdd>
inline Vec load_upto(const BFloat16Pair<kOdd>* p, int n) {
  return load_pairs(&p->lower, 2 * n - kOdd);
}

inline __m512bh pairs_of(Vec a) {
  __m512bh pairs;
  __builtin_memcpy(&pairs, &a.v, sizeof pairs);
  return pairs;
}

// sum + a[2 i + 1] * b[2 i + 1] + a[2 i] * b[2 i] in lane i.
struct DotBFloat16 {
  static Vec add(Vec a, Vec b, Vec sum) { return {_mm512_dpbf16_ps(sum.v, pairs_of(a), pairs_of(b))}; }
};

}  // namespace
}  // namespace padfree
