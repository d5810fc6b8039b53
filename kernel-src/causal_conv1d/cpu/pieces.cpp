#include "pieces.h"

#include <algorithm>

#include "../../common/cpu/runs.h"

namespace padfree::causal_conv1d {

Pieces cut(const Boundaries& b, int64_t chunk_length) {
  Pieces cut;
  const std::vector<Run> runs = runs_of(b.seq_idx, b.batch, b.seqlen);
  if (b.seq_idx != nullptr && b.states >= 0) {
    check_numbers("causal_conv1d", runs, "initial_states", b.states);
  }
  for (const Run& run : runs) {
    const int64_t state = run.number < 0 ? Piece::kPadding : b.states < 0 ? Piece::kZeroState : run.number;
    for (int64_t begin = run.begin, end; begin < run.end; begin = end) {
      if (begin % chunk_length == 0) cut.first_piece.push_back(static_cast<int64_t>(cut.pieces.size()));
      end = std::min(run.end, (begin / chunk_length + 1) * chunk_length);
      cut.pieces.push_back({run.batch, begin, end, run.begin, run.end, state});
    }
  }
  cut.first_piece.push_back(static_cast<int64_t>(cut.pieces.size()));
  return cut;
}

}  // namespace padfree::causal_conv1d
