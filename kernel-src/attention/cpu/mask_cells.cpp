#include "attention/cpu/mask_cells.h"

#include <algorithm>

#include "attention/cpu/mask.h"
#include "common/cpu/parallel.h"

namespace padfree::attention {
namespace {

struct Scan {
  const MaskView& mask;
  uint8_t* cells;
  int64_t heads, rows, columns;  // rows and columns of cells
  int64_t seqlen_q, seqlen_k;
};

// What `count` neighbours do.
template <typename T>
int effect_of_run(const T* mask, int64_t count) {
  constexpr int64_t kInWord = 8 / sizeof(T);
  const Words words = words_of(mask);
  uint64_t shown = 0, changed = 0;
  int64_t j = 0;
  for (; j + kInWord <= count; j += kInWord) {
    uint64_t word;
    __builtin_memcpy(&word, mask + j, sizeof word);
    shown |= word ^ words.hidden;
    changed |= word ^ words.neutral;
  }
  if (j < count) {  // the last ones, before values that hide nothing new and change nothing new
    uint64_t hidden = words.hidden, neutral = words.neutral;
    __builtin_memcpy(&hidden, mask + j, (count - j) * sizeof(T));
    __builtin_memcpy(&neutral, mask + j, (count - j) * sizeof(T));
    shown |= hidden ^ words.hidden;
    changed |= neutral ^ words.neutral;
  }
  return (shown != 0 ? kShows : 0) | (changed != 0 ? kChanges : 0);
}

template <typename T>
int effect_of_row(const T* mask, int64_t step, int64_t count) {
  if (step == 1) return effect_of_run(mask, count);
  int effect = 0;
  for (int64_t j = 0; j < count && effect != (kShows | kChanges); ++j) {
    effect |= effect_of_run(mask + j * step, 1);
  }
  return effect;
}

// One row of cells.
void scan_row(const Scan& s, int64_t index) {
  const int64_t row = index % s.rows, head = index / s.rows % s.heads, batch = index / s.rows / s.heads;
  const int64_t first = row * kCellRows;
  const int64_t last = s.mask.row_stride == 0 ? first + 1 : std::min<int64_t>(first + kCellRows, s.seqlen_q);
  uint8_t* cells = s.cells + index * s.columns;
  std::fill_n(cells, s.columns, uint8_t{0});
  for (int64_t position = first; position < last; ++position) {
    with_mask_at(s.mask, batch, head, position, 0, [&](const auto* mask) {
      for (int64_t c = 0; c < s.columns; ++c) {
        if (cells[c] == (kShows | kChanges)) continue;
        const int64_t key = c * kCellKeys;
        cells[c] |= effect_of_row(mask + key * s.mask.key_stride, s.mask.key_stride,
                                  std::min<int64_t>(kCellKeys, s.seqlen_k - key));
      }
    });
  }
}

}  // namespace

void scan_mask(Params& params, int64_t batch, int64_t seqlen_q, int64_t seqlen_k,
               std::vector<uint8_t>& storage) {
  const MaskView& mask = params.mask;
  if (batch == 0 || seqlen_q == 0 || seqlen_k == 0) return;  // a mask without memory: no tile asks for it
  const int64_t batches = mask.batch_stride == 0 ? 1 : batch;
  const int64_t heads = mask.head_stride == 0 ? 1 : int64_t{params.heads_kv} * params.group;
  const int64_t rows = mask.row_stride == 0 ? 1 : (seqlen_q + kCellRows - 1) / kCellRows;
  const int64_t columns = (seqlen_k + kCellKeys - 1) / kCellKeys;
  storage.resize(batches * heads * rows * columns);
  Scan scan{mask, storage.data(), heads, rows, columns, seqlen_q, seqlen_k};
  const auto body = [](void* context, int64_t index, int) {
    scan_row(*static_cast<const Scan*>(context), index);
  };
  parallel_tasks(batches * heads * rows, body, &scan);
  params.mask_cells = {storage.data(), mask.batch_stride == 0 ? 0 : heads * rows * columns,
                       mask.head_stride == 0 ? 0 : rows * columns, mask.row_stride == 0 ? 0 : columns};
}

}  // namespace padfree::attention
