// Host side of the single-step state update: checks, both forms of Mamba as one, the parameters by name.
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "common/checks.h"
#include "common/cpu/kernel_table.h"
#include "common/cpu/parallel.h"
#include "selective_state_update/params.h"
#include "torch_binding.h"

namespace padfree::selective_state_update {

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

constexpr const char* kOp = "selective_state_update";

const Kernels& kernels() {
  return kernels_in_use<generic::kKernels, avx2::kKernels, avx512::kKernels>();
}

// B or C as the kernels read it: dense, and float32, which they are not in a 16-bit model. A few hundred
// numbers.
Tensor projection_of(const char* name, Tensor tensor, const std::vector<int64_t>& shape) {
  check_shape(kOp, name, tensor, shape);
  if (dtype_of(kOp, name, tensor) != DType::kFloat32) tensor = torch::stable::to(tensor, ScalarType::Float);
  return dense(tensor);
}

// A (batch, heads, channels) tensor, or without the batch; one without heads is one head.
View view_of(const char* name, const Tensor& tensor, bool batched, bool heads) {
  View view{tensor.data_ptr(), dtype_of(kOp, name, tensor)};
  int64_t dim = 0;
  if (batched) view.batch_stride = tensor.stride(dim++);
  if (heads) view.head_stride = tensor.stride(dim++);
  view.channel_stride = tensor.stride(dim);
  return view;
}

std::vector<int64_t> without_first(const std::vector<int64_t>& shape) {
  return {shape.begin() + 1, shape.end()};
}

// Two rows of one batch must not move the same state: which came last would be chance.
const int32_t* state_rows(const std::optional<Tensor>& indices, int64_t batch, int64_t states) {
  if (!indices.has_value()) return nullptr;
  check_shape(kOp, "state_batch_indices", *indices, {batch});
  const int32_t* rows = int32_data(kOp, "state_batch_indices", *indices);
  std::vector<int32_t> used;
  for (int64_t b = 0; b < batch; ++b) {
    check(rows[b] >= -1 && rows[b] < states, kOp, ": state_batch_indices must be -1 or below ", states,
          ", got ", rows[b]);
    if (rows[b] >= 0) used.push_back(rows[b]);
  }
  std::sort(used.begin(), used.end());
  const auto twice = std::adjacent_find(used.begin(), used.end());
  check(twice == used.end(), kOp, ": state_batch_indices must name each state once, got ",
        twice == used.end() ? 0 : *twice, " twice");
  return rows;
}

}  // namespace
}  // namespace padfree::selective_state_update

namespace padfree {

using namespace selective_state_update;

Tensor update_selective_state(Tensor state, Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C,
                              std::optional<Tensor> D, std::optional<Tensor> z, std::optional<Tensor> dt_bias,
                              bool dt_softplus, std::optional<Tensor> state_batch_indices) {
  check_cpu(kOp, "x", x);
  check(x.dim() == 2 || x.dim() == 3, kOp, ": x must have 2 or 3 dimensions, got ", x.dim());
  const bool heads = x.dim() == 3;
  std::vector<int64_t> shape;
  for (int64_t i = 0; i < x.dim(); ++i) shape.push_back(x.size(i));
  const std::vector<int64_t> per_channel = without_first(shape);
  check_dim(kOp, "state", state, x.dim() + 1);
  check_distinct_elements(kOp, "state", state);
  const int64_t rows = state_batch_indices.has_value() ? state.size(0) : shape[0];
  const int64_t states = state.size(x.dim());

  Params p;
  std::vector<int64_t> state_shape = shape, A_shape = per_channel;
  state_shape[0] = rows;
  state_shape.push_back(states);
  A_shape.push_back(states);
  check_shape(kOp, "state", state, state_shape);
  check(states >= 1, kOp, ": state must hold at least 1 state, got 0");
  check(states <= 1 || state.stride(x.dim()) == 1, kOp,
        ": state must have stride 1 in its last dimension, got ", state.stride(x.dim()));
  check_shape(kOp, "dt", dt, shape);
  if (z.has_value()) check_shape(kOp, "z", *z, shape);
  check_float32(kOp, "A", A, A_shape);
  const int64_t A_stride = A.stride(x.dim() - 1);
  if (states > 1 && A_stride != 0 && A_stride != 1) A = torch::stable::contiguous(A);
  check_dim(kOp, "B", B, x.dim());
  p.groups = heads ? B.size(1) : 1;
  p.heads = heads ? shape[1] : 1;
  check(p.groups >= 1 && p.heads % p.groups == 0, kOp, ": groups of B must divide the heads (", p.heads,
        "), got ", p.groups);
  std::vector<int64_t> projection = {shape[0], states};
  if (heads) projection = {shape[0], p.groups, states};
  B = projection_of("B", B, projection);
  C = projection_of("C", C, projection);
  if (D.has_value()) check_shape(kOp, "D", *D, per_channel);
  if (dt_bias.has_value()) check_shape(kOp, "dt_bias", *dt_bias, per_channel);

  p.batch = shape[0];
  p.head_dim = shape.back();
  p.states = states;
  p.softplus = dt_softplus;
  p.state_rows = state_rows(state_batch_indices, p.batch, rows);
  Tensor out = empty_dense(x, shape);
  p.state = view_of("state", state, true, heads);
  p.x = view_of("x", x, true, heads);
  p.dt = view_of("dt", dt, true, heads);
  p.out = view_of("out", out, true, heads);
  if (z.has_value()) p.z = view_of("z", *z, true, heads);
  if (dt_bias.has_value()) p.dt_bias = view_of("dt_bias", *dt_bias, false, heads);
  if (D.has_value()) p.D = view_of("D", *D, false, heads);
  if (p.batch * p.heads * p.head_dim == 0) return out;
  p.A = view_of("A", A, false, heads);
  p.A_state_stride = states > 1 ? std::min<int64_t>(A.stride(x.dim() - 1), 1) : 1;
  p.one_decay_a_head = heads && p.A_state_stride == 0 && p.A.channel_stride == 0 &&
                       p.dt.channel_stride == 0 && (!dt_bias.has_value() || p.dt_bias.channel_stride == 0);
  p.B = static_cast<const float*>(B.data_ptr());
  p.C = static_cast<const float*>(C.data_ptr());

  // A task moves about 64 KiB of states: less is done before a second thread has woken up.
  constexpr int64_t kStatesPerTask = 16384;
  p.channel_block = std::min(p.head_dim, std::max<int64_t>(1, kStatesPerTask / states));
  p.head_block = std::min(p.heads, std::max<int64_t>(1, kStatesPerTask / (states * p.head_dim)));
  const int64_t tasks = p.batch * ((p.heads + p.head_block - 1) / p.head_block) *
                        ((p.head_dim + p.channel_block - 1) / p.channel_block);
  parallel_tasks(
      tasks,
      [](void* params, int64_t task, int) { kernels().update(*static_cast<const Params*>(params), task); },
      &p);
  return out;
}

}  // namespace padfree
