// Which instruction-set path the kernels take. Decided once, at load.
#pragma once

namespace padfree {

enum class Isa : int { kGeneric = 0, kAvx2 = 1, kAvx512 = 2 };

inline constexpr const char* kIsaNames[] = {"generic", "avx2", "avx512"};

// How many of them, from the narrowest on, every op has a kernel_<isa>.cpp for.
inline constexpr int kIsasBuilt = 2;

// The path in use: the widest one that is built, that the CPU has and that the OS saves the registers of; or
// the one PADFREE_ISA names. Throws std::runtime_error if PADFREE_ISA names an unknown path or one this
// machine lacks.
Isa current_isa();

}  // namespace padfree
