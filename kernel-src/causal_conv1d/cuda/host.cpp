// causal_conv1d on CUDA: checks, layout, what may move 16 bytes at once. The values of integer tensors stay
// on the device and are not looked at here: a kernel that meets an impossible one gives NaN and touches
// nothing else.
#include <optional>
#include <tuple>

#include "../../common/cuda/stream.h"
#include "../checks.h"
#include "kernels.h"
#include "torch_binding.h"

namespace padfree::causal_conv1d {
namespace {

constexpr int64_t kPacketBytes = 16;

bool aligned(const void* data, int64_t stride, int64_t size) {
  return reinterpret_cast<uintptr_t>(data) % kPacketBytes == 0 && stride * size % kPacketBytes == 0;
}

// Whether 16 bytes of every row (along D, or along L) of the view begin at a multiple of 16.
bool packets(const Tensor& t, Layout layout) {
  const int64_t size = static_cast<int64_t>(t.element_size()), each = kPacketBytes / size;
  const int inner = layout == Layout::kChannelLast ? 1 : 2, outer = 3 - inner;
  return t.stride(inner) == 1 && t.size(inner) % each == 0 &&
         aligned(t.data_ptr(), t.size(outer) == 1 ? 0 : t.stride(outer), size) &&
         aligned(t.data_ptr(), t.size(0) == 1 ? 0 : t.stride(0), size);
}

cuda::Filter filter_of(Call& call, const char* op, const Tensor& weight, const std::optional<Tensor>& bias) {
  const DType dtype = dtype_of(op, "weight", weight);
  const bool dense =
      weight.stride(0) == weight.size(1) && weight.stride(1) == 1 && aligned(weight.data_ptr(), 0, 1);
  return {.weight = call.read("weight", weight),
          .bias = bias ? call.read("bias", *bias) : nullptr,
          .weight_dtype = dtype,
          .bias_dtype = bias ? dtype_of(op, "bias", *bias) : dtype,
          .channel_stride = weight.stride(0),
          .tap_stride = weight.stride(1),
          .bias_stride = bias ? bias->stride(0) : 0,
          .dense = dense};
}

// What the forward and the backward of one call share.
class Prepared {
 public:
  Prepared(const Inputs& in, Layout layout)
      : x(fit(in.x, layout)),
        call(in.x),
        choice{.dtype = dtype_of(kOp, "x", in.x),
               .layout = layout,
               .width = static_cast<int>(in.weight.size(1)),
               .vectors = packets(x, layout) && !(layout == Layout::kChannelFirst && in.initial_states)} {
    if (in.initial_states)
      states_ = torch::stable::contiguous(torch::stable::transpose(*in.initial_states, 1, 2));
  }

  cuda::ForwardParams params(const Inputs& in) {
    call.read("x", x);
    return {.x = view_of(x),
            .out = {},
            .filter = filter_of(call, kOp, in.weight, in.bias),
            .sequences = {.seq_idx = in.seq_idx ? int32_data(kOp, "seq_idx", *in.seq_idx) : nullptr,
                          .states = states_ ? call.read("initial_states", *states_) : nullptr,
                          .state_rows = states_ ? states_->size(0) : 0},
            .batch = x.size(0),
            .channels = x.size(1),
            .seqlen = x.size(2),
            .silu = in.silu,
            .run = 0,
            .runs = 0};
  }

  const Tensor x;
  Call call;
  cuda::Choice choice;

 private:
  std::optional<Tensor> states_;  // (N, W - 1, D)
};

void run_forward(const Inputs& in, const Tensor& out, Layout layout) {
  if (in.x.numel() == 0) return;
  Prepared prepared(in, layout);
  prepared.choice.vectors = prepared.choice.vectors && packets(out, layout);
  cuda::ForwardParams params = prepared.params(in);
  if (in.seq_idx) prepared.call.read("seq_idx", *in.seq_idx);
  prepared.call.write("out", out);
  params.out = view_of(out);
  cuda::cut_forward(prepared.choice, params);
  cuda::forward(prepared.choice, params, prepared.call.stream());
}

// int32 [B], or null if absent. A strided tensor is replaced by a copy.
const int32_t* batch_integers(Call& call, const char* argument, std::optional<Tensor>& tensor,
                              int64_t batch) {
  if (!tensor) return nullptr;
  check_device(kOpUpdate, argument, *tensor);
  check_dim(kOpUpdate, argument, *tensor, 1);
  check_size(kOpUpdate, argument, *tensor, 0, batch);
  if (!tensor->is_contiguous()) tensor = torch::stable::contiguous(*tensor);
  call.read(argument, *tensor);
  return int32_data(kOpUpdate, argument, *tensor);
}

}  // namespace
}  // namespace padfree::causal_conv1d

