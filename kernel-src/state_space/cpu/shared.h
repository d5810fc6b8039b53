// B and C of one chunk of one group, and their products: what the heads of the group share.
#pragma once

#include "common/cpu/arena.h"
#include "state_space/cpu/rows.h"

namespace padfree::state_space {
namespace {

struct Shared {
  int n = 0;                          // tokens of this chunk
  int ld = 0;                         // state_dim rounded up to a panel
  float *b, *c;                       // rows of ld
  Panels b_transposed, c_transposed;  // (ld, kChunk); that of C only for the backward
  float* cb;                          // (kChunk, kChunk), lower triangle: C_i . B_j
};

inline Shared shared_space(const Params& p, bool backward, Arena& arena) {
  Shared shared;
  shared.ld = round_up(p.state_dim, kPanel);
  shared.b = arena.take(kChunk * shared.ld);
  shared.c = arena.take(kChunk * shared.ld);
  shared.b_transposed = {arena.take(kChunk * shared.ld), shared.ld * kPanel};
  shared.c_transposed = {backward ? arena.take(kChunk * shared.ld) : nullptr, shared.ld * kPanel};
  shared.cb = arena.take(kChunk * kChunk);
  return shared;
}

inline void load_shared(const Params& p, const Sequence& s, int group, int64_t begin, int n, Shared& shared) {
  const int ld = shared.ld;
  shared.n = n;
  load_rows(p, p.B, s, group, begin, n, p.state_dim, shared.b, ld);
  load_rows(p, p.C, s, group, begin, n, p.state_dim, shared.c, ld);
  transpose(rows_result(shared.b, ld), n, ld / kPanel, shared.b_transposed);
  product<Update::kOverwrite, Layout::kRows, Shape::kLowerOut>(
      n, ceil_div(n, kPanel), p.state_dim, shared.c, ld, shared.b_transposed, rows_result(shared.cb, kChunk));
}

}  // namespace
}  // namespace padfree::state_space
