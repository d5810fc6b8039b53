// The recurrence itself, over one tile: two vectors of channels by a few states at a time, token after
// token, so that the states stay in registers and each broadcast of B and C serves two vectors. (Where a
// vector is a whole lane group, it goes alone.)
//
//   advance   a_t = 2^(dt_t A2),  h_t = a_t h_{t-1} + (dt_t u_t) B_t,  y_t += C_t h_t      and keeps a and h,
//   if asked to retreat   the same backwards, from the a and h that advance kept
//
// Both sum y, and what goes to du and ddelta, over the states in rising order: the bits do not depend on how
// many states go at a time.
#pragma once

#include "selective_scan/cpu/tiles.h"
#include "selective_scan/params.h"

namespace padfree::selective_scan {
namespace {

// Vectors of a lane group that go side by side: AVX-512 has one, whose two states still keep the pipes busy.
constexpr int kVectors = kLanes >= 2 * Vec::kLanes ? 2 : 1;
// Of the forward alone, and where the backward keeps what it needs of them: more would not fit L1.
constexpr int kForwardStates = 4, kStatesAtATime = 2;

// As many as the backward has passes over 16 states.
constexpr int kMaxAhead = 8;

// One tile and what the states of its lane group need; matrices are [states][kLanes], tiles [token][kLanes].
struct Strip {
  int tokens = 0;
  int64_t states = 0;
  const float* A2 = nullptr;  // A log2(e)
  float* state = nullptr;
  const float *B = nullptr, *C = nullptr;   // a row of the tile's first token, or a constant matrix
  int64_t B_stride = 0, C_stride = 0;       // from token to token
  const float *dt = nullptr, *w = nullptr;  // w = dt u
  float* y = nullptr;
  const float* exp2 = nullptr;  // [kExp2Terms][Vec::kLanes], its terms

  // Tiles that will be wanted once the strip is done. Each pass over the tokens asks for the lines of one, a
  // line a token: asking for all at once takes as long as reading them.
  Lines ahead[kMaxAhead];

  // What advance keeps for retreat, for the states at hand: a_t, and the state before and after each token.
  float* decay = nullptr;  // [kStatesAtATime][kChunk][kLanes]
  float* kept = nullptr;   // [kStatesAtATime][kChunk + 1][kLanes]

