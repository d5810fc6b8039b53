// Attention forward for few query rows over many keys (decoding): memory decides, so K and V are read once,
// in place, in the order in which they lie there, and nothing is packed.
//
// The keys of a sequence are cut into chunks of kStreamKeys keys, each a task that leaves its maximum, sum
// and weighted values in `partials`; stream_finish merges the chunks of one sequence and head in rising
// order. The cut depends on the number of keys alone, so bits do not depend on threads. Where heads are
// interleaved in memory (batch, row, head, dim), a task holds several of them and takes all heads of a key
// before the next key: to walk the rows head by head costs half the bandwidth.
//
// Scores: whole vectors of sums at a time, of a few keys, heads and query rows, each itself a vector of
// partial sums until lane_totals adds its lanes. Values: a few keys at a time, so that sums are loaded and
// stored once for all of them. Meanwhile the rows kStreamAhead keys on are asked for, in the order of memory
// too: the arithmetic of 16-bit keys takes nearly as long as their reading, and the processor overlaps them
// no other way.
#pragma once

#include "attention/cpu/forward.h"

namespace padfree::attention {
namespace {

constexpr int kStreamTile = 64;  // keys of a tile
constexpr int kStreamAhead = 4;  // rows between what is computed and what is asked for
// Rows too long for that are left to the hardware, which follows them: they would push each other out of L1.
constexpr int64_t kMostAhead = 16 << 10;  // bytes

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
  w.scores = arena.take(static_cast<int64_t>(p.heads_kv) * kStreamRows * w.ld_scores);
  w.rescale = arena.take(kStreamRows);
  return w;
}

inline int64_t stream_workspace(const Params& p) {
  Arena arena{nullptr};
  stream_space(p, arena);
  return arena.used;
}

// What one chunk of keys leaves behind for the rows of one key/value head. The heads of a chunk lie together.
struct Partial {
  float *out, *max, *sum;
};

inline Partial partial_of(const Params& p, const Sequence& s, int kv_head, int64_t chunk, int ld_out) {
  const int64_t rows = s.seqlen_q * p.group;
  float* base = p.partials + s.first_partial + (chunk * p.heads_kv + kv_head) * partial_floats(rows, ld_out);
  return {base, base + rows * ld_out, base + rows * (ld_out + 1)};
}

// One tile of K or of V: a row for each key, and in it `heads` heads head_step elements apart. The
// kStreamAhead rows after the tile's are those read next.
struct StreamRows {
  void* row[kStreamTile + kStreamAhead];
  int count;
  int64_t head_step;
  int heads, dim;
};

// Asks for the rows of a tile, from `next` on, piece by piece.
struct Ahead {
  void *const *next, *const *end;
  int64_t row_bytes, offset;

  void piece(int64_t bytes) {
    for (; bytes > 0 && next < end; bytes -= 64) {
      __builtin_prefetch(static_cast<const char*>(*next) + offset);
      offset += 64;
      if (offset >= row_bytes) {
        offset = 0;
        ++next;
      }
    }
  }
};

template <typename T>
inline Ahead ahead_of(const StreamRows& rows, int begin) {
  const int64_t row_bytes = ((rows.heads - 1) * rows.head_step + rows.dim) * static_cast<int64_t>(sizeof(T));
  if (row_bytes * kStreamAhead > kMostAhead) return {};
  return {rows.row + begin + kStreamAhead, rows.row + rows.count + kStreamAhead, row_bytes, 0};
}

// sums[k][r] = q[r] * keys[k], lane by lane, in rising order of the dim. kDim is it, or 0 when only known at
// run time.
template <typename T, int kKeys, int kRows, int kDim>
[[gnu::always_inline]] inline void lane_sums(const T* const* keys, const float* q, int ld_q, int run_time_dim,
                                             Vec (&sums)[kKeys][kRows]) {
  const int dim = kDim == 0 ? run_time_dim : kDim;
#pragma GCC unroll 8
  for (int k = 0; k < kKeys; ++k) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) sums[k][r] = zero();
  }
  const auto step = [&](int d, auto&& read) {
    Vec x[kKeys];
#pragma GCC unroll 8
    for (int k = 0; k < kKeys; ++k) x[k] = read(keys[k] + d);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec y = load(q + r * ld_q + d);
#pragma GCC unroll 8
      for (int k = 0; k < kKeys; ++k) sums[k][r] = fma(x[k], y, sums[k][r]);
    }
  };
  int d = 0;
