// clang-format off: the body is written against the vector type that comes first
#include "common/cpu/vec_avx512.h"
#include "attention/cpu/kernel.h"
// clang-format on

namespace padfree::attention::avx512 {
extern const Kernels kernels;
const Kernels kernels = kKernels;
}  // namespace padfree::attention::avx512
