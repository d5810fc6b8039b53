// Which keys a query sees, in whole numbers: shared by the plan (host) and the kernels.
//
// Unnamed namespace, because per-ISA files include it.
#pragma once

#include "attention/params.h"

namespace padfree::attention {
namespace {

inline int64_t min64(int64_t a, int64_t b) {
  return a < b ? a : b;
}
inline int64_t max64(int64_t a, int64_t b) {
  return a > b ? a : b;
}

// Keys [begin, end) of a sequence. Both ends rise with the query position.
struct KeyRange {
  int64_t begin, end;
};

// What query position `position` may attend: the diagonal ends at the last key (bottom-right alignment).
inline KeyRange visible_keys(const Params& p, const Sequence& s, int64_t position) {
  const int64_t diagonal = position + s.seqlen_k - s.seqlen_q;
  const int64_t begin = p.window_left < 0 ? 0 : max64(0, min64(s.seqlen_k, diagonal - p.window_left));
  const int64_t end = p.window_right < 0 ? s.seqlen_k : min64(s.seqlen_k, diagonal + p.window_right + 1);
  return {begin, max64(begin, end)};
}

// Keys seen by any of the virtual rows [begin, end).
inline KeyRange visible_keys_of_rows(const Params& p, const Sequence& s, int64_t begin, int64_t end) {
  const int64_t first = visible_keys(p, s, begin / p.group).begin;
  return {first, max64(first, visible_keys(p, s, (end - 1) / p.group).end)};
}

// Key blocks that virtual rows [begin, end) see; {0, 0} when none.
inline KeyRange visible_blocks(const Params& p, const Sequence& s, int64_t begin, int64_t end) {
  const KeyRange seen = visible_keys_of_rows(p, s, begin, end);
  if (seen.begin >= seen.end) return {0, 0};
  return {seen.begin / p.block_k, (seen.end + p.block_k - 1) / p.block_k};
}

// What a chunk of a streamed sequence leaves behind for the virtual rows of one head: their sums, `ld_out`
// floats each, their maxima and the sums of their weights; whole cache lines.
inline int64_t partial_floats(int64_t rows, int64_t ld_out) {
  return (rows * (ld_out + 2) + 15) / 16 * 16;
}

}  // namespace
}  // namespace padfree::attention
