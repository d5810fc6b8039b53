// Attention forward for one task: a run of virtual rows of one sequence and key/value head.
//
// The task walks the key blocks its rows can see. Each block of K and V is converted and packed once and then
// meets every query block of the task, so packing is shared by the group's heads and by up to task_rows rows,
// and the packed block stays in L2 while the smaller query state streams past it. Scores live in one
// block_q x block_k tile; their running maximum and sum are kept in base 2 (log2(e) is folded into Q).
// Key blocks start at multiples of block_k from the sequence's first key, whatever the task: bits depend
// neither on the number of threads nor on the other sequences of a batch.
#pragma once

#include "attention/cpu/modifiers.h"
#include "attention/cpu/rows.h"

namespace padfree::attention {
namespace {

// Pieces of one worker's workspace.
struct ForwardSpace {
  float *q, *out;                 // [task_rows][ld]: queries, as dots.h packs them; sums of p * v
  float *max, *sum, *rescale;     // [task_rows]: running maximum (base 2), running sum, factor of this step
  float *keys, *values, *scores;  // packed block of K and of V; one tile
  int ld_q, ld_out, ld_scores;
};

inline ForwardSpace forward_space(const Params& p, Arena& arena) {
  ForwardSpace w{};
  w.ld_q = dot_ld(p.head_dim);
  w.ld_out = round_up(p.head_dim_v, kPanel);
  w.ld_scores = p.block_k + 16;  // one cache line more than a power of two: rows fall into different sets
  w.q = arena.take(static_cast<int64_t>(p.task_rows) * w.ld_q);
  w.out = arena.take(static_cast<int64_t>(p.task_rows) * w.ld_out);
  w.max = arena.take(p.task_rows);
  w.sum = arena.take(p.task_rows);
  w.rescale = arena.take(p.task_rows);
  w.keys = arena.take(static_cast<int64_t>(p.block_k) * w.ld_q);
  w.values = arena.take(static_cast<int64_t>(p.block_k) * w.ld_out);
  w.scores = arena.take(static_cast<int64_t>(p.block_q) * w.ld_scores);
  return w;
}

inline int64_t forward_workspace(const Params& p) {
  Arena arena{nullptr};
  forward_space(p, arena);
  return arena.used;
}

// Scores of a row to probabilities, in place: columns [begin, end) hold scores, the rest of [panel_begin,
// panel_end) becomes zero. Updates the running maximum and sum; returns the factor that takes earlier sums to
// the new maximum.
inline float softmax_row(float* s, int panel_begin, int panel_end, int begin, int end, float& max,
                         float& sum) {
  const float kNone = -__builtin_inff();
  if (begin >= end) {
    for (int j = panel_begin; j < panel_end; ++j) s[j] = 0.0f;
    return 1.0f;
  }
  for (int j = panel_begin; j < begin; ++j) s[j] = kNone;
  for (int j = end; j < panel_end; ++j) s[j] = kNone;
  Vec top0 = splat(kNone), top1 = top0;
  for (int j = panel_begin; j < panel_end; j += kPanel) {
    top0 = padfree::max(top0, load(s + j));
    top1 = padfree::max(top1, load(s + j + Vec::kLanes));
  }
  const float tile_max = max_lane(padfree::max(top0, top1));
  const float new_max = tile_max > max ? tile_max : max;
  if (new_max == kNone) {  // every score so far is -inf
    for (int j = panel_begin; j < panel_end; ++j) s[j] = 0.0f;
    return 1.0f;
  }
  float factor[Vec::kLanes];
  store(factor, exp2_nonpositive(splat(max - new_max)));
  const Vec shift = splat(new_max);
  Vec sum0 = zero(), sum1 = zero();
  for (int j = panel_begin; j < panel_end; j += kPanel) {
    const Vec p0 = exp2_nonpositive(load(s + j) - shift);
    const Vec p1 = exp2_nonpositive(load(s + j + Vec::kLanes) - shift);
    store(s + j, p0);
    store(s + j + Vec::kLanes, p1);
    sum0 = sum0 + p0;
    sum1 = sum1 + p1;
  }
  max = new_max;
  sum = sum * factor[0] + padfree::sum(sum0 + sum1);
  return factor[0];
}

// After the row's sum is taken: the log-sum-exp is that of all weights.
[[gnu::noinline]] inline void drop_weights(const Params& p, const Sequence& s, int kv_head, int64_t row,
                                           int64_t key, int begin, int end, float* weights) {
  float factor[kMaxBlockK];
  dropout_row(p, s, kv_head, row, key, begin, end, factor);
  for (int j = begin; j < end; ++j) weights[j] *= factor[j];
}

// A sink is a key of its own score and no value, met before all others.
inline void start_sums(const Params& p, const Sequence& s, int kv_head, int64_t row, float& max, float& sum) {
  max = -__builtin_inff();
  sum = 0.0f;
  if (p.sinks == nullptr || s.index < 0) return;
  max = p.sinks[head_of(p, kv_head, row)] * kLog2E;
  sum = max == -__builtin_inff() ? 0.0f : 1.0f;
}

// A tile of scores to weights, in place, rows [row, row + m): softcap, bias, softmax, dropout.
inline void weigh_rows(const Params& p, const Sequence& s, int kv_head, int64_t row, int m, int64_t key,
                       const TileMask& mask, float* tile, int ld, float* max, float* sum, float* rescale) {
  for (int i = 0; i < m; ++i) {
    const int begin = mask.panel_begin[i / kGemmRows], end = mask.panel_end[i / kGemmRows];
    float* scores = tile + i * ld;
    if (p.softcap != 0.0f) softcap_row(scores + begin, end - begin, p);
    if (has_bias(p, mask)) add_bias(p, s, kv_head, row + i, key, mask, mask.begin[i], mask.end[i], scores);
    rescale[i] = softmax_row(scores, begin, end, mask.begin[i], mask.end[i], max[i], sum[i]);
    if (p.dropout_factor != 0.0f) {
      drop_weights(p, s, kv_head, row + i, key, mask.begin[i], mask.end[i], scores);
    }
  }
}

// Query rows [row, row + m) of the task (at `local` in the workspace) against the packed key block
// [key, key + n).
inline void forward_tile(const Params& p, const Sequence& s, const ForwardSpace& w, int kv_head, int64_t row,
                         int local, int m, int64_t key, int n, const TileMask& mask, bool finite_values) {
  const float* q = w.q + static_cast<int64_t>(local) * w.ld_q;
  float* out = w.out + static_cast<int64_t>(local) * w.ld_out;
  float* rescale = w.rescale + local;
  const float factor = query_scale(p);

  // Scores: one panel of keys stays in L1 while the query rows pass.
  for (int j = 0; j < round_up(n, kPanel); j += kPanel) {
    const float* keys = w.keys + static_cast<int64_t>(j) * dot_depth(p.head_dim);
    for (int i = 0, g = 0; i < m; i += kGemmRows, ++g) {
      if (j < mask.panel_begin[g] || j >= mask.panel_end[g]) continue;
      const int rows = m - i < kGemmRows ? m - i : kGemmRows;
      dot_rows(rows, p.head_dim, q + i * w.ld_q, keys, w.scores + i * w.ld_scores + j, w.ld_scores, factor);
    }
  }
  weigh_rows(p, s, kv_head, row, m, key, mask, w.scores, w.ld_scores, w.max + local, w.sum + local, rescale);
  // Sums: one panel of values stays in L1 while the rows of probabilities pass.
  for (int d = 0; d < w.ld_out; d += kPanel) {
    for (int i = 0, g = 0; i < m; i += kGemmRows, ++g) {
      const int begin = mask.panel_begin[g], depth = mask.panel_end[g] - begin;
      if (depth == 0) continue;
      const int rows = m - i < kGemmRows ? m - i : kGemmRows;
      const float* values = w.values + static_cast<int64_t>(d) * round_up(n, kPanel) + begin * kPanel;
      const auto tile = finite_values ? gemm_tile<Update::kScaleAdd, Layout::kRows>
                                      : gemm_tile_skipping_zeros<Update::kScaleAdd, Layout::kRows>;
      tile(rows, depth, w.scores + i * w.ld_scores + begin, w.ld_scores, values, out + i * w.ld_out + d,
           w.ld_out, rescale + i);
    }
  }
}

// Divides by the sums, writes out and the log-sum-exp of virtual rows [row, row + m). `rescale` is scratch.
inline void finish_rows(const Params& p, const Sequence& s, int kv_head, int64_t row, int m, const float* out,
                        int ld_out, const float* max, const float* sum, float* rescale) {
  void* targets[kMaxBlockQ];
  for (int i = 0; i < m; ++i) {
    const bool any = sum[i] != 0.0f;
    *row_stat(p, p.lse, s, kv_head, row + i) =
        any ? max[i] * kLn2 + __builtin_logf(sum[i]) : -__builtin_inff();
    rescale[i] = any ? 1.0f / sum[i] : 0.0f;
  }
  for (int i = 0; i < m; i += kMaxBlockQ) {
    const int n = m - i < kMaxBlockQ ? m - i : kMaxBlockQ;
    query_rows(p, p.out, s, kv_head, row + i, n, targets);
    store_rows(p.dtype, targets, n, p.head_dim_v, out + static_cast<int64_t>(i) * ld_out, ld_out, rescale + i,
               1);
  }
}

inline void forward(const Params& p, const Task& task, float* workspace) {
  const Sequence& s = p.sequences[task.sequence];
  Arena arena{workspace};
  const ForwardSpace w = forward_space(p, arena);
  const int rows = static_cast<int>(task.end - task.begin);
  void* pointers[kMaxBlockQ > kMaxBlockK ? kMaxBlockQ : kMaxBlockK];

  for (int i = 0; i < rows; i += p.block_q) {
    const int m = rows - i < p.block_q ? rows - i : p.block_q;
    query_rows(p, p.q, s, task.kv_head, task.begin + i, m, pointers);
    pack_dot_rows(p.dtype, pointers, m, p.head_dim, query_scale(p), w.q + static_cast<int64_t>(i) * w.ld_q);
  }
  for (int64_t i = 0; i < static_cast<int64_t>(rows) * w.ld_out; ++i) w.out[i] = 0.0f;
  for (int i = 0; i < rows; ++i) start_sums(p, s, task.kv_head, task.begin + i, w.max[i], w.sum[i]);

  const KeyRange seen = visible_keys_of_rows(p, s, task.begin, task.end);
  for (int64_t key = seen.begin / p.block_k * p.block_k; key < seen.end; key += p.block_k) {
    const int n = static_cast<int>(min64(p.block_k, seen.end - key));
    bool packed = false, finite = false;
    for (int i = 0; i < rows; i += p.block_q) {
      const int m = rows - i < p.block_q ? rows - i : p.block_q;
      const KeyRange block = visible_keys_of_rows(p, s, task.begin + i, task.begin + i + m);
      if (block.begin >= key + n || block.end <= key) continue;
      TileMask mask;
      tile_mask(p, s, task.begin + i, m, key, n, mask);
      shrink_to_mask(p, s, task.kv_head, task.begin + i, m, key, n, mask);
      if (empty(mask, m)) continue;
      if (!packed) {
        key_rows(p, p.k, s, task.kv_head, key, n, pointers);
        pack_dot_columns(p.dtype, pointers, n, p.head_dim, w.keys);
        key_rows(p, p.v, s, task.kv_head, key, n, pointers);
        finite = pack_panels(p.dtype, pointers, n, round_up(n, kPanel), p.head_dim_v, 1.0f, w.values);
        packed = true;
      }
      forward_tile(p, s, w, task.kv_head, task.begin + i, i, m, key, n, mask, finite);
    }
  }
  finish_rows(p, s, task.kv_head, task.begin, rows, w.out, w.ld_out, w.max, w.sum, w.rescale);
}

}  // namespace
}  // namespace padfree::attention
