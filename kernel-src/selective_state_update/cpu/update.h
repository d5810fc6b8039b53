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

constexpr int64_t kPiece = 64;  // channels that a task loads, moves on and stores together

// Values of channels [begin, begin + count) of a head, as floats.
inline void load_channels(const View& view, int64_t batch, int64_t head, int64_t begin, int64_t count,
                          float* to) {
  const int64_t at = batch * view.batch_stride + head * view.head_stride + begin * view.channel_stride;
  with_dtype(view.dtype, [&](auto tag) {
    const auto* from = static_cast<const typename decltype(tag)::type*>(view.data) + at;
    for (int64_t c = 0; c < count; ++c) to[c] = to_float(from[c * view.channel_stride]);
  });
}

// What a piece needs of its channels; lanes past the last channel hold what does not matter.
struct Channels {
  float x[kPiece], dt[kPiece], gate[kPiece], skip[kPiece], out[kPiece];
};

inline void load_piece(const Params& p, int64_t batch, int64_t head, int64_t begin, int64_t count,
                       Channels& piece) {
  load_channels(p.x, batch, head, begin, count, piece.x);
  load_channels(p.dt, batch, head, begin, count, piece.dt);
  if (p.dt_bias.data != nullptr) {
    load_channels(p.dt_bias, 0, head, begin, count, piece.out);
    for (int64_t c = 0; c < count; ++c) piece.dt[c] += piece.out[c];
  }
  for (int64_t c = 0; p.softplus && c < count; c += Vec::kLanes) {
    store(piece.dt + c, softplus(load(piece.dt + c)));
  }
  if (p.D.data != nullptr) load_channels(p.D, 0, head, begin, count, piece.skip);
  if (p.z.data != nullptr) load_channels(p.z, batch, head, begin, count, piece.gate);
}

// out = (y + D x) silu(z), y in piece.out.
inline void store_piece(const Params& p, int64_t batch, int64_t head, int64_t begin, int64_t count,
                        Channels& piece) {
  for (int64_t c = 0; c < count; c += Vec::kLanes) {
    Vec y = load(piece.out + c);
    if (p.D.data != nullptr) y = fma(load(piece.skip + c), load(piece.x + c), y);
    if (p.z.data != nullptr) y = y * silu(load(piece.gate + c));
    store(piece.out + c, y);
  }
  with_dtype(p.out.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* to = static_cast<T*>(p.out.data) + batch * p.out.batch_stride + head * p.out.head_stride;
    for (int64_t c = 0; c < count; ++c) to[(begin + c) * p.out.channel_stride] = from_float<T>(piece.out[c]);
  });
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

// How many bytes in front of the channel at hand states are asked for: whole channels, and past the end of
// the page at which the hardware stops.
inline int64_t bytes_ahead(int64_t channel_bytes) {
  constexpr int64_t kLeast = 8192;
  return channel_bytes <= 0 ? 0 : (kLeast + channel_bytes - 1) / channel_bytes * channel_bytes;
}
inline void ask_for(const void* states, int64_t ahead, int64_t bytes) {
  for (int64_t b = 0; b < bytes; b += 64) __builtin_prefetch(static_cast<const char*>(states) + ahead + b);
}

// Moves on the states, held as T, of a piece's channels.
template <typename T>
[[gnu::flatten]] void move_piece(const Params& p, int64_t batch, int64_t row, int64_t head, int64_t begin,
                                 int64_t count, Channels& piece) {
  const int64_t projection = (batch * p.groups + head / (p.heads / p.groups)) * p.states;
  const float *B = p.B + projection, *C = p.C + projection;
  const int64_t stride = p.state.channel_stride;
  T* state = static_cast<T*>(p.state.data) + row * p.state.batch_stride + head * p.state.head_stride +
             begin * stride;
  const int64_t bytes = p.states * sizeof(T), ahead = bytes_ahead(stride * static_cast<int64_t>(sizeof(T)));
  const float* A = floats_at(p.A, 0, head, begin);
  if (p.one_decay_a_head) {
    const Vec decay = exp(splat(piece.dt[0]) * splat(*A));
    for (int64_t c = 0; c < count; ++c, state += stride) {
      ask_for(state, ahead, bytes);
      piece.out[c] =
          step_channel(state, p.states, piece.dt[c] * piece.x[c], B, C, [&](int64_t, int) { return decay; });
    }
    return;
  }
  for (int64_t c = 0; c < count; ++c, state += stride, A += p.A.channel_stride) {
    ask_for(state, ahead, bytes);
    const Vec dt = splat(piece.dt[c]);
    const float* rate = A;
    piece.out[c] = step_channel(state, p.states, piece.dt[c] * piece.x[c], B, C, [&](int64_t n, int left) {
      if (p.A_state_stride == 0) return exp(dt * splat(*rate));
      return exp(dt * (left == Vec::kLanes ? load(rate + n) : load_partial(rate + n, left)));
    });
  }
}

void update(const Params& p, int64_t task) {
  const int64_t head_blocks = (p.heads + p.head_block - 1) / p.head_block;
  const int64_t channel_blocks = (p.head_dim + p.channel_block - 1) / p.channel_block;
  const int64_t batch = task / (head_blocks * channel_blocks);
  const int64_t head_begin = task / channel_blocks % head_blocks * p.head_block;
  const int64_t head_end = head_begin + p.head_block < p.heads ? head_begin + p.head_block : p.heads;
  const int64_t begin = task % channel_blocks * p.channel_block;
  const int64_t end = begin + p.channel_block < p.head_dim ? begin + p.channel_block : p.head_dim;
  const int64_t row = p.state_rows == nullptr ? batch : p.state_rows[batch];
  Channels piece = {};
  for (int64_t head = head_begin; head < head_end; ++head) {
    for (int64_t c = begin; c < end; c += kPiece) {
      const int64_t count = c + kPiece < end ? kPiece : end - c;
      if (row < 0) {
        store_piece(p, batch, head, c, count, piece);  // its zeros
        continue;
      }
      load_piece(p, batch, head, c, count, piece);
      with_dtype(p.state.dtype, [&](auto tag) {
        move_piece<typename decltype(tag)::type>(p, batch, row, head, c, count, piece);
      });
      store_piece(p, batch, head, c, count, piece);
    }
  }
}

}  // namespace
}  // namespace padfree::selective_state_update
