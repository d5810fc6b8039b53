// What host.cpp hands to the CUDA attention kernels. Plain data; strides count elements, 64 bits.
//
// Work is laid out in virtual rows, as on the CPU: for one sequence and one key/value head, row r stands for
// query position r / group of query head kv_head * group + r % group. The host sees to it that virtual rows,
// blocks, and a query's or key's number plus a window fit 31 bits.
#pragma once

#include <cstdint>

namespace padfree::attention::cuda {

// (batch, row, head, head_dim) with a unit last stride and rows that begin at multiples of 16 bytes. Packed
// tensors have one batch.
struct View {
  const void* data;
  int64_t batch_stride, row_stride, head_stride;
};

// The query and key rows of every sequence. Dense: `cu_q` is null and all have the same lengths. Packed:
// sequence n is rows cu[n] to cu[n + 1], and rows past the last end are a sequence without keys, so that they
// get their zeros from the same code.
struct Sequences {
  const int32_t *cu_q, *cu_k;
  int32_t count;
  int32_t seqlen_q, seqlen_k;  // of each (dense)
  int32_t total_q, total_k;    // rows there are (packed)
};

// Which tile a block takes. Packed: sequences in the order of falling numbers of keys, `order`, and the first
// block of each in that order, `first_block`; one more of each than sequences, for the rows past the last
// end, and the number of all blocks at the end of `first_block`.
struct Schedule {
  int32_t *order, *first_block;
};

struct ForwardParams {
  View q, k, v;
  void* out;   // (batch, row, head, head_dim_v), contiguous
  float* lse;  // (batch, head, row), or (head, row) when packed
  Sequences sequences;
  Schedule schedule;
  int32_t heads_kv, group;
  int32_t head_dim, head_dim_v;
  float scale;                        // of the scores
  float softcap;                      // 0: none
  int32_t window_left, window_right;  // keys seen before and after the diagonal; -1: all
  const float* sinks;                 // [heads_q], or null
  const float* slopes;                // ALiBi: [sequence][heads_q], or null
  int64_t slopes_stride;              // 0: one row for all sequences
};

}  // namespace padfree::attention::cuda
