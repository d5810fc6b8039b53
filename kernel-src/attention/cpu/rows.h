// Where rows live in memory, and how a tile is masked: what forward and backward share.
#pragma once

#include "attention/geometry.h"
#include "attention/params.h"
#include "common/cpu/arena.h"

namespace padfree::attention {
namespace {

constexpr int kMaxGroups = kMaxBlockQ / kGemmRows;

inline void* address(DType dtype, const View& view, int64_t batch, int64_t row, int64_t head) {
  const int64_t size = dtype == DType::kFloat32 ? 4 : 2;
  const int64_t element = batch * view.batch_stride + row * view.row_stride + head * view.head_stride;
  return static_cast<char*>(view.data) + element * size;
}

// Pointers to virtual rows [begin, begin + n) of a q-shaped tensor.
inline void query_rows(const Params& p, const View& view, const Sequence& s, int kv_head, int64_t begin,
                       int n, void** rows) {
  for (int i = 0; i < n; ++i) {
    const int64_t r = begin + i;
    rows[i] = address(p.dtype, view, s.batch, s.query_begin + r / p.group, kv_head * p.group + r % p.group);
  }
}

// Pointers to key rows [begin, begin + n) of a k-shaped tensor.
inline void key_rows(const Params& p, const View& view, const Sequence& s, int kv_head, int64_t begin, int n,
                     void** rows) {
  const int64_t first = s.key_begin + begin;
  if (s.pages == nullptr) {
    for (int i = 0; i < n; ++i) rows[i] = address(p.dtype, view, s.key_batch, first + i, kv_head);
    return;
  }
  int64_t page = first / p.page_size, slot = first % p.page_size;
  for (int i = 0; i < n; ++i) {
    rows[i] = address(p.dtype, view, s.pages[page], slot, kv_head);
    if (++slot == p.page_size) {
      slot = 0;
      ++page;
    }
  }
}

// The statistic of virtual row r.
inline float* row_stat(const Params& p, const RowStats& stats, const Sequence& s, int kv_head, int64_t r) {
  return stats.data + s.batch * stats.batch_stride + (kv_head * p.group + r % p.group) * stats.head_stride +
         s.query_begin + r / p.group;
}

// The columns of a tile that each row, and each group of kGemmRows rows, works on.
struct TileMask {
  int begin[kMaxBlockQ], end[kMaxBlockQ];              // visible columns of a row
  int panel_begin[kMaxGroups], panel_end[kMaxGroups];  // columns of a group, whole panels; equal when none
  bool masked = false;                                 // whether a 4-D mask changes scores of the tile
};

// Rows [row, row + m) against keys [key, key + n).
inline void tile_mask(const Params& p, const Sequence& s, int64_t row, int m, int64_t key, int n,
                      TileMask& mask) {
  const bool whole = visible_keys(p, s, (row + m - 1) / p.group).begin <= key &&
                     visible_keys(p, s, row / p.group).end >= key + n;
  for (int i = 0; i < m; ++i) {
    const KeyRange range = whole ? KeyRange{key, key + n} : visible_keys(p, s, (row + i) / p.group);
    mask.begin[i] = static_cast<int>(min64(n, max64(0, range.begin - key)));
    mask.end[i] = static_cast<int>(max64(mask.begin[i], min64(n, range.end - key)));
  }
  for (int i = 0, g = 0; i < m; i += kGemmRows, ++g) {
    const int last = (i + kGemmRows < m ? i + kGemmRows : m) - 1;
    const bool any = mask.begin[i] < mask.end[last];
    mask.panel_begin[g] = any ? mask.begin[i] / kPanel * kPanel : 0;
    mask.panel_end[g] = any ? round_up(mask.end[last], kPanel) : 0;
  }
}

}  // namespace
}  // namespace padfree::attention
