// Storage types of tensor elements, and the tag that names them at run time.
//
// Plain data only: this header is included by the per-ISA translation units, which must not define weak
// symbols (see kernel-src/README.md), and by CUDA code.
#pragma once

#include <cstdint>

namespace padfree {

struct BFloat16 {
  uint16_t bits;
};

struct Float16 {
  uint16_t bits;
};

enum class DType : int { kFloat32 = 0, kBFloat16 = 1, kFloat16 = 2 };

}  // namespace padfree
