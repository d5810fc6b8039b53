#include "common/cpu/vec_avx512.h"
// After the vector type it is written against.
#include "state_space/cpu/kernel.h"

namespace padfree::state_space::avx512 {
extern const Kernels kernels;
const Kernels kernels = kKernels;
}  // namespace padfree::state_space::avx512
