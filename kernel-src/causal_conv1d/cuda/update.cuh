// The step of decoding: one or a few times behind a state, which is read, then moved on in place. A thread
// owns one channel of one batch row. What a model's cache holds, four times of each channel behind one
// another, moves as one packet.
#pragma once

#include "filter.cuh"

namespace padfree::causal_conv1d::cuda {

constexpr int kUpdateThreads = 128, kUpdateBlocks = 8;

// Where in the state the value lies that is `back` >= 1 before the first new time.
__device__ __forceinline__ int64_t slot_before(const UpdateParams& p, int64_t batch, int back) {
  if (p.position == nullptr) return p.state_length - back;
  const int64_t slot = (p.position[batch] - int64_t{back}) % p.state_length;
  return slot < 0 ? slot + p.state_length : slot;
}

// Where the new time `time` goes in a circular state.
__device__ __forceinline__ int64_t slot_of(const UpdateParams& p, int64_t batch, int64_t time) {
  const int64_t slot = (p.position[batch] + time) % p.state_length;
  return slot < 0 ? slot + p.state_length : slot;
}

template <int W>
__device__ __forceinline__ float apply(const UpdateParams& p, const Taps<W, 1>& taps, const float (&z)[W]) {
  float sum = taps.bias[0];
#pragma unroll
  for (int k = 0; k < W; ++k) sum = fmaf(taps.weight[k][0], z[k], sum);
  return activation(p.silu, sum);
}

// W = S = 4 and one new time: the state is one packet.
template <typename T>
__device__ __forceinline__ void update_quad(const UpdateParams& p, const T* x, T* out, T* state,
                                            const Taps<4, 1>& taps) {
  const auto held = load_vector<4>(static_cast<const T*>(state));
  const float z[4] = {element<T>(held, 1), element<T>(held, 2), element<T>(held, 3), to_float(*x)};
  *out = from_float<T>(apply<4>(p, taps, z));
  store_vector<4>(state, z);
}

// The new values go behind the old ones, which move to the front, or into the circle.
template <typename T>
__device__ __forceinline__ void move_state(const UpdateParams& p, int64_t batch, const T* x, T* state) {
  const int64_t length = p.state_length, stride = p.state.time_stride;
  if (p.position != nullptr) {
    for (int64_t t = 0; t < p.seqlen; ++t) state[slot_of(p, batch, t) * stride] = x[t * p.x.time_stride];
    return;
  }
  for (int64_t i = 0; i < length; ++i) {
    const int64_t from = i + p.seqlen;
    state[i * stride] = from < length ? state[from * stride] : x[(from - length) * p.x.time_stride];
  }
}

template <typename T, int W>
__global__ void __launch_bounds__(kUpdateThreads, kUpdateBlocks)
    update_states(const __grid_constant__ UpdateParams p) {
  const int64_t item = int64_t{blockIdx.x} * kUpdateThreads + threadIdx.x;
  const int64_t batch = item / p.channels, channel = item % p.channels;
  if (batch >= p.batch) return;
  const T* x = at<const T>(p.x.data, p.x, batch, channel, 0);
  T* out = at<T>(p.out.data, p.out, batch, channel, 0);
  const int64_t index = p.state_index == nullptr ? batch : p.state_index[batch];
  if (index < 0 || index >= p.state_rows) {  // -1 is padding; others cannot be refused from here
    const float nothing = index == -1 ? 0.0f : __uint_as_float(0x7fc00000);
    for (int64_t t = 0; t < p.seqlen; ++t) out[t * p.out.time_stride] = from_float<T>(nothing);
    return;
  }
  T* state = at<T>(p.state.data, p.state, index, channel, 0);
  const Taps<W, 1> taps(p.filter, channel);
  if constexpr (W == 4) {
    if (p.quads) return update_quad<T>(p, x, out, state, taps);
  }
  float z[W];
#pragma unroll
  for (int k = 1; k < W; ++k) z[k] = to_float(state[slot_before(p, batch, W - k) * p.state.time_stride]);
  for (int64_t t = 0; t < p.seqlen; ++t) {
#pragma unroll
    for (int k = 1; k < W; ++k) z[k - 1] = z[k];
    z[W - 1] = to_float(x[t * p.x.time_stride]);
    out[t * p.out.time_stride] = from_float<T>(apply<W>(p, taps, z));
  }
  move_state(p, batch, x, state);
}

}  // namespace padfree::causal_conv1d::cuda
