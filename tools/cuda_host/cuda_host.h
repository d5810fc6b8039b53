// The CUDA that our kernels are written in, for g++: included before everything else (-include) where a .cu
// or .cuh file is compiled for the emulator. Keywords that mean nothing here, the variables a thread finds
// itself by, and the functions that synchronise. What needs an instruction of its own is in
// kernel-src/common/cuda/.
#pragma once

#include <math.h>

#include <bit>
#include <cstdint>
#include <cstring>
#include <source_location>
#include <type_traits>

#include "device.h"

#define __device__
#define __host__
#define __global__
#define __constant__ const
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

#define threadIdx (::cuda_host::thread_index())
#define blockIdx (::cuda_host::block_index())
#define blockDim (::cuda_host::block_dim())
#define gridDim (::cuda_host::grid_dim())
constexpr int warpSize = 32;

// A kernel file may call these; the last argument is never written out.
inline void __syncthreads(const std::source_location& site = std::source_location::current()) {
  cuda_host::barrier(0, -1, true, site);
}
inline void __syncwarp(unsigned mask = ~0u,
                       const std::source_location& site = std::source_location::current()) {
  cuda_host::sync_warp(mask, site);
}

template <typename T>
inline T __shfl_sync(unsigned mask, T value, int lane, int width = 32,
                     const std::source_location& site = std::source_location::current()) {
  return cuda_host::shuffle(mask, value, cuda_host::Shuffle::kIndex, lane, width, site);
}
template <typename T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32,
                        const std::source_location& site = std::source_location::current()) {
  return cuda_host::shuffle(mask, value, cuda_host::Shuffle::kUp, static_cast<int>(delta), width, site);
}
template <typename T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32,
                          const std::source_location& site = std::source_location::current()) {
  return cuda_host::shuffle(mask, value, cuda_host::Shuffle::kDown, static_cast<int>(delta), width, site);
}
template <typename T>
inline T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32,
                         const std::source_location& site = std::source_location::current()) {
  return cuda_host::shuffle(mask, value, cuda_host::Shuffle::kXor, lanes, width, site);
}

inline unsigned __ballot_sync(unsigned mask, int predicate,
                              const std::source_location& site = std::source_location::current()) {
  return cuda_host::ballot(mask, predicate != 0, site);
}
inline int __any_sync(unsigned mask, int predicate,
                      const std::source_location& site = std::source_location::current()) {
  return cuda_host::ballot(mask, predicate != 0, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate,
                      const std::source_location& site = std::source_location::current()) {
  return cuda_host::ballot(mask, predicate == 0, site) == 0;
}

template <typename T>
inline T atomicAdd(T* address, T value) {
  return cuda_host::atomic(address, [value](T old) { return static_cast<T>(old + value); });
}
template <typename T>
inline T atomicMax(T* address, T value) {
  return cuda_host::atomic(address, [value](T old) { return old < value ? value : old; });
}
template <typename T>
inline T atomicExch(T* address, T value) {
  return cuda_host::atomic(address, [value](T) { return value; });
}
template <typename T>
inline T atomicCAS(T* address, T expected, T value) {
  return cuda_host::atomic(address, [=](T old) { return old == expected ? value : old; });
}
inline void __threadfence() {}

// A load through the read-only path: nothing of this launch may have written there.
template <typename T>
inline T __ldg(const T* address) {
  return *address;
}

inline float __expf(float x) {
  return expf(x);
}
inline float __fdividef(float a, float b) {
  return a / b;
}
inline float __frcp_rn(float x) {
  return 1.0f / x;
}
inline float __log2f(float x) {
  return log2f(x);
}
inline float rsqrtf(float x) {
  return 1.0f / sqrtf(x);
}
inline float __uint_as_float(unsigned bits) {
  return std::bit_cast<float>(bits);
}
inline unsigned __float_as_uint(float value) {
  return std::bit_cast<unsigned>(value);
}
inline int __popc(unsigned bits) {
  return std::popcount(bits);
}
inline int __clz(int bits) {
  return std::countl_zero(static_cast<unsigned>(bits));
}
inline int __ffs(int bits) {
  return bits == 0 ? 0 : std::countr_zero(static_cast<unsigned>(bits)) + 1;
}

// As in CUDA: any two arithmetic types, in their common type.
template <typename A, typename B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  return b < a ? b : a;
}
template <typename A, typename B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  return a < b ? b : a;
}
