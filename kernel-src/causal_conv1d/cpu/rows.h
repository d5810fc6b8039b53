// The channel-last body: vectors run along channels, a tap is a row pointer. Channels go in pairs of vectors,
// in the order that load_pair gives: the float rows, the filter and the sums keep it. Included by kernel.h.
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

// Calls f(offset, count) over [0, channels): whole pairs of vectors, then what is left.
template <typename F>
inline void for_pairs(int64_t channels, F&& f) {
  int64_t c = 0;
  for (; c + kPair <= channels; c += kPair) f(c, kPair);
  if (c < channels) f(c, static_cast<int>(channels - c));
}

// R rows at once share the loads of the taps they have in common, of the weights and of the bias.
template <typename T, int W, bool Silu, int R>
inline void forward_row_group(const ForwardParams& p, const Piece& piece, int64_t time, int64_t c0,
                              int64_t c1) {
  const T* in[W - 1 + R];
  for (int i = 0; i < W - 1 + R; ++i) in[i] = input_row<T, W>(p, piece, time - (W - 1) + i, c0);
  T* out[R];
  for (int r = 0; r < R; ++r) out[r] = at<T>(p.out, piece.batch, c0, time + r);
  for_pairs(c1 - c0, [&](int64_t c, int count) {
    const float* filter[2] = {filter_of(p.filter, W, c0 + c), filter_of(p.filter, W, c0 + c + Vec::kLanes)};
    Vec x[W - 1 + R][2], pre[R][2];
    for (int i = 0; i < W - 1 + R; ++i) load_pair(in[i] + c, x[i][0], x[i][1], count);
    for (int half = 0; half < 2; ++half) {
      for (int r = 0; r < R; ++r) pre[r][half] = load(filter[half] + W * kGroup);
      for (int k = 0; k < W; ++k) {
        const Vec tap = load(filter[half] + k * kGroup);
        for (int r = 0; r < R; ++r) pre[r][half] = fma(tap, x[r + k][half], pre[r][half]);
      }
    }
    for (int r = 0; r < R; ++r) {
      store_pair(out[r] + c, activation<Silu>(pre[r][0]), activation<Silu>(pre[r][1]), count);
    }
  });
}

template <typename T, int W, bool Silu>
[[gnu::flatten]] void forward_rows(const ForwardParams& p, const Piece& piece, int64_t c0, int64_t c1) {
  if (piece.state == Piece::kPadding) return zero_rows<T>(p.out, piece, c0, c1);
  constexpr int kRows = 2;
  int64_t time = piece.begin;
  for (; time + kRows <= piece.end; time += kRows) {
    forward_row_group<T, W, Silu, kRows>(p, piece, time, c0, c1);
  }
  for (; time < piece.end; ++time) forward_row_group<T, W, Silu, 1>(p, piece, time, c0, c1);
}

// The last rows of x and dpre in float, packed: read from memory once, and not in the cache sets that rows of
// a wide x share.
template <int Rows>
struct Ring {
  alignas(64) float rows[Rows][kMaxChannelBlock];

  float* at(int64_t time) { return rows[(time + Rows) % Rows]; }
};

// What holds for the rows of one step of backward_rows.
struct Step {
  bool in_sequence;  // else the rows lie past it: dpre is 0
  bool summed;       // the rows belong to this piece, not only to its taps
  bool emits;        // dx of W - 1 rows before is complete and belongs to this piece
};

