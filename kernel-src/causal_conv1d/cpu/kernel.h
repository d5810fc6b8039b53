// Causal depthwise convolution over (B, D, L), forward and backward, for one instruction set.
//
//   pre[l] = bias + sum_k weight[k] * x[l - (W - 1) + k]        out = silu(pre) or pre
//
// Work: a task owns one chunk of time (all its pieces) times one block of channels and writes only there.
// Chunks never look at seq_idx: the host has cut time into pieces that lie in one sequence each, and a tap
// that would fall before its sequence reads the initial state or zeros instead. So a packed call and the
// calls of its samples do the same operations on the same numbers: equal bits.
//
// Two bodies, by which dimension is contiguous:
//   rows  (channel-last)  a vector is some channels; a tap is a row pointer, so a boundary costs a pointer.
//   lines (channel-first) a vector is some times; a tile of one channel goes through a float buffer with the
//                         W - 1 values before it in front, so a boundary costs W - 1 values per sequence.
// Both add the taps oldest first onto the bias: the layout does not change the bits either.
//
// A third, update.h, is the step of decoding; relayout.h copies from one layout to the other.
//
// Include a vec_<isa>.h and vec_math.h first, and define PADFREE_ISA as <isa>: bundle check wants every
// function that holds wide instructions to say so in its name.
#pragma once

#include "../../common/cpu/vec_pair.h"
#include "../../common/dispatch.h"
#include "../params.h"

namespace padfree::causal_conv1d::PADFREE_ISA {
namespace {

inline int64_t min_of(int64_t a, int64_t b) {
  return a < b ? a : b;
}

template <typename T>
inline Vec load_lanes(const T* p, int lanes) {
  return lanes == Vec::kLanes ? load(p) : load_partial(p, lanes);
}
template <typename T>
inline void store_lanes(T* p, Vec a, int lanes) {
  lanes == Vec::kLanes ? store(p, a) : store_partial(p, a, lanes);
}

// Calls f(offset, lanes) over [0, count): whole vectors, then what is left.
template <typename F>
inline void for_vectors(int64_t count, F&& f) {
  int64_t i = 0;
  for (; i + Vec::kLanes <= count; i += Vec::kLanes) f(i, Vec::kLanes);
  if (i < count) f(i, static_cast<int>(count - i));
}

// d out / d pre, times dout.
template <bool Silu>
inline Vec activation_grad(Vec pre, Vec dout) {
  if constexpr (!Silu) return dout;
  const Vec s = sigmoid(pre);
  return dout * (s * fma(pre, splat(1.0f) - s, splat(1.0f)));
}

template <bool Silu>
inline Vec activation(Vec pre) {
  if constexpr (Silu) return silu(pre);
  return pre;
}

// Calls f with the storage type, the width and the activation as compile-time values.
template <typename F>
inline void specialise(const ForwardParams& p, F&& f) {
  with_dtype(p.dtype, [&](auto tag) {
    with_bool(p.silu,
              [&](auto silu) { with_one_of<2, 3, 4>(p.width, [&](auto width) { f(tag, width, silu); }); });
  });
}

// Where a tap (or, for tap W, the bias) of a channel lies in a grouped array.
inline int64_t grouped(int width, int64_t channel, int tap) {
  return (channel & -kGroup) * (width + 1) + tap * kGroup + (channel & (kGroup - 1));
}

// The oldest taps of the vector that begins with `channel`; each next tap, and the bias, lie kGroup further.
template <typename P>
inline P* filter_of(P* filters, int width, int64_t channel) {
  return filters + grouped(width, channel, 0);
}

// Which channel's place in a grouped array holds the values of channel c: in the order that the channel-last
// body works in, or as they come.
inline int64_t place_of(DType dtype, Layout layout, int64_t c) {
  int64_t place = c;
  if (layout == Layout::kChannelLast) {
    with_dtype(dtype, [&](auto tag) {
      place = (c & -kPair) + place_in_pair<typename decltype(tag)::type>(static_cast<int>(c & (kPair - 1)));
    });
  }
  return place;
}

// Task -> its pieces and its channels [c0, c1).
struct Task {
  const Piece *begin, *end;
  int64_t chunk, c0, c1;
};
inline Task task_of(const ForwardParams& p, int64_t index) {
  const Partition& part = p.partition;
  const int64_t blocks = (p.channels + part.channel_block - 1) / part.channel_block;
  const int64_t chunk = index / blocks, c0 = index % blocks * part.channel_block;
  return {part.pieces + part.first_piece[chunk], part.pieces + part.first_piece[chunk + 1], chunk, c0,
          min_of(c0 + part.channel_block, p.channels)};
}

template <typename T>
inline T* at(const View& v, int64_t batch, int64_t channel, int64_t time) {
  return static_cast<T*>(v.data) + batch * v.batch_stride + channel * v.channel_stride + time * v.time_stride;
}

// Row of a states tensor for the time `time` < piece.sequence_begin.
template <int W, typename T, typename P>
inline T* state_row(P* states, const ForwardParams& p, const Piece& piece, int64_t time) {
  const int64_t slot = W - 1 + time - piece.sequence_begin;
  return static_cast<T*>(states) + (piece.state * (W - 1) + slot) * p.channels;
}

}  // namespace
}  // namespace padfree::causal_conv1d::PADFREE_ISA

