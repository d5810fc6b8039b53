// Which tile a block takes, and which keys its rows see.
//
// Blocks start in the order of their numbers, as multiprocessors fall free. So the heavy tiles come first and
// the tail is made of light ones: sequences with many keys before those with few, and of a causal sequence
// the last rows before the first. Blocks of one sequence and head follow each other, which keeps its K and V
// in L2.
#pragma once

#include "params.h"

namespace padfree::attention::cuda {

// The rows of one sequence.
struct Sequence {
  int32_t batch;  // of dense tensors
  int32_t index;  // in the caller's order; -1 for rows past the last end
  int32_t query_begin, seqlen_q, key_begin, seqlen_k;
};

// Virtual rows [begin, end) of one sequence and key/value head; none if begin == end.
struct TileTask {
  Sequence sequence;
  int32_t kv_head, begin, end;
};

// Keys [begin, end) of a sequence.
struct KeyRange {
  int32_t begin, end;
};

// What was asked of the device cannot be checked by the host without waiting for it: boundaries that do not
// rise or that leave the tensors give too few rows, and never touch what is not theirs.
__device__ __forceinline__ int32_t boundary(const int32_t* cu, int32_t index, int32_t total) {
  return min(max(cu[index], 0), total);
}

__device__ __forceinline__ Sequence packed_sequence(const Sequences& all, int32_t index) {
  const int32_t query_begin = boundary(all.cu_q, index, all.total_q);
  if (index == all.count) return {0, -1, query_begin, all.total_q - query_begin, 0, 0};
  const int32_t key_begin = boundary(all.cu_k, index, all.total_k);
  return {0,           index,
          query_begin, max(0, boundary(all.cu_q, index + 1, all.total_q) - query_begin),
          key_begin,   max(0, boundary(all.cu_k, index + 1, all.total_k) - key_begin)};
}

// The last place whose number is at most `number`, among `count` rising ones of which the first is 0. The
// same for all lanes of a warp, which look together: 32 places at a time.
__device__ __forceinline__ int32_t last_not_above(const int32_t* rising, int32_t count, int32_t number) {
  const int lane = threadIdx.x % 32;
  int32_t begin = 0;
  while (count > 1) {
    const int32_t step = (count + 31) / 32, place = lane * step;
    const unsigned below =
        __ballot_sync(~0u, place < count && rising[begin + min(place, count - 1)] <= number);
    const int32_t last = (31 - __clz(static_cast<int>(below))) * step;
    begin += last;
    count = min(step, count - last);
  }
  return begin;
}

// The tile of a block; tiles have kRows virtual rows.
template <int kRows>
__device__ __forceinline__ TileTask tile_of(const ForwardParams& p) {
  const Sequences& all = p.sequences;
  TileTask task;
  int32_t tile;
  if (all.cu_q == nullptr) {
    const auto block = static_cast<int32_t>(blockIdx.x);
    const int32_t tiles = (all.seqlen_q * p.group + kRows - 1) / kRows, number = block / tiles;
    tile = tiles - 1 - block % tiles;
    task.kv_head = number % p.heads_kv;
    const int32_t batch = number / p.heads_kv;
    task.sequence = {batch, batch, 0, all.seqlen_q, 0, all.seqlen_k};
  } else {
    const int32_t* first_block = p.schedule.first_block;
    const auto block = static_cast<int32_t>(blockIdx.x);
    if (block >= first_block[all.count + 1]) return {};
    const int32_t place = last_not_above(first_block, all.count + 1, block);
    task.sequence = packed_sequence(all, p.schedule.order[place]);
    const int32_t blocks = first_block[place + 1] - first_block[place], tiles = blocks / p.heads_kv;
    const int32_t within = block - first_block[place];
    task.kv_head = within / tiles;
    tile = tiles - 1 - within % tiles;
  }
  task.begin = tile * kRows;
  task.end = min(task.begin + kRows, task.sequence.seqlen_q * p.group);
  return task;
}

// What a query position may attend: the diagonal ends at the last key (bottom-right alignment).
__device__ __forceinline__ KeyRange visible_keys(const ForwardParams& p, const Sequence& s,
                                                 int32_t position) {
  const int32_t diagonal = position + s.seqlen_k - s.seqlen_q, keys = s.seqlen_k;
  const int32_t begin = p.window_left < 0 ? 0 : max(0, min(keys, diagonal - p.window_left));
  const int32_t end = p.window_right < 0 ? keys : min(keys, diagonal + p.window_right + 1);
  return {begin, max(begin, end)};
}

}  // namespace padfree::attention::cuda