#pragma GCC unroll 16
  for (; d + Vec::kLanes <= dim; d += Vec::kLanes) step(d, [](const T* key) { return load(key); });
  if (d < dim) step(d, [&](const T* key) { return load_partial(key, dim - d); });
}

// scores[h][r][j] = q[h][r] . key j of head h, for kRows query rows of every head and keys [begin, end):
// kKeys keys of kHeads heads at a time, which make whole vectors of sums.
template <typename T, int kRows, int kHeads, int kKeys, int kDim>
[[gnu::noinline]] void stream_scores_of(const StreamRows& keys, int begin, int end, const float* q,
                                        int run_time_ld, float* scores, int ld_scores, int m) {
  // Keys that share a load of q; the sums of more would not stay in registers.
  constexpr int kMost = kRows == 1 ? 1 : 8 / kRows, kTogether = kMost < kKeys ? kMost : kKeys;
  constexpr int kSums = kRows * kHeads * kKeys;
  const int dim = kDim == 0 ? keys.dim : kDim, ld_q = kDim == 0 ? run_time_ld : kDim;
  const int64_t q_step = static_cast<int64_t>(m) * ld_q, scores_step = static_cast<int64_t>(m) * ld_scores;
  Ahead ahead = ahead_of<T>(keys, begin);
  for (int j = begin; j < end; j += kKeys) {
    for (int h = 0; h < keys.heads; h += kHeads) {
      ahead.piece(kKeys * kHeads * dim * static_cast<int64_t>(sizeof(T)));
      Vec sums[kSums / Vec::kLanes][Vec::kLanes];  // [head][row][key]
#pragma GCC unroll 8
      for (int i = 0; i < kHeads; ++i) {
#pragma GCC unroll 8
        for (int k = 0; k < kKeys; k += kTogether) {
          const T* x[kTogether];
#pragma GCC unroll 8
          for (int n = 0; n < kTogether; ++n) {
            const int key = j + k + n;
            const void* row = keys.row[kKeys == 1 || key < end ? key : end - 1];
            x[n] = static_cast<const T*>(row) + (h + i) * keys.head_step;
          }
          Vec part[kTogether][kRows];
          lane_sums<T, kTogether, kRows, kDim>(x, q + (h + i) * q_step, ld_q, dim, part);
#pragma GCC unroll 8
          for (int n = 0; n < kTogether; ++n) {
#pragma GCC unroll 8
            for (int r = 0; r < kRows; ++r) {
              const int at = (i * kRows + r) * kKeys + k + n;
              sums[at / Vec::kLanes][at % Vec::kLanes] = part[n][r];
            }
          }
        }
      }
      float totals[kSums];
#pragma GCC unroll 8
      for (int i = 0; i < kSums / Vec::kLanes; ++i) store(totals + i * Vec::kLanes, lane_totals(sums[i]));
      float* target = scores + h * scores_step + j;
#pragma GCC unroll 16
      for (int i = 0; i < kHeads * kRows; ++i) {
        __builtin_memcpy(target + i / kRows * scores_step + i % kRows * ld_scores, totals + i * kKeys,
                         kKeys * sizeof(float));
      }
    }
  }
}

