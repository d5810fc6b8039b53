// A tensor whose channels are contiguous copied to one whose times are, or back: what a gradient that comes
// in the other layout than x needs first. Included by kernel.h.
//
// A tile goes through a float buffer in L1 (16-bit values come back as they were), so that whole cache lines
// are read and written on both sides, however the strides fall into cache sets.
#pragma once

namespace padfree::causal_conv1d::PADFREE_ISA {
namespace {

constexpr int64_t kRelayoutPitch = kRelayoutTile + Vec::kLanes;  // rows in different cache sets

// to[c * to_stride + r] = from[r * from_stride + c] for r < rows, c < columns, both at most kRelayoutTile.
template <typename T>
[[gnu::flatten]] void transpose_tile(const T* from, int64_t from_stride, T* to, int64_t to_stride,
                                     int64_t rows, int64_t columns) {
  alignas(64) float tile[kRelayoutTile * kRelayoutPitch];
  for (int64_t r = 0; r < rows; r += Vec::kLanes) {
    for_vectors(columns, [&](int64_t c, int lanes) {
      Vec block[Vec::kLanes];
      for (int i = 0; i < Vec::kLanes; ++i) {
        block[i] = r + i < rows ? load_lanes(from + (r + i) * from_stride + c, lanes) : zero();
      }
      transpose_lanes(block);
      for (int i = 0; i < Vec::kLanes; ++i) store(tile + (c + i) * kRelayoutPitch + r, block[i]);
    });
  }
  for (int64_t c = 0; c < columns; ++c) {
    for_vectors(rows, [&](int64_t r, int lanes) {
      store_lanes(to + c * to_stride + r, load(tile + c * kRelayoutPitch + r), lanes);
    });
  }
}

// A task owns kRelayoutTile channels of one batch row.
inline void relayout(const RelayoutParams& p, int64_t task) {
  const int64_t blocks = (p.channels + kRelayoutTile - 1) / kRelayoutTile;
  const int64_t batch = task / blocks, c = task % blocks * kRelayoutTile;
  const int64_t channels = min_of(kRelayoutTile, p.channels - c);
  with_dtype(p.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t time = 0; time < p.seqlen; time += kRelayoutTile) {
      const int64_t times = min_of(kRelayoutTile, p.seqlen - time);
      const T* from = at<T>(p.from, batch, c, time);
      T* to = at<T>(p.to, batch, c, time);
      if (p.to_layout == Layout::kChannelFirst) {
        transpose_tile(from, p.from.time_stride, to, p.to.channel_stride, times, channels);
      } else {
        transpose_tile(from, p.from.channel_stride, to, p.to.time_stride, channels, times);
      }
    }
  });
}

}  // namespace
}  // namespace padfree::causal_conv1d::PADFREE_ISA
