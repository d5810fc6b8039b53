// From a call to an instance of the forward kernel. Host code of the forward_<head dim>.cu files.
#pragma once

#include <stdexcept>
#include <type_traits>

#include "../../common/cuda/launch.h"
#include "forward.cuh"
#include "kernels.h"

namespace padfree::attention::cuda {

template <int kDim>
void launch_forward(DType dtype, const ForwardParams& p, int64_t blocks, const std::string& shape,
                    void* stream) {
  const auto start = [&](auto tag, auto modified) {
    using T = decltype(tag);
    constexpr bool kModified = modified();
    launch(forward<T, kDim, kModified>,
           {.op = "attention",
            .kernel = "forward",
            .shape = shape,
            .blocks = blocks,
            .threads = Shape<kDim>::kThreads,
            .shared_bytes = sizeof(ForwardShared<T, kDim>),
            .stream = stream},
           p);
  };
  const bool modified = p.softcap != 0.0f || p.slopes != nullptr || !(p.scale > 0.0f);
  switch (dtype) {
    case DType::kBFloat16:
      return modified ? start(BFloat16{}, std::true_type{}) : start(BFloat16{}, std::false_type{});
    case DType::kFloat16:
      return modified ? start(Float16{}, std::true_type{}) : start(Float16{}, std::false_type{});
    default:
      throw std::runtime_error("attention: q must be bfloat16 or float16 on cuda, got float32");
  }
}

}  // namespace padfree::attention::cuda
