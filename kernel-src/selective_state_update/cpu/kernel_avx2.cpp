#include "common/cpu/vec_avx2.h"
// After the vector type it is written against.
#include "selective_state_update/cpu/kernel.h"

namespace padfree::selective_state_update::avx2 {
extern const Kernels kKernels;
const Kernels kKernels = {update};
}  // namespace padfree::selective_state_update::avx2
