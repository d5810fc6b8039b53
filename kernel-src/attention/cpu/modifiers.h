// What may change a score or a weight beside scale, softcap and the diagonal mask: ALiBi, a 4-D mask,
// dropout. All work on one row of a tile, columns [begin, end), which stand for keys key + begin and on.
//
// A row's bias (ALiBi and mask, in base 2) is -inf where the mask hides a key. The columns that a mask hides
// at the ends of a row are cut off the tile (shrink_to_mask), so tiles a mask empties cost a scan of the
// mask.
//
// Dropout keeps weight (sequence, head, position, key) by word key % 4 of Philox 4x32-10 under the caller's
// seed, for the counter (key / 4, position, head, sequence): the same in every tiling, forward and backward.
#pragma once

#include "attention/cpu/mask.h"
#include "attention/cpu/rows.h"

namespace padfree::attention {
namespace {

inline bool has_bias(const Params& p, const TileMask& tile) {
  return p.slopes != nullptr || tile.masked;
}

inline int64_t head_of(const Params& p, int kv_head, int64_t row) {
  return kv_head * p.group + row % p.group;
}

// Calls f with a typed pointer to the mask of virtual row `row` at key `key`.
template <typename F>
inline void with_mask_row(const Params& p, const Sequence& s, int kv_head, int64_t row, int64_t key, F&& f) {
  with_mask_at(p.mask, s.batch, head_of(p, kv_head, row), row / p.group, key, f);
}

// Cuts hidden columns off both ends of [begin, end), kWords times eight bytes at once as far as that goes.
template <int kWords, typename T>
inline void cut_hidden(const T* seen, int& begin, int& end) {
  constexpr int kColumns = kWords * 8 / static_cast<int>(sizeof(T));
  const auto hidden = [](const T* first) {
    uint64_t words[kWords], differing = 0;
    __builtin_memcpy(words, first, sizeof words);
    for (uint64_t word : words) differing |= word ^ words_of(first).hidden;
    return differing == 0;
  };
  while (end - begin >= kColumns && hidden(seen + begin)) begin += kColumns;
  while (end - begin >= kColumns && hidden(seen + end - kColumns)) end -= kColumns;
}

// Cuts hidden columns off both ends of every row of the tile; rows that see nothing become empty.
[[gnu::noinline]] inline void cut_tile(const Params& p, const Sequence& s, int kv_head, int64_t row, int m,
                                       int64_t key, TileMask& mask) {
  const int64_t step = p.mask.key_stride;
  for (int i = 0; i < m; ++i) {
    int &begin = mask.begin[i], &end = mask.end[i];
    with_mask_row(p, s, kv_head, row + i, key, [&](const auto* seen) {
      if (step == 1) {
        cut_hidden<8>(seen, begin, end);
        cut_hidden<1>(seen, begin, end);
      }
      while (begin < end && hides(seen[begin * step])) ++begin;
      while (begin < end && hides(seen[(end - 1) * step])) --end;
    });
  }
  for (int i = 0, g = 0; i < m; i += kGemmRows, ++g) {
    int first = kMaxBlockK, last = 0;
    for (int r = i; r < m && r < i + kGemmRows; ++r) {
      if (mask.begin[r] >= mask.end[r]) continue;
      first = mask.begin[r] < first ? mask.begin[r] : first;
      last = mask.end[r] > last ? mask.end[r] : last;
    }
    mask.panel_begin[g] = first < last ? first / kPanel * kPanel : 0;
    mask.panel_end[g] = first < last ? round_up(last, kPanel) : 0;
  }
}

// Applies the 4-D mask, if there is one, to the shape of a tile: rows [row, row + m) against keys [key, key +
// n). Afterwards `masked` tells whether its scores change.
inline void shrink_to_mask(const Params& p, const Sequence& s, int kv_head, int64_t row, int m, int64_t key,
                           int n, TileMask& mask) {
  if (p.mask.kind == MaskKind::kNone) return;
  const int64_t head = int64_t{kv_head} * p.group;
  const int effect = mask_effect(p.mask_cells, s.batch, head, head + p.group, row / p.group,
                                 (row + m - 1) / p.group + 1, key, key + n);
  mask.masked = effect == (kShows | kChanges);
  if ((effect & kShows) == 0) {
    for (int i = 0; i < m; ++i) mask.begin[i] = mask.end[i] = 0;
    for (int g = 0; g * kGemmRows < m; ++g) mask.panel_begin[g] = mask.panel_end[g] = 0;
  }
  if (mask.masked) cut_tile(p, s, kv_head, row, m, key, mask);
}

inline bool empty(const TileMask& mask, int m) {
  for (int g = 0; g * kGemmRows < m; ++g) {
    if (mask.panel_begin[g] < mask.panel_end[g]) return false;
  }
  return true;
}

// Adds a mask's row to columns [begin, end). What it hides becomes -inf whatever it was: a key may hold NaN.
inline void add_mask(const uint8_t* seen, int64_t step, int begin, int end, float* scores) {
  if (step == 1) {  // a loop of its own: a known step lets the compiler take vectors
    for (int j = begin; j < end; ++j) scores[j] = seen[j] != 0 ? scores[j] : kHidden;
    return;
  }
  for (int j = begin; j < end; ++j) scores[j] = seen[j * step] != 0 ? scores[j] : kHidden;
}

template <typename T>
inline void add_mask(const T* added, int64_t step, int begin, int end, float* scores) {
  for (int j = begin; j < end; j += Vec::kLanes) {
    const int n = end - j < Vec::kLanes ? end - j : Vec::kLanes;
    T part[Vec::kLanes] = {};
    for (int i = 0; i < n && step != 1; ++i) part[i] = added[(j + i) * step];
    const Vec x = step == 1 ? load_upto(added + j, n) : load(part);
    const Vec sum = fma(x, splat(kLog2E), load_upto(scores + j, n));
    store_upto(scores + j, select(less(splat(kHidden), x), sum, x), n);
  }
}

// Adds the bias of columns [begin, end) to scores in base 2.
[[gnu::noinline]] inline void add_bias(const Params& p, const Sequence& s, int kv_head, int64_t row,
                                       int64_t key, const TileMask& tile, int begin, int end, float* scores) {
  if (p.slopes != nullptr) {
    const float slope = p.slopes[s.index * p.slopes_stride + head_of(p, kv_head, row)] * kLog2E;
    // 32 bits, which vectors convert: a sequence has fewer than 2**31 rows.
    const int diagonal = static_cast<int>(row / p.group + s.seqlen_k - s.seqlen_q - key);
    for (int j = begin; j < end; ++j) scores[j] -= slope * __builtin_fabsf(static_cast<float>(diagonal - j));
  }
  if (tile.masked) {
    with_mask_row(p, s, kv_head, row, key,
                  [&](const auto* mask) { add_mask(mask, p.mask.key_stride, begin, end, scores); });
  }
}

// Philox 4x32-10 for kCounters counters that differ in their first word only: first, first + 1, ... Written
// so that gcc takes vectors: both halves of a product apart, and no unrolling, which comes before and hides
// the loop.
constexpr int kCounters = 16;
inline void philox(uint32_t first, const uint32_t (&rest)[3], uint64_t seed,
                   uint32_t (&words)[4][kCounters]) {
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  for (int i = 0; i < kCounters; ++i) {
    words[0][i] = first + i;
    for (int w = 0; w < 3; ++w) words[w + 1][i] = rest[w];
  }
  const auto high = [](uint32_t a, uint32_t b) {
    return static_cast<uint32_t>((static_cast<uint64_t>(a) * b) >> 32);
  };
  for (int round = 0; round < 10; ++round, key0 += 0x9e3779b9u, key1 += 0xbb67ae85u) {
#pragma GCC unroll 1
    for (int i = 0; i < kCounters; ++i) {
      const uint32_t w0 = words[0][i], w1 = words[1][i], w2 = words[2][i], w3 = words[3][i];
      words[0][i] = high(0xcd9e8d57u, w2) ^ w1 ^ key0;
      words[1][i] = 0xcd9e8d57u * w2;
      words[2][i] = high(0xd2511f53u, w0) ^ w3 ^ key1;
      words[3][i] = 0xd2511f53u * w0;
    }
  }
}

// factor[j] is 1 / (1 - dropout_p) where the weight stays and 0 where it goes, at least for columns [begin,
// end). `key` is a multiple of 4; `factor` has room for kMaxBlockK.
[[gnu::noinline]] inline void dropout_row(const Params& p, const Sequence& s, int kv_head, int64_t row,
                                          int64_t key, int begin, int end, float* factor) {
  const uint32_t rest[3] = {static_cast<uint32_t>(row / p.group),
                            static_cast<uint32_t>(head_of(p, kv_head, row)), static_cast<uint32_t>(s.index)};
  constexpr int kKeys = 4 * kCounters;
  static_assert(kMaxBlockK % kKeys == 0);
  for (int j = begin / kKeys * kKeys; j < end; j += kKeys) {
    uint32_t words[4][kCounters];
    philox(static_cast<uint32_t>((key + j) / 4), rest, p.dropout_seed, words);
    float kept[4][kCounters];
    for (int w = 0; w < 4; ++w) {
      for (int i = 0; i < kCounters; ++i) {
        kept[w][i] = words[w][i] >= p.dropout_threshold ? p.dropout_factor : 0.0f;
      }
    }
    for (int i = 0; i < kCounters; i += Vec::kLanes) {
      Vec quads[4];
      for (int w = 0; w < 4; ++w) quads[w] = load(&kept[w][i]);
      store_quads(factor + j + 4 * i, 4, quads);
    }
  }
}

}  // namespace
}  // namespace padfree::attention
