// Which instruction-set path the kernels take. Decided once, at load.
#pragma once

namespace padfree {

enum class Isa : int { kGeneric = 0, kAvx2 = 1, kAvx512 = 2 };

inline constexpr const char* kIsaNames[] = {"generic", "avx2", "avx512"};

// The path in use: the widest one that is built, that the CPU has and that the OS saves the registers of; or
// the one PADFREE_ISA names. Throws std::runtime_error if PADFREE_ISA names an unknown path or one this
// machine lacks.
Isa current_isa();

}  // namespace padfree
