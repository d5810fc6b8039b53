// Built without any -m flag: this file runs on every CPU of the platform, before anything else does.
#include "isa.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace padfree {
namespace {

constexpr Isa kWidestBuilt = static_cast<Isa>(kIsasBuilt - 1);

#if defined(__x86_64__)
// Which register files the OS saves on a context switch (XCR0). A CPU may have AVX while the OS, or a
// hypervisor, does not save its registers: CPUID alone is not enough.
unsigned os_saved_state() {
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

Isa widest_supported() {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return Isa::kGeneric;
  const bool fma = c & bit_FMA, f16c = c & bit_F16C, osxsave = c & bit_OSXSAVE, avx = c & bit_AVX;
  if (!(fma && f16c && osxsave && avx)) return Isa::kGeneric;
  const unsigned saved = os_saved_state();
  constexpr unsigned kYmm = 0x6, kZmm = 0xe6;
  if ((saved & kYmm) != kYmm) return Isa::kGeneric;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & bit_AVX2)) return Isa::kGeneric;
  const bool avx512 = (b & bit_AVX512F) && (b & bit_AVX512BW) && (b & bit_AVX512DQ) && (b & bit_AVX512VL);
  return avx512 && (saved & kZmm) == kZmm ? Isa::kAvx512 : Isa::kAvx2;
}
#else
Isa widest_supported() {
  return Isa::kGeneric;
}
#endif

Isa choose() {
  const Isa supported = widest_supported();
  const Isa widest = supported < kWidestBuilt ? supported : kWidestBuilt;
  const char* wanted = std::getenv("PADFREE_ISA");
  if (wanted == nullptr || *wanted == '\0') return widest;
  for (int i = 0; i <= static_cast<int>(kWidestBuilt); ++i) {
    if (std::string(wanted) != kIsaNames[i]) continue;
    if (i > static_cast<int>(supported)) {
      throw std::runtime_error(std::string("PADFREE_ISA must name a path this machine has (up to ") +
                               kIsaNames[static_cast<int>(supported)] + "), got " + wanted);
    }
    return static_cast<Isa>(i);
  }
  throw std::runtime_error(std::string("PADFREE_ISA must be one of the paths built (generic, avx2), got ") +
                           wanted);
}

}  // namespace

Isa current_isa() {
  static const Isa isa = choose();
  return isa;
}

}  // namespace padfree
