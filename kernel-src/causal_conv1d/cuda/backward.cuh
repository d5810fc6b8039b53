// The backward of causal_conv1d, for both layouts. With dpre = dout act'(pre), and pre computed again:
//
//   dx[t] = sum_i weight[W - 1 - i] dpre[t + i]      over t + i in the sequence of t
//   dweight[k] = sum_l dpre[l] z[l - (W - 1) + k]    dbias = sum_l dpre[l]
//
//   rows   (channel-last)  a thread walks its run of times and W - 1 more, with the last W - 1 of z and W of
//                          dpre in registers. Its sums stay in registers too; the warps of a block, which own
//                          runs behind one another, add theirs in shared memory.
//   lines  (channel-first) a warp's last lanes only look ahead: they compute the dpre that those before them
//                          need, and own no time. Lanes add their sums by shuffles at the end of the run.
//
// Each block or warp writes its sums to a place of its own and reduce.cuh adds those, in an order that
// depends on the shape alone: no atomics, the same bits in each run.
#pragma once

#include "../../common/cuda/shared.cuh"
#include "forward.cuh"

namespace padfree::causal_conv1d::cuda {

constexpr int kWarps = kThreads / kWarp;
constexpr int kAheadBackward = 4;
// A thread has two windows, the weights and as many sums: of 16-bit channels it takes 8 bytes, not 16, so
// that enough threads fit a multiprocessor. Their warps still read 256 bytes in a row.
template <int V>
constexpr int kRowVector = V > 4 ? 4 : V;
constexpr int kBackwardBlocks = 2;

// A warp's sums, an element (tap or bias, channel of the vector) after the other.
template <int W, int V>
struct Sums {
  float value[kWarps][(W + 1) * V][kWarp];
};

// Where the sum of a tap, or for tap W of the bias, of one part of time goes.
__device__ __forceinline__ float* partial_at(const BackwardParams& p, int width, int64_t part, int tap,
                                             int64_t channel) {
  return p.partial + (part * (width + 1) + tap) * p.forward.channels + channel;
}

// The last W times of dpre, the oldest first, and what they are: bit i of each mask belongs to the i-th last.
template <int W, int V>
struct Derivatives {
  float dpre[W][V] = {};
  uint32_t begins = 0, padding = 0;

  __device__ __forceinline__ void push(const float (&next)[V], bool begins_sequence, bool is_padding) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
#pragma unroll
      for (int k = 0; k < W - 1; ++k) dpre[k][v] = dpre[k + 1][v];
      dpre[W - 1][v] = next[v];
    }
    begins = begins << 1 | (begins_sequence ? 1 : 0);
    padding = padding << 1 | (is_padding ? 1 : 0);
  }

  // dx of the oldest of them: what begins behind it is another sequence's.
  __device__ __forceinline__ void dx(const Taps<W, V>& taps, float (&out)[V]) const {
    const bool is_padding = (padding >> (W - 1) & 1) != 0;
#pragma unroll
    for (int v = 0; v < V; ++v) out[v] = is_padding ? 0.0f : taps.weight[W - 1][v] * dpre[0][v];
    bool own = !is_padding;
#pragma unroll
    for (int k = 1; k < W; ++k) {
      own = own && (begins >> (W - 1 - k) & 1) == 0;
#pragma unroll
      for (int v = 0; v < V; ++v)
        out[v] = is_padding ? 0.0f : fmaf(taps.weight[W - 1 - k][v], own ? dpre[k][v] : 0.0f, out[v]);
    }
  }
};

// The number of the times past the end of a row: negative, as padding is, and no other's.
constexpr int32_t kOutside = -0x7fffffff - 1;

// One thread's run along V channels.
template <typename T, int W, int V>
struct RowWalk {
  const BackwardParams& p;
  const Row row;
  const int64_t channel, begin, end;
  const Taps<W, V> taps;
  Window<T, W, V> window;
  Derivatives<W, V> derivatives;
  float sums[(W + 1) * V] = {};
  int32_t last = 0;  // the number of the time before