  // Backward only.
  const float* dy = nullptr;
  float* carry = nullptr;  // a_{t+1} times the gradient of h_{t+1}
  float* dA = nullptr;
  float *to_w = nullptr, *to_decay = nullptr;  // tiles: sum_n dh B, and sum_n dh a h_{t-1} A2
  // Sums for dB and dC over lane groups, lane by lane: [states][kChunk][Vec::kLanes]; constant matrices their
  // own.
  float *dB = nullptr, *dC = nullptr;
};

constexpr int64_t kDecayRow = static_cast<int64_t>(kChunk) * kLanes;
constexpr int64_t kKeptRow = static_cast<int64_t>(kChunk + 1) * kLanes;

// B or C of one token for state `n` and the vector at `lane`; `row` is the token's, or a constant matrix.
template <bool kConstant>
inline Vec projection(const float* row, int64_t n, int lane) {
  return kConstant ? load(row + n * kLanes + lane) : splat(row[n]);
}

template <bool kBounded, bool kConstantB, bool kConstantC, bool kKeep, int kStates>
inline void advance_states(const Strip& strip, int64_t n, int lane, Lines ahead) {
  constexpr int kWidth = Vec::kLanes;
  const Strip s = strip;  // a copy that no store below can change: its pointers stay in registers
  const float *A2 = s.A2 + n * kLanes + lane, *B = s.B, *C = s.C, *dt = s.dt + lane, *w = s.w + lane;
  float *state = s.state + n * kLanes + lane, *y = s.y + lane, *decay = s.decay + lane, *kept = s.kept + lane;
  constexpr int kSide = kStates < 2 ? 1 : 2;  // states whose decays go side by side
  const char* line = ahead.first;
  Vec h[kStates][kVectors];
  for (int i = 0; i < kStates; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      h[i][v] = load(state + i * kLanes + v * kWidth);
      if constexpr (kKeep) store(kept + i * kKeptRow + v * kWidth, h[i][v]);
    }
  }
  for (int t = 0; t < s.tokens; ++t, B += s.B_stride, C += s.C_stride) {
    const int row = t * kLanes;
    Vec step[kVectors], sum[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      step[v] = load(dt + row + v * kWidth);
      sum[v] = load(y + row + v * kWidth);
    }
#pragma GCC unroll 4
    for (int i = 0; i < kStates; i += kSide) {
      Vec a[kSide * kVectors];
      for (int j = 0; j < kSide * kVectors; ++j) {
        a[j] = step[j % kVectors] * load(A2 + (i + j / kVectors) * kLanes + j % kVectors * kWidth);
      }
      if constexpr (kBounded)
        exp2_bounded(a, s.exp2);
      else
        for (Vec& x : a) x = exp2(x);
      for (int j = 0; j < kSide * kVectors; ++j) {
        const int one = i + j / kVectors, v = j % kVectors, at = row + v * kWidth;
        Vec& ht = h[one][v];
        ht = fma(a[j], ht, load(w + at) * projection<kConstantB>(B, n + one, lane + v * kWidth));
        sum[v] = fma(ht, projection<kConstantC>(C, n + one, lane + v * kWidth), sum[v]);
        if constexpr (kKeep) {
          store(decay + one * kDecayRow + at, a[j]);
          store(kept + one * kKeptRow + kLanes + at, ht);
        }
      }
    }
    for (int v = 0; v < kVectors; ++v) store(y + row + v * kWidth, sum[v]);
    __builtin_prefetch(line);
    line = ahead.after(line, t);
  }
  for (int i = 0; i < kStates; ++i) {
    for (int v = 0; v < kVectors; ++v) store(state + i * kLanes + v * kWidth, h[i][v]);
  }
}

template <bool kConstantB, bool kConstantC, int kStates>
inline void retreat_states(const Strip& strip, int64_t n, int lane) {
  constexpr int kWidth = Vec::kLanes;
  const Strip s = strip;
  const int last = s.tokens - 1;
  const float *A2 = s.A2 + n * kLanes + lane, *B = s.B + last * s.B_stride, *C = s.C + last * s.C_stride;
  const float *dt = s.dt + lane, *w = s.w + lane, *dy = s.dy + lane, *decay = s.decay + lane,
              *kept = s.kept + lane;
  float *to_w = s.to_w + lane, *to_decay = s.to_decay + lane;
  float *carries = s.carry + n * kLanes + lane, *sums = s.dA + n * kLanes + lane;
  // Where the sums of state n lie: lane by lane for each token, or for a constant matrix once.
  float* dB = kConstantB ? s.dB + n * kLanes + lane : s.dB + n * kChunk * kWidth;
  float* dC = kConstantC ? s.dC + n * kLanes + lane : s.dC + n * kChunk * kWidth;
  constexpr int kRowB = kConstantB ? kLanes : kChunk * kWidth, kRowC = kConstantC ? kLanes : kChunk * kWidth;
  Vec carry[kStates][kVectors], dA[kStates][kVectors];
  for (int i = 0; i < kStates; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      carry[i][v] = load(carries + i * kLanes + v * kWidth);
      dA[i][v] = load(sums + i * kLanes + v * kWidth);
    }
  }
  for (int t = last; t >= 0; --t, B -= s.B_stride, C -= s.C_stride) {
    const int row = t * kLanes;
    Vec for_B[kStates], for_C[kStates];
    for (int i = 0; i < kStates; ++i) {
      for_B[i] = kConstantB ? zero() : load(dB + i * kRowB + t * kWidth);
      for_C[i] = kConstantC ? zero() : load(dC + i * kRowC + t * kWidth);
    }
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      const int at = row + v * kWidth;
      const Vec gradient = load(dy + at), input = load(w + at), step = load(dt + at);
      Vec sum_w = load(to_w + at), sum_decay = load(to_decay + at);
#pragma GCC unroll 4
      for (int i = 0; i < kStates; ++i) {
        const float* before = kept + i * kKeptRow + at;
        const Vec g = fma(projection<kConstantC>(C, n + i, lane + v * kWidth), gradient, carry[i][v]);
        sum_w = fma(g, projection<kConstantB>(B, n + i, lane + v * kWidth), sum_w);
        carry[i][v] = g * load(decay + i * kDecayRow + at);
        const Vec q = carry[i][v] * load(before);
        sum_decay = fma(q, load(A2 + i * kLanes + v * kWidth), sum_decay);
        dA[i][v] = fma(q, step, dA[i][v]);
        if constexpr (kConstantB) {
          store(dB + i * kRowB + v * kWidth, fma(g, input, load(dB + i * kRowB + v * kWidth)));
        } else {
          for_B[i] = fma(g, input, for_B[i]);
        }
        if constexpr (kConstantC) {
          store(dC + i * kRowC + v * kWidth,
                fma(gradient, load(before + kLanes), load(dC + i * kRowC + v * kWidth)));
        } else {
          for_C[i] = fma(gradient, load(before + kLanes), for_C[i]);
        }
      }
      store(to_w + at, sum_w);
      store(to_decay + at, sum_decay);
    }
    for (int i = 0; i < kStates; ++i) {
      if constexpr (!kConstantB) store(dB + i * kRowB + t * kWidth, for_B[i]);
      if constexpr (!kConstantC) store(dC + i * kRowC + t * kWidth, for_C[i]);
    }
  }
  for (int i = 0; i < kStates; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      store(carries + i * kLanes + v * kWidth, carry[i][v]);
      store(sums + i * kLanes + v * kWidth, dA[i][v]);
    }
  }
}

// Every state of the strip forward, and, if it has a carry, backward.
template <bool kBounded, bool kConstantB, bool kConstantC, bool kBackward>
[[gnu::flatten, gnu::noinline]] void run_strip(const Strip& s) {
  constexpr int kStates = kBackward ? kStatesAtATime : kForwardStates;
  for (int lane = 0; lane < kLanes; lane += kVectors * Vec::kLanes) {
    int64_t n = 0;
    int pass = 0;
    const auto tile = [&] { return pass < kMaxAhead ? s.ahead[pass++] : Lines{}; };
    for (; n + kStates <= s.states; n += kStates) {
      advance_states<kBounded, kConstantB, kConstantC, kBackward, kStates>(s, n, lane, tile());
      if constexpr (kBackward) retreat_states<kConstantB, kConstantC, kStates>(s, n, lane);
    }
    for (; n < s.states; ++n) {
      advance_states<kBounded, kConstantB, kConstantC, kBackward, 1>(s, n, lane, tile());
      if constexpr (kBackward) retreat_states<kConstantB, kConstantC, 1>(s, n, lane);
    }
  }
}

template <bool kBackward>
inline void run_strip(const Strip& s, bool bounded, bool constant_B, bool constant_C) {
  with_bool(bounded, [&](auto is_bounded) {
    with_bool(constant_B, [&](auto is_constant_B) {
      with_bool(constant_C, [&](auto is_constant_C) {
        run_strip<is_bounded(), is_constant_B(), is_constant_C(), kBackward>(s);
      });
    });
  });
}

}  // namespace
}  // namespace padfree::selective_scan
