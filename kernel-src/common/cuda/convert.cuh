// Storage types to float and back, rounding to nearest even.
#pragma once

#include <cstdint>
#include <type_traits>

#include "../types.h"

namespace padfree {

__device__ __forceinline__ float to_float(float value) {
  return value;
}

__device__ __forceinline__ float to_float(BFloat16 value) {
  return __uint_as_float(static_cast<uint32_t>(value.bits) << 16);
}

// cvt.f32.f16
__device__ __forceinline__ float to_float(Float16 value) {
#if defined(PADFREE_EMULATED)
  return cuda_host::half_to_float(value.bits);
#else
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
#endif
}

template <typename T>
__device__ __forceinline__ T from_float(float value);

template <>
__device__ __forceinline__ float from_float<float>(float value) {
  return value;
}

// cvt.rn.bf16.f32
template <>
__device__ __forceinline__ BFloat16 from_float<BFloat16>(float value) {
#if defined(PADFREE_EMULATED)
  return {cuda_host::float_to_bfloat16(value)};
#else
  BFloat16 result;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
  return result;
#endif
}

// cvt.rn.f16.f32
template <>
__device__ __forceinline__ Float16 from_float<Float16>(float value) {
#if defined(PADFREE_EMULATED)
  return {cuda_host::float_to_half(value)};
#else
  Float16 result;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
  return result;
#endif
}

// Two neighbours in one word, the first in the low half: cvt.rn.bf16x2.f32 or cvt.rn.f16x2.f32.
template <typename T>
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
#if defined(PADFREE_EMULATED)
  return from_float<T>(low).bits | static_cast<uint32_t>(from_float<T>(high).bits) << 16;
#else
  uint32_t pair;
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  }
  return pair;
#endif
}

}  // namespace padfree
