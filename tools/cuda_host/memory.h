// Every byte of global memory that a kernel may touch, and how: the live allocations as the host announced
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "shadow.h"

namespace cuda_host {

class Memory {
 public:
  enum class Use { kRead, kWrite };

  // Allows kernels to touch [data, data + bytes) until clear().
  void allow(const std::string& name, const void* data, size_t bytes, Use use);
  void clear() { ranges_.clear(); }
  // What blocks of an earlier launch did is done: nothing can race with it.
  void forget_accesses();

  // An empty string, or what is wrong with the access.
  std::string access(Access kind, const Accessor& by, uintptr_t address, size_t bytes);

 private:
  struct Range {
    std::string name;
    uintptr_t begin, end;
    Use use;
    std::unique_ptr<Shadow> shadow;  // of what is written only: reads cannot race with each other
  };
  std::string nearest(uintptr_t address) const;

  std::vector<Range> ranges_;
};

// The one machine's global memory.
Memory& global_memory();

}  // namespace cuda_host
