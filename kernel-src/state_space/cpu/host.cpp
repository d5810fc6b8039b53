// Host side of the state-space scan (Mamba 2) on the CPU: checks, allocation, the parameters by name, the row
// of the kernel table.
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include "common/checks.h"
#include "common/cpu/kernel_table.h"
#include "common/cpu/memory.h"
#include "common/cpu/parallel.h"
#include "state_space/cpu/kernels.h"
#include "state_space/cpu/plan.h"
#include "state_space/params.h"
#include "torch_binding.h"

namespace padfree {
namespace state_space {
namespace {

constexpr const char* kOp = "state_space";

const Kernels& current_kernels() {
  return kernels_in_use<generic::kernels, avx2::kernels, avx512::kernels>();
}

// What both ops take.
struct Inputs {
  Tensor x, dt, A, B, C;
  std::optional<Tensor> D, z, dt_bias, initial_states, seq_idx, cu_seqlens;
  bool dt_softplus;
  double dt_min, dt_max;

  int64_t batch() const { return x.size(0); }
  int64_t rows() const { return x.size(1); }
  int64_t heads() const { return x.size(2); }
  int64_t head_dim() const { return x.size(3); }
  int64_t groups() const { return B.size(2); }
  int64_t state_dim() const { return B.size(3); }
  int64_t state_rows() const { return cu_seqlens.has_value() ? cu_seqlens->size(0) - 1 : batch(); }
  std::vector<int64_t> state_shape() const { return {state_rows(), heads(), head_dim(), state_dim()}; }
};

void check_width(const char* what, int64_t width, int64_t most) {
  check(width >= 1 && width <= most, kOp, ": ", what, " must be 1 to ", most, ", got ", width);
}

// A float32 argument of `shape`, made contiguous; does nothing without one.
void take_float32(const char* name, std::optional<Tensor>& tensor, const std::vector<int64_t>& shape) {
  if (!tensor.has_value()) return;
  check_float32(kOp, name, *tensor, shape);
  tensor = torch::stable::contiguous(*tensor);
}

// Checks what memory safety needs, and makes last dimensions contiguous.
void check_inputs(Inputs& in) {
  dtype_of(kOp, "x", in.x);
  check_cpu(kOp, "x", in.x);
  check_dim(kOp, "x", in.x, 4);
  check_dim(kOp, "B", in.B, 4);
  check_same_dtype(kOp, "B", in.B, in.x);
  check_same_dtype(kOp, "C", in.C, in.x);
  check(in.heads() >= 1, kOp, ": heads of x must be at least 1, got 0");
  check(in.groups() >= 1 && in.heads() % in.groups() == 0, kOp, ": groups of B must divide heads of x (",
        in.heads(), "), got ", in.groups());
  check_width("head_dim of x", in.head_dim(), kMaxHeadDim);
  check_width("dstate of B", in.state_dim(), kMaxStateDim);
  check_shape(kOp, "B", in.B, {in.batch(), in.rows(), in.groups(), in.state_dim()});
  check_shape(kOp, "C", in.C, shape_of(in.B));
  check_float32(kOp, "dt", in.dt, {in.batch(), in.rows(), in.heads()});
  check_float32(kOp, "A", in.A, {in.heads()});
  in.A = torch::stable::contiguous(in.A);
  const bool d_per_channel = in.D.has_value() && in.D->dim() == 2;
  take_float32(
      "D", in.D,
      d_per_channel ? std::vector<int64_t>{in.heads(), in.head_dim()} : std::vector<int64_t>{in.heads()});
  take_float32("dt_bias", in.dt_bias, {in.heads()});
  if (in.z.has_value()) {
    check_shape(kOp, "z", *in.z, shape_of(in.x));
    check_same_dtype(kOp, "z", *in.z, in.x);
    in.z = unit_last_stride(*in.z);
  }
  check(!in.seq_idx.has_value() || !in.cu_seqlens.has_value(), kOp,
        ": seq_idx must be None where cu_seqlens is given");
  if (in.cu_seqlens.has_value()) check_boundaries(kOp, *in.cu_seqlens, "x", in.batch(), in.rows());
  if (in.seq_idx.has_value()) {
    check_shape(kOp, "seq_idx", *in.seq_idx, {in.batch(), in.rows()});
    int32_data(kOp, "seq_idx", *in.seq_idx);
  }
  take_float32("initial_states", in.initial_states, in.state_shape());
  for (Tensor* tensor : {&in.x, &in.B, &in.C}) *tensor = unit_last_stride(*tensor);
}

View view_of(const Tensor& tensor) {
  return {tensor.data_ptr(), tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}

FloatView floats_of(const Tensor& tensor) {
  return {static_cast<float*>(tensor.data_ptr()), tensor.stride(0), tensor.stride(1), tensor.stride(2)};
}

float* data_of(const Tensor& tensor) {
  return static_cast<float*>(tensor.data_ptr());
}

Params params_of(const Inputs& in) {
  Params p;
  p.dtype = dtype_of(kOp, "x", in.x);
  p.heads = static_cast<int>(in.heads());
  p.group = static_cast<int>(in.heads() / in.groups());
  p.head_dim = static_cast<int>(in.head_dim());
  p.state_dim = static_cast<int>(in.state_dim());
  p.dt_softplus = in.dt_softplus;
  p.dt_min = static_cast<float>(in.dt_min);
  p.dt_max = static_cast<float>(in.dt_max);
  p.x = view_of(in.x);
  p.B = view_of(in.B);
  p.C = view_of(in.C);
  if (in.z.has_value()) p.z = view_of(*in.z);
  p.dt = floats_of(in.dt);
  p.A = data_of(in.A);
  if (in.D.has_value()) p.D = data_of(*in.D);
  p.d_per_channel = in.D.has_value() && in.D->dim() == 2;
  if (in.dt_bias.has_value()) p.dt_bias = data_of(*in.dt_bias);
  if (in.initial_states.has_value()) p.initial_states = data_of(*in.initial_states);
  p.batch = in.batch();
  p.rows = in.rows();
  return p;
}

// The sequences of a call; they refer to states only where there are any.
std::vector<Sequence> sequences_of(const Inputs& in, bool final_states) {
  std::vector<Sequence> sequences;
  if (in.cu_seqlens.has_value()) {
    sequences = packed_sequences(static_cast<const int32_t*>(in.cu_seqlens->data_ptr()), in.state_rows());
  } else if (in.seq_idx.has_value()) {
    sequences = indexed_sequences(static_cast<const int32_t*>(in.seq_idx->data_ptr()), in.batch(), in.rows());
  } else {
    sequences = dense_sequences(in.batch(), in.rows());
  }
  for (Sequence& s : sequences) {
    if (!in.initial_states.has_value()) s.initial = -1;
    if (!final_states) s.final = -1;
  }
  return sequences;
}

// A new tensor; of zeros unless kernels write all of it.
Tensor new_tensor(const Tensor& like, const std::vector<int64_t>& shape, bool written) {
  return written ? on_huge_pages(empty_dense(like, shape)) : torch::stable::new_zeros(like, shape);
}

// Whether every row belongs to a sequence; rows that do not hold 0 in whatever has rows.
bool covers_all(const Inputs& in, const std::vector<Sequence>& sequences) {
  int64_t covered = 0;
  for (const Sequence& s : sequences) covered += s.length;
  return covered == in.batch() * in.rows();
}

// Floats of one head's state as the kernel saves it.
int64_t saved_stride(const Inputs& in) {
  return in.state_dim() * ((in.head_dim() + kStatePad - 1) / kStatePad * kStatePad);
}

// Floats of all states before later chunks. They are one dimension: a number of chunks of its own would be
// compiled anew where it is 1.
int64_t saved_floats(const Inputs& in) {
  return states_bound(in.batch(), in.rows()) * in.heads() * saved_stride(in);
}

// Room for them. What no kernel writes holds 0: states that this packing does not need, and padding of heads
// whose panels of `panel` columns do not fill it.
Tensor new_saved_states(const Inputs& in, const std::vector<Sequence>& sequences, int64_t panel) {
  const int64_t floats = saved_floats(in), used_width = (in.head_dim() + panel - 1) / panel * panel;
  Tensor states = new_tensor(in.dt, {floats}, used_width * in.state_dim() == saved_stride(in));
  int64_t used = 0;
  for (const Sequence& s : sequences) used += std::max<int64_t>(0, (s.length - 1) / kChunk);
  used *= in.heads() * saved_stride(in);
  std::fill(data_of(states) + used, data_of(states) + floats, 0.0f);
  return states;
}

// Runs `kernel` on every task, with a workspace for each worker.
void run(Params& params, const std::vector<Task>& tasks, const Tensor& like, Kernels::Floats floats,
         Kernels::Run kernel) {
  params.tasks = tasks.data();
  params.workspace_stride = (floats(params) + 15) / 16 * 16;
  const int64_t count = static_cast<int64_t>(tasks.size());
  const int64_t workers = std::max<int64_t>(1, std::min<int64_t>(num_threads(), count));
  const Tensor workspace =
      torch::stable::new_empty(like, {workers * params.workspace_stride}, ScalarType::Float);
  params.workspace = data_of(workspace);
  struct Context {
    const Params& params;
    Kernels::Run kernel;
  } context{params, kernel};
  const auto body = [](void* opaque, int64_t index, int worker) {
    const auto& [p, run_task] = *static_cast<Context*>(opaque);
    run_task(p, p.tasks[index], p.workspace + worker * p.workspace_stride);
  };
  parallel_tasks(count, body, &context);
}

std::tuple<Tensor, Tensor, Tensor> forward_op(Inputs in, bool output_final_states, bool save_states) {
  check_inputs(in);
  const std::vector<Sequence> sequences = sequences_of(in, output_final_states);
  Params params = params_of(in);
  std::vector<int64_t> final_shape = in.state_shape();
  if (!output_final_states) final_shape[0] = 0;
  const Kernels& kernels = current_kernels();
  Tensor out = new_tensor(in.x, shape_of(in.x), covers_all(in, sequences));
  Tensor final_states = torch::stable::new_empty(in.dt, final_shape);
  Tensor states = save_states ? new_saved_states(in, sequences, kernels.panel)
                              : torch::stable::new_empty(in.dt, {int64_t{0}});
  params.out = view_of(out);
  if (output_final_states) params.final_states = data_of(final_states);
  if (save_states) params.states = data_of(states);
  params.state_stride = saved_stride(in);
  params.sequences = sequences.data();
  run(params, forward_tasks(params, sequences, num_threads()), in.dt, kernels.forward_workspace,
      kernels.forward);
  return {out, final_states, states};
}

// Sums over the sequences, in order; `width` values each.
template <typename T>
void sum_sequences(const T* parts, int64_t sequences, int64_t width, const Tensor& to) {
  float* out = data_of(to);
  for (int64_t i = 0; i < width; ++i) {
    double total = 0.0;
    for (int64_t s = 0; s < sequences; ++s) total += parts[s * width + i];
    out[i] = static_cast<float>(total);
  }
}

// Sums the parts of dB and dC.
void run_gather(const Params& params, const Kernels& kernels) {
  struct Context {
    const Params& params;
    const Kernels& kernels;
  } context{params, kernels};
  const auto body = [](void* opaque, int64_t index, int) {
    const auto& [p, k] = *static_cast<Context*>(opaque);
    k.gather(p, index * kGatherRows, std::min(p.batch * p.rows, (index + 1) * kGatherRows));
  };
  parallel_tasks((params.batch * params.rows + kGatherRows - 1) / kGatherRows, body, &context);
}

using Gradients = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor>;

Gradients backward_op(Tensor dout, std::optional<Tensor> dfinal_states, Inputs in, Tensor states) {
  check_inputs(in);
  check_shape(kOp, "dout", dout, shape_of(in.x));
  check_same_dtype(kOp, "dout", dout, in.x);
  check_float32(kOp, "states", states, {saved_floats(in)});
  states = torch::stable::contiguous(states);
  dout = unit_last_stride(dout);
  take_float32("dfinal_states", dfinal_states, in.state_shape());
  const std::vector<Sequence> sequences = sequences_of(in, dfinal_states.has_value());
  const bool all = covers_all(in, sequences);
  const int64_t count = static_cast<int64_t>(sequences.size());
  const auto shape_or_none = [](const std::optional<Tensor>& tensor) {
    return tensor.has_value() ? shape_of(*tensor) : std::vector<int64_t>{0};
  };
  Params params = params_of(in);
  Tensor dx = new_tensor(in.x, shape_of(in.x), all), ddt = new_tensor(in.dt, shape_of(in.dt), all);
  Tensor dB = torch::stable::new_empty(in.B, shape_of(in.B)),
         dC = torch::stable::new_empty(in.C, shape_of(in.C));
  Tensor dz = new_tensor(in.x, in.z.has_value() ? shape_of(in.x) : std::vector<int64_t>{0}, all);
  Tensor dA = torch::stable::new_empty(in.dt, {in.heads()});
  Tensor dD = torch::stable::new_empty(in.dt, shape_or_none(in.D));
  Tensor ddt_bias = torch::stable::new_empty(in.dt, shape_or_none(in.dt_bias));
  std::vector<int64_t> state_shape = in.state_shape();
  if (!in.initial_states.has_value()) state_shape[0] = 0;
  Tensor dinitial_states = torch::stable::new_empty(in.dt, state_shape);

  const int64_t skip_width = in.D.has_value() ? in.heads() * (params.d_per_channel ? in.head_dim() : 1) : 0;
  std::vector<double> dA_sums(count * in.heads()), bias_sums(count * in.heads());
  std::vector<float> dD_sums(count * skip_width);
  params.parts = (params.group + heads_of_part(params) - 1) / heads_of_part(params);
  const std::vector<int64_t> parts_shape = {params.parts, in.batch(), in.rows(), in.groups(), in.state_dim()};
  const Tensor dB_parts = new_tensor(in.dt, parts_shape, all), dC_parts = new_tensor(in.dt, parts_shape, all);
  params.dB_parts = data_of(dB_parts);
  params.dC_parts = data_of(dC_parts);
  if (dfinal_states.has_value()) params.dfinal_states = data_of(*dfinal_states);
  if (in.initial_states.has_value()) params.dinitial_states = data_of(dinitial_states);
  params.states = data_of(states);
  params.state_stride = saved_stride(in);
  params.dout = view_of(dout);
  params.dx = view_of(dx);
  if (in.z.has_value()) params.dz = view_of(dz);
  params.dB = view_of(dB);
  params.dC = view_of(dC);
  params.ddt = floats_of(ddt);
  params.dA = dA_sums.data();
  params.dt_bias_sums = bias_sums.data();
  if (in.D.has_value()) params.dD = dD_sums.data();
  params.sequences = sequences.data();
  const Kernels& kernels = current_kernels();
  run(params, backward_tasks(params, sequences), in.dt, kernels.backward_workspace, kernels.backward);
  run_gather(params, kernels);
  sum_sequences(dA_sums.data(), count, in.heads(), dA);
  if (in.dt_bias.has_value()) sum_sequences(bias_sums.data(), count, in.heads(), ddt_bias);
  if (in.D.has_value()) sum_sequences(dD_sums.data(), count, skip_width, dD);
  return {dx, ddt, dA, dB, dC, dD, dz, ddt_bias, dinitial_states};
}

}  // namespace
}  // namespace state_space

std::tuple<Tensor, Tensor, Tensor> state_space_fwd(
    Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C, std::optional<Tensor> D, std::optional<Tensor> z,
    std::optional<Tensor> dt_bias, std::optional<Tensor> initial_states, std::optional<Tensor> seq_idx,
    std::optional<Tensor> cu_seqlens, bool dt_softplus, double dt_min, double dt_max,
    bool output_final_states, bool save_states) {
  return state_space::forward_op(
      {x, dt, A, B, C, D, z, dt_bias, initial_states, seq_idx, cu_seqlens, dt_softplus, dt_min, dt_max},
      output_final_states, save_states);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> state_space_bwd(
    Tensor dout, std::optional<Tensor> dfinal_states, Tensor x, Tensor dt, Tensor A, Tensor B, Tensor C,
    std::optional<Tensor> D, std::optional<Tensor> z, std::optional<Tensor> dt_bias,
    std::optional<Tensor> initial_states, std::optional<Tensor> seq_idx, std::optional<Tensor> cu_seqlens,
    Tensor states, bool dt_softplus, double dt_min, double dt_max) {
  return state_space::backward_op(
      dout, dfinal_states,
      {x, dt, A, B, C, D, z, dt_bias, initial_states, seq_idx, cu_seqlens, dt_softplus, dt_min, dt_max},
      states);
}

}  // namespace padfree
