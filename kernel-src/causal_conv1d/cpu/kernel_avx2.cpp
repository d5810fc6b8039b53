// The causal_conv1d bodies compiled for one instruction set; see kernel.h.
// clang-format off: the bodies are written against the vector type that comes first
#include "../../common/cpu/vec_avx2.h"
#include "../../common/cpu/vec_avx2_pair.h"
#include "../../common/cpu/vec_avx2_quads.h"
#include "../../common/cpu/vec_math.h"
#define PADFREE_ISA avx2
#include "kernel.h"
// clang-format on

namespace padfree::causal_conv1d::avx2 {

extern const Kernels kKernels;
const Kernels kKernels = {&pack, &forward, &backward, &reduce, &update, &relayout};

}  // namespace padfree::causal_conv1d::avx2
