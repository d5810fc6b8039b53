// Cuts time into pieces: which rows belong to one sequence and to one chunk. Host only, no torch.
#pragma once

#include <cstdint>
#include <vector>

#include "../params.h"

namespace padfree::causal_conv1d {

struct Boundaries {
  int64_t batch, seqlen;
  const int32_t* seq_idx;  // [batch][seqlen]; null: one sequence per batch row
  int64_t states;          // rows of initial_states, -1 if there are none
};

struct Pieces {
  std::vector<Piece> pieces;
  std::vector<int64_t> first_piece;  // chunks + 1 entries

  Partition partition(int64_t channel_block) const {
    return {pieces.data(), first_piece.data(), static_cast<int64_t>(first_piece.size()) - 1, channel_block};
  }
};

// A sequence is a run of equal seq_idx. The sequence with seq_idx i begins with row i of initial_states
// (without seq_idx: batch row i does). Throws std::runtime_error if an index has no
// row, or begins two sequences (their gradients would meet in one row).
Pieces cut(const Boundaries& boundaries, int64_t chunk_length);

}  // namespace padfree::causal_conv1d
