// Attention backward. The derivation is in ../README.md; per tile, with S, P, dP, dS of block_q x block_k:
//
//   S = Q K^T    P = exp2(S - lse)    dP = dO V^T    dS = P * (dP - delta)
//   dV += P^T dO    dK += dS^T Q    dQ += dS K
//
// One task owns one key block of one sequence and key/value head: it packs K and V once, keeps dK and dV in
// its workspace and walks the query blocks that see it. dQ is summed in float32 memory shared by the tasks of
// a head; each query block takes its key blocks in rising order, whichever threads hold them: `turns` counts
// those already added and a task waits until its turn has come. The result so equals the sequential one bit
// for bit, at five matrix products a tile and no copy of dQ per thread. Tasks are handed out with rising key
// blocks within a head, so the lowest unfinished one never waits and no order of threads can lock up.
#pragma once

#include <sched.h>

#include "attention/cpu/modifiers.h"
#include "attention/cpu/rows.h"

namespace padfree::attention {
namespace {

struct BackwardSpace {
  float *keys_t, *keys, *values_t;  // packed key block: K^T, K, V^T
  float *dk, *dv;                   // [block_k][ld]
  float *q, *dout;                  // packed query block, q scaled for the scores: both A and B of products
  float *q_left, *dout_left;        // of the products with K^T and V^T (dots.h)
  float *p, *ds;                    // one tile each
  int ld_d, ld_v, ld_tile;
};

inline BackwardSpace backward_space(const Params& p, Arena& arena) {
  BackwardSpace w{};
  w.ld_d = round_up(p.head_dim, kPanel);
  w.ld_v = round_up(p.head_dim_v, kPanel);
  w.ld_tile = p.block_k + 16;
  const int64_t keys = p.block_k, rows = p.block_q;
  w.keys_t = arena.take(keys * w.ld_d);
  w.keys = arena.take(keys * w.ld_d);
  w.values_t = arena.take(keys * w.ld_v);
  w.dk = arena.take(keys * w.ld_d);
  w.dv = arena.take(keys * w.ld_v);
  w.q = arena.take(rows * w.ld_d);
  w.dout = arena.take(rows * w.ld_v);
  w.q_left = take_left(arena, p.block_q, p.head_dim, w.q);
  w.dout_left = take_left(arena, p.block_q, p.head_dim_v, w.dout);
  w.p = arena.take(rows * w.ld_tile);
  w.ds = arena.take(rows * w.ld_tile);
  return w;
}

inline int64_t backward_workspace(const Params& p) {
  Arena arena{nullptr};
  backward_space(p, arena);
  return arena.used;
}

// delta = rowsum(dout * out) - dlse for virtual rows [task.begin, task.end); dq = 0 for blocks that see no
// key.
inline void prepare_backward(const Params& p, const Task& task, float* workspace) {
  const Sequence& s = p.sequences[task.sequence];
  const int ld = round_up(p.head_dim_v, kPanel);
  Arena arena{workspace};
  float* out = arena.take(static_cast<int64_t>(p.block_q) * ld);
  float* dout = arena.take(static_cast<int64_t>(p.block_q) * ld);
  float* none = arena.take(p.head_dim + kPanel);
  void* pointers[kMaxBlockQ];
  float* delta = p.delta + task.kv_head * p.virtual_rows + s.first_row;
  for (int64_t row = task.begin; row < task.end; row += p.block_q) {
    const int m = static_cast<int>(min64(p.block_q, task.end - row));
    const KeyRange blocks = visible_blocks(p, s, row, row + m);
    if (blocks.begin == blocks.end) {
      for (int d = 0; d < p.head_dim + kPanel; ++d) none[d] = 0.0f;
      query_rows(p, p.dq, s, task.kv_head, row, m, pointers);
      store_rows(p.dtype, pointers, m, p.head_dim, none, 0, none, 0);
      if (p.sinks == nullptr) continue;
    }
    query_rows(p, p.out, s, task.kv_head, row, m, pointers);
    convert_rows(p.dtype, pointers, m, p.head_dim_v, 1.0f, out, ld);
    query_rows(p, p.dout, s, task.kv_head, row, m, pointers);
    convert_rows(p.dtype, pointers, m, p.head_dim_v, 1.0f, dout, ld);
    for (int i = 0; i < m; ++i) {
      Vec dot = zero();
      int d = 0;
      for (; d + Vec::kLanes <= p.head_dim_v; d += Vec::kLanes) {
        dot = fma(load(out + i * ld + d), load(dout + i * ld + d), dot);
      }
      float tail = 0.0f;
      for (; d < p.head_dim_v; ++d) tail += out[i * ld + d] * dout[i * ld + d];
      const float dlse = p.dlse.data == nullptr ? 0.0f : *row_stat(p, p.dlse, s, task.kv_head, row + i);
      delta[row + i] = sum(dot) + tail - dlse;
    }
  }
}

// The mask's gradient of one row, which is dS before the softcap's derivative: P (dP - delta).
inline void store_dmask(const Params& p, const Sequence& s, int kv_head, int64_t row, int64_t key, int begin,
                        int end, const float* weights, const float* dp, float delta) {
  const MaskView& m = p.dmask;
  const int64_t offset = s.batch * m.batch_stride + head_of(p, kv_head, row) * m.head_stride +
                         row / p.group * m.row_stride + key;
  with_dtype(m.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* target = static_cast<T*>(const_cast<void*>(m.data)) + offset;
    for (int j = begin; j < end; ++j) {
      const float gradient = weights[j] == 0.0f ? 0.0f : weights[j] * (dp[j] - delta);
      store_partial(target + j, splat(gradient), 1);
    }
  });
}

// S to P and dP to dS, in place: columns [begin, end) of a row; the other columns below n become zero. `bias`
// is added after the softcap; without one, S holds it already.
inline void gradient_row(const Params& p, float* s, float* dp, const float* bias, int panel_begin,
                         int panel_end, int begin, int end, int n, float lse, float delta) {
  if (begin >= end || lse == -__builtin_inff()) begin = end = panel_begin = panel_end = 0;
  const Vec shift = splat(lse), mean = splat(delta);
  if (p.softcap == 0.0f) {
    for (int j = panel_begin; j < panel_end; j += Vec::kLanes) {
      const Vec weight = exp2_nonpositive(load(s + j) - shift);
      store(s + j, weight);
      store(dp + j, weight * (load(dp + j) - mean));
    }
  } else {
    const Vec cap = splat(p.softcap * kLog2E);
    for (int j = panel_begin; j < panel_end; j += Vec::kLanes) {
      const Vec t = tanh(load(s + j));
      const Vec capped = bias == nullptr ? cap * t : fma(cap, t, load(bias + j));
      const Vec weight = exp2_nonpositive(capped - shift);
      store(s + j, weight);
      store(dp + j, weight * (load(dp + j) - mean) * fnma(t, t, splat(1.0f)));
    }
  }
  for (int j = 0; j < begin; ++j) s[j] = dp[j] = 0.0f;
  for (int j = end; j < n; ++j) s[j] = dp[j] = 0.0f;
}

// Row `row` of the tile, `i` of its rows, under ALiBi, mask and dropout.
[[gnu::noinline]] inline void modified_gradient_row(const Params& p, const Sequence& q, int kv_head,
                                                    int64_t row, int64_t key, int i, int n,
                                                    const TileMask& mask, float* s, float* dp, float lse,
                                                    float delta) {
  const int g = i / kGemmRows, begin = mask.begin[i], end = mask.end[i];
  float bias[kMaxBlockK] = {}, factor[kMaxBlockK], dp_before[kMaxBlockK];
  if (has_bias(p, mask)) add_bias(p, q, kv_head, row, key, mask, begin, end, bias);
  if (p.dropout_factor != 0.0f) {
    dropout_row(p, q, kv_head, row, key, begin, end, factor);
    for (int j = begin; j < end; ++j) dp[j] *= factor[j];
  }
  for (int j = begin; j < end; ++j) dp_before[j] = dp[j];
  for (int j = begin; j < end && p.softcap == 0.0f; ++j) s[j] += bias[j];
  gradient_row(p, s, dp, bias, mask.panel_begin[g], mask.panel_end[g], begin, end, n, lse, delta);
  for (int j = begin; j < end; ++j) {
    if (bias[j] == kHidden) s[j] = dp[j] = 0.0f;  // whatever dP holds there
  }
  if (p.dmask.data != nullptr) store_dmask(p, q, kv_head, row, key, begin, end, s, dp_before, delta);
  for (int j = begin; j < end && p.dropout_factor != 0.0f; ++j) s[j] *= factor[j];
}

// Rows of a tile that see any of the columns [begin, end).
struct RowRange {
  int begin, end;
};
inline RowRange rows_seeing(const TileMask& mask, int m, int begin, int end) {
  RowRange rows{0, m};
  while (rows.begin < m && mask.end[rows.begin] <= begin) ++rows.begin;
  while (rows.end > rows.begin && mask.begin[rows.end - 1] >= end) --rows.end;
  return rows;
}

// C (n keys x ld) += A^T B for A a tile of m rows and B packed with one depth per row.
inline void add_transposed(const TileMask& mask, int m, int n, const float* a, int lda, const float* b,
                           float* c, int ldc, bool finite) {
  const auto tile = finite ? gemm_tile<Update::kAdd, Layout::kTransposed>
                           : gemm_tile_skipping_zeros<Update::kAdd, Layout::kTransposed>;
  RowRange rows[(kMaxBlockK + kGemmRows - 1) / kGemmRows];
  for (int j = 0, g = 0; j < n; j += kGemmRows, ++g) rows[g] = rows_seeing(mask, m, j, j + kGemmRows);
  for (int j = 0, g = 0; j < n; j += kGemmRows, ++g) {
    if (rows[g].begin == rows[g].end) continue;
    for (int d = 0; d < ldc; d += kPanel) {
      tile(n - j < kGemmRows ? n - j : kGemmRows, rows[g].end - rows[g].begin, a + rows[g].begin * lda + j,
           lda, b + static_cast<int64_t>(d) * m + rows[g].begin * kPanel,
           c + static_cast<int64_t>(j) * ldc + d, ldc, nullptr);
    }
  }
}

inline void wait_for_turn(const int32_t* turn, int32_t wanted) {
  while (__atomic_load_n(turn, __ATOMIC_ACQUIRE) != wanted) sched_yield();
}

// Adds the tile's dS K to dq_sum in this key block's turn; the last key block rounds the sum into dq.
inline void add_dq(const Params& p, const Sequence& s, const Task& task, const BackwardSpace& w,
                   const TileMask& mask, int64_t row, int m, int n, bool finite_keys, KeyRange blocks) {
  const auto tile = finite_keys ? gemm_tile<Update::kAdd, Layout::kRows>
                                : gemm_tile_skipping_zeros<Update::kAdd, Layout::kRows>;
  int32_t* turn = p.turns + task.kv_head * p.query_blocks + s.first_block + row / p.block_q;
  float* dq = p.dq_sum + (task.kv_head * p.virtual_rows + s.first_row + row) * w.ld_d;
  wait_for_turn(turn, static_cast<int32_t>(task.begin - blocks.begin));
  if (task.begin == blocks.begin) {
    for (int64_t i = 0; i < static_cast<int64_t>(m) * w.ld_d; ++i) dq[i] = 0.0f;
  }
  for (int d = 0; d < w.ld_d; d += kPanel) {
    for (int i = 0, g = 0; i < m; i += kGemmRows, ++g) {
      const int begin = mask.panel_begin[g], depth = mask.panel_end[g] - begin;
      if (depth == 0) continue;
      const float* keys = w.keys + static_cast<int64_t>(d) * round_up(n, kPanel) + begin * kPanel;
      tile(m - i < kGemmRows ? m - i : kGemmRows, depth, w.ds + i * w.ld_tile + begin, w.ld_tile, keys,
           dq + static_cast<int64_t>(i) * w.ld_d + d, w.ld_d, nullptr);
    }
  }
  if (task.begin + 1 == blocks.end) {
    void* targets[kMaxBlockQ];
    query_rows(p, p.dq, s, task.kv_head, row, m, targets);
    store_rows(p.dtype, targets, m, p.head_dim, dq, w.ld_d, &p.scale, 0);
  }
  __atomic_store_n(turn, static_cast<int32_t>(task.begin - blocks.begin + 1), __ATOMIC_RELEASE);
}

// Query rows [row, row + m) against the packed key block [key, key + n).
inline void backward_tile(const Params& p, const Sequence& s, const Task& task, const BackwardSpace& w,
                          int64_t row, int m, int64_t key, int n, bool finite_keys, KeyRange blocks) {
  TileMask mask;
  tile_mask(p, s, row, m, key, n, mask);
  shrink_to_mask(p, s, task.kv_head, row, m, key, n, mask);
  if (empty(mask, m)) return add_dq(p, s, task, w, mask, row, m, n, finite_keys, blocks);
  void* pointers[kMaxBlockQ];
  query_rows(p, p.q, s, task.kv_head, row, m, pointers);
  const bool finite_q = pack_panels(p.dtype, pointers, m, m, p.head_dim, query_scale(p), w.q);
  pack_left(pointers, m, p.head_dim, w.q_left);
  query_rows(p, p.dout, s, task.kv_head, row, m, pointers);
  const bool finite_dout = pack_panels(p.dtype, pointers, m, m, p.head_dim_v, 1.0f, w.dout);
  pack_left(pointers, m, p.head_dim_v, w.dout_left);

  const float factor = query_scale(p);
  for (int j = 0; j < round_up(n, kPanel); j += kPanel) {
    for (int i = 0, g = 0; i < m; i += kGemmRows, ++g) {
      if (j < mask.panel_begin[g] || j >= mask.panel_end[g]) continue;
      const int rows = m - i < kGemmRows ? m - i : kGemmRows;
      dot_left(rows, p.head_dim, w.q_left, i, m, w.keys_t + static_cast<int64_t>(j) * dot_depth(p.head_dim),
               w.p + i * w.ld_tile + j, w.ld_tile, factor);
      dot_left(rows, p.head_dim_v, w.dout_left, i, m,
               w.values_t + static_cast<int64_t>(j) * dot_depth(p.head_dim_v), w.ds + i * w.ld_tile + j,
               w.ld_tile, 1.0f);
    }
  }
  const float* delta = p.delta + task.kv_head * p.virtual_rows + s.first_row + row;
  const bool modified = has_bias(p, mask) || p.dropout_factor != 0.0f || p.dmask.data != nullptr;
  for (int i = 0; i < m; ++i) {
    const int g = i / kGemmRows;
    const float lse = *row_stat(p, p.lse, s, task.kv_head, row + i) * kLog2E;
    float *weights = w.p + i * w.ld_tile, *gradients = w.ds + i * w.ld_tile;
    if (modified) {
      modified_gradient_row(p, s, task.kv_head, row + i, key, i, round_up(n, kPanel), mask, weights,
                            gradients, lse, delta[i]);
      continue;
    }
    gradient_row(p, weights, gradients, nullptr, mask.panel_begin[g], mask.panel_end[g], mask.begin[i],
                 mask.end[i], round_up(n, kPanel), lse, delta[i]);
  }
  add_transposed(mask, m, n, w.p, w.ld_tile, w.dout, w.dv, w.ld_v, finite_dout);
  add_transposed(mask, m, n, w.ds, w.ld_tile, w.q, w.dk, w.ld_d, finite_q);
  add_dq(p, s, task, w, mask, row, m, n, finite_keys, blocks);
}

inline void backward(const Params& p, const Task& task, float* workspace) {
  const Sequence& s = p.sequences[task.sequence];
  Arena arena{workspace};
  const BackwardSpace w = backward_space(p, arena);
  const int64_t key = task.begin * p.block_k;
  const int n = static_cast<int>(min64(p.block_k, s.seqlen_k - key));
  void* pointers[kMaxBlockK];
  key_rows(p, p.k, s, task.kv_head, key, n, pointers);
  pack_dot_columns(p.dtype, pointers, n, p.head_dim, w.keys_t);
  const bool finite_keys = pack_panels(p.dtype, pointers, n, round_up(n, kPanel), p.head_dim, 1.0f, w.keys);
  key_rows(p, p.v, s, task.kv_head, key, n, pointers);
  pack_dot_columns(p.dtype, pointers, n, p.head_dim_v, w.values_t);
  for (int64_t i = 0; i < static_cast<int64_t>(n) * w.ld_d; ++i) w.dk[i] = 0.0f;
  for (int64_t i = 0; i < static_cast<int64_t>(n) * w.ld_v; ++i) w.dv[i] = 0.0f;

  const int64_t rows = s.seqlen_q * p.group;
  for (int64_t row = 0; row < rows; row += p.block_q) {
    const int m = static_cast<int>(min64(p.block_q, rows - row));
    const KeyRange blocks = visible_blocks(p, s, row, row + m);
    if (task.begin < blocks.begin || task.begin >= blocks.end) continue;
    backward_tile(p, s, task, w, row, m, key, n, finite_keys, blocks);
  }

  const float one = 1.0f, query_factor = rescale_of_scaled_query(p);
  key_rows(p, p.dk, s, task.kv_head, key, n, pointers);
  store_rows(p.dtype, pointers, n, p.head_dim, w.dk, w.ld_d, &query_factor, 0);
  key_rows(p, p.dv, s, task.kv_head, key, n, pointers);
  store_rows(p.dtype, pointers, n, p.head_dim_v, w.dv, w.ld_v, &one, 0);
}

}  // namespace
}  // namespace padfree::attention
