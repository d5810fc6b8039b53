// Elementary functions on Vec, written once for every ISA. Include a vec_<isa>.h first.
#pragma once

namespace padfree {
namespace {

constexpr float kLog2E = 1.44269504088896340736f;

// 2^f for |f| <= 1/2, relative error below 2e-7: minimax of degree 5 with 2^0 exact, evaluated in float32
// from the highest power down.
constexpr int kExp2Terms = 6;
constexpr float kExp2[kExp2Terms] = {0.001326472614891827f, 0.009671512991189957f, 0.05550733581185341f,
                                     0.24022242426872253f,  0.6931470036506653f,   1.0f};
inline Vec exp2_fraction(Vec f) {
  Vec p = splat(kExp2[0]);
#pragma GCC unroll 8
  for (int i = 1; i < kExp2Terms; ++i) p = fma(p, f, splat(kExp2[i]));
  return p;
}

// 2^x for a caller that adds it to 1: as exp2, but 2^-126 for all x < -126.
inline Vec exp2_normal(Vec x) {
  const Vec clamped = min(splat(128.0f), max(splat(-126.0f), x));
  const Vec n = round_nearest(clamped);
  return scale_exponent(exp2_fraction(clamped - n), n);
}

// 2^x, relative error below 2e-7. x < -126 gives exactly 0 (-inf included), x >= 128 gives +inf, NaN stays
// NaN.
inline Vec exp2(Vec x) {
  return select(less(x, splat(-126.0f)), zero(), exp2_normal(x));
}

// 2^x for x <= 0 (up to 127 in fact): two instructions fewer than exp2. Exactly 0 from -127 down (-inf
// included); between -127 and -126, where floats have no exponent left, some denormal. NaN stays NaN.
inline Vec exp2_nonpositive(Vec x) {
  const Vec clamped = max(splat(-127.0f), x);
  const Vec n = round_nearest(clamped);
  return scale_exponent(exp2_fraction(clamped - n), n);
}

// x becomes 2^x where |x| <= 126, which the caller has made sure of: three instructions fewer than exp2, the
// same bits. NaN stays NaN. All vectors take a step before any takes the next: a core that shares its window
// with another thread overlaps too little of one after the other. `terms` is kExp2 in memory, each as a
// vector, for callers that need the registers.
template <int kCount>
inline void exp2_bounded(Vec (&x)[kCount], const float* terms) {
  Vec n[kCount], p[kCount];
  for (int i = 0; i < kCount; ++i) n[i] = round_nearest(x[i]);
  for (int i = 0; i < kCount; ++i) x[i] = x[i] - n[i];
  for (int i = 0; i < kCount; ++i) p[i] = load(terms);
#pragma GCC unroll 8
  for (int term = 1; term < kExp2Terms; ++term) {
    for (int i = 0; i < kCount; ++i) p[i] = fma(p[i], x[i], load(terms + term * Vec::kLanes));
  }
  for (int i = 0; i < kCount; ++i) x[i] = scale_exponent(p[i], n[i]);
}

// e^x. The product with log2(e) is rounded, so the relative error grows as |x| * 2^-24: below 1e-6 for |x|
// < 16.
inline Vec exp(Vec x) {
  return exp2(x * splat(kLog2E));
}

// 1 / (1 + e^-x); 0 at -inf, 1 at +inf.
inline Vec sigmoid(Vec x) {
  return splat(1.0f) / (splat(1.0f) + exp2_normal(x * splat(-kLog2E)));
}

// x * sigmoid(x)
inline Vec silu(Vec x) {
  return x / (splat(1.0f) + exp2_normal(x * splat(-kLog2E)));
}

// e^-|x|: what softplus_of wants. A loop over many goes faster as two, since the chain of each is long.
inline Vec exp_below(Vec x) {
  return exp2_nonpositive(abs(x) * splat(-kLog2E));
}

// log(1 + e^x) with u = e^-|x|, relative error below 4e-7 plus |x| * 2^-24 where x is negative: x's positive
// part and log(1 + u), which is 2 atanh(s) with s = u / (2 + u): s times a minimax polynomial in the square
// of s, at most 1 / 9, in two halves.
inline Vec softplus_of(Vec x, Vec u) {
  const Vec s = u / (u + splat(2.0f)), z = s * s, zz = z * z;
  const Vec low = fma(splat(0.3333320915699005f), z, splat(1.0f));
  const Vec high = fma(splat(0.14000901579856873f), z, splat(0.2001076340675354f));
  return fma(s + s, fma(fma(splat(0.1400599628686905f), zz, high), zz, low), max(zero(), x));
}
inline Vec softplus(Vec x) {
  return softplus_of(x, exp_below(x));
}

// Hyperbolic tangent, relative error below 3e-7: an odd polynomial for |x| < 0.625 (Cephes tanhf), else
// 1 - 2 / (e^(2|x|) + 1) with the sign of x. +-1 at +-inf, NaN stays NaN.
inline Vec tanh(Vec x) {
  const Vec z = x * x;
  Vec p = splat(-5.70498872745e-3f);
  p = fma(p, z, splat(2.06390887954e-2f));
  p = fma(p, z, splat(-5.37397155531e-2f));
  p = fma(p, z, splat(1.33314422036e-1f));
  p = fma(p, z, splat(-3.33332819422e-1f));
  const Vec small = fma(x * z, p, x);
  const Vec magnitude = abs(x);
  const Vec large = splat(1.0f) - splat(2.0f) / (exp2(magnitude * splat(2.0f * kLog2E)) + splat(1.0f));
  const Vec signed_large = select(less(x, zero()), -large, large);
  return select(less(magnitude, splat(0.625f)), small, signed_large);
}

// a . b of n floats, whole vectors, added lane by lane.
inline float dot(const float* a, const float* b, int n) {
  Vec total = zero();
  for (int d = 0; d < n; d += Vec::kLanes) total = fma(load(a + d), load(b + d), total);
  return sum(total);
}

}  // namespace
}  // namespace padfree
