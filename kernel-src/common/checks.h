// What host.cpp files need from torch tensors: named errors, dtype mapping, shape and pointer access.
//
// The public Python functions raise ValueError / TypeError first; these checks repeat what memory safety
// needs, and reach Python as RuntimeError with the same wording. Messages carry no C++ expression and no
// source path.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

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

// What an op writes to: no element of it is another one too, as `expand` makes them.
inline void check_distinct_elements(const char* op, const char* argument, const Tensor& tensor) {
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    check(tensor.stride(i) != 0 || tensor.size(i) <= 1, op, ": ", argument,
          " must hold each element at a place of its own, got stride 0 in dimension ", i);
  }
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

// The device, the dimensions and every size.
inline void check_shape(const char* op, const char* argument, const Tensor& tensor,
                        const std::vector<int64_t>& shape) {
  check_device(op, argument, tensor);
  check_dim(op, argument, tensor, static_cast<int64_t>(shape.size()));
  for (size_t i = 0; i < shape.size(); ++i)
    check_size(op, argument, tensor, static_cast<int64_t>(i), shape[i]);
}

inline void check_float32(const char* op, const char* argument, const Tensor& tensor,
                          const std::vector<int64_t>& shape) {
  check_shape(op, argument, tensor, shape);
  check(tensor.scalar_type() == ScalarType::Float, op, ": ", argument, " must be float32");
}

// cu_seqlens of the one batch row of `like`, which has `batch` of them and `rows` rows each.
inline void check_boundaries(const char* op, const Tensor& cu_seqlens, const char* like, int64_t batch,
                             int64_t rows) {
  check_device(op, "cu_seqlens", cu_seqlens);
  check_dim(op, "cu_seqlens", cu_seqlens, 1);
  const int32_t* ends = int32_data(op, "cu_seqlens", cu_seqlens);
  const int64_t count = cu_seqlens.size(0);
  check(batch == 1, op, ": ", like, " must have size 1 in dimension 0 where cu_seqlens is given, got ",
        batch);
  check(count > 0 && ends[0] == 0, op, ": cu_seqlens must start at 0");
  for (int64_t i = 1; i < count; ++i) {
    check(ends[i] >= ends[i - 1], op, ": cu_seqlens must not decrease, got ", ends[i], " after ",
          ends[i - 1]);
  }
  check(ends[count - 1] <= rows, op, ": cu_seqlens must end at or below the number of rows (", rows,
        "), got ", ends[count - 1]);
}

inline std::vector<int64_t> shape_of(const Tensor& tensor) {
  std::vector<int64_t> shape(tensor.dim());
  for (int64_t i = 0; i < tensor.dim(); ++i) shape[i] = tensor.size(i);
  return shape;
}

// What a decoding step makes and reads its tensors with. torch::stable::new_empty and contiguous look the op
// up by name and box its arguments, contiguous even where nothing is to be done: together as long as the
// step.

// A new tensor with the dtype and device of `like`, from the allocator.
inline Tensor empty_strided(const Tensor& like, int64_t dim, const int64_t* sizes, const int64_t* strides) {
  int32_t dtype, device_type, device_index;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(like.get(), &dtype));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(like.get(), &device_type));
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(like.get(), &device_index));
  AtenTensorHandle handle;
  TORCH_ERROR_CODE_CHECK(
      aoti_torch_empty_strided(dim, sizes, strides, dtype, device_type, device_index, &handle));
  return Tensor(handle);
}

inline Tensor empty_dense(const Tensor& like, const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * (shape[i] > 1 ? shape[i] : 1);
  return empty_strided(like, static_cast<int64_t>(shape.size()), shape.data(), strides.data());
}

// The tensor itself where it is contiguous, else a copy.
inline Tensor dense(const Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor);
}

// The tensor itself where its last dimension is contiguous, else a copy.
inline Tensor unit_last_stride(const Tensor& tensor) {
  const int64_t last = tensor.dim() - 1;
  return tensor.size(last) <= 1 || tensor.stride(last) == 1 ? tensor : torch::stable::contiguous(tensor);
}

// A view of [start, start + length) of one dimension. torch::stable::narrow calls an entry point that
// the 2.11 shim does not promise; the dispatcher has it in every version.
inline Tensor part_of(const Tensor& tensor, int64_t dim, int64_t start, int64_t length) {
  std::array<StableIValue, 4> stack = {torch::stable::detail::from(tensor), torch::stable::detail::from(dim),
                                       torch::stable::detail::from(start),
                                       torch::stable::detail::from(length)};
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher("aten::narrow", "", stack.data(), TORCH_ABI_VERSION));
  return torch::stable::detail::to<Tensor>(stack[0]);
}

}  // namespace padfree