// out[r] += weights[r][k] * values[k] for kRows rows and kKeys keys.
template <typename T, int kRows, int kKeys, int kDim>
[[gnu::always_inline]] inline void add_values(const T* const (&values)[kKeys], int run_time_dim,
                                              const float* weights, int ld_weights, float* out,
                                              int run_time_ld) {
  const int dim = kDim == 0 ? run_time_dim : kDim, ld_out = kDim == 0 ? run_time_ld : kDim;
  Vec weight[kKeys][kRows];
#pragma GCC unroll 8
  for (int k = 0; k < kKeys; ++k) {
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) weight[k][r] = splat(weights[r * ld_weights + k]);
  }
  const auto step = [&](int d, auto&& read) {
    Vec x[kKeys];
#pragma GCC unroll 8
    for (int k = 0; k < kKeys; ++k) x[k] = read(values[k] + d);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      Vec sum = load(out + r * ld_out + d);
#pragma GCC unroll 8
      for (int k = 0; k < kKeys; ++k) sum = fma(weight[k][r], x[k], sum);
      store(out + r * ld_out + d, sum);
    }
  };
  int d = 0;
#pragma GCC unroll 4
  for (; d + Vec::kLanes <= dim; d += Vec::kLanes) step(d, [](const T* value) { return load(value); });
  if (d < dim) step(d, [&](const T* value) { return load_partial(value, dim - d); });
}

// The same for keys [begin, end) of every head. With skip_zeros, values under a zero weight are not touched
// (0 * NaN is NaN).
template <typename T, int kRows, int kDim>
[[gnu::noinline]] void stream_values_of(const StreamRows& rows, int begin, int end, const float* weights,
                                        int ld_weights, int64_t weights_step, float* out, int ld_out,
                                        int64_t out_step, bool skip_zeros) {
  constexpr int kKeys = kRows <= 4 ? 4 : 2;  // so many weights, splat, are read from L1 at no cost
  Ahead ahead = ahead_of<T>(rows, begin);
  int j = begin;
  for (; j + kKeys <= end && !skip_zeros; j += kKeys) {
    const T* values[kKeys];
#pragma GCC unroll 8
    for (int k = 0; k < kKeys; ++k) values[k] = static_cast<const T*>(rows.row[j + k]);
    const float* weight = weights + j;
    float* sum = out;
    for (int h = 0; h < rows.heads; ++h) {
      ahead.piece(kKeys * rows.dim * static_cast<int64_t>(sizeof(T)));
      add_values<T, kRows, kKeys, kDim>(values, rows.dim, weight, ld_weights, sum, ld_out);
#pragma GCC unroll 8
      for (int k = 0; k < kKeys; ++k) values[k] += rows.head_step;
      weight += weights_step;
      sum += out_step;
    }
  }
  for (; j < end; ++j) {
    for (int h = 0; h < rows.heads; ++h) {
      const float* weight = weights + h * weights_step + j;
      if (skip_zeros && *weight == 0.0f) continue;
      const T* const values[1] = {static_cast<const T*>(rows.row[j]) + h * rows.head_step};
      add_values<T, kRows, 1, kDim>(values, rows.dim, weight, ld_weights, out + h * out_step, ld_out);
    }
  }
}