#include "lines.h"
#include "relayout.h"
#include "rows.h"
#include "update.h"

namespace padfree::causal_conv1d::PADFREE_ISA {
namespace {

inline void forward(const ForwardParams& p, int64_t index) {
  const Task task = task_of(p, index);
  specialise(p, [&](auto tag, auto width, auto silu) {
    using T = typename decltype(tag)::type;
    for (const Piece* piece = task.begin; piece != task.end; ++piece) {
      if (p.layout == Layout::kChannelLast) {
        forward_rows<T, width(), silu()>(p, *piece, task.c0, task.c1);
      } else {
        forward_lines<T, width(), silu()>(p, *piece, task.c0, task.c1);
      }
    }
  });
}

inline void backward(const BackwardParams& p, int64_t index) {
  const Task task = task_of(p.forward, index);
  float* partial = p.partial + task.chunk * (p.forward.width + 1) * p.forward.channels_padded;
  specialise(p.forward, [&](auto tag, auto width, auto silu) {
    using T = typename decltype(tag)::type;
    for (const Piece* piece = task.begin; piece != task.end; ++piece) {
      if (p.forward.layout == Layout::kChannelLast) {
        backward_rows<T, width(), silu()>(p, *piece, task.c0, task.c1, partial);
      } else {
        backward_lines<T, width(), silu()>(p, *piece, task.c0, task.c1, partial);
      }
    }
  });
}

inline void pack(const PackParams& p) {
  for (int64_t i = 0; i < p.channels_padded * (p.width + 1); ++i) p.packed[i] = 0.0f;
  // store_pair wants no NaN with a full payload.
  const auto plain = [](float x) { return x == x ? x : __builtin_nanf(""); };
  with_dtype(p.weight_dtype, [&](auto tag) {
    const auto* weight = static_cast<const typename decltype(tag)::type*>(p.weight);
    for (int64_t c = 0; c < p.channels; ++c) {
      float* taps = p.packed + grouped(p.width, place_of(p.dtype, p.layout, c), 0);
      for (int k = 0; k < p.width; ++k) {
        taps[k * kGroup] = plain(to_float(weight[c * p.weight_channel_stride + k * p.weight_tap_stride]));
      }
    }
  });
  if (p.bias == nullptr) return;
  with_dtype(p.bias_dtype, [&](auto tag) {
    const auto* bias = static_cast<const typename decltype(tag)::type*>(p.bias);
    for (int64_t c = 0; c < p.channels; ++c) {
      p.packed[grouped(p.width, place_of(p.dtype, p.layout, c), p.width)] =
          plain(to_float(bias[c * p.bias_stride]));
    }
  });
}

// Adds the chunks in order: the result depends on the shapes only.
inline void reduce(const ReduceParams& p) {
  const int64_t chunk_size = (p.width + 1) * p.channels_padded;
  const auto total = [&](int tap, int64_t c) {
    const float* first = p.partial + grouped(p.width, place_of(p.dtype, p.layout, c), tap);
    float sum = 0.0f;
    for (int64_t i = 0; i < p.chunks; ++i) sum += first[i * chunk_size];
    return sum;
  };
  with_dtype(p.weight_dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t c = 0; c < p.channels; ++c) {
      for (int k = 0; k < p.width; ++k)
        static_cast<T*>(p.dweight)[c * p.width + k] = from_float<T>(total(k, c));
    }
  });
  with_dtype(p.bias_dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    for (int64_t c = 0; c < p.channels; ++c) static_cast<T*>(p.dbias)[c] = from_float<T>(total(p.width, c));
  });
}

}  // namespace
}  // namespace padfree::causal_conv1d::PADFREE_ISA