  __device__ __forceinline__ RowWalk(const BackwardParams& p, int64_t batch, int64_t channel, int64_t begin)
      : p(p),
        row(p.forward, batch),
        channel(channel),
        begin(begin),
        end(min(begin + p.forward.run, p.forward.seqlen)),
        taps(p.forward.filter, channel) {}

  __device__ __forceinline__ void walk() {
    const ForwardParams& f = p.forward;
    window.fill(f, row, channel, begin, since_at<W>(row, begin));
    last = row.number(begin);
    bool begins = !row.continues(begin);
    for (int64_t first = begin; first < end + W - 1; first += kAheadBackward) {
      Packet<V * sizeof(T)> x[kAheadBackward] = {}, dout[kAheadBackward] = {};
      int32_t numbers[kAheadBackward];
#pragma unroll
      for (int i = 0; i < kAheadBackward; ++i) {
        numbers[i] = kOutside;
        if (first + i >= end + W - 1 || first + i >= f.seqlen) continue;
        numbers[i] = row.number(first + i);
        x[i] = load_vector<V>(at<const T>(f.x.data, f.x, row.batch, channel, first + i));
        dout[i] = load_vector<V>(at<const T>(p.dout.data, p.dout, row.batch, channel, first + i));
      }
#pragma unroll
      for (int i = 0; i < kAheadBackward; ++i) {
        if (first + i < end + W - 1) step(first + i, numbers[i], begins, x[i], dout[i]);
        begins = false;
      }
    }
  }

 private:
  // dpre of `time`, and dx of W - 1 times before. Past the end of the row nothing is, and it belongs to no
  // sequence.
  __device__ __forceinline__ void step(int64_t time, int32_t number, bool begins,
                                       const Packet<V * sizeof(T)>& x, const Packet<V * sizeof(T)>& dout) {
    const ForwardParams& f = p.forward;
    const bool padding = number < 0;
    if (number != last) {
      begins = true;
      if (number != kOutside) window.restart(f, row, channel, number);
    }
    last = number;
    float next[V], dpre[V];
#pragma unroll
    for (int v = 0; v < V; ++v) {
      next[v] = element<T>(x, v);
      const float slope = activation_grad(f.silu, window.pre(taps, v, next[v]), element<T>(dout, v));
      dpre[v] = padding ? 0.0f : slope;
    }
    if (time < end && !padding) add(next, dpre);
    window.push(next);
    derivatives.push(dpre, begins, padding);
    const int64_t ready = time - (W - 1);
    if (ready < begin) return;
    float dx[V];
    derivatives.dx(taps, dx);
    store_vector<V>(at<T>(p.dx.data, p.dx, row.batch, channel, ready), dx);
  }

  __device__ __forceinline__ void add(const float (&next)[V], const float (&dpre)[V]) {
#pragma unroll
    for (int v = 0; v < V; ++v) {
#pragma unroll
      for (int k = 0; k < W - 1; ++k) sums[k * V + v] = fmaf(dpre[v], window.z[k][v], sums[k * V + v]);
      sums[(W - 1) * V + v] = fmaf(dpre[v], next[v], sums[(W - 1) * V + v]);
      sums[W * V + v] += dpre[v];
    }
  }
};

