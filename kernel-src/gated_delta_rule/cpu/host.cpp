// Host side of the gated delta rule on the CPU: checks, allocation, the parameters by name, the row of the
// kernel table.
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
#include "gated_delta_rule/cpu/kernels.h"
#include "gated_delta_rule/cpu/plan.h"
#include "gated_delta_rule/params.h"
#include "torch_binding.h"

namespace padfree {
namespace gated_delta_rule {
namespace {

constexpr const char* kOp = "gated_delta_rule";

const Kernels& current_kernels() {
  return kernels_in_use<generic::kernels, avx2::kernels, avx512::kernels>();
}

// What every op takes.
struct Inputs {
  Tensor q, k, v, g, beta;
  std::optional<Tensor> initial_state, cu_seqlens;
  double scale;
  bool l2norm;

  int64_t batch() const { return v.size(0); }
  int64_t rows() const { return v.size(1); }
  int64_t heads() const { return v.size(2); }
  int64_t head_dim() const { return q.size(3); }
  int64_t head_dim_v() const { return v.size(3); }
  bool packed() const { return cu_seqlens.has_value(); }
  int64_t sequences() const { return packed() ? cu_seqlens->size(0) - 1 : batch(); }
  std::vector<int64_t> state_shape() const { return {sequences(), heads(), head_dim(), head_dim_v()}; }
};

void check_head_dim(const char* name, int64_t dim) {
  check(dim >= 1 && dim <= kMaxHeadDim, kOp, ": head_dim of ", name, " must be 1 to ", kMaxHeadDim, ", got ",
        dim);
}

// Checks what memory safety needs, and makes last dimensions contiguous.
void check_inputs(Inputs& in) {
  dtype_of(kOp, "q", in.q);
  check_cpu(kOp, "q", in.q);
  check_dim(kOp, "q", in.q, 4);
  check_dim(kOp, "v", in.v, 4);
  check_same_dtype(kOp, "k", in.k, in.q);
  check_same_dtype(kOp, "v", in.v, in.q);
  check_shape(kOp, "k", in.k, shape_of(in.q));
  check_shape(kOp, "v", in.v, {in.q.size(0), in.q.size(1), in.heads(), in.head_dim_v()});
  check(in.q.size(2) >= 1 && in.heads() % in.q.size(2) == 0, kOp, ": heads of q must divide heads of v (",
        in.heads(), "), got ", in.q.size(2));
  check_head_dim("q", in.head_dim());
  check_head_dim("v", in.head_dim_v());
  std::vector<int64_t> per_head = {in.batch(), in.rows(), in.heads()};
  check_float32(kOp, "beta", in.beta, per_head);
  if (in.g.dim() == 4) per_head.push_back(in.head_dim());
  check_float32(kOp, "g", in.g, per_head);
  if (in.packed()) check_boundaries(kOp, *in.cu_seqlens, "q", in.batch(), in.rows());
  if (in.initial_state.has_value()) {
    check_float32(kOp, "initial_state", *in.initial_state, in.state_shape());
    in.initial_state = dense(*in.initial_state);
  }
  for (Tensor* tensor : {&in.q, &in.k, &in.v}) *tensor = unit_last_stride(*tensor);
  if (in.g.dim() == 4) in.g = unit_last_stride(in.g);
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
  p.dtype = dtype_of(kOp, "q", in.q);
  p.gate_per_channel = in.g.dim() == 4;
  p.l2norm = in.l2norm;
  p.heads_k = static_cast<int>(in.q.size(2));
  p.group = static_cast<int>(in.heads() / in.q.size(2));
  p.head_dim = static_cast<int>(in.head_dim());
  p.head_dim_v = static_cast<int>(in.head_dim_v());
  p.scale = static_cast<float>(in.scale);
  p.q = view_of(in.q);
  p.k = view_of(in.k);
  p.v = view_of(in.v);
  p.g = floats_of(in.g);
  p.beta = floats_of(in.beta);
  if (in.initial_state.has_value()) p.initial_state = data_of(*in.initial_state);
  return p;
}

std::vector<Sequence> sequences_of(const Inputs& in) {
  if (!in.packed()) return dense_sequences(in.batch(), in.rows());
  return packed_sequences(static_cast<const int32_t*>(in.cu_seqlens->data_ptr()), in.sequences());
}

std::vector<int64_t> states_shape(const Inputs& in) {
  const int64_t width = (in.head_dim_v() + kStatePad - 1) / kStatePad * kStatePad;
  return {chunks_bound(in.batch(), in.rows(), in.sequences(), in.packed()), in.heads(), in.head_dim(), width};
}

// A new tensor of the shape, on huge pages where it is large; zeros unless kernels write all of it.
Tensor new_tensor(const Tensor& like, const std::vector<int64_t>& shape, bool written) {
  return written ? on_huge_pages(empty_dense(like, shape)) : torch::stable::new_zeros(like, shape);
}

// A new tensor shaped like the rows of the call; rows past the last sequence hold 0.
Tensor new_rows(const Inputs& in, const std::vector<Sequence>& sequences, const Tensor& like) {
  int64_t used = in.packed() ? 0 : in.rows();
  for (const Sequence& s : sequences) used = std::max(used, s.begin + s.length);
  return new_tensor(like, shape_of(like), used == in.rows());
}

// The states before each chunk, as the kernel saves them: panels of `panel` columns. Where empty sequences
// leave chunks over, or panels do not fill the padded width, what no kernel writes holds 0.
Tensor new_states(const Inputs& in, const std::vector<Sequence>& sequences, const std::vector<int64_t>& shape,
                  int64_t panel) {
  int64_t chunks = 0;
  for (const Sequence& s : sequences) chunks += (s.length + kChunk - 1) / kChunk;
  const bool filled = chunks == shape[0] && (in.head_dim_v() + panel - 1) / panel * panel == shape[3];
  return new_tensor(in.beta, shape, filled);
}

// Runs `kernel` on every task, with a workspace for each worker. `like` is float32.
void run(Params& params, const std::vector<Task>& tasks, const Tensor& like, Kernels::Floats floats,
         Kernels::Run kernel) {
  params.tasks = tasks.data();
  params.workspace_stride = (floats(params) + 15) / 16 * 16;
  const int64_t count = static_cast<int64_t>(tasks.size());
  const int64_t workers = std::max<int64_t>(1, std::min<int64_t>(num_threads(), count));
  const Tensor workspace = empty_dense(like, {workers * params.workspace_stride});
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

std::tuple<Tensor, Tensor, Tensor> forward_op(Inputs in, bool output_final_state, bool save_states) {
  check_inputs(in);
  const std::vector<Sequence> sequences = sequences_of(in);
  Params params = params_of(in);
  Tensor out = new_rows(in, sequences, in.v);
  std::vector<int64_t> final_shape = in.state_shape(), saved_shape = states_shape(in);
  if (!output_final_state) final_shape[0] = 0;
  if (!save_states) saved_shape[0] = 0;
  Tensor final_state = torch::stable::new_empty(in.beta, final_shape);
  const Kernels& kernels = current_kernels();
  Tensor states = new_states(in, sequences, saved_shape, kernels.panel);
  params.out = view_of(out);
  if (output_final_state) params.final_state = data_of(final_state);
  if (save_states) params.states = data_of(states);
  params.state_stride = saved_shape[2] * saved_shape[3];
  params.sequences = sequences.data();
  run(params, forward_tasks(params, sequences, num_threads(), kernels.panel), in.beta,
      kernels.forward_workspace[params.gate_per_channel], kernels.forward[params.gate_per_channel]);
  return {out, final_state, states};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> backward_op(Tensor dout,
                                                                       std::optional<Tensor> dfinal_state,
                                                                       Inputs in, Tensor states) {
  check_inputs(in);
  check_shape(kOp, "dout", dout, shape_of(in.v));
  check_same_dtype(kOp, "dout", dout, in.q);
  check_float32(kOp, "states", states, states_shape(in));
  states = torch::stable::contiguous(states);
  dout = unit_last_stride(dout);
  const std::vector<Sequence> sequences = sequences_of(in);
  Params params = params_of(in);
  if (dfinal_state.has_value()) {
    check_float32(kOp, "dfinal_state", *dfinal_state, in.state_shape());
    dfinal_state = torch::stable::contiguous(*dfinal_state);
    params.dfinal_state = data_of(*dfinal_state);
  }
  Tensor dq = new_rows(in, sequences, in.q), dk = new_rows(in, sequences, in.k),
         dv = new_rows(in, sequences, in.v);
  Tensor dg = new_rows(in, sequences, in.g), dbeta = new_rows(in, sequences, in.beta);
  std::vector<int64_t> state_shape = in.state_shape();
  if (!in.initial_state.has_value()) state_shape[0] = 0;
  Tensor dinitial_state = torch::stable::new_empty(in.beta, state_shape);
  if (in.initial_state.has_value()) params.dinitial_state = data_of(dinitial_state);
  params.states = data_of(states);
  params.state_stride = states.size(2) * states.size(3);
  params.dout = view_of(dout);
  params.dq = view_of(dq);
  params.dk = view_of(dk);
  params.dv = view_of(dv);
  params.dg = floats_of(dg);
  params.dbeta = floats_of(dbeta);
  params.sequences = sequences.data();
  const Kernels& kernels = current_kernels();
  run(params, backward_tasks(params, sequences), in.beta, kernels.backward_workspace[params.gate_per_channel],
      kernels.backward[params.gate_per_channel]);
  return {dq, dk, dv, dg, dbeta, dinitial_state};
}

// Writes the final states to `final_state`, which may be in.initial_state.
Tensor recurrent_op(const Inputs& in, const Tensor& final_state) {
  const std::vector<Sequence> sequences = sequences_of(in);
  Params params = params_of(in);
  Tensor out = new_rows(in, sequences, in.v);
  params.out = view_of(out);
  params.final_state = data_of(final_state);
  params.sequences = sequences.data();
  const Kernels& kernels = current_kernels();
  run(params, recurrent_tasks(params, sequences, num_threads()), in.beta, kernels.recurrent_workspace,
      kernels.recurrent);
  return out;
}

}  // namespace
}  // namespace gated_delta_rule

using gated_delta_rule::Inputs;

std::tuple<Tensor, Tensor, Tensor> gated_delta_rule_fwd(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta,
                                                        std::optional<Tensor> initial_state,
                                                        std::optional<Tensor> cu_seqlens, double scale,
                                                        bool l2norm, bool output_final_state,
                                                        bool save_states) {
  return gated_delta_rule::forward_op({q, k, v, g, beta, initial_state, cu_seqlens, scale, l2norm},
                                      output_final_state, save_states);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> gated_delta_rule_bwd(
    Tensor dout, std::optional<Tensor> dfinal_state, Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta,
    std::optional<Tensor> initial_state, std::optional<Tensor> cu_seqlens, Tensor states, double scale,
    bool l2norm) {
  return gated_delta_rule::backward_op(dout, dfinal_state,
                                       {q, k, v, g, beta, initial_state, cu_seqlens, scale, l2norm}, states);
}

std::tuple<Tensor, Tensor> gated_delta_rule_recurrent(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta,
                                                      std::optional<Tensor> initial_state,
                                                      std::optional<Tensor> cu_seqlens, double scale,
                                                      bool l2norm) {
  Inputs in{q, k, v, g, beta, initial_state, cu_seqlens, scale, l2norm};
  gated_delta_rule::check_inputs(in);
  Tensor final_state = empty_dense(beta, in.state_shape());
  return {gated_delta_rule::recurrent_op(in, final_state), final_state};
}

Tensor gated_delta_rule_update(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, Tensor state,
                               std::optional<Tensor> cu_seqlens, double scale, bool l2norm) {
  check(state.is_contiguous(), gated_delta_rule::kOp, ": state must be contiguous");
  Inputs in{q, k, v, g, beta, state, cu_seqlens, scale, l2norm};
  gated_delta_rule::check_inputs(in);
  return gated_delta_rule::recurrent_op(in, state);
}

}  // namespace padfree
