// Attention forward for few query rows over many keys (decoding): memory decides, so K and V are read once,
// in place, and nothing is packed.
//
// The keys of a sequence are cut into chunks of kStreamKeys, each a task that leaves its maximum, sum and
// weighted values in `partials`; stream_finish merges the chunks of one sequence and head in rising order.
// The cut depends on the number of keys alone, so bits do not depend on threads. A task may hold several
// key/value heads: where they are interleaved in memory (batch, row, head, dim), taking a tile of every head
// in turn reads whole DRAM pages.
//
// Eight accumulators fill a vector: kRows query rows times kLanes / kRows keys, summed across lanes by one
// transpose.
#pragma once

#include "attention/cpu/forward.h"

namespace padfree::attention {
namespace {

constexpr int kStreamTile = 64;  // keys of a tile

struct StreamSpace {
  float *q, *scores, *rescale;
  int ld_q, ld_out, ld_scores;
};

inline StreamSpace stream_space(const Params& p, Arena& arena) {
  StreamSpace w{};
  w.ld_q = round_up(p.head_dim, kPanel);
  w.ld_out = round_up(p.head_dim_v, kPanel);
  w.ld_scores = kStreamTile + kPanel;
  w.q = arena.take(static_cast<int64_t>(p.heads_kv) * kStreamRows * w.ld_q);
  w.scores = arena.take(kStreamRows * w.ld_scores);
  w.rescale = arena.take(kStreamRows);
  return w;
}

// What one chunk of keys leaves behind for the rows of one key/value head.
struct Partial {
  float *out, *max, *sum;
};

inline Partial partial_of(const Params& p, const Sequence& s, int kv_head, int64_t chunk, int ld_out) {
  const int64_t rows = s.seqlen_q * p.group, chunks = (s.seqlen_k + kStreamKeys - 1) / kStreamKeys;
  float* base = p.partials + s.first_partial + (kv_head * chunks + chunk) * rows * (ld_out + 2);
  return {base, base + rows * ld_out, base + rows * (ld_out + 1)};
}

// Sum of n vectors from the first one on, by halves.
template <int kFirst, int kCount>
inline Vec sum_of(const Vec (&x)[Vec::kLanes]) {
  if constexpr (kCount == 1) {
    return x[kFirst];
  } else {
    return sum_of<kFirst, kCount / 2>(x) + sum_of<kFirst + kCount / 2, kCount / 2>(x);
  }
}

// scores[r][j] = q[r] . rows[j] for kRows query rows and keys [begin, end); may write up to kLanes columns
// more.
template <typename T, int kRows>
[[gnu::noinline]] void stream_scores_of(const void* const* rows, const void* const* ahead, int begin, int end,
                                        int dim, const float* q, int ld_q, float* scores, int ld_scores) {
  constexpr int kKeys = Vec::kLanes / kRows;
  for (int j = begin; j < end; j += kKeys) {
    Vec sums[Vec::kLanes];
    const T* key[kKeys];
    for (int k = 0; k < kKeys; ++k) prefetch_row(ahead[j + k], dim * static_cast<int>(sizeof(T)));
#pragma GCC unroll 8
    for (int k = 0; k < kKeys; ++k) key[k] = static_cast<const T*>(rows[j + k < end ? j + k : end - 1]);
#pragma GCC unroll 16
    for (int i = 0; i < Vec::kLanes; ++i) sums[i] = zero();
    int d = 0;
    for (; d + Vec::kLanes <= dim; d += Vec::kLanes) {
#pragma GCC unroll 8
      for (int k = 0; k < kKeys; ++k) {
        const Vec x = load(key[k] + d);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r)
          sums[k * kRows + r] = fma(x, load(q + r * ld_q + d), sums[k * kRows + r]);
      }
    }
    if (d < dim) {
#pragma GCC unroll 8
      for (int k = 0; k < kKeys; ++k) {
        const Vec x = load_partial(key[k] + d, dim - d);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r)
          sums[k * kRows + r] = fma(x, load(q + r * ld_q + d), sums[k * kRows + r]);
      }
    }
    transpose_lanes(sums);
    const Vec total = sum_of<0, Vec::kLanes>(sums);
    float lanes[Vec::kLanes];
    store(lanes, total);
    for (int k = 0; k < kKeys; ++k) {
      for (int r = 0; r < kRows; ++r) scores[r * ld_scores + j + k] = lanes[k * kRows + r];
    }
  }
}

