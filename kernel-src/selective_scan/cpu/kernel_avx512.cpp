#include "common/cpu/vec_avx512.h"
// After the vector type it is written against.
#include "selective_scan/cpu/kernel.h"

namespace padfree::selective_scan::avx512 {
extern const Kernels kernels;
const Kernels kernels = kKernels;
}  // namespace padfree::selective_scan::avx512
