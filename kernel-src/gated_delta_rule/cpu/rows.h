// The L2 norm of rows, and what it needs.
#pragma once

#include "common/cpu/token_rows.h"
#include "gated_delta_rule/params.h"

namespace padfree::gated_delta_rule {
namespace {

static_assert(kChunk <= kMostRows);

// Added to the squared norm, as flash-linear-attention and transformers do.
constexpr float kNormEpsilon = 1e-6f;

inline void scale_row(float* row, float factor, int n) {
  for (int d = 0; d < n; d += Vec::kLanes) store(row + d, splat(factor) * load(row + d));
}

// Divides each row by sqrt(|row|^2 + epsilon); inverse_norm[i] is what it was multiplied by.
inline void normalize_rows(float* rows, int n, int ld, float* inverse_norm) {
  for (int i = 0; i < n; ++i) {
    float* row = rows + i * ld;
    inverse_norm[i] = 1.0f / __builtin_sqrtf(dot(row, row, ld) + kNormEpsilon);
    scale_row(row, inverse_norm[i], ld);
  }
}

}  // namespace
}  // namespace padfree::gated_delta_rule
