#include "memory.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace padfree {

void prefer_huge_pages([[maybe_unused]] void* data, [[maybe_unused]] int64_t bytes) {
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
  const uintptr_t address = reinterpret_cast<uintptr_t>(data);
  const uintptr_t begin = (address + kHugePage - 1) & ~(kHugePage - 1),
                  end = (address + bytes) & ~(kHugePage - 1);
  // Refusal (a kernel without huge pages) costs nothing but the time it saves.
  if (begin < end) (void)madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);
#endif
}

}  // namespace padfree
