// What runs on behalf of a thread of a kernel. Callable from instrumented files: nothing here is itself
// instrumented.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <source_location>

struct uint3;

namespace cuda_host {

using Site = std::source_location;

// Within one thread these never change, so the compiler may ask once.
[[gnu::const]] uint3 thread_index();
[[gnu::const]] uint3 block_index();
[[gnu::const]] uint3 block_dim();
[[gnu::const]] uint3 grid_dim();
// The block's shared memory, `bytes` of which are to be used.
std::byte* shared_memory(size_t bytes);

// `threads` -1: all of the block.
void barrier(int id, int threads, bool wait, const Site& site);
void sync_warp(uint32_t mask, const Site& site);
uint32_t ballot(uint32_t mask, bool predicate, const Site& site);

enum class Shuffle { kIndex, kUp, kDown, kXor };
uint64_t shuffle_bits(uint32_t mask, uint64_t value, Shuffle kind, int operand, int width, const Site& site);
template <typename T>
inline T shuffle(uint32_t mask, T value, Shuffle kind, int operand, int width, const Site& site) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8);
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = shuffle_bits(mask, bits, kind, operand, width, site);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

// Checks one read and write of a place that others may update atomically too.
void atomic_access(void* address, size_t bytes);
template <typename T, typename F>
[[gnu::no_sanitize("thread")]] inline T atomic(T* address, F&& update) {
  atomic_access(address, sizeof(T));
  const T old = *address;
  *address = update(old);
  return old;
}

// Loads and stores of `bytes` at once; the address must be a multiple of them.
void load(void* to, const void* from, size_t bytes);
void store(void* to, const void* from, size_t bytes);

void copy_async(void* shared, const void* global, size_t bytes, size_t valid);
void copy_commit();
void copy_wait(int groups_under_way);

enum class Element { kBFloat16, kFloat16 };
// Four 8x8 matrices of 16-bit elements; lane 8 i + j brings the address of row j of matrix i.
void load_matrices(uint32_t (&fragments)[4], const void* row, bool transposed, const Site& site);
// d += a b with a 16x16, b 16x8, d 16x8.
void multiply_add(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], Element element,
                  const Site& site);

float half_to_float(uint16_t bits);
uint16_t float_to_half(float value);
float bfloat16_to_float(uint16_t bits);
uint16_t float_to_bfloat16(float value);

}  // namespace cuda_host
