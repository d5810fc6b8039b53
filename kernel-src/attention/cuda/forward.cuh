// The forward of attention, a tile of virtual rows a block:
//
//   for each block of N keys that the tile's rows see:   s = q k^T;   weights = softmax so far;   out +=
//   weights v
//
// The block owns M virtual rows of one sequence and key/value head, each warp 16 or 32 of them: their scores,
// sums and running maxima live in the warp's registers, Q, K and V in shared memory. K and V have a buffer
// each, and while the products with one run the other is on its way (cp.async): V of this block of keys under
// q k^T, K of the next under the softmax and the product with V. Two barriers a block of keys: each says that
// what was copied is there, and that everybody is done with the buffer that is filled next.
//
// Rows of keys past a sequence's end are zeros in shared memory and never read: what lies behind a sequence
// in memory, NaN too, has no influence. Keys that a row of the sequence itself does not see take part with
// weight 0, as in every kernel of this kind: 0 * NaN is NaN.
#pragma once

#include "../../common/cuda/shared.cuh"
#include "scores.cuh"

namespace padfree::attention::cuda {

// Tile sizes of a head dim: what 255 registers a thread and 99 KB of shared memory hold, which every GPU from
// sm_80 on has.
template <int kDim>
struct Shape {
  static constexpr int kRows = kDim <= 192 ? 128 : 64;
  static constexpr int kKeys = kDim == 64 || kDim == 192 ? 64 : 48;
  static constexpr int kRowTiles = kDim <= 128 ? 2 : 1;  // of 16 rows, a warp
  static constexpr int kThreads = kRows / (kRowTiles * kMmaRows) * kWarp;
};

template <typename T, int kDim>
struct ForwardShared {
  using Sizes = Shape<kDim>;
  Tile<T, Sizes::kRows, kDim> q;  // later the results
  Tile<T, Sizes::kKeys, kDim> k, v;
  // For what runs seldom: in registers it would take the place of what runs often.
  TileTask task;
  KeyRange seen_by_all;  // keys that every row of the tile sees
};

// Where this thread's share of the keys (or values) from `key` on begins.
template <int kThreads, typename T, int kDim>
__device__ __forceinline__ const T* first_row(const View& view, const TileTask& task, int32_t key) {
  const int64_t row = int64_t{task.sequence.key_begin} + key + CopyShare<kThreads, kDim>().first;
  return static_cast<const T*>(view.data) + task.sequence.batch * view.batch_stride +
         task.kv_head * view.head_stride + row * view.row_stride;
}

// Where a virtual row's query begins.
template <typename T>
__device__ __forceinline__ const T* query_row(const ForwardParams& p, const TileTask& task, int32_t row) {
  const int32_t head = task.kv_head * p.group + row % p.group;
  return static_cast<const T*>(p.q.data) + task.sequence.batch * p.q.batch_stride +
         (int64_t{task.sequence.query_begin} + row / p.group) * p.q.row_stride + head * p.q.head_stride;
}

// Blocks [first, end) of N keys that rows of a task see.
struct Span {
  int32_t first, end;
};

template <int N>
__device__ __forceinline__ Span span_of(const ForwardParams& p, const TileTask& task) {
  const KeyRange first = visible_keys(p, task.sequence, task.begin / p.group);
  const KeyRange last = visible_keys(p, task.sequence, (task.end - 1) / p.group);
  if (first.begin >= last.end) return {0, 0};
  return {first.begin / N, (last.end + N - 1) / N};
}

// None where the tile is not full: rows that do not exist see nothing.
__device__ __forceinline__ KeyRange seen_by_all(const ForwardParams& p, const TileTask& task, int rows) {
  if (task.end - task.begin < rows) return {0, 0};
  return {visible_keys(p, task.sequence, (task.end - 1) / p.group).begin,
          visible_keys(p, task.sequence, task.begin / p.group).end};
}

// Divides by the sums, and writes the rows and their log-sum-exp. A sink joins the sum and has no value.
template <typename T, int M, int kDim, int R>
__device__ __forceinline__ void finish(const ForwardParams& p, const TileTask& task, Tile<T, M, kDim>& q,
                                       Sums<R, kDim>& out, Softmax<R>& softmax, float factor, int warp_row) {
  const Sequence& s = task.sequence;
  const int lane = threadIdx.x % kWarp, heads = p.heads_kv * p.group;
#pragma unroll
  for (int r = 0; r < R; ++r) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int in_tile = warp_row + r * kMmaRows + half * 8 + lane / 4;
      const int row = task.begin + in_tile, position = row / p.group;
      const int head = task.kv_head * p.group + row % p.group;
      float sum = over_quad_sum(softmax.sum[r][half]);
      float largest = softmax.largest[r][half] == -kInfinity ? -kInfinity : softmax.largest[r][half] * factor;
      float scale = 1.0f;
      if (p.sinks != nullptr && s.index >= 0 && row < task.end) {
        const float sink = p.sinks[head] * kLog2e;
        const float now = fmaxf(largest, sink), base = now == -kInfinity ? 0.0f : now;
        scale = exp2_approx(largest - base);
        sum = fmaf(sum, scale, exp2_approx(sink - base));
        largest = now;
      }
      const float weight = sum == 0.0f ? 0.0f : scale / sum;
      if (row < task.end && lane % 4 == 0) {
        const int64_t at = s.index >= 0 && p.sequences.cu_q == nullptr
                               ? (int64_t{s.batch} * heads + head) * s.seqlen_q + position
                               : int64_t{head} * p.sequences.total_q + s.query_begin + position;
        p.lse[at] = sum == 0.0f ? -kInfinity : largest * kLn2 + logf(sum);
      }
#pragma unroll
      for (int column = 0; column < kDim / kMmaColumns; ++column) {
        const float low = out.value[r][column][half * 2] * weight,
                    high = out.value[r][column][half * 2 + 1] * weight;
        store_packet<4>(q.chunk(in_tile, column) + lane % 4 * 2, Packet<4>{{pack_pair<T>(low, high)}});
      }
    }
  }
  __syncwarp();  // a warp reads the rows it wrote
  constexpr int kItems = R * kMmaRows * (kDim / kChunk);
  for (int item = lane; item < kItems; item += kWarp) {
    const int in_tile = warp_row + item / (kDim / kChunk), column = item % (kDim / kChunk) * kChunk;
    const int row = task.begin + in_tile, position = row / p.group;
    if (row >= task.end || column >= p.head_dim_v) continue;
    const int head = task.kv_head * p.group + row % p.group;
    const int64_t out_row =
        (int64_t{s.batch} * p.sequences.seqlen_q + s.query_begin + position) * heads + head;
    T* to = static_cast<T*>(p.out) + out_row * p.head_dim_v + column;
    const T* from = q.chunk(in_tile, column / kChunk);
    if (p.head_dim_v % kChunk == 0) {
      store_packet<16>(to, load_packet<16>(from));
    } else {
      for (int i = 0; i < min(kChunk, p.head_dim_v - column); ++i) to[i] = from[i];
    }
  }
}

