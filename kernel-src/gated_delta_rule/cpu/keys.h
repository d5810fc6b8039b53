// Queries and keys of one chunk of one key head, and their products: what the value heads of its group share.
#pragma once

#include "common/cpu/arena.h"
#include "common/cpu/products.h"
#include "gated_delta_rule/cpu/rows.h"

namespace padfree::gated_delta_rule {
namespace {

struct Keys {
  int n = 0;     // tokens of this chunk
  int dim = 0;   // head_dim
  int ld = 0;    // dim rounded up to a panel
  float *q, *k;  // rows; normalized where asked; q times scale
  float *q_inverse_norm, *k_inverse_norm;
  Panels k_transposed;
  float *qk, *kk;  // (kChunk, kChunk), lower triangle: q_i . k_j and k_i . k_j; only for a gate per head
};

inline Keys keys_space(const Params& p, Arena& arena) {
  Keys keys;
  keys.dim = p.head_dim;
  keys.ld = round_up(p.head_dim, kPanel);
  keys.q = arena.take(kChunk * keys.ld);
  keys.k = arena.take(kChunk * keys.ld);
  keys.q_inverse_norm = arena.take(kChunk);
  keys.k_inverse_norm = arena.take(kChunk);
  keys.k_transposed = {arena.take(kChunk * keys.ld), keys.ld * kPanel};
  keys.qk = arena.take(kChunk * kChunk);
  keys.kk = arena.take(kChunk * kChunk);
  return keys;
}

inline void load_keys(const Params& p, const Sequence& s, int key_head, int64_t begin, int n, Keys& keys) {
  keys.n = n;
  load_rows(p, p.q, s, key_head, begin, n, keys.dim, keys.q, keys.ld);
  load_rows(p, p.k, s, key_head, begin, n, keys.dim, keys.k, keys.ld);
  if (p.l2norm) {
    normalize_rows(keys.q, n, keys.ld, keys.q_inverse_norm);
    normalize_rows(keys.k, n, keys.ld, keys.k_inverse_norm);
  }
  for (int i = 0; i < n; ++i) scale_row(keys.q + i * keys.ld, p.scale, keys.ld);
  if (p.gate_per_channel) return;
  const int panels = ceil_div(n, kPanel);
  transpose(rows_result(keys.k, keys.ld), n, keys.ld / kPanel, keys.k_transposed);
  const auto lower = [&](const float* a, float* out) {
    product<Update::kOverwrite, Layout::kRows, Shape::kLowerOut>(n, panels, keys.dim, a, keys.ld,
                                                                 keys.k_transposed, rows_result(out, kChunk));
  };
  lower(keys.q, keys.qk);
  lower(keys.k, keys.kk);
}

}  // namespace
}  // namespace padfree::gated_delta_rule
