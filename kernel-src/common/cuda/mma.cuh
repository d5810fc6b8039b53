// Tensor cores: 16-bit inputs, float sums. A fragment is what one lane of a warp holds of a matrix: lane 4 g
// + t has
//
//   a 16x16  a[0] row g, a[1] row g + 8: columns 2t, 2t + 1; a[2], a[3] the same rows: columns 2t + 8, 2t + 9
//   b 16x8   b[0] rows 2t, 2t + 1; b[1] rows 2t + 8, 2t + 9: column g
//   d 16x8   d[0], d[1] row g; d[2], d[3] row g + 8: columns 2t, 2t + 1
//
// All 32 lanes take part in each call.
#pragma once

#include <cstdint>
#include <type_traits>

#include "../types.h"
#include "copy.cuh"

namespace padfree {

// ldmatrix.x4: four 8x8 matrices of 16-bit elements from shared memory. Lane 8 i + j brings the address, a
// multiple of 16 bytes, of row j of matrix i; of matrix i lane 4 g + t gets the elements 2t, 2t + 1 of row g.
__device__ __forceinline__ void load_matrices(uint32_t (&fragments)[4], const void* row) {
#if defined(PADFREE_EMULATED)
  cuda_host::load_matrices(fragments, row, false, std::source_location::current());
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(fragments[0]), "=r"(fragments[1]), "=r"(fragments[2]), "=r"(fragments[3])
               : "r"(shared_address(row))
               : "memory");
#endif
}

// The same, each matrix transposed on the way: lane 4 g + t gets the elements g of the rows 2t, 2t + 1.
__device__ __forceinline__ void load_matrices_transposed(uint32_t (&fragments)[4], const void* row) {
#if defined(PADFREE_EMULATED)
  cuda_host::load_matrices(fragments, row, true, std::source_location::current());
#else
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(fragments[0]), "=r"(fragments[1]), "=r"(fragments[2]), "=r"(fragments[3])
               : "r"(shared_address(row))
               : "memory");
#endif
}

// mma.m16n8k16: d += a b, with a and b of T.
template <typename T>
__device__ __forceinline__ void multiply_add(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  static_assert(std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>);
#if defined(PADFREE_EMULATED)
  constexpr auto kElement =
      std::is_same_v<T, BFloat16> ? cuda_host::Element::kBFloat16 : cuda_host::Element::kFloat16;
  cuda_host::multiply_add(d, a, b, kElement, std::source_location::current());
#else
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
#endif
}

}  // namespace padfree
