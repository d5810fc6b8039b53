// What large results cost before a kernel has computed anything: their page faults.
#pragma once

#include <cstdint>

namespace padfree {

// Asks the system to back a large fresh buffer with huge pages. Each call of an op allocates its result anew,
// and on a virtual machine the faults of 4-KiB pages can take several times as long as the kernel that fills
// them. Only advice: small buffers, and systems that do not listen, are left as they are.
void prefer_huge_pages(void* data, int64_t bytes);

}  // namespace padfree
