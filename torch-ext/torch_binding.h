// Declarations of the functions that torch_binding.cpp registers; each is defined in its op's host.cpp.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <cstdint>

namespace padfree {

int64_t cpu_isa();

}  // namespace padfree
