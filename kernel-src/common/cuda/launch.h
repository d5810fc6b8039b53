// Starting a kernel. Host code of a .cu file; no torch.
//
// A kernel takes one struct by value. A launch that CUDA refuses throws with the op, what it was called on,
// the shape of the launch and CUDA's own words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

#if defined(PADFREE_EMULATED)
#include "cuda_host/block.h"
#else
#include <cuda_runtime_api.h>
#endif

namespace padfree {

struct Launch {
  const char* op;  // for messages, as are the kernel's name and the shape of the data
  const char* kernel;
  std::string shape;
  int64_t blocks;
  int threads;
  size_t shared_bytes;
  void* stream;
};

#if defined(PADFREE_EMULATED)

template <typename Params>
void launch(void (*kernel)(Params), const Launch& how, const Params& params) {
  struct Call {
    void (*kernel)(Params);
    Params params;
  };
  const Call call = {kernel, params};
  cuda_host::run({.kernel = how.kernel,
                  .grid = {static_cast<unsigned>(how.blocks), 1, 1},
                  .block = {static_cast<unsigned>(how.threads), 1, 1},
                  .shared_bytes = how.shared_bytes,
                  .body =
                      [](const void* pointer) {
                        const Call* call = static_cast<const Call*>(pointer);
                        call->kernel(call->params);
                      },
                  .params = &call,
                  .params_bytes = sizeof(Call)});
}

#else

inline void check_launch(cudaError_t error, const Launch& how) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(how.op) + ": " + how.kernel + " on " + how.shape + ", " +
                           std::to_string(how.blocks) + " blocks of " + std::to_string(how.threads) +
                           " threads with " + std::to_string(how.shared_bytes) +
                           " bytes of shared memory each: " + cudaGetErrorString(error));
}

template <typename Params>
void launch(void (*kernel)(Params), const Launch& how, const Params& params) {
  constexpr int64_t kMostBlocks = 0x7fffffff;
  if (how.blocks > kMostBlocks) check_launch(cudaErrorInvalidConfiguration, how);
  constexpr size_t kFreeSharedBytes = 48 << 10;  // more has to be asked for
  if (how.shared_bytes > kFreeSharedBytes) {
    check_launch(
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(how.shared_bytes)),
        how);
  }
  Params copy = params;
  void* arguments[] = {&copy};
  check_launch(
      cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(static_cast<unsigned>(how.blocks)),
                       dim3(static_cast<unsigned>(how.threads)), arguments, how.shared_bytes,
                       static_cast<cudaStream_t>(how.stream)),
      how);
}

#endif

}  // namespace padfree
