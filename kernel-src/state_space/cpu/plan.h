// How one call is cut into sequences, chunks and tasks: pure functions of shapes and boundaries.
#pragma once

#include <cstdint>
#include <vector>

#include "state_space/params.h"

namespace padfree::state_space {

// `batch` sequences of equal length, each with its own row of the states.
std::vector<Sequence> dense_sequences(int64_t batch, int64_t length);

// Packed sequences, bounded by cu_seqlens of count + 1 entries, each with its own row of the states.
std::vector<Sequence> packed_sequences(const int32_t* cu_seqlens, int64_t count);

// Runs of equal, not negative seq_idx. The first run of a row continues the row's state, the last one leaves
// it; a row without any run hands its state through.
std::vector<Sequence> indexed_sequences(const int32_t* seq_idx, int64_t batch, int64_t length);

// Rows of `states` that suffice for any packing, known from shapes alone: a sequence saves the state before
// each of its chunks but the first.
int64_t states_bound(int64_t batch, int64_t length);

// Heads that share one part of dB and dC. Depends on shapes only: so do the bits of their sums.
int heads_of_part(const Params& params);

// Tasks, longest first. Forward tasks are cut finer where there are too few for the threads.
std::vector<Task> forward_tasks(const Params& params, const std::vector<Sequence>& sequences, int threads);
std::vector<Task> backward_tasks(const Params& params, const std::vector<Sequence>& sequences);

}  // namespace padfree::state_space
