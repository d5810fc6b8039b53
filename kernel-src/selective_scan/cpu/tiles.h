// Tiles: up to kChunk tokens of one lane group as float rows of kLanes, from and to (B, D, L) tensors of any
// strides. Rows of a channel-last tensor are read as they lie, channel-first ones are transposed in
// registers; what is neither goes value by value.
#pragma once

#include "selective_scan/params.h"

namespace padfree::selective_scan {
namespace {

// What a tile is cut out of: `channels` of the lane group's lanes, `tokens` from `time` on.
struct Place {
  int64_t batch, channel, time;
  int channels, tokens;
};

inline int64_t offset_of(const View& view, const Place& at) {
  return at.batch * view.batch_stride + at.channel * view.channel_stride + at.time * view.time_stride;
}

template <typename T>
void load_tile(const T* data, const View& view, const Place& at, float* tile) {
  constexpr int kWidth = Vec::kLanes;
  if (view.channel_stride == 1) {
    for (int t = 0; t < at.tokens; ++t, data += view.time_stride) {
      for (int c = 0; c < kLanes; c += kWidth) {
        const int left = at.channels - c;
        store(tile + t * kLanes + c, left >= kWidth ? load(data + c)
                                     : left > 0     ? load_partial(data + c, left)
                                                    : zero());
      }
    }
    return;
  }
  int quick = 0;  // tokens of whole squares
  if (view.time_stride == 1 && at.channels == kLanes) {
    quick = at.tokens / kWidth * kWidth;
    for (int c = 0; c < kLanes; c += kWidth) {
      for (int t = 0; t < quick; t += kWidth) {
        Vec square[kWidth];
        for (int i = 0; i < kWidth; ++i) square[i] = load(data + (c + i) * view.channel_stride + t);
        transpose_lanes(square);
        for (int i = 0; i < kWidth; ++i) store(tile + (t + i) * kLanes + c, square[i]);
      }
    }
  }
  for (int t = quick; t < at.tokens; ++t) {
    for (int c = 0; c < kLanes; ++c) {
      const T* value = data + c * view.channel_stride + t * view.time_stride;
      tile[t * kLanes + c] = c < at.channels ? to_float(*value) : 0.0f;
    }
  }
}

template <typename T>
void store_tile(T* data, const View& view, const Place& at, const float* tile) {
  constexpr int kWidth = Vec::kLanes;
  if (view.channel_stride == 1) {
    for (int t = 0; t < at.tokens; ++t, data += view.time_stride) {
      for (int c = 0; c < at.channels; c += kWidth) {
        const Vec row = load(tile + t * kLanes + c);
        const int left = at.channels - c;
        if (left >= kWidth)
          store(data + c, row);
        else
          store_partial(data + c, row, left);
      }
    }
    return;
  }
  int quick = 0;
  if (view.time_stride == 1 && at.channels == kLanes) {
    quick = at.tokens / kWidth * kWidth;
    for (int c = 0; c < kLanes; c += kWidth) {
      for (int t = 0; t < quick; t += kWidth) {
        Vec square[kWidth];
        for (int i = 0; i < kWidth; ++i) square[i] = load(tile + (t + i) * kLanes + c);
        transpose_lanes(square);
        for (int i = 0; i < kWidth; ++i) store(data + (c + i) * view.channel_stride + t, square[i]);
      }
    }
  }
  for (int t = quick; t < at.tokens; ++t) {
    for (int c = 0; c < at.channels; ++c) {
      data[c * view.channel_stride + t * view.time_stride] = from_float<T>(tile[t * kLanes + c]);
    }
  }
}

void load_tile(const View& view, const Place& at, float* tile) {
  with_dtype(view.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    load_tile(static_cast<const T*>(view.data) + offset_of(view, at), view, at, tile);
  });
}

void store_tile(const View& view, const Place& at, const float* tile) {
  with_dtype(view.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    store_tile(static_cast<T*>(view.data) + offset_of(view, at), view, at, tile);
  });
}

// The cache lines of a tile, one for each of kChunk tokens whichever way it lies: those of a channel-last
// tensor hold a token each, those of a channel-first one a quarter of a channel's.
struct Lines {
  const char* first = nullptr;
  int64_t stride = 0, stride_of_four = 0;

  // The line behind number i, which is `line`.
  const char* after(const char* line, int i) const {
    return line + (i % 4 == 3 ? stride_of_four - 3 * stride : stride);
  }
};

inline Lines lines_of(const View& view, const Place& at) {
  if (view.data == nullptr) return {};
  const int64_t size = view.dtype == DType::kFloat32 ? sizeof(float) : sizeof(uint16_t);
  const char* first = static_cast<const char*>(view.data) + size * offset_of(view, at);
  if (view.time_stride == 1) return {first, size * (kChunk / 4), size * view.channel_stride};
  return {first, size * view.time_stride, 4 * size * view.time_stride};
}

// (channels, states) rows of a (D, N) matrix into [states][kLanes], times `factor`; empty lanes hold 0.
inline void pack(const float* rows, int channels, int64_t states, float factor, float* packed) {
  for (int64_t n = 0; n < states; ++n) {
    for (int c = 0; c < kLanes; ++c)
      packed[n * kLanes + c] = c < channels ? factor * rows[c * states + n] : 0.0f;
  }
}
inline void unpack(const float* packed, int channels, int64_t states, float* rows) {
  for (int c = 0; c < channels; ++c) {
    for (int64_t n = 0; n < states; ++n) rows[c * states + n] = packed[n * kLanes + c];
  }
}

}  // namespace
}  // namespace padfree::selective_scan
