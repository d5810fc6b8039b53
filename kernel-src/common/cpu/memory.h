// What large results cost before a kernel has computed anything: their page faults.
#pragma once

#include <cstdint>

namespace padfree {

// Asks the system to back a large fresh buffer with huge pages. Each call of an op allocates its result anew,
// and on a virtual machine the faults of 4-KiB pages can take several times as long as the kernel that fills
// them. Only advice: small buffers, and systems that do not listen, are left as they are.
void prefer_huge_pages(void* data, int64_t bytes);

// The tensor, which is new, with that advice given for its data.
template <typename Tensor>
Tensor on_huge_pages(Tensor fresh) {
  prefer_huge_pages(fresh.data_ptr(), fresh.numel() * static_cast<int64_t>(fresh.element_size()));
  return fresh;
}

}  // namespace padfree
