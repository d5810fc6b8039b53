// Schemas, once for every backend; then the implementations of the backend this variant is built for. Nothing
// else.
#include "torch_binding.h"

#include <torch/csrc/stable/library.h>

#include "common/cpu/isa.h"
#include "registration.h"

namespace padfree {
int64_t cpu_isa() {
  return static_cast<int64_t>(current_isa());
}
}  // namespace padfree

STABLE_TORCH_LIBRARY(TORCH_EXTENSION_NAME, ops) {
  // The instruction-set path in use, an index into ("generic", "avx2", "avx512"); raises if PADFREE_ISA is
  // wrong.
  ops.def("cpu_isa() -> int");
}

#if defined(CPU_KERNEL)
STABLE_TORCH_LIBRARY_IMPL(TORCH_EXTENSION_NAME, CompositeExplicitAutograd, ops) {
  ops.impl("cpu_isa", TORCH_BOX(&padfree::cpu_isa));
}
#endif

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
