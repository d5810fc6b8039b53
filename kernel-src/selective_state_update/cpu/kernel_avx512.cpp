#include "common/cpu/vec_avx512.h"
// After the vector type it is written against.
#include "selective_state_update/cpu/kernel.h"

namespace padfree::selective_state_update::avx512 {
extern const Kernels kKernels;
const Kernels kKernels = {update};
}  // namespace padfree::selective_state_update::avx512
