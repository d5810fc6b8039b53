// What host.cpp files need from torch tensors: named errors, dtype mapping, shape and pointer access.
//
// The public Python functions raise ValueError / TypeError first; these checks repeat what memory safety
// needs, and reach Python as RuntimeError with the same wording. Messages carry no C++ expression and no
// source path.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>

#include "types.h"

namespace padfree {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

template <typename... Parts>
[[noreturn]] inline void fail(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  throw std::runtime_error(text.str());
}

template <typename... Parts>
inline void check(bool condition, const Parts&... parts) {
  if (!condition) fail(parts...);
}

inline DType dtype_of(const char* op, const char* argument, const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case ScalarType::Float:
      return DType::kFloat32;
    case ScalarType::BFloat16:
      return DType::kBFloat16;
    case ScalarType::Half:
      return DType::kFloat16;
    default:
      fail(op, ": ", argument, " must be float32, bfloat16 or float16, got scalar type ",
           static_cast<int>(tensor.scalar_type()));
  }
}

inline void check_cpu(const char* op, const char* argument, const Tensor& tensor) {
  check(tensor.is_cpu(), op, ": ", argument, " must be on the cpu, got device type ",
        static_cast<int>(tensor.device().type()));
}

// On the device that this variant's kernels compute on. A variant holds one backend; an emulated one takes
// the tensors of the CPU.
inline void check_device(const char* op, const char* argument, const Tensor& tensor) {
#if defined(CUDA_KERNEL) && !defined(PADFREE_EMULATED)
  check(tensor.is_cuda(), op, ": ", argument, " must be on a cuda device, got device type ",
        static_cast<int>(tensor.device().type()));
#else
  check_cpu(op, argument, tensor);
#endif
}

inline void check_dim(const char* op, const char* argument, const Tensor& tensor, int64_t dim) {
  check(tensor.dim() == dim, op, ": ", argument, " must have ", dim,
        dim == 1 ? " dimension, got " : " dimensions, got ", tensor.dim());
}

inline void check_size(const char* op, const char* argument, const Tensor& tensor, int64_t dim,
                       int64_t size) {
  check(tensor.size(dim) == size, op, ": ", argument, " must have size ", size, " in dimension ", dim,
        ", got ", tensor.size(dim));
}

inline void check_same_dtype(const char* op, const char* argument, const Tensor& tensor, const Tensor& like) {
  check(tensor.scalar_type() == like.scalar_type(), op, ": ", argument,
        " must have the dtype of the first input");
}

// int32, one dimension, contiguous, on the cpu: what every boundary argument (cu_seqlens, seq_idx rows) is
// read as.
inline const int32_t* int32_data(const char* op, const char* argument, const Tensor& tensor) {
  check(tensor.scalar_type() == ScalarType::Int, op, ": ", argument, " must be int32");
  check(tensor.is_contiguous(), op, ": ", argument, " must be contiguous");
  return static_cast<const int32_t*>(tensor.data_ptr());
}

// A view of [start, start + length) of one dimension. torch::stable::narrow calls an entry point that
// the 2.11 shim does not promise; the dispatcher has it in every version.
inline Tensor part_of(const Tensor& tensor, int64_t dim, int64_t start, int64_t length) {
  std::array<StableIValue, 4> stack = {torch::stable::detail::from(tensor), torch::stable::detail::from(dim),
                                       torch::stable::detail::from(start),
                                       torch::stable::detail::from(length)};
  STABLE_TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::narrow", "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

}  // namespace padfree
