// The state update of one instruction set. kernel_<isa>.cpp includes a vec_<isa>.h and then this file.
#pragma once

// In this order: each needs the names of those before it.
// clang-format off
#include "common/cpu/vec_math.h"
#include "common/dispatch.h"
#include "selective_state_update/cpu/update.h"
// clang-format on
