// The forward of causal_conv1d: out = act(bias + sum of W taps), for both layouts.
//
//   rows   (channel-last)  a thread owns 16 bytes of channels and walks a run of times. The W - 1 times
//                          before the next are in registers, so a row of x is read once, plus W - 1 a run.
//   lines  (channel-first) a warp owns kChannels channels and walks a run of times, 32 times 16 bytes a step;
//                          a lane gets the W - 1 times before its own from the lanes below. What depends on
//                          seq_idx alone is worked out once a step and serves all its channels.
//
// kAhead rows, or kChannels lines, are under way from memory before the first is used: a GPU's memory answers
// after some 800 ns, so an H200 needs about 30 KB on the way to each multiprocessor to be kept busy. Nothing
// is shared between threads, so there is no barrier. Both add the taps oldest first onto the bias, whatever
// the run: the layout and the cut of the work do not change the bits.
//
// Where rows do not begin at multiples of 16 bytes the same bodies run with V = 1, an element a lane.
#pragma once

#include "sequence.cuh"

namespace padfree::causal_conv1d::cuda {

constexpr int kThreads = 128;
constexpr int kWarp = 32;
constexpr int kAhead = 4;
constexpr int kChannels = 4;
// Blocks that are to fit a multiprocessor at once: bounds the registers.
constexpr int kRowBlocks = 3, kLineBlocks = 3;
constexpr unsigned kAllLanes = ~0u;

// The W - 1 times before the next one, the oldest first, of V channels.
template <typename T, int W, int V>
struct Window {
  float z[W - 1][V];

  // Before `time`, which has `since` predecessors in its sequence.
  __device__ __forceinline__ void fill(const ForwardParams& p, const Row& row, int64_t channel, int64_t time,
                                       int since) {
    const int64_t state_row = row.state_row(row.number(time));
#pragma unroll
    for (int back = W - 1; back > 0; --back) {
      if (back <= since) {
        const auto packet = load_vector<V>(at<const T>(p.x.data, p.x, row.batch, channel, time - back));
#pragma unroll
        for (int v = 0; v < V; ++v) z[W - 1 - back][v] = element<T>(packet, v);
      } else {
        before_sequence<T, W>(p, state_row, channel, back, since, z[W - 1 - back]);
      }
    }
  }

  // Before the first time of the sequence with this number.
  __device__ __forceinline__ void restart(const ForwardParams& p, const Row& row, int64_t channel,
                                          int32_t number) {
#pragma unroll
    for (int back = W - 1; back > 0; --back) {
      before_sequence<T, W>(p, row.state_row(number), channel, back, 0, z[W - 1 - back]);
    }
  }

  __device__ __forceinline__ void push(const float (&next)[V]) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
#pragma unroll
      for (int k = 0; k < W - 2; ++k) z[k][v] = z[k + 1][v];
      z[W - 2][v] = next[v];
    }
  }

  __device__ __forceinline__ float pre(const Taps<W, V>& taps, int v, float next) const {
    float sum = taps.bias[v];
#pragma unroll
    for (int k = 0; k < W - 1; ++k) sum = fmaf(taps.weight[k][v], z[k][v], sum);
    return fmaf(taps.weight[W - 1][v], next, sum);
  }
};

// Predecessors of `time` in its sequence, at most W - 1.
template <int W>
__device__ __forceinline__ int since_at(const Row& row, int64_t time) {
  int since = 0;
#pragma unroll
  for (int j = 0; j < W - 1; ++j) {
    if (since == j && row.continues(time - j)) since = j + 1;
  }
  return since;
}

template <typename T, int W, int V>
__global__ void __launch_bounds__(kThreads, kRowBlocks)
    forward_rows(const __grid_constant__ ForwardParams p) {
  const int64_t item = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t vectors = p.channels / V, run = item / vectors, channel = item % vectors * V;
  const int64_t batch = run / p.runs, begin = run % p.runs * p.run, end = min(begin + p.run, p.seqlen);
  if (batch >= p.batch) return;
  const Row row(p, batch);
  const Taps<W, V> taps(p.filter, channel);
  Window<T, W, V> window;
  window.fill(p, row, channel, begin, since_at<W>(row, begin));
  int32_t last = row.number(begin);
  const int count = static_cast<int>(end - begin);
  const T* x = at<const T>(p.x.data, p.x, batch, channel, begin);
  T* out = at<T>(p.out.data, p.out, batch, channel, begin);
  const int32_t* number = row.seq_idx == nullptr ? nullptr : row.seq_idx + begin;
  for (int first = 0; first < count; first += kAhead) {
    Packet<V * sizeof(T)> packets[kAhead];
    int32_t numbers[kAhead];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i >= count) continue;
      packets[i] = load_vector<V>(x + i * p.x.time_stride);
      numbers[i] = number == nullptr ? 0 : __ldg(number + first + i);
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (first + i >= count) break;
      if (numbers[i] != last) window.restart(p, row, channel, numbers[i]);
      last = numbers[i];
      float next[V], result[V];
#pragma unroll
      for (int v = 0; v < V; ++v) {
        next[v] = element<T>(packets[i], v);
        result[v] = last < 0 ? 0.0f : activation(p.silu, window.pre(taps, v, next[v]));
      }
      store_vector<V>(out + i * p.out.time_stride, result);
      window.push(next);
    }
    x += kAhead * p.x.time_stride;
    out += kAhead * p.out.time_stride;
  }
}

