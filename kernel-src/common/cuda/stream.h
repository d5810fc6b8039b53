// What an op call on CUDA needs of torch: its device, its stream, and its tensors' memory. For host.cpp
// files.
#pragma once

#include <torch/csrc/stable/tensor.h>

#if defined(PADFREE_EMULATED)
#include <mutex>
#include <string>

#include "cuda_host/memory.h"
#else
#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/accelerator.h>

// In libtorch from 2.11 on, and declared in no header that a build without CUDA has.
extern "C" AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void** stream);
#endif

namespace padfree {

// One call of an op, on the device of `like`: for as long as it lives that device is the current one. Kernels
// get every pointer from read() and write(): the emulator lets them touch what was named there, and nothing
// else.
class Call {
 public:
  explicit Call(const torch::stable::Tensor& like);

  void* stream() const { return stream_; }
  const void* read(const char* name, const torch::stable::Tensor& tensor);
  void* write(const char* name, const torch::stable::Tensor& tensor);

#if defined(PADFREE_EMULATED)
  ~Call() { cuda_host::global_memory().clear(); }
  Call(const Call&) = delete;

 private:
  // The emulator has one machine: calls take turns.
  static inline std::mutex machine_;
  std::unique_lock<std::mutex> turn_{machine_};
  void* stream_ = nullptr;
#else
 private:
  torch::stable::accelerator::DeviceGuard device_;
  void* stream_ = nullptr;
#endif
};

#if defined(PADFREE_EMULATED)

inline Call::Call(const torch::stable::Tensor&) {}

// From the first element of the tensor to the last: what lies between its rows is found by NaN, in the tests.
inline size_t span_bytes(const torch::stable::Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  int64_t last = 0;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) last += (tensor.size(dim) - 1) * tensor.stride(dim);
  return static_cast<size_t>(last + 1) * tensor.element_size();
}

inline const void* Call::read(const char* name, const torch::stable::Tensor& tensor) {
  cuda_host::global_memory().allow(name, tensor.data_ptr(), span_bytes(tensor),
                                   cuda_host::Memory::Use::kRead);
  return tensor.data_ptr();
}

inline void* Call::write(const char* name, const torch::stable::Tensor& tensor) {
  cuda_host::global_memory().allow(name, tensor.data_ptr(), span_bytes(tensor),
                                   cuda_host::Memory::Use::kWrite);
  return tensor.data_ptr();
}

#else

inline Call::Call(const torch::stable::Tensor& like) : device_(like.get_device_index()) {
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(like.get_device_index(), &stream_));
}

inline const void* Call::read(const char*, const torch::stable::Tensor& tensor) {
  return tensor.data_ptr();
}

inline void* Call::write(const char*, const torch::stable::Tensor& tensor) {
  return tensor.data_ptr();
}

#endif

}  // namespace padfree