// kModified: scores are not simply products times a positive factor.
template <typename T, int kDim, bool kModified>
__global__ void __launch_bounds__(Shape<kDim>::kThreads) forward(const __grid_constant__ ForwardParams p) {
  using Sizes = Shape<kDim>;
  constexpr int M = Sizes::kRows, N = Sizes::kKeys, R = Sizes::kRowTiles, kThreads = Sizes::kThreads;
  using Share = CopyShare<kThreads, kDim>;
  auto& shared = shared_memory<ForwardShared<T, kDim>>();
  const TileTask task = tile_of<M>(p);
  if (task.begin >= task.end) return;
  if (threadIdx.x == 0) {
    shared.task = task;
    shared.seen_by_all = seen_by_all(p, task, M);
  }
  const Span span = span_of<N>(p, task);
  // Where a block of keys lies is computed anew for each: registers are what limits the tile.
  const auto copy_keys = [&](auto& tile, const View& view, const TileTask& of, int32_t block, int columns) {
    const T* row = first_row<kThreads, T, kDim>(view, of, block * N);
    copy_rows<kThreads>(tile, of.sequence.seqlen_k - block * N, columns,
                        [&](int i) { return row + i * Share::kStep * view.row_stride; });
    copy_commit();
  };
  if (span.first < span.end) {
    copy_rows<kThreads>(shared.q, task.end - task.begin, p.head_dim, [&](int i) {
      return query_row<T>(p, task, task.begin + Share().first + i * Share::kStep);
    });
    copy_keys(shared.k, p.k, task, span.first, p.head_dim);
  }

  const int warp_row = static_cast<int>(threadIdx.x) / kWarp * R * kMmaRows;
  const float factor = kModified ? 1.0f : p.scale * kLog2e;
  Sums<R, kDim> out;
  Softmax<R> softmax;
  out.clear();
  softmax.clear();
  for (int32_t block = span.first; block < span.end; ++block) {
    copy_wait<0>();
    __syncthreads();  // Q and this K are there; nobody reads the last V any more
    copy_keys(shared.v, p.v, shared.task, block, p.head_dim_v);
    Sums<R, N> weights;
    weights.clear();
    multiply_transposed(weights, shared.q, warp_row, shared.k);
    copy_wait<0>();
    __syncthreads();  // this V is there; nobody reads this K any more
    if (block + 1 < span.end) copy_keys(shared.k, p.k, shared.task, block + 1, p.head_dim);
    if constexpr (kModified) modify(weights, p, shared.task, warp_row, block * N);
    if (block * N < shared.seen_by_all.begin || (block + 1) * N > shared.seen_by_all.end) {
      mask(weights, p, shared.task, warp_row, block * N);
    }
    softmax.step(weights, out, factor);
    multiply(out, weights, shared.v);
  }
  __syncthreads();  // the task is there, of a tile without keys too
  finish(p, shared.task, shared.q, out, softmax, factor, warp_row);
}

}  // namespace padfree::attention::cuda
