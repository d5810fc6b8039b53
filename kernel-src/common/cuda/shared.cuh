// A kernel's shared memory: one struct, whose size the launch gives. There is no other shared memory in a
// kernel.
#pragma once

namespace padfree {

template <typename T>
__device__ __forceinline__ T& shared_memory() {
#if defined(PADFREE_EMULATED)
  return *reinterpret_cast<T*>(cuda_host::shared_memory(sizeof(T)));
#else
  extern __shared__ __align__(128) unsigned char bytes[];
  return *reinterpret_cast<T*>(bytes);
#endif
}

}  // namespace padfree
