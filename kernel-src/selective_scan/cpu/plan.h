// How one call is cut into sequences, blocks of channels and tasks: pure functions of shapes and boundaries,
// never of the number of threads, because sums are added task by task.
#pragma once

#include <cstdint>
#include <vector>

#include "selective_scan/params.h"

namespace padfree::selective_scan {

struct Plan {
  std::vector<Sequence> sequences;
  std::vector<Block> blocks;
  std::vector<Task> tasks;
  int64_t lane_groups = 0;
  int block_lane_groups = 0;  // most lane groups of a block
  int64_t blocks_per_group = 0;
  int64_t parts = 0;     // the sequences are cut into so many runs
  bool padding = false;  // some tokens lie in no sequence
};

// Runs of equal seq_idx (batch, seqlen), without the negative ones; null: each batch row is a sequence. The
// sequence numbered i has row i of the states, batch row i without seq_idx. Where there are `states` >= 0
// rows, throws std::runtime_error if a number has no row or occurs twice.
std::vector<Sequence> sequences_of(const int32_t* seq_idx, int64_t batch, int64_t seqlen, int64_t states);

Plan plan_of(std::vector<Sequence> sequences, int64_t tokens, int64_t channels, int64_t groups);

}  // namespace padfree::selective_scan
