#include "common/cpu/vec_avx512.h"
// After the vector type it is written against.
#include "gated_delta_rule/cpu/kernel.h"

namespace padfree::gated_delta_rule::avx512 {
extern const Kernels kernels;
const Kernels kernels = kKernels;
}  // namespace padfree::gated_delta_rule::avx512
