// What the host of every backend does with the tensors of causal_conv1d: checks, layout, views.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <optional>

#include "../common/checks.h"
#include "params.h"

namespace padfree::causal_conv1d {

constexpr const char* kOp = "causal_conv1d";
constexpr const char* kOpUpdate = "causal_conv1d_update";

// Channel-last is what transformers' models hand over: a transposed (B, L, D). Both strides 1 (L or D is 1)
// counts as channel-first. _register.py repeats this rule for the fake kernels.
inline Layout layout_of(const Tensor& x) {
  return x.stride(1) == 1 && x.stride(2) != 1 ? Layout::kChannelLast : Layout::kChannelFirst;
}

// x itself if its vectors lie as `layout` says, else a copy that does.
inline Tensor fit(const Tensor& x, Layout layout) {
  if (layout == Layout::kChannelLast) {
    if (x.stride(1) == 1 || x.size(1) == 1) return x;
    return torch::stable::transpose(torch::stable::contiguous(torch::stable::transpose(x, 1, 2)), 1, 2);
  }
  return x.stride(2) == 1 || x.size(2) == 1 ? x : torch::stable::contiguous(x);
}

// A dense (B, D, L) tensor in the given layout, on the device of x.
inline Tensor empty_like(const Tensor& x, Layout layout) {
  const int64_t sizes[] = {x.size(0), x.size(1), x.size(2)};
  const int64_t plane = sizes[1] * sizes[2];
  const int64_t strides[2][3] = {{plane, sizes[2], 1}, {plane, 1, sizes[1]}};
  return empty_strided(x, 3, sizes, strides[static_cast<int>(layout)]);
}

inline View view_of(const Tensor& x) {
  return {x.data_ptr(), x.stride(0), x.stride(1), x.stride(2)};
}

// (B, D) counts as (B, D, 1).
inline View view_2d(const Tensor& x) {
  return {x.data_ptr(), x.stride(0), x.stride(1), x.dim() == 3 ? x.stride(2) : 0};
}

struct Inputs {
  Tensor x, weight;
  std::optional<Tensor> bias, seq_idx, initial_states;
  bool silu;
};

inline void check_inputs(const Inputs& in) {
  check_device(kOp, "x", in.x);
  check_dim(kOp, "x", in.x, 3);
  dtype_of(kOp, "x", in.x);
  check_device(kOp, "weight", in.weight);
  check_dim(kOp, "weight", in.weight, 2);
  check_size(kOp, "weight", in.weight, 0, in.x.size(1));
  const int64_t width = in.weight.size(1);
  check(width >= kMinWidth && width <= kMaxWidth, kOp, ": weight must be ", kMinWidth, " to ", kMaxWidth,
        " wide, got ", width);
  if (in.bias) {
    check_device(kOp, "bias", *in.bias);
    check_dim(kOp, "bias", *in.bias, 1);
    check_size(kOp, "bias", *in.bias, 0, in.x.size(1));
  }
  if (in.seq_idx) {
    check_device(kOp, "seq_idx", *in.seq_idx);
    check_dim(kOp, "seq_idx", *in.seq_idx, 2);
    check_size(kOp, "seq_idx", *in.seq_idx, 0, in.x.size(0));
    check_size(kOp, "seq_idx", *in.seq_idx, 1, in.x.size(2));
  }
  if (in.initial_states) {
    check_device(kOp, "initial_states", *in.initial_states);
    check_same_dtype(kOp, "initial_states", *in.initial_states, in.x);
    check_dim(kOp, "initial_states", *in.initial_states, 3);
    check_size(kOp, "initial_states", *in.initial_states, 1, in.x.size(1));
    check_size(kOp, "initial_states", *in.initial_states, 2, width - 1);
    if (!in.seq_idx) check_size(kOp, "initial_states", *in.initial_states, 0, in.x.size(0));
  }
}

inline void check_out(const Tensor& x, const Tensor& out) {
  check_device(kOp, "out", out);
  check_dim(kOp, "out", out, 3);
  for (int64_t dim = 0; dim < 3; ++dim) check_size(kOp, "out", out, dim, x.size(dim));
  check_same_dtype(kOp, "out", out, x);
  check_distinct_elements(kOp, "out", out);
  check(out.stride(1) == 1 || out.stride(2) == 1, kOp, ": out must have stride 1 in dimension 1 or 2, got ",
        out.stride(1), " and ", out.stride(2));
}

inline void check_dout(const Tensor& x, const Tensor& dout) {
  check_device(kOp, "dout", dout);
  check_dim(kOp, "dout", dout, 3);
  for (int64_t dim = 0; dim < 3; ++dim) check_size(kOp, "dout", dout, dim, x.size(dim));
  check_same_dtype(kOp, "dout", dout, x);
}

inline void check_update(const Tensor& x, const Tensor& conv_state, const Tensor& weight,
                         const std::optional<Tensor>& bias, bool indexed) {
  check_device(kOpUpdate, "x", x);
  check(x.dim() == 2 || x.dim() == 3, kOpUpdate, ": x must have 2 or 3 dimensions, got ", x.dim());
  dtype_of(kOpUpdate, "x", x);
  const int64_t channels = x.size(1);
  check_device(kOpUpdate, "weight", weight);
  check_dim(kOpUpdate, "weight", weight, 2);
  check_size(kOpUpdate, "weight", weight, 0, channels);
  dtype_of(kOpUpdate, "weight", weight);
  const int64_t width = weight.size(1);
  check(width >= kMinWidth && width <= kMaxWidth, kOpUpdate, ": weight must be ", kMinWidth, " to ",
        kMaxWidth, " wide, got ", width);
  if (bias) {
    check_device(kOpUpdate, "bias", *bias);
    check_dim(kOpUpdate, "bias", *bias, 1);
    check_size(kOpUpdate, "bias", *bias, 0, channels);
    dtype_of(kOpUpdate, "bias", *bias);
  }
  check_device(kOpUpdate, "conv_state", conv_state);
  check_dim(kOpUpdate, "conv_state", conv_state, 3);
  check_same_dtype(kOpUpdate, "conv_state", conv_state, x);
  if (!indexed) check_size(kOpUpdate, "conv_state", conv_state, 0, x.size(0));
  check_size(kOpUpdate, "conv_state", conv_state, 1, channels);
  check_distinct_elements(kOpUpdate, "conv_state", conv_state);
  check(conv_state.size(2) >= width - 1, kOpUpdate, ": conv_state must hold at least ", width - 1,
        " times, got ", conv_state.size(2));
}

}  // namespace padfree::causal_conv1d
