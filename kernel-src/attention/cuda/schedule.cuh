// Lays out the blocks of a packed call: sequences by falling numbers of keys, and the first block of each.
// One block of threads; the forward reads the result.
//
// Each thread ranks sequences by counting those that come before, n^2 comparisons in all. Beyond kMostSorted
// sequences that would take longer than it gains: so many even each other out, and their order is left as it
// is.
#pragma once

#include "../../common/cuda/shared.cuh"
#include "sequence.cuh"

namespace padfree::attention::cuda {

constexpr int kScheduleThreads = 256;
constexpr int kMostSorted = 2048;

struct ScheduleParams {
  Sequences sequences;
  Schedule schedule;
  int32_t heads_kv, group, tile_rows;
};

struct ScheduleShared {
  int32_t keys[kScheduleThreads];
  int32_t sums[2][kScheduleThreads];
};

// How many sequences come before `own`: more keys, or as many and earlier.
__device__ __forceinline__ int32_t rank_of(const ScheduleParams& p, ScheduleShared& shared, int32_t index,
                                           int32_t keys) {
  const int32_t count = p.sequences.count + 1;
  int32_t rank = 0;
  for (int32_t first = 0; first < count; first += kScheduleThreads) {
    const int32_t other = first + static_cast<int32_t>(threadIdx.x);
    shared.keys[threadIdx.x] = other < count ? packed_sequence(p.sequences, other).seqlen_k : -1;
    __syncthreads();
    for (int32_t i = 0; i < min(kScheduleThreads, count - first); ++i) {
      const int32_t its = shared.keys[i];
      rank += its > keys || (its == keys && first + i < index) ? 1 : 0;
    }
    __syncthreads();
  }
  return rank;
}

__device__ __forceinline__ int32_t blocks_of(const ScheduleParams& p, int32_t place) {
  const int64_t rows = int64_t{packed_sequence(p.sequences, p.schedule.order[place]).seqlen_q} * p.group;
  return static_cast<int32_t>((rows + p.tile_rows - 1) / p.tile_rows) * p.heads_kv;
}

__global__ void __launch_bounds__(kScheduleThreads) lay_out(const __grid_constant__ ScheduleParams p) {
  auto& shared = shared_memory<ScheduleShared>();
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t count = p.sequences.count + 1, rounds = (count + kScheduleThreads - 1) / kScheduleThreads;
  for (int32_t round = 0; round < rounds;
       ++round) {  // all threads of the block in each: rank_of has barriers
    const int32_t index = round * kScheduleThreads + thread;
    const int32_t keys = index < count ? packed_sequence(p.sequences, index).seqlen_k : -1;
    const int32_t rank = count <= kMostSorted ? rank_of(p, shared, index, keys) : index;
    if (index < count) p.schedule.order[rank] = index;
  }
  __syncthreads();
  // A thread's own places, then the sums of all threads before it, by doubling distances.
  const int32_t begin = min(count, thread * rounds), end = min(count, begin + rounds);
  int32_t own = 0;
  for (int32_t place = begin; place < end; ++place) own += blocks_of(p, place);
  int32_t sum = own;
  for (int distance = 1, side = 0; distance < kScheduleThreads; distance *= 2, side ^= 1) {
    shared.sums[side][thread] = sum;
    __syncthreads();
    if (thread >= distance) sum += shared.sums[side][thread - distance];
  }
  int32_t first = sum - own;
  for (int32_t place = begin; place < end; ++place) {
    p.schedule.first_block[place] = first;
    first += blocks_of(p, place);
  }
  if (thread == kScheduleThreads - 1) p.schedule.first_block[count] = sum;
}

}  // namespace padfree::attention::cuda
