// The channel-first body: vectors run along time, one channel at a time. Included by kernel.h.
#pragma once

namespace padfree::causal_conv1d::PADFREE_ISA {
namespace {

constexpr int64_t kTile = 1024;
// Room in front of a buffer for the W - 1 values before the tile, keeping the tile aligned; and behind it for
// the W - 1 values past it and a whole vector.
constexpr int64_t kFront = 16, kBehind = 32;
static_assert(kFront >= kMaxWidth - 1 && kBehind >= kMaxWidth - 1 + Vec::kLanes);

template <typename T>
inline void zero_lines(const View& view, const Piece& piece, int64_t c0, int64_t c1) {
  for (int64_t c = c0; c < c1; ++c) {
    T* line = at<T>(view, piece.batch, c, piece.begin);
    for (int64_t i = 0; i < piece.end - piece.begin; ++i) line[i] = T{};
  }
}

// buffer[i] = the value at time `time` + i, for -(W - 1) <= i < count, and zeros up to the next whole vector.
template <typename T, int W>
inline void fill_line(const ForwardParams& p, const Piece& piece, int64_t channel, int64_t time,
                      int64_t count, float* buffer) {
  for (int64_t i = -(W - 1); i < 0; ++i) {
    if (time + i >= piece.sequence_begin) {
      buffer[i] = to_float(*at<T>(p.x, piece.batch, channel, time + i));
    } else if (piece.state >= 0) {
      buffer[i] = to_float(state_row<W, const T>(p.initial_states, p, piece, time + i)[channel]);
    } else {
      buffer[i] = 0.0f;
    }
  }
  const T* line = at<T>(p.x, piece.batch, channel, time);
  for_vectors(count, [&](int64_t i, int lanes) { store(buffer + i, load_lanes(line + i, lanes)); });
}

template <int W>
inline Vec convolve(const float* buffer, const Vec (&weight)[W], Vec bias) {
  Vec pre = bias;
  for (int k = 0; k < W; ++k) pre = fma(weight[k], load(buffer + k - (W - 1)), pre);
  return pre;
}

template <int W>
inline void splat_weight(const ForwardParams& p, int64_t channel, Vec (&weight)[W]) {
  for (int k = 0; k < W; ++k) weight[k] = splat(p.filter[grouped(W, channel, k)]);
}

template <typename T, int W, bool Silu>
[[gnu::flatten]] void forward_lines(const ForwardParams& p, const Piece& piece, int64_t c0, int64_t c1) {
  if (piece.state == Piece::kPadding) return zero_lines<T>(p.out, piece, c0, c1);
  alignas(64) float storage[kFront + kTile + kBehind];
  float* x = storage + kFront;
  for (int64_t c = c0; c < c1; ++c) {
    Vec weight[W];
    splat_weight<W>(p, c, weight);
    const Vec bias = splat(p.filter[grouped(W, c, W)]);
    for (int64_t time = piece.begin; time < piece.end; time += kTile) {
      const int64_t count = min_of(kTile, piece.end - time);
      fill_line<T, W>(p, piece, c, time, count, x);
      T* out = at<T>(p.out, piece.batch, c, time);
      for_vectors(count, [&](int64_t i, int lanes) {
        store_lanes(out + i, activation<Silu>(convolve<W>(x + i, weight, bias)), lanes);
      });
    }
  }
}

// dpre[i] for -(W - 1) <= i < count + W - 1 around `time`: zeros before this tile's piece (only the initial
// state's gradient reads them) and past the sequence. Returns nothing past count + W - 1 but zeros.
template <typename T, int W, bool Silu>
inline void fill_dpre(const BackwardParams& p, const Piece& piece, int64_t channel, int64_t time,
                      int64_t count, const float* x, const Vec (&weight)[W], Vec bias, float* dpre) {
  const int64_t valid = min_of(count + W - 1, piece.sequence_end - time);
  for (int i = 1; i < W; ++i) dpre[-i] = 0.0f;
  const T* dout = at<T>(p.dout, piece.batch, channel, time);
  for_vectors(valid, [&](int64_t i, int lanes) {
    store(dpre + i, activation_grad<Silu>(convolve<W>(x + i, weight, bias), load_lanes(dout + i, lanes)));
  });
  for (int64_t i = valid; i < count + W - 1; ++i) dpre[i] = 0.0f;
}

// The gradient of the W - 1 values before the sequence: dx at the times before it.
template <typename T, int W>
inline void store_dstate(const BackwardParams& p, const Piece& piece, int64_t channel, const float* dpre,
                         const Vec (&weight)[W]) {
  for (int i = -(W - 1); i < 0; ++i) {
    Vec sum = weight[W - 1] * splat(dpre[i]);
    for (int k = 1; k < W; ++k) sum = fma(weight[W - 1 - k], splat(dpre[i + k]), sum);
    T lanes[Vec::kLanes];
    store(lanes, sum);
    state_row<W, T>(p.dinitial_states, p.forward, piece, piece.sequence_begin + i)[channel] = lanes[0];
  }
}

template <typename T, int W, bool Silu>
[[gnu::flatten]] void backward_lines(const BackwardParams& p, const Piece& piece, int64_t c0, int64_t c1,
                                     float* partial) {
  const ForwardParams& f = p.forward;
  if (piece.state == Piece::kPadding) return zero_lines<T>(p.dx, piece, c0, c1);
  alignas(64) float x_storage[kFront + kTile + kBehind], dpre_storage[kFront + kTile + kBehind];
  float *x = x_storage + kFront, *dpre = dpre_storage + kFront;
  for (int64_t c = c0; c < c1; ++c) {
    Vec weight[W], dweight[W], dbias = zero();
    splat_weight<W>(f, c, weight);
    for (int k = 0; k < W; ++k) dweight[k] = zero();
    for (int64_t time = piece.begin; time < piece.end; time += kTile) {
      const int64_t count = min_of(kTile, piece.end - time);
      fill_line<T, W>(f, piece, c, time, min_of(count + W - 1, piece.sequence_end - time), x);
      fill_dpre<T, W, Silu>(p, piece, c, time, count, x, weight, splat(f.filter[grouped(W, c, W)]), dpre);
      T* dx = at<T>(p.dx, piece.batch, c, time);
      for_vectors(count, [&](int64_t i, int lanes) {
        Vec sum = weight[W - 1] * load(dpre + i);
        for (int k = 1; k < W; ++k) sum = fma(weight[W - 1 - k], load(dpre + i + k), sum);
        store_lanes(dx + i, sum, lanes);
        const Vec d = load_lanes(dpre + i, lanes);
        for (int k = 0; k < W; ++k) {
          dweight[k] = fma(d, load_lanes(x + i + k - (W - 1), lanes), dweight[k]);
        }
        dbias = dbias + d;
      });
      if (time == piece.sequence_begin && piece.state >= 0) store_dstate<T, W>(p, piece, c, dpre, weight);
    }
    for (int k = 0; k < W; ++k) partial[grouped(W, c, k)] += sum(dweight[k]);
    partial[grouped(W, c, W)] += sum(dbias);
  }
}

}  // namespace
}  // namespace padfree::causal_conv1d::PADFREE_ISA
