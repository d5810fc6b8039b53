// One token of each batch row. A task owns some channels of one batch row; the states of a channel are what a
// vector runs along. Where A, dt and its bias are one number a head (Mamba 2) so is the decay, and the work
// is moving the state through the registers once.
#pragma once

#include "selective_state_update/params.h"

namespace padfree::selective_state_update {
namespace {

inline float* floats_at(const View& view, int64_t batch, int64_t head, int64_t channel) {
  return static_cast<float*>(view.data) + batch * view.batch_stride + head * view.head_stride +
         channel * view.channel_stride;
}

inline float value_at(const View& view, int64_t batch, int64_t head, int64_t channel) {
  const int64_t at = batch * view.batch_stride + head * view.head_stride + channel * view.channel_stride;
  float value = 0.0f;
  with_dtype(view.dtype, [&](auto tag) {
    value = to_float(static_cast<const typename decltype(tag)::type*>(view.data)[at]);
  });
  return value;
}

// dt + bias, through softplus if asked for.
inline float step_of(const Params& p, int64_t batch, int64_t head, int64_t channel) {
  float dt = value_at(p.dt, batch, head, channel);
  if (p.dt_bias.data != nullptr) dt += *floats_at(p.dt_bias, 0, head, channel);
  if (!p.softplus) return dt;
  float lanes[Vec::kLanes];
  store(lanes, softplus(splat(dt)));
  return lanes[0];
}

// One vector of states of one channel, moved on; adds C h to y.
template <typename T>
inline Vec step_vector(T* state, Vec decay, Vec w, const float* B, const float* C, Vec y) {
  const Vec h = fma(decay, load(state), w * load(B));
  store(state, h);
  return fma(h, load(C), y);
}
template <typename T>
inline Vec step_partial(T* state, int left, Vec decay, Vec w, const float* B, const float* C, Vec y) {
  const Vec h = fma(decay, load_partial(state, left), w * load_partial(B, left));
  store_partial(state, h, left);
  return fma(h, load_partial(C, left), y);
}

// All states of one channel; decay(n, left) is that of the vector at state n, of which `left` lanes count.
template <typename T, typename Decay>
inline float step_channel(T* state, int64_t states, float w, const float* B, const float* C, Decay&& decay) {
  constexpr int kWidth = Vec::kLanes;
  Vec y[2] = {zero(), zero()};
  const Vec factor = splat(w);
  int64_t n = 0;
  for (; n + 2 * kWidth <= states; n += 2 * kWidth) {
    y[0] = step_vector(state + n, decay(n, kWidth), factor, B + n, C + n, y[0]);
    y[1] = step_vector(state + n + kWidth, decay(n + kWidth, kWidth), factor, B + n + kWidth, C + n + kWidth,
                       y[1]);
  }
  for (; n < states; n += kWidth) {
    const int left = static_cast<int>(states - n < kWidth ? states - n : kWidth);
    y[0] = left == kWidth ? step_vector(state + n, decay(n, left), factor, B + n, C + n, y[0])
                          : step_partial(state + n, left, decay(n, left), factor, B + n, C + n, y[0]);
  }
  return sum(y[0] + y[1]);
}

// What a state row holds as T.
template <typename T>
[[gnu::flatten]] void update_head(const Params& p, int64_t batch, int64_t row, int64_t head, int64_t begin,
                                  int64_t end, float* out) {
  const int64_t projection = (batch * p.groups + head / (p.heads / p.groups)) * p.states;
  const float *B = p.B + projection, *C = p.C + projection;
  float dt = 0.0f;
  Vec shared = zero();
  if (p.one_decay_a_head) {
    dt = step_of(p, batch, head, 0);
    shared = exp(splat(dt) * splat(*floats_at(p.A, 0, head, 0)));
  }
  for (int64_t c = begin; c < end; ++c) {
    T* state = static_cast<T*>(p.state.data) + row * p.state.batch_stride + head * p.state.head_stride +
               c * p.state.channel_stride;
    const float x = value_at(p.x, batch, head, c);
    if (p.one_decay_a_head) {
      out[c - begin] = step_channel(state, p.states, dt * x, B, C, [&](int64_t, int) { return shared; });
    } else {
      dt = step_of(p, batch, head, c);
      const float* A = floats_at(p.A, 0, head, c);
      out[c - begin] = step_channel(state, p.states, dt * x, B, C, [&](int64_t n, int left) {
        if (p.A_state_stride == 0) return exp(splat(dt) * splat(*A));
        return exp(splat(dt) * (left == Vec::kLanes ? load(A + n) : load_partial(A + n, left)));
      });
    }
    if (p.D.data != nullptr) out[c - begin] += *floats_at(p.D, 0, head, c) * x;
  }
}

// Writes what channels [begin, end) of a head put out, through the gate.
inline void store_head(const Params& p, int64_t batch, int64_t head, int64_t begin, int64_t end, float* out) {
  for (int64_t c = begin; p.z.data != nullptr && c < end; ++c) {
    float lanes[Vec::kLanes];
    store(lanes, silu(splat(value_at(p.z, batch, head, c))));
    out[c - begin] *= lanes[0];
  }
  with_dtype(p.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* to = static_cast<T*>(p.out.data) + batch * p.out.batch_stride + head * p.out.head_stride;
    for (int64_t c = begin; c < end; ++c) to[c * p.out.channel_stride] = from_float<T>(out[c - begin]);
  });
}

void update(const Params& p, int64_t task) {
  constexpr int64_t kPiece = 64;  // channels whose outputs wait for their gate
  const int64_t head_blocks = (p.heads + p.head_block - 1) / p.head_block;
  const int64_t channel_blocks = (p.head_dim + p.channel_block - 1) / p.channel_block;
  const int64_t batch = task / (head_blocks * channel_blocks);
  const int64_t head_begin = task / channel_blocks % head_blocks * p.head_block;
  const int64_t head_end = head_begin + p.head_block < p.heads ? head_begin + p.head_block : p.heads;
  const int64_t begin = task % channel_blocks * p.channel_block;
  const int64_t end = begin + p.channel_block < p.head_dim ? begin + p.channel_block : p.head_dim;
  const int64_t row = p.state_rows == nullptr ? batch : p.state_rows[batch];
  float out[kPiece];
  for (int64_t head = head_begin; head < head_end; ++head) {
    for (int64_t c = begin; c < end; c += kPiece) {
      const int64_t stop = c + kPiece < end ? c + kPiece : end;
      if (row < 0) {
        for (float& value : out) value = 0.0f;
      } else {
        with_dtype(p.state.dtype, [&](auto tag) {
          update_head<typename decltype(tag)::type>(p, batch, row, head, c, stop, out);
        });
      }
      store_head(p, batch, head, c, stop, out);
    }
  }
}

}  // namespace
}  // namespace padfree::selective_state_update
