// How one call is cut into sequences, chunks and tasks: pure functions of shapes.
#pragma once

#include <cstdint>
#include <vector>

#include "gated_delta_rule/params.h"

namespace padfree::gated_delta_rule {

// `batch` sequences of equal length.
std::vector<Sequence> dense_sequences(int64_t batch, int64_t length);

// Packed sequences, bounded by cu_seqlens of count + 1 entries.
std::vector<Sequence> packed_sequences(const int32_t* cu_seqlens, int64_t count);

// Rows of `states` that suffice for any packing of `rows` rows into `sequences` sequences, known from shapes
// alone.
int64_t chunks_bound(int64_t batch, int64_t rows, int64_t sequences, bool packed);

// Tasks of the forward, longest first. Where there are fewer sequences and key heads than threads can use, a
// group of value heads is cut apart, and then the value columns of each.
std::vector<Task> forward_tasks(const Params& params, const std::vector<Sequence>& sequences, int threads,
                                int panel);

// One task for each sequence and key head, longest first.
std::vector<Task> backward_tasks(const Params& params, const std::vector<Sequence>& sequences);

// Runs of value heads of one sequence, longest first.
std::vector<Task> recurrent_tasks(const Params& params, const std::vector<Sequence>& sequences, int threads);

}  // namespace padfree::gated_delta_rule
