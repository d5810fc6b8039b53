// The state-space kernels of one instruction set, as the table in host.cpp sees them. kernel_<isa>.cpp
// includes a vec_<isa>.h and then this file.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <utility>

// In this order: each needs the names of those before it.
// clang-format off
#include "common/cpu/vec_math.h"
#include "common/dispatch.h"
#include "common/cpu/gemm.h"
#include "common/cpu/gemm_pack.h"
#include "common/cpu/products.h"
#include "state_space/cpu/forward.h"
#include "state_space/cpu/backward.h"
#include "state_space/cpu/kernels.h"
// clang-format on

namespace padfree::state_space {
namespace {

static_assert(kStatePad % kPanel == 0, "saved states hold whole panels on every path");

template <auto kSpace>
int64_t floats_of(const Params& p) {
  Arena arena{nullptr};
  kSpace(p, arena);
  return arena.used;
}

constexpr Kernels kKernels = {forward, backward, floats_of<forward_space>, floats_of<backward_space>,
                              gather,  kPanel};

}  // namespace
}  // namespace padfree::state_space
