// Rows that a task will touch soon, asked for one at a time between the tiles of its products. A head's rows
// lie far apart, each in another page, so neither the core nor its prefetcher runs ahead of them: read when
// they are due, they took a sixth of the forward.
#pragma once

#include "gated_delta_rule/cpu/rows.h"

namespace padfree::gated_delta_rule {
namespace {

class Ahead {
 public:
  void clear() { count_ = next_ = 0; }

  // Rows [begin, begin + n) of one head from value `first` on, `dim` values each.
  void add(const Params& p, const View& view, const Sequence& s, int64_t head, int64_t begin, int n,
           int first, int dim) {
    void* rows[kChunk];
    row_pointers(p.dtype, view, s, head, begin, n, rows);
    const int size = p.dtype == DType::kFloat32 ? 4 : 2;
    for (int i = 0; i < n; ++i)
      rows_[count_++] = {static_cast<const char*>(rows[i]) + first * size, dim * size};
  }

  // Asks for the next row, if there is one.
  void operator()() {
    if (next_ == count_) return;
    prefetch_row(rows_[next_].data, rows_[next_].bytes);
    ++next_;
  }

 private:
  struct Row {
    const char* data;
    int bytes;
  };
  Row rows_[4 * kChunk];  // of q, k, v and out
  int count_ = 0, next_ = 0;
};

}  // namespace
}  // namespace padfree::gated_delta_rule
