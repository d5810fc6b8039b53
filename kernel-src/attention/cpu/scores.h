// From q . k to the exponent of the softmax, in base 2.
//
//   plain     x = scale * log2(e) * q.k                  (the factor is folded into Q)
//   softcap   x = cap * log2(e) * tanh(scale / cap * q.k)
#pragma once

#include "attention/params.h"

namespace padfree::attention {
namespace {

constexpr float kLn2 = 0.693147180559945309417f;

// What Q is multiplied by while it is converted.
inline float query_scale(const Params& p) {
  return p.softcap == 0.0f ? p.scale * kLog2E : p.scale / p.softcap;
}

// scale / query_scale: what turns a sum over the scaled Q into one over scale * Q.
inline float rescale_of_scaled_query(const Params& p) {
  return p.softcap == 0.0f ? kLn2 : p.softcap;
}

// Columns [0, n), n a multiple of kPanel, in place.
[[gnu::noinline]] inline void softcap_row(float* s, int n, const Params& p) {
  const Vec cap = splat(p.softcap * kLog2E);
  for (int j = 0; j < n; j += Vec::kLanes) store(s + j, cap * tanh(load(s + j)));
}

}  // namespace
}  // namespace padfree::attention
