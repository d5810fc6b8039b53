// One op's kernels, a row for each instruction set they are compiled for, and the row that this CPU takes.
// For host.cpp files; built for the platform's baseline.
#pragma once

#include "common/cpu/isa.h"

namespace padfree {

// The kernels of the path in use. The arguments are what the kernel_<isa>.cpp files export, in the order of
// Isa; an op with fewer paths than the probe knows takes its widest:
//   const Kernels& kernels = kernels_in_use<generic::kernels, avx2::kernels, avx512::kernels>();
// Template arguments, so that a platform without the wider paths refers to none of them.
template <const auto& kGeneric, const auto&... kWider>
inline const auto& kernels_in_use() {
#if defined(__x86_64__)
  static constexpr decltype(&kGeneric) kTable[] = {&kGeneric, &kWider...};
  constexpr int kWidest = sizeof...(kWider);
  const int wanted = static_cast<int>(current_isa());
  return *kTable[wanted < kWidest ? wanted : kWidest];
#else
  return kGeneric;
#endif
}

}  // namespace padfree