// Calls f with the head dim where code is made for it, else with 0.
template <typename F>
inline void with_dim(int dim, F&& f) {
  if (!with_one_of<64, 128>(dim, f)) f(std::integral_constant<int, 0>{});
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

// Keys [key, key + n) of the heads of a task in `view`, followed by what is read next: keys from next_key on
// in `next`.
inline void stream_rows(const Params& p, const Sequence& s, const Task& task, const View& view, int dim,
                        int64_t key, int n, const View& next, int64_t next_key, StreamRows& rows) {
  rows.count = n;
  rows.head_step = view.head_stride;
  rows.heads = task.heads;
  rows.dim = dim;
  key_rows(p, view, s, task.kv_head, key, n, rows.row);
  const int left = static_cast<int>(max64(0, min64(kStreamAhead, s.seqlen_k - next_key)));
  key_rows(p, next, s, task.kv_head, next_key, left, rows.row + n);
  for (int i = left; i < kStreamAhead; ++i) rows.row[n + i] = rows.row[n - 1];
}

// Scores of all rows, `m`, of the task's heads for columns [begin, end) of a tile.
inline void stream_scores(const Params& p, const StreamSpace& w, const StreamRows& rows, int m, int begin,
                          int end) {
  with_dtype(p.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    with_dim(p.head_dim, [&](auto dim) {
      for (int i = 0; i < m;) {
        i += with_rows(m - i, [&](auto count) {
          // One row waits for memory, so every head of a key is taken before the next key; more rows wait for
          // the arithmetic, and a load of q then serves the keys of half a vector.
          constexpr int kHeads = count > 1 ? 1 : Vec::kLanes < 8 ? Vec::kLanes : 8;
          constexpr int kKeys = count > 1 ? Vec::kLanes / 2 : Vec::kLanes / kHeads;
          with_bool(rows.heads % kHeads == 0, [&](auto whole) {
            constexpr int kTaken = whole ? kHeads : 1;
            stream_scores_of<T, count, kTaken, kKeys*(kHeads / kTaken), dim>(
                rows, begin, end, w.q + i * w.ld_q, w.ld_q, w.scores + i * w.ld_scores, w.ld_scores, m);
          });
        });
      }
    });
  });
}

// Adds the weighted values of a tile. `together`: all rows see the same keys, without holes.
inline void stream_values(const Params& p, const StreamSpace& w, const StreamRows& rows, int m,
                          const TileMask& mask, bool together, float* out, int64_t out_step) {
  with_dtype(p.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    with_dim(p.head_dim_v, [&](auto dim) {
      for (int i = 0; i < m;) {
        i += with_rows(together ? m - i : 1, [&](auto count) {
          stream_values_of<T, count, dim>(rows, mask.begin[i], mask.end[i], w.scores + i * w.ld_scores,
                                          w.ld_scores, m * w.ld_scores, out + i * w.ld_out, w.ld_out,
                                          out_step, !together);
        });
      }
    });
  });
}

// All rows of the task's heads against keys [key, key + n), n <= kStreamTile.
inline void stream_tile(const Params& p, const Sequence& s, const StreamSpace& w, const Task& task,
                        const Partial& partial, int64_t key, int n) {
  const int m = static_cast<int>(s.seqlen_q * p.group);
  const int64_t out_step = partial_floats(m, w.ld_out);
  TileMask mask;
  tile_mask(p, s, 0, m, key, n, mask);
  // A 4-D mask differs between heads: the plan gives its tasks one.
  shrink_to_mask(p, s, task.kv_head, 0, m, key, n, mask);
  if (empty(mask, m)) return;
  int begin = n, end = 0;
  bool together = p.mask.kind == MaskKind::kNone;
  for (int i = 0; i < m; ++i) {
    together = together && mask.begin[i] == mask.begin[0] && mask.end[i] == mask.end[0];
    if (mask.begin[i] >= mask.end[i]) continue;
    begin = mask.begin[i] < begin ? mask.begin[i] : begin;
    end = mask.end[i] > end ? mask.end[i] : end;
  }
  StreamRows rows;
  stream_rows(p, s, task, p.k, p.head_dim, key, n, p.v, key, rows);
  stream_scores(p, w, rows, m, begin, end);
  for (int h = 0; h < task.heads; ++h) {
    const int64_t step = h * out_step;
    weigh_rows(p, s, task.kv_head + h, 0, m, key, mask, w.scores + static_cast<int64_t>(h) * m * w.ld_scores,
               w.ld_scores, partial.max + step, partial.sum + step, w.rescale);
    for (int i = 0; i < m; ++i) scale_row(partial.out + step + i * w.ld_out, w.ld_out, w.rescale[i]);
  }
  stream_rows(p, s, task, p.v, p.head_dim_v, key, n, p.k, key + n, rows);
  stream_values(p, w, rows, m, mask, together, partial.out, out_step);
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
    float* q = w.q + h * m * w.ld_q;
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
    stream_tile(p, s, w, task, partial_of(p, s, task.kv_head, chunk, w.ld_out), key, n);
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
