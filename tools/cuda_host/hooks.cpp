// What g++ calls before each memory access of a file compiled with -fsanitize=thread. The thread sanitizer's
// library is not linked: these functions take its place and ask the running block. So kernels use plain
// pointers, and there is no access that a kernel could make past the emulator. Accesses that the compiler
// keeps in registers are not reported.
#include <cstddef>
#include <cstdint>

#include "block.h"

namespace {

void access(cuda_host::Access kind, const void* address, size_t bytes) {
  cuda_host::Block* block = cuda_host::running_block();
  if (block != nullptr) block->access(kind, reinterpret_cast<uintptr_t>(address), bytes);
}

void aligned_access(cuda_host::Access kind, const void* address, size_t bytes) {
  cuda_host::Block* block = cuda_host::running_block();
  if (block == nullptr) return;
  const auto number = reinterpret_cast<uintptr_t>(address);
  if (number % bytes != 0) block->fault("misaligned access of " + std::to_string(bytes) + " bytes");
  block->access(kind, number, bytes);
}

constexpr auto kRead = cuda_host::Access::kRead, kWrite = cuda_host::Access::kWrite;

}  // namespace

// The names are the compiler's.
#define CUDA_HOST_HOOKS(bytes)                  \
  void __tsan_read##bytes(void* p) {            \
    aligned_access(kRead, p, bytes);            \
  }                                             \
  void __tsan_write##bytes(void* p) {           \
    aligned_access(kWrite, p, bytes);           \
  }                                             \
  void __tsan_unaligned_read##bytes(void* p) {  \
    access(kRead, p, bytes);                    \
  }                                             \
  void __tsan_unaligned_write##bytes(void* p) { \
    access(kWrite, p, bytes);                   \
  }

extern "C" {
CUDA_HOST_HOOKS(1)
CUDA_HOST_HOOKS(2)
CUDA_HOST_HOOKS(4)
CUDA_HOST_HOOKS(8)
CUDA_HOST_HOOKS(16)
void __tsan_read_range(void* p, size_t bytes) {
  access(kRead, p, bytes);
}
void __tsan_write_range(void* p, size_t bytes) {
  access(kWrite, p, bytes);
}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_init() {}
// Whether a static variable of a function is ready: host code's.
uint8_t __tsan_atomic8_load(const volatile uint8_t* p, int) {
  return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}
}
