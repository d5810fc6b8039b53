// Barriers of some warps of a block. Barrier 0 is __syncthreads()'s; 1 to 15 are free. `threads` counts all
// that take part, in whole warps.
#pragma once

namespace padfree {

// bar.sync: arrives, and waits until all have.
__device__ __forceinline__ void barrier_sync(int id, int threads) {
#if defined(PADFREE_EMULATED)
  cuda_host::barrier(id, threads, true, std::source_location::current());
#else
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

// bar.arrive: says that what this thread did before is done, and goes on.
__device__ __forceinline__ void barrier_arrive(int id, int threads) {
#if defined(PADFREE_EMULATED)
  cuda_host::barrier(id, threads, false, std::source_location::current());
#else
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
#endif
}

}  // namespace padfree
