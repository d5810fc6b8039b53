// The step of decoding: one or a few times, and a state that is read, then moved on. Included by kernel.h.
//
// A task owns some batch rows times one block of channels; kLanes channels go together, all times in a row.
// What a model's cache holds, a dense (D, 4) state beside a dense (D, 4) weight and one new time, goes
// through a loop of its own, which reads and moves four values of kLanes channels in registers (step_quads);
// everything else value by value.
#pragma once

#include "../../common/cpu/vec_quads.h"

namespace padfree::causal_conv1d::PADFREE_ISA {
namespace {

// `lanes` values that lie `stride` apart.
template <typename T>
inline Vec gather(const T* p, int64_t stride, int lanes) {
  if (stride == 1) return load_lanes(p, lanes);
  T values[Vec::kLanes] = {};
  for (int i = 0; i < lanes; ++i) values[i] = p[i * stride];
  return load(values);
}
template <typename T>
inline void scatter(T* p, int64_t stride, Vec a, int lanes) {
  if (stride == 1) return store_lanes(p, a, lanes);
  T values[Vec::kLanes];
  store(values, a);
  for (int i = 0; i < lanes; ++i) p[i * stride] = values[i];
}

// Weight and bias of kLanes channels.
template <typename T, int W>
struct Filter {
  Vec tap[W], bias;

  Filter(const UpdateParams& p, int64_t channel, int lanes) {
    const T* weight = static_cast<const T*>(p.weight) + channel * p.weight_channel_stride;
    for (int k = 0; k < W; ++k) {
      tap[k] = gather(weight + k * p.weight_tap_stride, p.weight_channel_stride, lanes);
    }
    bias = p.bias == nullptr
               ? zero()
               : gather(static_cast<const T*>(p.bias) + channel * p.bias_stride, p.bias_stride, lanes);
  }