// z[i] = the value at time first - (W - 1) + i of one channel, for the V times of each lane and the W - 1
// before: from the lanes below, which hold them, or from memory where there is none. All lanes of the warp
// take part.
template <typename T, int W, int V>
__device__ __forceinline__ void spread(const ForwardParams& p, int64_t batch, int64_t channel, int64_t first,
                                       const float (&own)[V], float (&z)[V + W - 1]) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int v = 0; v < V; ++v) z[W - 1 + v] = own[v];
#pragma unroll
  for (int back = 1; back < W; ++back) {
    const int lanes = (back + V - 1) / V;
    float value = __shfl_up_sync(kAllLanes, own[lanes * V - back], lanes);
    if (lane < lanes) {
      const int64_t time = first - back;
      const bool inside = time >= 0 && time < p.seqlen;
      value = inside ? to_float(*at<const T>(p.x.data, p.x, batch, channel, time)) : 0.0f;
    }
    z[W - 1 - back] = value;
  }
}

// The tap `back` times before the time v of a lane: 0 or the initial state where another sequence lies in
// memory. States are for V = 1 alone: asked for at each tap of each time they would take half of the
// registers of the vector instances.
template <typename T, int W, int V>
__device__ __forceinline__ float tap(const ForwardParams& p, const Row& row, const Neighbours<W, V>& near,
                                     int64_t channel, int64_t first, const float (&z)[V + W - 1], int v,
                                     int back) {
  if (near.has_before(v, back)) return z[W - 1 + v - back];
  if constexpr (V > 1) {
    return 0.0f;
  } else {
    if (p.sequences.states == nullptr || near.is_padding(0)) return 0.0f;
    float value[1];
    before_sequence<T, W>(p, row.state_row(row.number(first)), channel, back, near.since(0), value);
    return value[0];
  }
}

template <typename T, int W, int V>
__device__ __forceinline__ float pre_of(const ForwardParams& p, const Row& row, const Neighbours<W, V>& near,
                                        const Taps<W, 1>& taps, int64_t channel, int64_t first,
                                        const float (&z)[V + W - 1], int v) {
  float sum = taps.bias[0];
#pragma unroll
  for (int k = 0; k < W; ++k) {
    sum = fmaf(taps.weight[k][0], tap<T, W, V>(p, row, near, channel, first, z, v, W - 1 - k), sum);
  }
  return sum;
}

// What a warp of a lines kernel owns; `batch` is past the end for a warp too many.
struct WarpTask {
  int64_t channel, batch, run;

  __device__ __forceinline__ explicit WarpTask(const ForwardParams& p) {
    const int64_t warp = int64_t{blockIdx.x} * (kThreads / kWarp) + threadIdx.x / kWarp;
    const int64_t groups = (p.channels + kChannels - 1) / kChannels;
    run = warp % p.runs;
    channel = warp / p.runs % groups * kChannels;
    batch = warp / p.runs / groups;
  }
};

template <typename T, int W, int V>
__global__ void __launch_bounds__(kThreads, kLineBlocks)
    forward_lines(const __grid_constant__ ForwardParams p) {
  const WarpTask task(p);
  if (task.batch >= p.batch) return;
  const int lane = threadIdx.x % kWarp;
  const Row row(p, task.batch);
  const int64_t begin = task.run * p.run, end = min(begin + p.run, p.seqlen);
  for (int64_t step = begin; step < end; step += kWarp * V) {
    const int64_t first = step + lane * V;
    const Neighbours<W, V> near(row, first);
    Packet<V * sizeof(T)> packets[kChannels] = {};
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      if (first >= p.seqlen || task.channel + c >= p.channels) continue;
      packets[c] = load_vector<V>(at<const T>(p.x.data, p.x, task.batch, task.channel + c, first));
    }
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      const int64_t channel = task.channel + c;
      if (channel >= p.channels) break;
      const Taps<W, 1> taps(p.filter, channel);
      float own[V], z[V + W - 1], out[V];
#pragma unroll
      for (int v = 0; v < V; ++v) own[v] = element<T>(packets[c], v);
      spread<T, W, V>(p, task.batch, channel, first, own, z);
      if (first >= p.seqlen) continue;
#pragma unroll
      for (int v = 0; v < V; ++v) {
        const float pre = pre_of<T, W, V>(p, row, near, taps, channel, first, z, v);
        out[v] = near.is_padding(v) ? 0.0f : activation(p.silu, pre);
      }
      store_vector<V>(at<T>(p.out.data, p.out, task.batch, channel, first), out);
    }
  }
}

}  // namespace padfree::causal_conv1d::cuda