template <typename T, int W, int V>
__global__ void __launch_bounds__(kThreads, kBackwardBlocks)
    backward_rows(const __grid_constant__ BackwardParams p) {
  const ForwardParams& f = p.forward;
  Sums<W, V>& shared = shared_memory<Sums<W, V>>();
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int64_t groups = (f.channels / V + kWarp - 1) / kWarp, parts = (f.runs + kWarps - 1) / kWarps;
  const int64_t group = blockIdx.x % groups, part = blockIdx.x / groups;
  const int64_t batch = part / parts, run = part % parts * kWarps + warp;
  const int64_t channel = (group * kWarp + lane) * V;
  float sums[(W + 1) * V] = {};
  if (channel < f.channels && run < f.runs) {
    RowWalk<T, W, V> walk(p, batch, channel, run * f.run);
    walk.walk();
#pragma unroll
    for (int i = 0; i < (W + 1) * V; ++i) sums[i] = walk.sums[i];
  }
#pragma unroll
  for (int i = 0; i < (W + 1) * V; ++i) shared.value[warp][i][lane] = sums[i];
  __syncthreads();
  for (int i = warp; i < (W + 1) * V; i += kWarps) {
    float sum = 0.0f;
#pragma unroll
    for (int other = 0; other < kWarps; ++other) sum += shared.value[other][i][lane];
    if (channel < f.channels) *partial_at(p, W, part, i / V, channel + i % V) = sum;
  }
}

// dpre[v] for the V times of each lane and the W - 1 behind them, which the lanes above hold. All lanes take
// part; the last ones get nothing of use.
template <int W, int V>
__device__ __forceinline__ void reach_ahead(const float (&own)[V], float (&dpre)[V + W - 1]) {
#pragma unroll
  for (int v = 0; v < V; ++v) dpre[v] = own[v];
#pragma unroll
  for (int i = V; i < V + W - 1; ++i) dpre[i] = __shfl_down_sync(kAllLanes, own[i % V], i / V);
}

// How many of a warp's lanes only look ahead.
template <int W, int V>
constexpr int kHaloLanes = (W - 1 + V - 1) / V;

// One step of a warp along one channel: dx of its times, and their part of the sums.
template <typename T, int W, int V>
__device__ __forceinline__ void line_step(const BackwardParams& p, const Row& row,
                                          const Neighbours<W, V>& near, int64_t channel, int64_t first,
                                          bool owner, const Packet<V * sizeof(T)>& x,
                                          const Packet<V * sizeof(T)>& dout, float (&sums)[W + 1]) {
  const ForwardParams& f = p.forward;
  const Taps<W, 1> taps(f.filter, channel);
  float own[V], z[V + W - 1], own_dpre[V], dpre[V + W - 1];
#pragma unroll
  for (int v = 0; v < V; ++v) own[v] = element<T>(x, v);
  spread<T, W, V>(f, row.batch, channel, first, own, z);
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const float pre = pre_of<T, W, V>(f, row, near, taps, channel, first, z, v);
    const float slope = activation_grad(f.silu, pre, element<T>(dout, v));
    own_dpre[v] = near.is_padding(v) ? 0.0f : slope;
  }
  reach_ahead<W, V>(own_dpre, dpre);
  if (!owner) return;
  float dx[V];
#pragma unroll
  for (int v = 0; v < V; ++v) {
    float sum = taps.weight[W - 1][0] * dpre[v];
#pragma unroll
    for (int k = 1; k < W; ++k) {
      sum = fmaf(taps.weight[W - 1 - k][0], near.has_after(v, k) ? dpre[v + k] : 0.0f, sum);
    }
    dx[v] = near.is_padding(v) ? 0.0f : sum;
    if (near.is_padding(v)) continue;
#pragma unroll
    for (int k = 0; k < W; ++k) {
      sums[k] = fmaf(dpre[v], tap<T, W, V>(f, row, near, channel, first, z, v, W - 1 - k), sums[k]);
    }
    sums[W] += dpre[v];
  }
  store_vector<V>(at<T>(p.dx.data, p.dx, row.batch, channel, first), dx);
}

