// One filter: its weights in registers, what it makes of a window of times, and the derivative of its
// activation.
#pragma once

#include "../../common/cuda/vector.cuh"
#include "kernels.h"

namespace padfree::causal_conv1d::cuda {

template <typename T, typename P>
__device__ __forceinline__ T* at(P* data, const View& view, int64_t batch, int64_t channel, int64_t time) {
  return static_cast<T*>(data) + batch * view.batch_stride + channel * view.channel_stride +
         time * view.time_stride;
}

// The weights of V channels from `channel` on, the oldest tap first, and their bias.
template <int W, int V>
struct Taps {
  float weight[W][V], bias[V];

  __device__ __forceinline__ Taps(const Filter& f, int64_t channel) {
    const int64_t first = channel * f.channel_stride;
    switch (f.weight_dtype) {
      case DType::kFloat32:
        load(f, static_cast<const float*>(f.weight) + first);
        break;
      case DType::kBFloat16:
        load(f, static_cast<const BFloat16*>(f.weight) + first);
        break;
      case DType::kFloat16:
        load(f, static_cast<const Float16*>(f.weight) + first);
        break;
    }
#pragma unroll
    for (int v = 0; v < V; ++v) {
      bias[v] = f.bias == nullptr ? 0.0f : load_as_float(f.bias_dtype, f.bias, (channel + v) * f.bias_stride);
    }
  }

 private:
  template <typename T>
  __device__ __forceinline__ void load(const Filter& f, const T* from) {
    // The widest packets that the weights of V channels are made of.
    constexpr int kBytes = W * V * static_cast<int>(sizeof(T));
    constexpr int kPacket = kBytes % 16 == 0 ? 16 : kBytes % 8 == 0 ? 8 : kBytes % 4 == 0 ? 4 : 2;
    constexpr int kEach = kPacket / static_cast<int>(sizeof(T));
    if (f.dense) {
#pragma unroll
      for (int i = 0; i < W * V / kEach; ++i) {
        const auto packet = load_vector<kEach>(from + i * kEach);
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
          weight[(i * kEach + j) % W][(i * kEach + j) / W] = element<T>(packet, j);
        }
      }
    } else {
#pragma unroll
      for (int v = 0; v < V; ++v) {
#pragma unroll
        for (int k = 0; k < W; ++k) weight[k][v] = to_float(from[v * f.channel_stride + k * f.tap_stride]);
      }
    }
  }
};

// exp overflows for neither sign, and the quotient is of numbers near 1.
__device__ __forceinline__ float sigmoid(float x) {
  const float e = expf(-fabsf(x));
  return __fdividef(x < 0.0f ? e : 1.0f, 1.0f + e);
}

__device__ __forceinline__ float activation(bool silu, float pre) {
  return silu ? pre * sigmoid(pre) : pre;
}

// d out / d pre, times dout.
__device__ __forceinline__ float activation_grad(bool silu, float pre, float dout) {
  if (!silu) return dout;
  const float s = sigmoid(pre);
  return dout * (s * fmaf(pre, 1.0f - s, 1.0f));
}

}  // namespace padfree::causal_conv1d::cuda
