// How one call is cut into tiles and tasks: pure functions of shapes, so that kernels stay dumb.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/params.h"

namespace padfree::attention {

// The runs of rows of `batch` equal sequences.
std::vector<Sequence> dense_sequences(int64_t batch, int64_t seqlen_q, int64_t seqlen_k);

// The runs of packed rows, bounded by cu_seqlens of count + 1 entries, and the slack after the last.
std::vector<Sequence> packed_sequences(const int32_t* cu_seqlens_q, const int32_t* cu_seqlens_k,
                                       int64_t count, int64_t total_q, int64_t total_k);

// Leaves the first used_q / used_k rows of each of `count` sequences (null: all); the rest becomes slack.
void use_part(std::vector<Sequence>& sequences, int64_t count, const int32_t* used_q, const int32_t* used_k);

// Tile sizes for a head dim. They decide the bits of a result, so nothing else may enter.
void choose_blocks(Params& params);

// Sequences with few query rows and many keys: decoding.
bool is_streamed(const Params& params, const Sequence& sequence);

// One task for each chunk of keys of streamed sequences, and one for each of their heads to merge the chunks.
// Also places their partial results; `floats` is the size of those, for rows of `ld_out` floats.
struct StreamPlan {
  std::vector<Task> chunks, merges;
  int64_t floats = 0;
};
StreamPlan stream_plan(const Params& params, std::vector<Sequence>& sequences, int64_t ld_out, int threads);

// Tasks of the other sequences, longest first; also sets params.task_rows.
std::vector<Task> forward_tasks(Params& params, const std::vector<Sequence>& sequences, int threads);

// One task for each query block, any order. Also numbers the rows and blocks of the sequences.
std::vector<Task> prepare_backward_tasks(Params& params, std::vector<Sequence>& sequences);

// One task for each key block, in an order that kernel.h's turns rely on: rising within a head.
std::vector<Task> backward_tasks(const Params& params, const std::vector<Sequence>& sequences);

}  // namespace padfree::attention
