#include "fiber.h"

#include <sys/mman.h>

#include <new>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

#if !defined(__x86_64__)
#error "cuda_host switches stacks in x86-64 assembly"
#endif

// Saves what a function must leave as it was, stores the stack pointer in *from, and goes on at the stack
// `to`.
asm(R"(
  .text
  .p2align 4
  .local cuda_host_switch
  .type cuda_host_switch, @function
cuda_host_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
  .size cuda_host_switch, . - cuda_host_switch
)");
extern "C" void cuda_host_switch(void** from, void* to);

namespace cuda_host {
namespace {

constexpr uint64_t kCanary = 0x6b63617473646e65;
constexpr int kCanaryWords = 8;

// The fiber that runs; main() of a fiber finds itself by it.
Fiber* current = nullptr;

void leave_for([[maybe_unused]] void** fake_stack, [[maybe_unused]] const void* stack,
               [[maybe_unused]] size_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(fake_stack, stack, bytes);
#endif
}

void arrived([[maybe_unused]] void* fake_stack, [[maybe_unused]] const void** stack,
             [[maybe_unused]] size_t* bytes) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(fake_stack, stack, bytes);
#endif
}

}  // namespace

Fiber::Fiber() {
  void* stack =
      mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED) throw std::bad_alloc();
  stack_ = reinterpret_cast<uintptr_t>(stack);
  for (int i = 0; i < kCanaryWords; ++i) static_cast<uint64_t*>(stack)[i] = kCanary;
}

Fiber::~Fiber() {
  munmap(reinterpret_cast<void*>(stack_), kStackBytes);
}

bool Fiber::intact() const {
  for (int i = 0; i < kCanaryWords; ++i) {
    if (reinterpret_cast<const uint64_t*>(stack_)[i] != kCanary) return false;
  }
  return true;
}

void Fiber::start(void (*main)(void*), void* argument) {
  main_ = main;
  argument_ = argument;
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(reinterpret_cast<void*>(stack_), kStackBytes);
#endif
  fake_stack_ = nullptr;
  // As if enter() had been called: aligned to 16 and 8 off, below six saved registers and the return address.
  void** top = reinterpret_cast<void**>(stack_ + kStackBytes - 64);
  *--top = nullptr;
  *--top = reinterpret_cast<void*>(&Fiber::enter);
  for (int i = 0; i < 6; ++i) *--top = nullptr;
  own_ = top;
}

void Fiber::enter() {
  Fiber* self = current;
  arrived(nullptr, &self->caller_stack_, &self->caller_bytes_);
  self->main_(self->argument_);
  self->yield();
  __builtin_unreachable();
}

void Fiber::resume() {
  current = this;
  void* here = nullptr;
  leave_for(&here, reinterpret_cast<void*>(stack_), kStackBytes);
  cuda_host_switch(&caller_, own_);
  arrived(here, nullptr, nullptr);
}

void Fiber::yield() {
  leave_for(&fake_stack_, caller_stack_, caller_bytes_);
  cuda_host_switch(&own_, caller_);
  arrived(fake_stack_, &caller_stack_, &caller_bytes_);
}

}  // namespace cuda_host
