// A tile of rows in shared memory, and the products of one warp's rows with it on tensor cores.
//
// Tensor cores are fed by ldmatrix, which reads eight rows of 16 bytes at once: rows that lie 128 bytes apart
// would all come from the same banks. So each row's 16-byte chunks are permuted by the row's number. Rows of
// 96 elements do not fill whole 128-byte lines; they are kept as panels of 32 elements.
#pragma once

#include "../../common/cuda/convert.cuh"
#include "../../common/cuda/copy.cuh"
#include "../../common/cuda/mma.cuh"

namespace padfree::attention::cuda {

constexpr int kWarp = 32;
constexpr int kChunk = 8;  // elements of 16 bytes
constexpr int kMmaRows = 16, kMmaDepth = 16, kMmaColumns = 8;

template <typename T, int kRowCount, int kDimCount>
struct alignas(128) Tile {
  static constexpr int kRows = kRowCount, kDim = kDimCount;
  static constexpr int kChunks = kDim / kChunk;
  static constexpr int kPanel = kDim % 64 == 0 ? 64 : 32;
  static_assert(kDim % kPanel == 0 && kRows % kMmaRows == 0);

  T elements[kRows * kDim];

  // The eight elements from column 8 * index on of a row.
  __device__ __forceinline__ T* chunk(int row, int index) {
    constexpr int kPanelChunks = kPanel / kChunk;
    const int panel = index / kPanelChunks;
    const int shift = kPanel == 64 ? row & 7 : row >> 1 & 3;
    const int place = index % kPanelChunks ^ shift;
    return elements + (panel * kRows + row) * kPanel + place * kChunk;
  }
};

// How a block's threads share a tile's rows: a thread copies the same chunk of every kStep-th row from
// `first` on; some threads are left over where a row's chunks do not divide them.
template <int kThreads, int kDim>
struct CopyShare {
  static constexpr int kChunks = kDim / kChunk, kStep = kThreads / kChunks;
  int first, index;

  __device__ __forceinline__ CopyShare()
      : first(static_cast<int>(threadIdx.x) / kChunks), index(static_cast<int>(threadIdx.x) % kChunks) {}
};

// Starts to copy rows into the tile; `row_at(i)` is where the i-th row of this thread's share begins. Rows
// from `rows` on and columns from `columns` on, a multiple of 8, become zeros: nothing is read there.
template <int kThreads, typename T, int R, int D, typename RowAt>
__device__ __forceinline__ void copy_rows(Tile<T, R, D>& tile, int rows, int columns, RowAt&& row_at) {
  using Share = CopyShare<kThreads, D>;
  const Share share;
  if (kThreads % Share::kChunks != 0 && share.first >= Share::kStep) return;
#pragma unroll
  for (int i = 0; i < (R + Share::kStep - 1) / Share::kStep; ++i) {
    const int row = share.first + i * Share::kStep;
    if (R % Share::kStep != 0 && row >= R) break;
    const bool valid = row < rows && share.index * kChunk < columns;
    copy_async(tile.chunk(row, share.index), row_at(i) + share.index * kChunk, valid);
  }
}

// What a warp's lanes hold of a matrix of 16 * kRowTiles rows: see common/cuda/mma.cuh for which lane holds
// what.
template <int kRowTiles, int kColumns>
struct Sums {
  float value[kRowTiles][kColumns / kMmaColumns][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (auto& rows : value) {
#pragma unroll
      for (auto& tile : rows) {
#pragma unroll
        for (float& number : tile) number = 0.0f;
      }
    }
  }
};

// sums += q k^T for the warp's rows, from `first_row` of q on.
template <typename T, int M, int N, int D, int R>
__device__ __forceinline__ void multiply_transposed(Sums<R, N>& sums, Tile<T, M, D>& q, int first_row,
                                                    Tile<T, N, D>& k) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int step = 0; step < D / kMmaDepth; ++step) {
    uint32_t a[R][4];
#pragma unroll
    for (int r = 0; r < R; ++r) {
      load_matrices(a[r], q.chunk(first_row + r * kMmaRows + lane % 16, step * 2 + lane / 16));
    }
#pragma unroll
    for (int pair = 0; pair < N / 16; ++pair) {
      uint32_t b[4];
      load_matrices(b, k.chunk(pair * 16 + lane / 16 * 8 + lane % 8, step * 2 + lane / 8 % 2));
#pragma unroll
      for (int r = 0; r < R; ++r) {
        multiply_add<T>(sums.value[r][pair * 2], a[r], {b[0], b[1]});
        multiply_add<T>(sums.value[r][pair * 2 + 1], a[r], {b[2], b[3]});
      }
    }
  }
}

// sums += p v, where p is what the lanes hold of the weights, rounded to T: two neighbouring 8-column tiles
// of sums are just what a lane brings of a 16x16 left operand.
template <typename T, int N, int D, int R>
__device__ __forceinline__ void multiply(Sums<R, D>& sums, const Sums<R, N>& p, Tile<T, N, D>& v) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int step = 0; step < N / kMmaDepth; ++step) {
    uint32_t a[R][4];
#pragma unroll
    for (int r = 0; r < R; ++r) {
      const auto& low = p.value[r][step * 2];
      const auto& high = p.value[r][step * 2 + 1];
      a[r][0] = pack_pair<T>(low[0], low[1]);
      a[r][1] = pack_pair<T>(low[2], low[3]);
      a[r][2] = pack_pair<T>(high[0], high[1]);
      a[r][3] = pack_pair<T>(high[2], high[3]);
    }
#pragma unroll
    for (int pair = 0; pair < D / 16; ++pair) {
      uint32_t b[4];
      load_matrices_transposed(b, v.chunk(step * kMmaDepth + lane % 16, pair * 2 + lane / 16));
#pragma unroll
      for (int r = 0; r < R; ++r) {
        multiply_add<T>(sums.value[r][pair * 2], a[r], {b[0], b[1]});
        multiply_add<T>(sums.value[r][pair * 2 + 1], a[r], {b[2], b[3]});
      }
    }
  }
}

}  // namespace padfree::attention::cuda
