// From products to weights: modifiers, the mask, and the softmax that runs along the keys.
//
// Exponents are of base 2. Without modifiers the scores stay as the products left them and the factor scale *
// log2(e) joins in the exponent's one fused multiply-add; softcap and ALiBi need the scores themselves, which
// are then already times log2(e).
#pragma once

#include "../../common/cuda/math.cuh"
#include "sequence.cuh"
#include "tile.cuh"

namespace padfree::attention::cuda {

constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000);

// What a lane has to know of one of its rows. Asked for where it is needed and not kept: registers are what
// limits the tile, and most blocks of keys are seen by all rows.
struct LaneRow {
  KeyRange keys;   // that the row sees
  float diagonal;  // its own key's number, for ALiBi
  float slope;     // times log2(e)
};

// Of a warp's rows from `first_row` on, a lane holds the rows 16 r + 8 half + lane / 4.
__device__ __forceinline__ LaneRow lane_row(const ForwardParams& p, const TileTask& task, int first_row,
                                            int r, int half) {
  const int row =
      task.begin + first_row + r * kMmaRows + half * 8 + static_cast<int>(threadIdx.x) % kWarp / 4;
  if (row >= task.end) return {{0, 0}, 0.0f, 0.0f};
  const Sequence& s = task.sequence;
  const int position = row / p.group, head = task.kv_head * p.group + row % p.group;
  const bool sloped = p.slopes != nullptr && s.index >= 0;
  return {visible_keys(p, s, position), static_cast<float>(position + s.seqlen_k - s.seqlen_q),
          sloped ? kLog2e * p.slopes[s.index * p.slopes_stride + head] : 0.0f};
}

// The number of the first of two neighbouring keys that a lane holds of a column tile.
__device__ __forceinline__ int lane_key(int first_key, int column) {
  return first_key + column * kMmaColumns + static_cast<int>(threadIdx.x) % 4 * 2;
}

// cap * tanh(x / cap), from one exponential: tanh(x) = 1 - 2 / (1 + exp(2 x)).
__device__ __forceinline__ float softcapped(float x, float cap) {
  return cap * (1.0f - __fdividef(2.0f, 1.0f + exp2_approx(2.0f * kLog2e * x / cap)));
}

// Products to scores times log2(e).
template <int R, int N>
__device__ __forceinline__ void modify(Sums<R, N>& s, const ForwardParams& p, const TileTask& task,
                                       int first_row, int first_key) {
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const LaneRow row = lane_row(p, task, first_row, r, half);
#pragma unroll
      for (int column = 0; column < N / kMmaColumns; ++column) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          float& x = s.value[r][column][half * 2 + e];
          x *= p.scale;
          if (p.softcap != 0.0f) x = softcapped(x, p.softcap);
          const auto key = static_cast<float>(lane_key(first_key, column) + e);
          x = fmaf(-row.slope, fabsf(row.diagonal - key), x * kLog2e);
        }
      }
    }
  }
}

// -inf where a row does not see a key.
template <int R, int N>
__device__ __forceinline__ void mask(Sums<R, N>& s, const ForwardParams& p, const TileTask& task,
                                     int first_row, int first_key) {
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const KeyRange seen = lane_row(p, task, first_row, r, half).keys;
#pragma unroll
      for (int column = 0; column < N / kMmaColumns; ++column) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int key = lane_key(first_key, column) + e;
          if (key < seen.begin || key >= seen.end) s.value[r][column][half * 2 + e] = -kInfinity;
        }
      }
    }
  }
}

__device__ __forceinline__ float over_quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

__device__ __forceinline__ float over_quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

// The running maximum and sum of weights of a lane's rows. `sum` is the lane's own share until finish().
template <int R>
struct Softmax {
  float largest[R][2], sum[R][2];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        largest[r][half] = -kInfinity;
        sum[r][half] = 0.0f;
      }
    }
  }

  // Scores to weights; what was summed before is brought to the new maximum. `factor` turns scores into
  // exponents.
  template <int N, int D>
  __device__ __forceinline__ void step(Sums<R, N>& s, Sums<R, D>& out, float factor) {
#pragma unroll
    for (int r = 0; r < R; ++r) {
      float correction[2];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float now = largest[r][half];
#pragma unroll
        for (int column = 0; column < N / kMmaColumns; ++column) {
          now = fmaxf(now, fmaxf(s.value[r][column][half * 2], s.value[r][column][half * 2 + 1]));
        }
        now = over_quad_max(now);
        const float base = now == -kInfinity ? 0.0f : now * factor;  // a row that has seen nothing stays at 0
        correction[half] = exp2_approx(fmaf(largest[r][half], factor, -base));
        largest[r][half] = now;
        float total = sum[r][half] * correction[half];
#pragma unroll
        for (int column = 0; column < N / kMmaColumns; ++column) {
#pragma unroll
          for (int e = half * 2; e < half * 2 + 2; ++e) {
            s.value[r][column][e] = exp2_approx(fmaf(s.value[r][column][e], factor, -base));
            total += s.value[r][column][e];
          }
        }
        sum[r][half] = total;
      }
      // After the first blocks maxima seldom rise, and a factor of 1 changes nothing.
      if (!__any_sync(~0u, correction[0] != 1.0f || correction[1] != 1.0f)) continue;
#pragma unroll
      for (int column = 0; column < D / kMmaColumns; ++column) {
#pragma unroll
        for (int e = 0; e < 4; ++e) out.value[r][column][e] *= correction[e / 2];
      }
    }
  }
};

}  // namespace padfree::attention::cuda
