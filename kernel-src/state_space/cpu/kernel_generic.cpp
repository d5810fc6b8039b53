#include "common/cpu/vec_generic.h"
// After the vector type it is written against.
#include "state_space/cpu/kernel.h"

namespace padfree::state_space::generic {
extern const Kernels kernels;
const Kernels kernels = kKernels;
}  // namespace padfree::state_space::generic