template <typename T, int W, int V>
__global__ void __launch_bounds__(kThreads, kBackwardBlocks)
    backward_lines(const __grid_constant__ BackwardParams p) {
  const ForwardParams& f = p.forward;
  const WarpTask task(f);
  if (task.batch >= f.batch) return;
  constexpr int kOwners = kWarp - kHaloLanes<W, V>;
  const int lane = threadIdx.x % kWarp;
  const Row row(f, task.batch);
  const int64_t begin = task.run * f.run, end = min(begin + f.run, f.seqlen);
  float sums[kChannels][W + 1] = {};
  for (int64_t step = begin; step < end; step += kOwners * V) {
    const int64_t first = step + lane * V;
    const bool owner = lane < kOwners && first < end;
    const Neighbours<W, V> near(row, first);
    Packet<V * sizeof(T)> x[kChannels] = {}, dout[kChannels] = {};
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      if (first >= f.seqlen || task.channel + c >= f.channels) continue;
      x[c] = load_vector<V>(at<const T>(f.x.data, f.x, task.batch, task.channel + c, first));
      dout[c] = load_vector<V>(at<const T>(p.dout.data, p.dout, task.batch, task.channel + c, first));
    }
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
      if (task.channel + c >= f.channels) break;
      line_step<T, W, V>(p, row, near, task.channel + c, first, owner, x[c], dout[c], sums[c]);
    }
  }
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
    if (task.channel + c >= f.channels) break;
#pragma unroll
    for (int k = 0; k <= W; ++k) {
      float sum = sums[c][k];
#pragma unroll
      for (int lanes = kWarp / 2; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(kAllLanes, sum, lanes);
      if (lane == 0) *partial_at(p, W, task.batch * f.runs + task.run, k, task.channel + c) = sum;
    }
  }
}

// ---- initial states
// --------------------------------------------------------------------------------------------------

// The gradient of the states is dx at the W - 1 times before a sequence. A thread looks at kStateTimes times
// of one row for beginnings, and serves one channel.
constexpr int kStateTimes = 64;

template <typename T, int W>
__device__ __forceinline__ void state_gradient(const BackwardParams& p, const Row& row, int64_t channel,
                                               int64_t begin) {
  const ForwardParams& f = p.forward;
  const int64_t state_row = row.state_row(row.number(begin));
  if (state_row < 0 || state_row >= f.sequences.state_rows) return;
  const Taps<W, 1> taps(f.filter, channel);
  Window<T, W, 1> window;
  window.restart(f, row, channel, row.number(begin));
  float dpre[W - 1];
  bool own = true;
#pragma unroll
  for (int i = 0; i < W - 1; ++i) {
    own = own && row.inside(begin + i) && (i == 0 || row.continues(begin + i));
    dpre[i] = 0.0f;
    if (!own) continue;
    const float next[1] = {to_float(*at<const T>(f.x.data, f.x, row.batch, channel, begin + i))};
    const float dout = to_float(*at<const T>(p.dout.data, p.dout, row.batch, channel, begin + i));
    dpre[i] = activation_grad(f.silu, window.pre(taps, 0, next[0]), dout);
    window.push(next);
  }
#pragma unroll
  for (int slot = 0; slot < W - 1; ++slot) {  // the time begin - (W - 1) + slot
    float sum = 0.0f;
#pragma unroll
    for (int k = W - 1 - slot; k < W; ++k)
      sum = fmaf(taps.weight[W - 1 - k][0], dpre[k - (W - 1 - slot)], sum);
    static_cast<T*>(p.dstates)[(state_row * (W - 1) + slot) * f.channels + channel] = from_float<T>(sum);
  }
}

template <typename T, int W>
__global__ void __launch_bounds__(kThreads) backward_states(const __grid_constant__ BackwardParams p) {
  const ForwardParams& f = p.forward;
  const int64_t blocks = (f.channels + kThreads - 1) / kThreads,
                stretches = (f.seqlen + kStateTimes - 1) / kStateTimes;
  const int64_t channel = blockIdx.x % blocks * kThreads + threadIdx.x, stretch = blockIdx.x / blocks;
  const Row row(f, stretch / stretches);
  const int64_t begin = stretch % stretches * kStateTimes;
  if (channel >= f.channels) return;
  for (int64_t time = begin; time < min(begin + kStateTimes, f.seqlen); ++time) {
    if (!row.continues(time) && row.number(time) >= 0) state_gradient<T, W>(p, row, channel, time);
  }
}

}  // namespace padfree::causal_conv1d::cuda