  template <bool Silu>
  Vec apply(const Vec (&x)[W]) const {
    Vec pre = bias;
    for (int k = 0; k < W; ++k) pre = fma(tap[k], x[k], pre);
    return activation<Silu>(pre);
  }
};

// Where in the state the value lies that is `back` >= 1 before the first new time.
inline int64_t slot_before(const UpdateParams& p, int64_t batch, int64_t back) {
  if (p.position == nullptr) return p.state_length - back;
  const int64_t slot = (p.position[batch] - back) % p.state_length;
  return slot < 0 ? slot + p.state_length : slot;
}

// The new values go behind the old ones (which move to the front), or into the circle.
template <typename T>
inline void move_state(const UpdateParams& p, int64_t batch, int64_t channel, T* state) {
  const int64_t length = p.state_length, stride = p.state.time_stride;
  const T* x = at<T>(p.x, batch, channel, 0);
  if (p.position != nullptr) {
    for (int64_t t = 0; t < p.seqlen; ++t) {
      state[(p.position[batch] + t) % length * stride] = x[t * p.x.time_stride];
    }
    return;
  }
  for (int64_t i = 0; i < length; ++i) {
    const int64_t from = i + p.seqlen;
    state[i * stride] = from < length ? state[from * stride] : x[(from - length) * p.x.time_stride];
  }
}

// Whether the rows are what step_quads takes.
inline bool in_quads(const UpdateParams& p) {
  return p.width == 4 && p.weight_tap_stride == 1 && p.weight_channel_stride == 4 &&
         (p.bias == nullptr || p.bias_stride == 1) && p.state_length == 4 && p.state.time_stride == 1 &&
         p.state.channel_stride == 4 && p.position == nullptr && p.seqlen == 1 && p.x.channel_stride == 1 &&
         p.out.channel_stride == 1;
}

// One new time of the channels that fill vectors; returns how many. A loop without strides: its constants and
// pointers stay in registers.
template <typename T, typename TW, bool Silu>
[[gnu::noinline, gnu::flatten]] int64_t step_quads(const T* x, const TW* weight, const TW* bias, T* state,
                                                   T* out, int64_t channels) {
  int64_t c = 0;
  for (; c + Vec::kLanes <= channels; c += Vec::kLanes) {
    Vec tap[4], window[4];
    load_dense_quads(weight + 4 * c, tap);
    advance_dense_quads(state + 4 * c, x + c, window);
    Vec pre = bias == nullptr ? zero() : load(bias + c);
    for (int k = 0; k < 4; ++k) pre = fma(tap[k], window[k], pre);
    store(out + c, activation<Silu>(pre));
  }
  return c;
}

template <typename T, typename TW, int W, bool Silu>
inline void update_lanes(const UpdateParams& p, int64_t batch, int64_t channel, int lanes, T* state) {
  const Filter<TW, W> filter(p, channel, lanes);
  const T* x = at<T>(p.x, batch, channel, 0);
  T* out = at<T>(p.out, batch, channel, 0);
  const int64_t x_stride = p.x.channel_stride, state_stride = p.state.channel_stride;
  Vec window[W];
  for (int k = 1; k < W; ++k) {
    window[k] = gather(state + slot_before(p, batch, W - k) * p.state.time_stride, state_stride, lanes);
  }
  for (int64_t t = 0; t < p.seqlen; ++t) {
    for (int k = 1; k < W; ++k) window[k - 1] = window[k];
    window[W - 1] = gather(x + t * p.x.time_stride, x_stride, lanes);
    scatter(out + t * p.out.time_stride, p.out.channel_stride, filter.template apply<Silu>(window), lanes);
  }
  for (int i = 0; i < lanes; ++i) move_state(p, batch, channel + i, state + i * state_stride);
}

template <typename T, typename TW, int W, bool Silu>
[[gnu::flatten]] inline void update_row(const UpdateParams& p, int64_t batch, int64_t c0, int64_t c1) {
  const int64_t index = p.state_index == nullptr ? batch : p.state_index[batch];
  if (index < 0) {
    for (int64_t t = 0; t < p.seqlen; ++t) {
      for (int64_t c = c0; c < c1; ++c) *at<T>(p.out, batch, c, t) = T{};
    }
    return;
  }
  if constexpr (W == 4) {
    if (in_quads(p)) {
      const TW* bias = p.bias == nullptr ? nullptr : static_cast<const TW*>(p.bias) + c0;
      c0 += step_quads<T, TW, Silu>(at<T>(p.x, batch, c0, 0), static_cast<const TW*>(p.weight) + 4 * c0, bias,
                                    at<T>(p.state, index, c0, 0), at<T>(p.out, batch, c0, 0), c1 - c0);
    }
  }
  for_vectors(c1 - c0, [&](int64_t c, int lanes) {
    update_lanes<T, TW, W, Silu>(p, batch, c0 + c, lanes, at<T>(p.state, index, c0 + c, 0));
  });
}

inline void update(const UpdateParams& p, int64_t task) {
  const int64_t c0 = task % p.channel_blocks * p.channel_block, c1 = min_of(c0 + p.channel_block, p.channels);
  const int64_t b0 = task / p.channel_blocks * p.batch_block, b1 = min_of(b0 + p.batch_block, p.batch);
  const auto rows = [&](auto tag, auto weight_tag, auto width, auto silu) {
    using T = typename decltype(tag)::type;
    using TW = typename decltype(weight_tag)::type;
    for (int64_t b = b0; b < b1; ++b) update_row<T, TW, width(), silu()>(p, b, c0, c1);
  };
  with_dtype(p.dtype, [&](auto tag) {
    with_bool(p.silu, [&](auto silu) {
      with_one_of<2, 3, 4>(p.width, [&](auto width) {
        if (p.weight_dtype == p.dtype) return rows(tag, tag, width, silu);
        rows(tag, TypeTag<float>{}, width, silu);
      });
    });
  });
}

}  // namespace
}  // namespace padfree::causal_conv1d::PADFREE_ISA
