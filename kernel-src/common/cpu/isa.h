// Which instruction-set path the kernels take. Decided once, at load.
#pragma once

namespace padfree {

enum class Isa : int { kGeneric = 0, kAvx2 = 1, kAvx512 = 2 };

inline constexpr const char* kIsaNames[] = {"generic", "avx2", "avx512"};

// How many of them, from the narrowest on, every op has a kernel_<isa>.cpp for.
inline constexpr int kIsasBuilt = 3;

// The path in use: the widest one that the CPU has and that the OS saves the registers of, but AVX-512 only
// by name until it has run on a CPU that has it; or the one that PADFREE_ISA names. Throws std::runtime_error
// if PADFREE_ISA names an unknown path or one this machine lacks.
Isa current_isa();

// Whether attention takes the CPU's dot product of bfloat16: path avx512 in use, avx512_bf16 in the CPU, and
// PADFREE_AVX512_BF16 not 0. Throws std::runtime_error on any other value of that.
bool has_bfloat16_dot();

// In which types torch multiplies matrices in a unit of their own (AMX): what the CPU has and the OS saves,
// or every one of them if PADFREE_AMX is 1, none if it is 0. None too where PADFREE_ISA forces a path: what
// is forced is to be seen at work. Throws std::runtime_error on any other value.
struct Amx {
  bool bfloat16, float16;
};
Amx current_amx();

}  // namespace padfree
