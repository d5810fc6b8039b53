// The gated delta rule kernels of one instruction set, as the table in host.cpp sees them. kernel_<isa>.cpp
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
#include "gated_delta_rule/cpu/forward.h"
#include "gated_delta_rule/cpu/backward.h"
#include "gated_delta_rule/cpu/recurrent.h"
#include "gated_delta_rule/cpu/kernels.h"
// clang-format on

namespace padfree::gated_delta_rule {
namespace {

static_assert(kStatePad % kPanel == 0, "saved states hold whole panels on every path");

template <auto kSpace>
int64_t floats_of(const Params& p) {
  Arena arena{nullptr};
  kSpace(p, arena);
  return arena.used;
}

constexpr Kernels kKernels = {{forward<HeadGate>, forward<ChannelGate>},
                              {backward<HeadGate, HeadScratch>, backward<ChannelGate, ChannelScratch>},
                              recurrent,
                              {floats_of<forward_space<HeadGate>>, floats_of<forward_space<ChannelGate>>},
                              {floats_of<backward_space<HeadGate, HeadScratch>>,
                               floats_of<backward_space<ChannelGate, ChannelScratch>>},
                              floats_of<recurrent_space>,
                              kPanel};

}  // namespace
}  // namespace padfree::gated_delta_rule
