// Cuts a worker's workspace into pieces. With a null base it only measures: one function that takes the
// pieces says both where they lie and how much they need.
#pragma once

#include <cstdint>

namespace padfree {
namespace {

struct Arena {
  float* base;
  int64_t used = 0;
  // The next `floats` floats, on a cache line of its own.
  float* take(int64_t floats) {
    float* piece = base == nullptr ? nullptr : base + used;
    used += (floats + 15) / 16 * 16;
    return piece;
  }
};

}  // namespace
}  // namespace padfree
