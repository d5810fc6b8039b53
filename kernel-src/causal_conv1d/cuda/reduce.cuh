// Adds the sums of dweight and dbias that the parts of time have left. A block owns 32 channels of one tap;
// its warps take every kSlices-th part, in order, and the first adds what they found, in order.
#pragma once

#include "../../common/cuda/shared.cuh"
#include "../../common/cuda/vector.cuh"
#include "kernels.h"

namespace padfree::causal_conv1d::cuda {

constexpr int kSlices = 8;
constexpr int kReduceThreads = kSlices * 32;

struct SliceSums {
  float value[kSlices][32];
};

__global__ void __launch_bounds__(kReduceThreads) reduce_parts(const __grid_constant__ ReduceParams p) {
  SliceSums& shared = shared_memory<SliceSums>();
  const int slice = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int tap = blockIdx.x % (p.width + 1);
  const int64_t channel = int64_t{blockIdx.x} / (p.width + 1) * 32 + lane;
  float sum = 0.0f;
  if (channel < p.channels) {
#pragma unroll 8
    for (int64_t part = slice; part < p.parts; part += kSlices) {
      sum += p.partial[(part * (p.width + 1) + tap) * p.channels + channel];
    }
  }
  shared.value[slice][lane] = sum;
  __syncthreads();
  if (slice != 0 || channel >= p.channels) return;
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < kSlices; ++i) total += shared.value[i][lane];
  if (tap < p.width) {
    store_from_float(p.weight_dtype, p.dweight, channel * p.width + tap, total);
  } else {
    store_from_float(p.bias_dtype, p.dbias, channel, total);
  }
}

}  // namespace padfree::causal_conv1d::cuda