// Rows [time, time + R): dpre into the ring and into the sums of the chunk; then
//   dx[time - (W - 1)] = sum_i weight[W - 1 - i] * dpre[time - (W - 1) + i].
template <typename T, int W, bool Silu, int R, int Rows>
inline void backward_row_group(const BackwardParams& p, const Piece& piece, int64_t time, int64_t c0,
                               int64_t c1, Step step, Ring<Rows>& x_ring, Ring<Rows>& dpre_ring,
                               float* partial) {
  const ForwardParams& f = p.forward;
  float *x_row[W - 1 + R], *dpre_row[W - 1 + R];
  for (int i = 0; i < W - 1 + R; ++i) {
    x_row[i] = x_ring.at(time - (W - 1) + i);
    dpre_row[i] = dpre_ring.at(time - (W - 1) + i);
  }
  const T *in[R], *dout[R];
  T* dx[R];
  for (int r = 0; r < R; ++r) {
    const int64_t done = time + r - (W - 1);
    in[r] = step.in_sequence ? at<T>(f.x, piece.batch, c0, time + r) : nullptr;
    dout[r] = step.in_sequence ? at<T>(p.dout, piece.batch, c0, time + r) : nullptr;
    dx[r] = !step.emits                    ? nullptr
            : done >= piece.sequence_begin ? at<T>(p.dx, piece.batch, c0, done)
                                           : state_row<W, T>(p.dinitial_states, f, piece, done) + c0;
  }
  for_pairs(c1 - c0, [&](int64_t pair, int count) {
    Vec x_new[R][2], dout_new[R][2], done[R][2];
    for (int r = 0; step.in_sequence && r < R; ++r) {
      load_pair(in[r] + pair, x_new[r][0], x_new[r][1], count);
      load_pair(dout[r] + pair, dout_new[r][0], dout_new[r][1], count);
    }
    for (int half = 0; half < 2; ++half) {
      const int64_t c = pair + half * Vec::kLanes;
      const float* filter = filter_of(f.filter, W, c0 + c);
      Vec x[W - 1 + R], dpre[W - 1 + R];
      for (int i = 0; i < W - 1; ++i) {
        x[i] = load(x_row[i] + c);
        dpre[i] = load(dpre_row[i] + c);
      }
      for (int r = 0; r < R; ++r) {
        Vec& newest = dpre[W - 1 + r];
        if (!step.in_sequence) {
          newest = zero();
        } else {
          x[W - 1 + r] = x_new[r][half];
          store(x_row[W - 1 + r] + c, x[W - 1 + r]);
          Vec pre = load(filter + W * kGroup);
          for (int k = 0; k < W; ++k) pre = fma(load(filter + k * kGroup), x[r + k], pre);
          newest = activation_grad<Silu>(pre, dout_new[r][half]);
        }
        store(dpre_row[W - 1 + r] + c, newest);
      }
      if (step.in_sequence && step.summed) {
        float* sums = filter_of(partial, W, c0 + c);
        for (int k = 0; k < W; ++k) {
          Vec sum = load(sums + k * kGroup);
          for (int r = 0; r < R; ++r) sum = fma(dpre[W - 1 + r], x[r + k], sum);
          store(sums + k * kGroup, sum);
        }
        Vec sum = load(sums + W * kGroup);
        for (int r = 0; r < R; ++r) sum = sum + dpre[W - 1 + r];
        store(sums + W * kGroup, sum);
      }
      for (int r = 0; step.emits && r < R; ++r) {
        done[r][half] = load(filter + (W - 1) * kGroup) * dpre[r];
        for (int i = 1; i < W; ++i) {
          done[r][half] = fma(load(filter + (W - 1 - i) * kGroup), dpre[r + i], done[r][half]);
        }
      }
    }
    for (int r = 0; step.emits && r < R; ++r) store_pair(dx[r] + pair, done[r][0], done[r][1], count);
  });
}

// Walks the piece's rows, and W - 1 rows past it for the taps that reach there. Two rows at a time between
// the first W - 1, which complete no dx, and the last.
template <typename T, int W, bool Silu>
[[gnu::flatten]] void backward_rows(const BackwardParams& p, const Piece& piece, int64_t c0, int64_t c1,
                                    float* partial) {
  if (piece.state == Piece::kPadding) return zero_rows<T>(p.dx, piece, c0, c1);
  constexpr int kRows = 2;
  Ring<W - 1 + kRows> x, dpre;
  for (int64_t time = piece.begin - (W - 1); time < piece.begin; ++time) {
    const T* row = input_row<T, W>(p.forward, piece, time, c0);
    for_pairs(c1 - c0, [&](int64_t c, int count) {
      Vec a, b;
      load_pair(row + c, a, b, count);
      store(x.at(time) + c, a);
      store(x.at(time) + c + Vec::kLanes, b);
      store(dpre.at(time) + c, zero());
      store(dpre.at(time) + c + Vec::kLanes, zero());
    });
  }
  const bool gives_state = piece.begin == piece.sequence_begin && piece.state >= 0;
  const int64_t first = gives_state ? piece.begin - (W - 1) : piece.begin;
  int64_t time = piece.begin;
  while (time < piece.end + W - 1) {
    const bool emits = time - (W - 1) >= first;
    if (emits && time + kRows <= piece.end) {
      backward_row_group<T, W, Silu, kRows>(p, piece, time, c0, c1, {true, true, true}, x, dpre, partial);
      time += kRows;
    } else {
      const Step step = {time < piece.sequence_end, time < piece.end, emits};
      backward_row_group<T, W, Silu, 1>(p, piece, time, c0, c1, step, x, dpre, partial);
      ++time;
    }
  }
}

}  // namespace
}  // namespace padfree::causal_conv1d::PADFREE_ISA
