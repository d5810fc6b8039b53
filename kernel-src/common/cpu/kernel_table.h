// One op's kernels, a row for each instruction set they are compiled for, and the row that this CPU takes.
// For host.cpp files; built for the platform's baseline.
#pragma once

#include "common/cpu/isa.h"

namespace padfree {

// The kernels of the path in use. `kRows` are what the kernel_<isa>.cpp files export, in the order of Isa:
//   const Kernels& kernels = kernels_in_use<generic::kernels, avx2::kernels>();
// Template arguments, so that a platform without the wider paths refers to none of them.
template <const auto& kGeneric, const auto&... kWider>
inline const auto& kernels_in_use() {
#if defined(__x86_64__)
  static_assert(1 + sizeof...(kWider) == kIsasBuilt, "a row for each instruction set, in the order of Isa");
  static constexpr decltype(&kGeneric) kTable[] = {&kGeneric, &kWider...};
  return *kTable[static_cast<int>(current_isa())];
#else
  return kGeneric;
#endif
}

}  // namespace padfree
