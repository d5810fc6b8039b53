// The selective scan kernels of one instruction set, as the table in host.cpp sees them. kernel_<isa>.cpp
// includes a vec_<isa>.h and then this file.
#pragma once

#include <cstdint>
#include <initializer_list>

// In this order: each needs the names of those before it.
// clang-format off
#include "common/cpu/vec_math.h"
#include "common/dispatch.h"
#include "common/cpu/arena.h"
#include "selective_scan/cpu/forward.h"
#include "selective_scan/cpu/backward.h"
#include "selective_scan/cpu/kernels.h"
// clang-format on

namespace padfree::selective_scan {
namespace {

template <auto kSpace>
int64_t floats_of(const Params& p) {
  Arena arena{nullptr};
  kSpace(p, arena);
  return arena.used;
}

constexpr Kernels kKernels = {forward, backward, floats_of<block_space>, floats_of<backward_space>};

}  // namespace
}  // namespace padfree::selective_scan
