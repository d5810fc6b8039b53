// Neighbouring elements of a storage type as floats: one packet in memory, N floats in registers.
#pragma once

#include "../types.h"
#include "convert.cuh"
#include "copy.cuh"

namespace padfree {

// How many elements of T 16 bytes hold.
template <typename T>
constexpr int kPacketElements = 16 / static_cast<int>(sizeof(T));

// Element i of a packet.
template <typename T, int Bytes>
__device__ __forceinline__ float element(const Packet<Bytes>& packet, int i) {
  if constexpr (sizeof(T) == 4) {
    return __uint_as_float(packet.words[i]);
  } else if constexpr (Bytes == 2) {
    return to_float(T{packet.words[0]});
  } else {
    return to_float(T{static_cast<uint16_t>(packet.words[i / 2] >> i % 2 * 16)});
  }
}

template <int N, typename T>
__device__ __forceinline__ Packet<N * sizeof(T)> load_vector(const T* from) {
  return load_packet<N * sizeof(T)>(from);
}

template <int N, typename T>
__device__ __forceinline__ void store_vector(T* to, const float (&values)[N]) {
  Packet<N * sizeof(T)> packet;
  if constexpr (sizeof(T) == 4) {
    for (int i = 0; i < N; ++i) packet.words[i] = __float_as_uint(values[i]);
  } else if constexpr (N == 1) {
    packet.words[0] = from_float<T>(values[0]).bits;
  } else {
    for (int i = 0; i < N; i += 2) packet.words[i / 2] = pack_pair<T>(values[i], values[i + 1]);
  }
  store_packet<N * sizeof(T)>(to, packet);
}

// An element of a tensor whose dtype is known at run time only: weights, and what a reduction writes.
__device__ __forceinline__ float load_as_float(DType dtype, const void* data, int64_t i) {
  switch (dtype) {
    case DType::kFloat32:
      return static_cast<const float*>(data)[i];
    case DType::kBFloat16:
      return to_float(static_cast<const BFloat16*>(data)[i]);
    case DType::kFloat16:
      return to_float(static_cast<const Float16*>(data)[i]);
  }
  return 0.0f;  // the host has refused every other dtype by name
}

__device__ __forceinline__ void store_from_float(DType dtype, void* data, int64_t i, float value) {
  switch (dtype) {
    case DType::kFloat32:
      static_cast<float*>(data)[i] = value;
      return;
    case DType::kBFloat16:
      static_cast<BFloat16*>(data)[i] = from_float<BFloat16>(value);
      return;
    case DType::kFloat16:
      static_cast<Float16*>(data)[i] = from_float<Float16>(value);
      return;
  }
}

}  // namespace padfree
