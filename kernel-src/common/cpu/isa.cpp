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

// What a machine can run, and what it takes when nobody asks.
struct Machine {
  Isa widest, fastest;
};

// The value of an environment variable; empty if it is not set.
std::string setting(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

#if defined(__x86_64__)
// In `bundle build --emulate-avx512` the AVX-512 files hold AVX2 instructions.
#if defined(PADFREE_EMULATE_AVX512)
constexpr bool kEmulateAvx512 = true;
#else
constexpr bool kEmulateAvx512 = false;
#endif

// Which register files the OS saves on a context switch (XCR0). A CPU may have AVX while the OS, or a
// hypervisor, does not save its registers: CPUID alone is not enough.
unsigned os_saved_state() {
  unsigned low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

Machine probe() {
  constexpr Machine kBaseline = {Isa::kGeneric, Isa::kGeneric};
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d)) return kBaseline;
  const bool fma = c & bit_FMA, f16c = c & bit_F16C, osxsave = c & bit_OSXSAVE, avx = c & bit_AVX;
  if (!(fma && f16c && osxsave && avx)) return kBaseline;
  const unsigned saved = os_saved_state();
  constexpr unsigned kYmm = 0x6, kZmm = 0xe6;
  if ((saved & kYmm) != kYmm) return kBaseline;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(b & bit_AVX2)) return kBaseline;
  if (kEmulateAvx512) return {Isa::kAvx512, Isa::kAvx512};
  const bool avx512 = (b & bit_AVX512F) && (b & bit_AVX512BW) && (b & bit_AVX512DQ) && (b & bit_AVX512VL);
  if (!avx512 || (saved & kZmm) != kZmm) return {Isa::kAvx2, Isa::kAvx2};
  return {Isa::kAvx512, Isa::kAvx2};
}

bool probe_bfloat16_dot() {
  unsigned a, b, c, d;
  constexpr unsigned kBFloat16 = 1u << 5;  // of leaf 7, subleaf 1, eax
  return kEmulateAvx512 || (__get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & kBFloat16));
}

Amx probe_amx() {
  unsigned a, b, c, d;
  constexpr unsigned kOsxsave = 1u << 27, kTiles = 0x60000;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & kOsxsave) || (os_saved_state() & kTiles) != kTiles) return {};
  constexpr unsigned kBFloat16 = 1u << 22, kTile = 1u << 24;  // of leaf 7, edx
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !(d & kTile)) return {};
  const bool bfloat16 = d & kBFloat16;
  constexpr unsigned kFloat16 = 1u << 21;  // of leaf 7, subleaf 1, eax
  return {bfloat16, __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & kFloat16)};
}
#else
Machine probe() {
  return {Isa::kGeneric, Isa::kGeneric};
}
bool probe_bfloat16_dot() {
  return false;
}
Amx probe_amx() {
  return {};
}
#endif

Isa choose_isa() {
  const Machine machine = probe();
  const std::string wanted = setting("PADFREE_ISA");
  if (wanted.empty()) return machine.fastest;
  std::string built;
  for (int i = 0; i < kIsasBuilt; ++i) {
    built += std::string(i == 0 ? "" : ", ") + kIsaNames[i];
    if (wanted != kIsaNames[i]) continue;
    if (i > static_cast<int>(machine.widest)) {
      throw std::runtime_error(std::string("PADFREE_ISA must name a path this machine has (up to ") +
                               kIsaNames[static_cast<int>(machine.widest)] + "), got " + wanted);
    }
    return static_cast<Isa>(i);
  }
  throw std::runtime_error("PADFREE_ISA must be one of the paths built (" + built + "), got " + wanted);
}

bool choose_bfloat16_dot() {
  const std::string wanted = setting("PADFREE_AVX512_BF16");
  if (!wanted.empty() && wanted != "0") {
    throw std::runtime_error("PADFREE_AVX512_BF16 must be 0 or unset, got " + wanted);
  }
  return wanted.empty() && current_isa() == Isa::kAvx512 && probe_bfloat16_dot();
}

Amx choose_amx() {
  const std::string wanted = setting("PADFREE_AMX");
  if (wanted == "1") return {true, true};
  if (!wanted.empty() && wanted != "0") {
    throw std::runtime_error("PADFREE_AMX must be 0, 1 or unset, got " + wanted);
  }
  return wanted.empty() && setting("PADFREE_ISA").empty() ? probe_amx() : Amx{};
}

}  // namespace

Isa current_isa() {
  static const Isa isa = choose_isa();
  return isa;
}

bool has_bfloat16_dot() {
  static const bool has = choose_bfloat16_dot();
  return has;
}

Amx current_amx() {
  static const Amx amx = choose_amx();
  return amx;
}

}  // namespace padfree
