// Moving bytes: loads and stores of a whole vector, and copies from global to shared memory that run beside
// the arithmetic. Every alignment below is the caller's to keep.
//
// As everywhere in common/cuda/: the instruction on a GPU, or the function of tools/cuda_host/ that stands
// for it.
#pragma once

#include <cstdint>
#include <type_traits>

namespace padfree {

// Bytes that move together; 4, 8 or 16 of them, aligned as many.
template <int Bytes>
struct alignas(Bytes) Packet {
  static_assert(Bytes == 2 || Bytes == 4 || Bytes == 8 || Bytes == 16);
  using Word = std::conditional_t<Bytes == 2, uint16_t, uint32_t>;
  Word words[Bytes / sizeof(Word)];
};

template <int Bytes>
__device__ __forceinline__ Packet<Bytes> load_packet(const void* from) {
#if defined(PADFREE_EMULATED)
  Packet<Bytes> packet;
  cuda_host::load(&packet, from, Bytes);
  return packet;
#else
  return *static_cast<const Packet<Bytes>*>(from);
#endif
}

template <int Bytes>
__device__ __forceinline__ void store_packet(void* to, const Packet<Bytes>& packet) {
#if defined(PADFREE_EMULATED)
  cuda_host::store(to, &packet, Bytes);
#else
  *static_cast<Packet<Bytes>*>(to) = packet;
#endif
}

#if !defined(PADFREE_EMULATED)
// What PTX calls a place in shared memory.
__device__ __forceinline__ uint32_t shared_address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}
#endif

// cp.async: starts to copy 16 bytes to shared memory, past L1. Where `valid` is false nothing is read and
// zeros are written. The bytes are there after copy_wait() of this thread, and for others after a barrier
// behind that.
__device__ __forceinline__ void copy_async(void* shared, const void* global, bool valid = true) {
#if defined(PADFREE_EMULATED)
  cuda_host::copy_async(shared, global, 16, valid ? 16 : 0);
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(shared)), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
#endif
}

// cp.async.commit_group: closes the group of copies that this thread has started since the last one.
__device__ __forceinline__ void copy_commit() {
#if defined(PADFREE_EMULATED)
  cuda_host::copy_commit();
#else
  asm volatile("cp.async.commit_group;\n" ::: "memory");
#endif
}

// cp.async.wait_group: waits until at most the last `UnderWay` groups of this thread have not landed.
template <int UnderWay>
__device__ __forceinline__ void copy_wait() {
#if defined(PADFREE_EMULATED)
  cuda_host::copy_wait(UnderWay);
#else
  asm volatile("cp.async.wait_group %0;\n" ::"n"(UnderWay) : "memory");
#endif
}

}  // namespace padfree
