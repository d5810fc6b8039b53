// causal_conv1d on the CPU: checks, layout, the cut of the work, the choice of the instruction set.
#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include "../../common/cpu/kernel_table.h"
#include "../../common/cpu/memory.h"
#include "../../common/cpu/parallel.h"
#include "../checks.h"
#include "pieces.h"
#include "torch_binding.h"

namespace padfree::causal_conv1d {

namespace generic {
extern const Kernels kKernels;
}
namespace avx2 {
extern const Kernels kKernels;
}
namespace avx512 {
extern const Kernels kKernels;
}

namespace {

const Kernels& kernels() {
  return kernels_in_use<generic::kKernels, avx2::kKernels, avx512::kKernels>();
}

// How much of time and how many channels one task takes. Long enough to pay for its start, short enough that
// a chunk's rows stay in L2 between the taps and that small inputs still fill the cores. Depends on shapes
// only: the gradient sums are added chunk by chunk.
struct Blocking {
  int64_t chunk_length, channel_block;
};
Blocking blocking(Layout layout, int64_t channels, int64_t seqlen, bool backward) {
  constexpr int64_t kElementsPerTask = 32768, kLongestLine = 4096;
  if (layout == Layout::kChannelLast) {
    const int64_t channel_block = std::min(channels, kMaxChannelBlock);
    return {std::max<int64_t>(backward ? 256 : 64, kElementsPerTask / channel_block), kMaxChannelBlock};
  }
  return {kLongestLine, std::max<int64_t>(1, kElementsPerTask / std::min(seqlen, kLongestLine))};
}

// A dense (B, D, L) tensor in the given layout, on huge pages where it is large.
Tensor empty_result(const Tensor& x, Layout layout) {
  return on_huge_pages(empty_like(x, layout));
}

// fit, and fast where x lies the other way: torch copies that element by element.
Tensor fit_in_tiles(const Tensor& x, Layout layout) {
  const bool last = layout == Layout::kChannelLast;
  const auto lies = [&](int dim) { return x.stride(dim) == 1 || x.size(dim) == 1; };
  if (lies(last ? 1 : 2) || !lies(last ? 2 : 1)) return fit(x, layout);
  const Tensor to = empty_result(x, layout);
  RelayoutParams params = {dtype_of(kOp, "x", x), layout, x.size(1), x.size(2), view_of(x), view_of(to)};
  parallel_tasks(
      x.size(0) * ((x.size(1) + kRelayoutTile - 1) / kRelayoutTile),
      [](void* p, int64_t index, int) { kernels().relayout(*static_cast<const RelayoutParams*>(p), index); },
      &params);
  return to;
}

// Everything a ForwardParams points to.
class Forward {
 public:
  Forward(const Inputs& in, Layout layout, bool backward) : x_(fit_in_tiles(in.x, layout)) {
    const int64_t channels = in.x.size(1), padded = (channels + kChannelPad - 1) / kChannelPad * kChannelPad;
    const int width = static_cast<int>(in.weight.size(1));
    pack(in, layout, padded);
    const Blocking blocks = blocking(layout, channels, in.x.size(2), backward);
    pieces_ = cut({in.x.size(0), in.x.size(2), in.seq_idx ? int32_data(kOp, "seq_idx", *in.seq_idx) : nullptr,
                   in.initial_states ? in.initial_states->size(0) : -1},
                  blocks.chunk_length);
    if (in.initial_states) {
      initial_states_ = torch::stable::contiguous(torch::stable::transpose(*in.initial_states, 1, 2));
    }
    params_ = {.dtype = dtype_of(kOp, "x", in.x),
               .layout = layout,
               .width = width,
               .silu = in.silu,
               .channels = channels,
               .channels_padded = padded,
               .x = view_of(x_),
               .out = {},
               .filter = packed_.data(),
               .initial_states = initial_states_ ? initial_states_->data_ptr() : nullptr,
               .partition = pieces_.partition(blocks.channel_block)};
  }
  Forward(const Forward&) = delete;

  ForwardParams& params() { return params_; }
  int64_t tasks() const {
    const int64_t block = params_.partition.channel_block;
    return params_.partition.chunks * ((params_.channels + block - 1) / block);
  }