namespace padfree {

using namespace causal_conv1d;

Tensor causal_conv1d_fwd(Tensor x, Tensor weight, std::optional<Tensor> bias, std::optional<Tensor> seq_idx,
                         std::optional<Tensor> initial_states, bool silu) {
  const Inputs in{x, weight, bias, seq_idx, initial_states, silu};
  check_inputs(in);
  const Layout layout = layout_of(x);
  Tensor out = empty_like(x, layout);
  run_forward(in, out, layout);
  return out;
}

void causal_conv1d_fwd_out(Tensor x, Tensor weight, std::optional<Tensor> bias, std::optional<Tensor> seq_idx,
                           std::optional<Tensor> initial_states, bool silu, Tensor out) {
  const Inputs in{x, weight, bias, seq_idx, initial_states, silu};
  check_inputs(in);
  check_out(x, out);
  run_forward(in, out, layout_of(out));
}

std::tuple<Tensor, Tensor, Tensor, Tensor> causal_conv1d_bwd(Tensor dout, Tensor x, Tensor weight,
                                                             std::optional<Tensor> bias,
                                                             std::optional<Tensor> seq_idx,
                                                             std::optional<Tensor> initial_states,
                                                             bool silu) {
  const Inputs in{x, weight, bias, seq_idx, initial_states, silu};
  check_inputs(in);
  check_dout(x, dout);
  const int64_t channels = x.size(1), width = weight.size(1);
  const Layout layout = layout_of(x);
  Tensor dx = empty_like(x, layout);
  Tensor dweight = torch::stable::new_zeros(weight, {channels, width});
  Tensor dbias = torch::stable::new_zeros(bias ? *bias : weight, {channels});
  Tensor dstates =
      torch::stable::new_zeros(x, {initial_states ? initial_states->size(0) : 0, width - 1, channels});
  Tensor dstates_out = torch::stable::transpose(dstates, 1, 2);
  if (x.numel() == 0) return {dx, dweight, dbias, dstates_out};

  const Tensor fitted_dout = fit(dout, layout);
  Prepared prepared(in, layout);
  prepared.choice.vectors = prepared.choice.vectors && packets(fitted_dout, layout);
  Call& call = prepared.call;
  cuda::BackwardParams params = {.forward = prepared.params(in),
                                 .dout = view_of(fitted_dout),
                                 .dx = view_of(dx),
                                 .dstates = nullptr,
                                 .partial = nullptr};
  if (seq_idx) call.read("seq_idx", *seq_idx);
  call.read("dout", fitted_dout);
  call.write("dx", dx);
  params.dstates = call.write("dinitial_states", dstates);
  cuda::cut_backward(prepared.choice, params.forward);
  const int64_t parts = cuda::parts(prepared.choice, params.forward);
  Tensor partial = torch::stable::new_empty(x, {parts, width + 1, channels}, ScalarType::Float);
  params.partial = static_cast<float*>(call.write("partial", partial));
  cuda::backward(prepared.choice, params, call.stream());
  if (initial_states) cuda::backward_states(prepared.choice, params, call.stream());
  cuda::reduce({.partial = params.partial,
                .parts = parts,
                .channels = channels,
                .width = static_cast<int>(width),
                .weight_dtype = dtype_of(kOp, "weight", dweight),
                .bias_dtype = dtype_of(kOp, "bias", dbias),
                .dweight = call.write("dweight", dweight),
                .dbias = call.write("dbias", dbias)},
               call.stream());
  return {dx, dweight, dbias, dstates_out};
}

Tensor causal_conv1d_update(Tensor x, Tensor conv_state, Tensor weight, std::optional<Tensor> bias, bool silu,
                            std::optional<Tensor> cache_seqlens, std::optional<Tensor> conv_state_indices) {
  check_update(x, conv_state, weight, bias, conv_state_indices.has_value());
  const int64_t batch = x.size(0), channels = x.size(1), seqlen = x.dim() == 3 ? x.size(2) : 1;
  Tensor out = x.dim() == 3 ? empty_like(x, layout_of(x)) : torch::stable::new_empty(x, {batch, channels});
  Call call(x);
  const int32_t* position = batch_integers(call, "cache_seqlens", cache_seqlens, batch);
  const int32_t* state_index = batch_integers(call, "conv_state_indices", conv_state_indices, batch);
  if (x.numel() == 0) return out;
  call.read("x", x);
  call.write("conv_state", conv_state);
  call.write("out", out);
  const View state = view_of(conv_state);
  const int64_t size = static_cast<int64_t>(x.element_size()), quad = 4 * size, width = weight.size(1);
  const auto whole = [&](int64_t stride) { return stride * size % quad == 0; };
  const bool quads = width == 4 && conv_state.size(2) == 4 && seqlen == 1 && position == nullptr &&
                     state.time_stride == 1 && whole(state.channel_stride) && whole(state.batch_stride) &&
                     reinterpret_cast<uintptr_t>(state.data) % quad == 0;
  const cuda::UpdateParams params = {.x = view_2d(x),
                                     .out = view_2d(out),
                                     .state = state,
                                     .filter = filter_of(call, kOpUpdate, weight, bias),
                                     .state_index = state_index,
                                     .position = position,
                                     .batch = batch,
                                     .channels = channels,
                                     .seqlen = seqlen,
                                     .state_length = conv_state.size(2),
                                     .state_rows = conv_state.size(0),
                                     .silu = silu,
                                     .quads = quads};
  const cuda::Choice choice = {.dtype = dtype_of(kOpUpdate, "x", x),
                               .layout = Layout::kChannelLast,
                               .width = static_cast<int>(width),
                               .vectors = false};
  cuda::update(choice, params, call.stream());
  return out;
}

}  // namespace padfree
