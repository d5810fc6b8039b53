// The attention kernels of one instruction set, as the table in host.cpp sees them. kernel_<isa>.cpp includes
// a vec_<isa>.h and then this file.
#pragma once

#include <cstdint>
#include <utility>

// In this order: each needs the names of those before it.
// clang-format off
#include "common/cpu/vec_math.h"
#include "common/dispatch.h"
#include "common/cpu/gemm.h"
#include "common/cpu/gemm_pack.h"
#include "attention/cpu/rows.h"
#include "attention/cpu/scores.h"
#include "attention/cpu/dots.h"
#include "attention/cpu/forward.h"
#include "attention/cpu/stream.h"
#include "attention/cpu/backward.h"
#include "attention/cpu/kernels.h"
// clang-format on

namespace padfree::attention {
namespace {

constexpr Kernels kKernels = {{forward, backward, forward_workspace, backward_workspace},
                              stream,
                              stream_finish,
                              prepare_backward,
                              stream_workspace,
                              kPanel};

}  // namespace
}  // namespace padfree::attention
