// Runs of equal seq_idx: the sequences of a packed batch. Host only, no torch.
#pragma once

#include <cstdint>
#include <vector>

namespace padfree {

// Positions [begin, end) of one batch row. `number` is what seq_idx says there: negative for padding, else
// the row of the states that belongs to the sequence.
struct Run {
  int64_t batch, begin, end, number;
};

// The runs of seq_idx (batch, length), row by row, padding included; null: each batch row is one run,
// numbered by the row.
std::vector<Run> runs_of(const int32_t* seq_idx, int64_t batch, int64_t length);

// For runs that each have a row of `states` ("initial_states"): throws std::runtime_error if a number has
// none of the `rows`, or comes twice, since two sequences would then share a state and its gradient.
void check_numbers(const char* op, const std::vector<Run>& runs, const char* states, int64_t rows);

}  // namespace padfree