// out[r] += weights[r][j] * rows[j] for kRows rows and the kKeys keys from j on.
template <typename T, int kRows, int kKeys>
inline void add_values(const void* const* rows, int j, int dim, const float* weights, int ld_weights,
                       float* out, int ld_out) {
  Vec weight[kKeys][kRows];
  const T* value[kKeys];
#pragma GCC unroll 8
  for (int k = 0; k < kKeys; ++k) {
    value[k] = static_cast<const T*>(rows[j + k]);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) weight[k][r] = splat(weights[r * ld_weights + j + k]);
  }
  for (int d = 0; d < dim; d += Vec::kLanes) {
    Vec x[kKeys];
#pragma GCC unroll 8
    for (int k = 0; k < kKeys; ++k) x[k] = load_upto(value[k] + d, dim - d);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      Vec sum = load(out + r * ld_out + d);
#pragma GCC unroll 8
      for (int k = 0; k < kKeys; ++k) sum = fma(weight[k][r], x[k], sum);
      store(out + r * ld_out + d, sum);
    }
  }
}

// The same for keys [begin, end). With skip_zeros, values under a zero weight are not touched (0 * NaN is
// NaN).
template <typename T, int kRows>
[[gnu::noinline]] void stream_values_of(const void* const* rows, const void* const* ahead, int begin, int end,
                                        int dim, const float* weights, int ld_weights, float* out, int ld_out,
                                        bool skip_zeros) {
  constexpr int kKeys = Vec::kLanes / kRows;
  int j = begin;
  for (; j + kKeys <= end && !skip_zeros; j += kKeys) {
    for (int k = 0; k < kKeys; ++k) prefetch_row(ahead[j + k], dim * static_cast<int>(sizeof(T)));
    add_values<T, kRows, kKeys>(rows, j, dim, weights, ld_weights, out, ld_out);
  }
  for (; j < end; ++j) {
    if (skip_zeros && weights[j] == 0.0f) continue;
    add_values<T, kRows, 1>(rows, j, dim, weights, ld_weights, out, ld_out);
  }
}

// Calls f with the widest number of rows (a power of two up to kLanes) that fits `left`.
template <typename F>
inline int with_rows(int left, F&& f) {
  int taken = Vec::kLanes < 8 ? Vec::kLanes : 8;
  while (taken > left) taken /= 2;
  if constexpr (Vec::kLanes >= 8) {
    with_one_of<1, 2, 4, 8>(taken, f);
  } else {
    with_one_of<1, 2, 4>(taken, f);
  }
  return taken;
}

inline void scale_row(float* row, int n, float factor) {
  if (factor == 1.0f) return;
  for (int d = 0; d < n; d += Vec::kLanes) store(row + d, load(row + d) * splat(factor));
}

// Key rows of the tile from `key` on, and those of the tile after it, to ask for while the first is computed.
inline void tile_rows(const Params& p, const View& view, const Sequence& s, int kv_head, int64_t key, int n,
                      void** rows, void** ahead) {
  key_rows(p, view, s, kv_head, key, n, rows);
  const int next = static_cast<int>(max64(0, min64(kStreamTile, s.seqlen_k - key - n)));
  key_rows(p, view, s, kv_head, key + n, next, ahead);
  for (int i = next; i < kStreamTile + Vec::kLanes; ++i) ahead[i] = rows[n - 1];
}

// All rows of one head against keys [key, key + n), n <= kStreamTile.
inline void stream_tile(const Params& p, const Sequence& s, const StreamSpace& w, int kv_head, const float* q,
                        const Partial& partial, int64_t key, int n) {
  const int m = static_cast<int>(s.seqlen_q * p.group);
  TileMask mask;
  tile_mask(p, s, 0, m, key, n, mask);
  if (p.mask.kind != MaskKind::kNone) shrink_to_mask(p, s, kv_head, 0, m, key, mask);
  if (empty(mask, m)) return;
  int begin = n, end = 0;
  bool same = true;  // do all rows see the same keys, without holes?
  for (int i = 0; i < m; ++i) {
    same = same && mask.begin[i] == mask.begin[0] && mask.end[i] == mask.end[0];
    if (mask.begin[i] >= mask.end[i]) continue;
    begin = mask.begin[i] < begin ? mask.begin[i] : begin;
    end = mask.end[i] > end ? mask.end[i] : end;
  }
  void *rows[kStreamTile], *ahead[kStreamTile + Vec::kLanes];
  tile_rows(p, p.k, s, kv_head, key, n, rows, ahead);
  with_dtype(p.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int i = 0; i < m;) {
      i += with_rows(m - i, [&](auto count) {
        stream_scores_of<T, count>(rows, ahead, begin, end, p.head_dim, q + i * w.ld_q, w.ld_q,
                                   w.scores + i * w.ld_scores, w.ld_scores);
      });
    }
  });
  weigh_rows(p, s, kv_head, 0, m, key, mask, w.scores, w.ld_scores, partial.max, partial.sum, w.rescale);
  for (int i = 0; i < m; ++i) scale_row(partial.out + i * w.ld_out, w.ld_out, w.rescale[i]);
  tile_rows(p, p.v, s, kv_head, key, n, rows, ahead);
  with_dtype(p.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const bool together = same && p.mask.kind == MaskKind::kNone;
    for (int i = 0; i < m;) {
      i += with_rows(together ? m - i : 1, [&](auto count) {
        stream_values_of<T, count>(rows, ahead, mask.begin[i], mask.end[i], p.head_dim_v,
                                   w.scores + i * w.ld_scores, w.ld_scores, partial.out + i * w.ld_out,
                                   w.ld_out, !together);
      });
    }
  });
}

