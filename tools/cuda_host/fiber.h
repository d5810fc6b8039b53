// A thread of control with a stack of its own: what each CUDA thread of a block runs on.
//
// The switch is a few instructions of assembly: swapcontext() makes two system calls, and a tensor-core
// instruction switches 32 times.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cuda_host {

class Fiber {
 public:
  static constexpr size_t kStackBytes = 128 << 10;

  // The stack is mapped once and used again by every block; pages are touched when needed.
  Fiber();
  ~Fiber();
  Fiber(const Fiber&) = delete;

  // The next resume() begins main(argument) from its start, whatever the fiber was doing.
  void start(void (*main)(void*), void* argument);
  // Runs the fiber until it yields or its main returns.
  void resume();
  // Gives control back to whoever resumed the fiber. Called on the fiber.
  void yield();

  bool owns(uintptr_t address) const { return address - stack_ < kStackBytes; }
  // Whether main left the last words of its stack alone.
  bool intact() const;

 private:
  static void enter();

  uintptr_t stack_;
  void* own_ = nullptr;
  void* caller_ = nullptr;
  void (*main_)(void*) = nullptr;
  void* argument_ = nullptr;
  // What the address sanitizer wants to know of the stack left behind.
  void* fake_stack_ = nullptr;
  const void* caller_stack_ = nullptr;
  size_t caller_bytes_ = 0;
};

}  // namespace cuda_host