 private:
  void pack(const Inputs& in, Layout layout, int64_t padded) {
    const int64_t width = in.weight.size(1);
    packed_.resize((width + 1) * padded);
    const DType weight_dtype = dtype_of(kOp, "weight", in.weight);
    kernels().pack({.dtype = dtype_of(kOp, "x", in.x),
                    .layout = layout,
                    .width = static_cast<int>(width),
                    .channels = in.x.size(1),
                    .channels_padded = padded,
                    .weight_dtype = weight_dtype,
                    .bias_dtype = in.bias ? dtype_of(kOp, "bias", *in.bias) : weight_dtype,
                    .weight = in.weight.data_ptr(),
                    .bias = in.bias ? in.bias->data_ptr() : nullptr,
                    .weight_channel_stride = in.weight.stride(0),
                    .weight_tap_stride = in.weight.stride(1),
                    .bias_stride = in.bias ? in.bias->stride(0) : 0,
                    .packed = packed_.data()});
  }

  Tensor x_;
  std::optional<Tensor> initial_states_;  // (N, W - 1, D)
  std::vector<float> packed_;
  Pieces pieces_;
  ForwardParams params_;
};

void run_forward(const Inputs& in, const Tensor& out, Layout layout) {
  if (in.x.numel() == 0) return;
  Forward forward(in, layout, false);
  forward.params().out = view_of(out);
  parallel_tasks(
      forward.tasks(),
      [](void* params, int64_t index, int) {
        kernels().forward(*static_cast<const ForwardParams*>(params), index);
      },
      &forward.params());
}

// int32 [B] whose values an op reads itself; null if absent. A strided tensor is replaced by a copy.
const int32_t* batch_integers(const char* argument, std::optional<Tensor>& tensor, int64_t batch) {
  if (!tensor) return nullptr;
  check_device(kOpUpdate, argument, *tensor);
  check_dim(kOpUpdate, argument, *tensor, 1);
  check_size(kOpUpdate, argument, *tensor, 0, batch);
  tensor = dense(*tensor);
  return int32_data(kOpUpdate, argument, *tensor);
}

// Two rows of one batch must not move the same state: which came last would be chance.
void check_state_index(const int32_t* index, int64_t batch, int64_t states) {
  if (index == nullptr) return;
  std::vector<int32_t> used;
  for (int64_t b = 0; b < batch; ++b) {
    check(index[b] >= -1 && index[b] < states, kOpUpdate, ": conv_state_indices must be -1 or below ", states,
          ", got ", index[b]);
    if (index[b] >= 0) used.push_back(index[b]);
  }
  std::sort(used.begin(), used.end());
  const auto twice = std::adjacent_find(used.begin(), used.end());
  check(twice == used.end(), kOpUpdate, ": conv_state_indices must name each state once, got ",
        twice == used.end() ? 0 : *twice, " twice");
}

// The kernels take weight and bias in x's dtype or in float32.
struct UpdateFilter {
  Tensor weight;
  std::optional<Tensor> bias;

  UpdateFilter(const Tensor& x, const Tensor& given_weight, const std::optional<Tensor>& given_bias)
      : weight(given_weight), bias(given_bias) {
    const ScalarType dtype = weight.scalar_type();
    if ((dtype == x.scalar_type() || dtype == ScalarType::Float) && (!bias || bias->scalar_type() == dtype))
      return;
    weight = torch::stable::to(weight, ScalarType::Float);
    if (bias) bias = torch::stable::to(*bias, ScalarType::Float);
  }
};

}  // namespace
}  // namespace padfree::causal_conv1d

