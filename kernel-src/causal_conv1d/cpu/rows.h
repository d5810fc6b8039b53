// The channel-last body: vectors run along channels, a tap is a row pointer. Included by kernel.h.
#pragma once

namespace padfree::causal_conv1d::PADFREE_ISA {
namespace {

alignas(64) const unsigned char kZeroRow[kMaxChannelBlock * sizeof(float)] = {};

// The values at `time` from channel c0 on: of x, of the initial state, or zeros.
template <typename T, int W>
inline const T* input_row(const ForwardParams& p, const Piece& piece, int64_t time, int64_t c0) {
  if (time >= piece.sequence_begin) return at<T>(p.x, piece.batch, c0, time);
  if (piece.state >= 0) return state_row<W, const T>(p.initial_states, p, piece, time) + c0;
  return reinterpret_cast<const T*>(kZeroRow);
}

template <typename T>
inline void zero_rows(const View& view, const Piece& piece, int64_t c0, int64_t c1) {
  for (int64_t time = piece.begin; time < piece.end; ++time) {
    T* row = at<T>(view, piece.batch, c0, time);
    for (int64_t c = 0; c < c1 - c0; ++c) row[c] = T{};
  }
}

// R rows at once share the loads of the taps they have in common, of the weights and of the bias.
template <typename T, int W, bool Silu, int R>
inline void forward_row_group(const ForwardParams& p, const Piece& piece, int64_t time, int64_t c0,
                              int64_t c1) {
  const T* in[W - 1 + R];
  for (int i = 0; i < W - 1 + R; ++i) in[i] = input_row<T, W>(p, piece, time - (W - 1) + i, c0);
  T* out[R];
  for (int r = 0; r < R; ++r) out[r] = at<T>(p.out, piece.batch, c0, time + r);
  const float *weight = p.weight + c0, *bias = p.bias + c0;
  for_vectors(c1 - c0, [&](int64_t c, int lanes) {
    Vec x[W - 1 + R], pre[R];
    for (int i = 0; i < W - 1 + R; ++i) x[i] = load_lanes(in[i] + c, lanes);
    for (int r = 0; r < R; ++r) pre[r] = load(bias + c);
    for (int k = 0; k < W; ++k) {
      const Vec tap = load(weight + k * p.channels_padded + c);
      for (int r = 0; r < R; ++r) pre[r] = fma(tap, x[r + k], pre[r]);
    }
    for (int r = 0; r < R; ++r) store_lanes(out[r] + c, activation<Silu>(pre[r]), lanes);
  });
}

template <typename T, int W, bool Silu>
[[gnu::flatten]] void forward_rows(const ForwardParams& p, const Piece& piece, int64_t c0, int64_t c1) {
  if (piece.state == Piece::kPadding) return zero_rows<T>(p.out, piece, c0, c1);
  constexpr int kGroup = 2;
  int64_t time = piece.begin;
  for (; time + kGroup <= piece.end; time += kGroup) {
    forward_row_group<T, W, Silu, kGroup>(p, piece, time, c0, c1);
  }
  for (; time < piece.end; ++time) forward_row_group<T, W, Silu, 1>(p, piece, time, c0, c1);
}

// dpre of one row into `dpre`; added to the chunk's sums if `sums` is not null.
template <typename T, int W, bool Silu>
inline void dpre_row(const BackwardParams& p, const Piece& piece, int64_t time, int64_t c0, int64_t c1,
                     float* dpre, float* sums) {
  const ForwardParams& f = p.forward;
  const int64_t stride = f.channels_padded;
  const T* in[W];
  for (int k = 0; k < W; ++k) in[k] = input_row<T, W>(f, piece, time - (W - 1) + k, c0);
  const T* dout = at<T>(p.dout, piece.batch, c0, time);
  const float *weight = f.weight + c0, *bias = f.bias + c0;
  for_vectors(c1 - c0, [&](int64_t c, int lanes) {
    Vec x[W], pre = load(bias + c);
    for (int k = 0; k < W; ++k) {
      x[k] = load_lanes(in[k] + c, lanes);
      pre = fma(load(weight + k * stride + c), x[k], pre);
    }
    const Vec d = activation_grad<Silu>(pre, load_lanes(dout + c, lanes));
    store(dpre + c, d);
    if (sums == nullptr) return;
    for (int k = 0; k < W; ++k) {
      float* sum = sums + k * stride + c;
      store(sum, fma(d, x[k], load(sum)));
    }
    store(sums + W * stride + c, load(sums + W * stride + c) + d);
  });
}

// dx[time] = sum_i weight[W - 1 - i] * dpre[time + i]; dpre[i] is the row of time + i.
template <typename T, int W>
inline void dx_row(T* dx, const float* const (&dpre)[W], const float* weight, int64_t stride,
                   int64_t channels) {
  for_vectors(channels, [&](int64_t c, int lanes) {
    Vec sum = load(weight + (W - 1) * stride + c) * load(dpre[0] + c);
    for (int i = 1; i < W; ++i) sum = fma(load(weight + (W - 1 - i) * stride + c), load(dpre[i] + c), sum);
    store_lanes(dx + c, sum, lanes);
  });
}

// Walks the piece's rows, and W - 1 rows past it for the taps that reach there, with the last W rows of dpre
// in a ring; the row of dx that is then complete leaves. Rows past the sequence count as zeros.
template <typename T, int W, bool Silu>
[[gnu::flatten]] void backward_rows(const BackwardParams& p, const Piece& piece, int64_t c0, int64_t c1,
                                    float* partial) {
  const ForwardParams& f = p.forward;
  if (piece.state == Piece::kPadding) return zero_rows<T>(p.dx, piece, c0, c1);
  alignas(64) float ring[W][kMaxChannelBlock] = {};
  const bool gives_state = piece.begin == piece.sequence_begin && piece.state >= 0;
  const int64_t first = gives_state ? piece.begin - (W - 1) : piece.begin;
  for (int64_t time = piece.begin; time < piece.end + W - 1; ++time) {
    float* newest = ring[time % W];
    if (time < piece.sequence_end) {
      dpre_row<T, W, Silu>(p, piece, time, c0, c1, newest, time < piece.end ? partial + c0 : nullptr);
    } else {
      for (int64_t c = 0; c < c1 - c0; ++c) newest[c] = 0.0f;
    }
    const int64_t done = time - (W - 1);
    if (done < first) continue;
    const float* dpre[W];
    for (int i = 0; i < W; ++i) dpre[i] = ring[(time + 1 + i) % W];
    T* dx = done >= piece.sequence_begin ? at<T>(p.dx, piece.batch, c0, done)
                                         : state_row<W, T>(p.dinitial_states, f, piece, done) + c0;
    dx_row<T, W>(dx, dpre, f.weight + c0, f.channels_padded, c1 - c0);
  }
}

}  // namespace
}  // namespace padfree::causal_conv1d::PADFREE_ISA