// Keys [task.begin, task.end), one chunk, of heads [task.kv_head, task.kv_head + task.heads).
inline void stream(const Params& p, const Task& task, float* workspace) {
  const Sequence& s = p.sequences[task.sequence];
  Arena arena{workspace};
  const StreamSpace w = stream_space(p, arena);
  const int m = static_cast<int>(s.seqlen_q * p.group);
  const int64_t chunk = task.begin / kStreamKeys;
  void* pointers[kStreamRows];
  for (int h = 0; h < task.heads; ++h) {
    float* q = w.q + h * kStreamRows * w.ld_q;
    for (int i = 0; i < m * w.ld_q; ++i) q[i] = 0.0f;
    query_rows(p, p.q, s, task.kv_head + h, 0, m, pointers);
    convert_rows(p.dtype, pointers, m, p.head_dim, query_scale(p), q, w.ld_q);
    const Partial partial = partial_of(p, s, task.kv_head + h, chunk, w.ld_out);
    for (int i = 0; i < m * w.ld_out; ++i) partial.out[i] = 0.0f;
    for (int i = 0; i < m; ++i) {
      partial.max[i] = -__builtin_inff();
      partial.sum[i] = 0.0f;
      if (chunk == 0) start_sums(p, s, task.kv_head + h, i, partial.max[i], partial.sum[i]);
    }
  }
  const KeyRange seen = visible_keys_of_rows(p, s, 0, m);
  const int64_t first = max64(task.begin, seen.begin / kStreamTile * kStreamTile),
                last = min64(task.end, seen.end);
  for (int64_t key = first; key < last; key += kStreamTile) {
    const int n = static_cast<int>(min64(kStreamTile, last - key));
    for (int h = 0; h < task.heads; ++h) {
      const Partial partial = partial_of(p, s, task.kv_head + h, chunk, w.ld_out);
      stream_tile(p, s, w, task.kv_head + h, w.q + h * kStreamRows * w.ld_q, partial, key, n);
    }
  }
}

// Merges the chunks of one sequence and head into the first, then writes the rows.
inline void stream_finish(const Params& p, const Task& task, float* workspace) {
  const Sequence& s = p.sequences[task.sequence];
  Arena arena{workspace};
  const StreamSpace w = stream_space(p, arena);
  const int m = static_cast<int>(s.seqlen_q * p.group);
  const int64_t chunks = (s.seqlen_k + kStreamKeys - 1) / kStreamKeys;
  const Partial all = partial_of(p, s, task.kv_head, 0, w.ld_out);
  for (int64_t chunk = 1; chunk < chunks; ++chunk) {
    const Partial part = partial_of(p, s, task.kv_head, chunk, w.ld_out);
    for (int i = 0; i < m; ++i) {
      if (part.max[i] == -__builtin_inff()) continue;  // saw no key
      const float max = part.max[i] > all.max[i] ? part.max[i] : all.max[i];
      float factors[2][Vec::kLanes];
      store(factors[0], exp2_nonpositive(splat(all.max[i] - max)));
      store(factors[1], exp2_nonpositive(splat(part.max[i] - max)));
      const Vec mine = splat(factors[0][0]), other = splat(factors[1][0]);
      for (int d = 0; d < w.ld_out; d += Vec::kLanes) {
        float* out = all.out + i * w.ld_out + d;
        store(out, fma(load(out), mine, load(part.out + i * w.ld_out + d) * other));
      }
      all.sum[i] = all.sum[i] * factors[0][0] + part.sum[i] * factors[1][0];
      all.max[i] = max;
    }
  }
  finish_rows(p, s, task.kv_head, 0, m, all.out, w.ld_out, all.max, all.sum, w.rescale);
}

}  // namespace
}  // namespace padfree::attention