namespace padfree {

using namespace causal_conv1d;

Tensor causal_conv1d_fwd(Tensor x, Tensor weight, std::optional<Tensor> bias, std::optional<Tensor> seq_idx,
                         std::optional<Tensor> initial_states, bool silu) {
  const Inputs in{x, weight, bias, seq_idx, initial_states, silu};
  check_inputs(in);
  const Layout layout = layout_of(x);
  Tensor out = empty_result(x, layout);
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
  Tensor dx = empty_result(x, layout);
  Tensor dweight = torch::stable::new_zeros(weight, {channels, width});
  Tensor dbias = torch::stable::new_zeros(bias ? *bias : weight, {channels});
  Tensor dstates =
      torch::stable::new_zeros(x, {initial_states ? initial_states->size(0) : 0, width - 1, channels});
  Tensor dstates_out = torch::stable::transpose(dstates, 1, 2);
  if (x.numel() == 0) return {dx, dweight, dbias, dstates_out};

  Forward forward(in, layout, true);
  const Tensor fitted_dout = fit_in_tiles(dout, layout);
  const ForwardParams& f = forward.params();
  std::vector<float> partial(f.partition.chunks * (width + 1) * f.channels_padded);
  BackwardParams params = {.forward = f,
                           .dout = view_of(fitted_dout),
                           .dx = view_of(dx),
                           .dinitial_states = dstates.data_ptr(),
                           .partial = partial.data()};
  parallel_tasks(
      forward.tasks(),
      [](void* p, int64_t index, int) { kernels().backward(*static_cast<const BackwardParams*>(p), index); },
      &params);
  kernels().reduce({.dtype = f.dtype,
                    .layout = layout,
                    .width = static_cast<int>(width),
                    .channels = channels,
                    .channels_padded = f.channels_padded,
                    .chunks = f.partition.chunks,
                    .partial = partial.data(),
                    .weight_dtype = dtype_of(kOp, "weight", dweight),
                    .bias_dtype = dtype_of(kOp, "bias", dbias),
                    .dweight = dweight.data_ptr(),
                    .dbias = dbias.data_ptr()});
  return {dx, dweight, dbias, dstates_out};
}

Tensor causal_conv1d_update(Tensor x, Tensor conv_state, Tensor weight, std::optional<Tensor> bias, bool silu,
                            std::optional<Tensor> cache_seqlens, std::optional<Tensor> conv_state_indices) {
  check_update(x, conv_state, weight, bias, conv_state_indices.has_value());
  const int64_t batch = x.size(0), channels = x.size(1), seqlen = x.dim() == 3 ? x.size(2) : 1;
  const int32_t* position = batch_integers("cache_seqlens", cache_seqlens, batch);
  for (int64_t b = 0; position != nullptr && b < batch; ++b) {
    check(position[b] >= 0, kOpUpdate, ": cache_seqlens must not be negative, got ", position[b]);
  }
  const int32_t* state_index = batch_integers("conv_state_indices", conv_state_indices, batch);
  check_state_index(state_index, batch, conv_state.size(0));

  Tensor out = x.dim() == 3 ? empty_result(x, layout_of(x)) : empty_dense(x, {batch, channels});
  if (x.numel() == 0) return out;
  const UpdateFilter filter(x, weight, bias);
  // A row of a small model is done before a second thread has woken up.
  constexpr int64_t kChannelsPerTask = 8192;
  const int64_t channel_blocks = (channels + kChannelsPerTask - 1) / kChannelsPerTask;
  const int64_t batch_block = std::max<int64_t>(1, kChannelsPerTask / (channels * seqlen));
  UpdateParams params = {.dtype = dtype_of(kOpUpdate, "x", x),
                         .weight_dtype = dtype_of(kOpUpdate, "weight", filter.weight),
                         .width = static_cast<int>(weight.size(1)),
                         .silu = silu,
                         .channels = channels,
                         .seqlen = seqlen,
                         .state_length = conv_state.size(2),
                         .x = view_2d(x),
                         .out = view_2d(out),
                         .state = view_of(conv_state),
                         .weight = filter.weight.data_ptr(),
                         .bias = filter.bias ? filter.bias->data_ptr() : nullptr,
                         .weight_channel_stride = filter.weight.stride(0),
                         .weight_tap_stride = filter.weight.stride(1),
                         .bias_stride = filter.bias ? filter.bias->stride(0) : 0,
                         .state_index = state_index,
                         .position = position,
                         .batch_block = batch_block,
                         .channel_block = kChannelsPerTask,
                         .channel_blocks = channel_blocks,
                         .batch = batch};
  parallel_tasks(
      (batch + batch_block - 1) / batch_block * channel_blocks,
      [](void* p, int64_t index, int) { kernels().update(*static_cast<const UpdateParams*>(p), index); },
      &params);
  return out;
}

}  // namespace padfree
