#include "pieces.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace padfree::causal_conv1d {
namespace {

// The sequence of batch row `batch` that begins at `begin`, as one piece.
Piece sequence_at(const Boundaries& b, int64_t batch, int64_t begin) {
  if (b.seq_idx == nullptr) {
    return {batch, 0, b.seqlen, 0, b.seqlen, b.states < 0 ? Piece::kZeroState : batch};
  }
  const int32_t* row = b.seq_idx + batch * b.seqlen;
  const int32_t index = row[begin];
  const int64_t end = std::find_if(row + begin, row + b.seqlen, [&](int32_t i) { return i != index; }) - row;
  if (index < 0) return {batch, begin, end, begin, end, Piece::kPadding};
  if (b.states >= 0 && index >= b.states) {
    throw std::runtime_error("causal_conv1d: seq_idx must be below the " + std::to_string(b.states) +
                             " rows of initial_states, got " + std::to_string(index));
  }
  return {batch, begin, end, begin, end, b.states < 0 ? Piece::kZeroState : index};
}

}  // namespace

Pieces cut(const Boundaries& b, int64_t chunk_length) {
  Pieces cut;
  std::vector<char> seen(b.seq_idx != nullptr && b.states > 0 ? b.states : 0);
  for (int64_t batch = 0; batch < b.batch; ++batch) {
    for (int64_t time = 0; time < b.seqlen;) {
      Piece piece = sequence_at(b, batch, time);
      if (!seen.empty() && piece.state >= 0 && seen[piece.state]++ != 0) {
        throw std::runtime_error(
            "causal_conv1d: seq_idx must number each sequence differently where states are passed, got " +
            std::to_string(piece.state) + " twice");
      }
      for (; time < piece.sequence_end; time = piece.end) {
        if (time % chunk_length == 0) cut.first_piece.push_back(static_cast<int64_t>(cut.pieces.size()));
        piece.begin = time;
        piece.end = std::min(piece.sequence_end, (time / chunk_length + 1) * chunk_length);
        cut.pieces.push_back(piece);
      }
    }
  }
  cut.first_piece.push_back(static_cast<int64_t>(cut.pieces.size()));
  return cut;
}

}  // namespace padfree::causal_conv1d
