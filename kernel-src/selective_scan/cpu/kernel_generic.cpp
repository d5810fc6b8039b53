#include "common/cpu/vec_generic.h"
// After the vector type it is written against.
#include "selective_scan/cpu/kernel.h"

namespace padfree::selective_scan::generic {
extern const Kernels kernels;
const Kernels kernels = kKernels;
}  // namespace padfree::selective_scan::generic
