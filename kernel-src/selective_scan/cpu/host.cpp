// Host side of the selective scan on the CPU: checks, allocation, the parameters by name, the sums over
// tasks.
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
#include "selective_scan/cpu/kernels.h"
#include "selective_scan/cpu/plan.h"
#include "selective_scan/params.h"
#include "torch_binding.h"

namespace padfree {
namespace selective_scan {
namespace {

constexpr const char* kOp = "selective_scan";

const Kernels& kernels() {
  return kernels_in_use<generic::kernels, avx2::kernels, avx512::kernels>();
}

// What both ops take.
struct Inputs {
  Tensor u, delta, A, B, C;
  std::optional<Tensor> D, z, delta_bias, seq_idx, initial_states;
  bool softplus;

  int64_t batch() const { return u.size(0); }
  int64_t channels() const { return u.size(1); }
  int64_t seqlen() const { return u.size(2); }
  int64_t states() const { return A.size(1); }
};

float* data_of(const std::optional<Tensor>& tensor) {
  return tensor.has_value() ? static_cast<float*>(tensor->data_ptr()) : nullptr;
}

std::optional<Tensor> contiguous(const std::optional<Tensor>& tensor) {
  if (!tensor.has_value()) return tensor;
  return torch::stable::contiguous(*tensor);
}

// B or C with a unit state stride, or a constant one.
Tensor fit_projection(const char* name, const Tensor& given, const Inputs& in) {
  if (given.dim() == 2) {
    check_float32(kOp, name, given, {in.channels(), in.states()});
    return torch::stable::contiguous(given);
  }
  check_dim(kOp, name, given, 4);
  const int64_t groups = given.size(1);
  check(groups >= 1 && in.channels() % groups == 0, kOp, ": groups of ", name, " must divide the channels (",
        in.channels(), "), got ", groups);
  check_float32(kOp, name, given, {in.batch(), groups, in.states(), in.seqlen()});
  if (given.stride(2) == 1 || in.states() == 1) return given;
  const Tensor rows = torch::stable::contiguous(torch::stable::transpose(given, 2, 3));
  return torch::stable::transpose(rows, 2, 3);
}

int64_t groups_of(const Inputs& in) {
  const int64_t b = in.B.dim() == 4 ? in.B.size(1) : 1, c = in.C.dim() == 4 ? in.C.size(1) : 1;
  check(in.B.dim() != 4 || in.C.dim() != 4 || b == c, kOp, ": C must have the groups of B (", b, "), got ",
        c);
  return std::max(b, c);
}

// Checks what memory safety needs, and brings what is small into the layout that the kernels read.
void check_inputs(Inputs& in) {
  check_cpu(kOp, "u", in.u);
  check_dim(kOp, "u", in.u, 3);
  dtype_of(kOp, "u", in.u);
  const std::vector<int64_t> rows = {in.batch(), in.channels(), in.seqlen()};
  check_shape(kOp, "delta", in.delta, rows);
  if (in.z.has_value()) check_shape(kOp, "z", *in.z, rows);
  check_dim(kOp, "A", in.A, 2);
  check_float32(kOp, "A", in.A, {in.channels(), in.states()});
  check(in.states() >= 1, kOp, ": A must have at least 1 state, got 0");
  in.A = torch::stable::contiguous(in.A);
  in.B = fit_projection("B", in.B, in);
  in.C = fit_projection("C", in.C, in);
  groups_of(in);
  if (in.D.has_value()) check_float32(kOp, "D", *in.D, {in.channels()});
  if (in.delta_bias.has_value()) check_float32(kOp, "delta_bias", *in.delta_bias, {in.channels()});
  if (in.seq_idx.has_value()) check_shape(kOp, "seq_idx", *in.seq_idx, {in.batch(), in.seqlen()});
  if (in.initial_states.has_value()) {
    check_dim(kOp, "initial_states", *in.initial_states, 3);
    const int64_t count = in.seq_idx.has_value() ? in.initial_states->size(0) : in.batch();
    check_float32(kOp, "initial_states", *in.initial_states, {count, in.channels(), in.states()});
  }
  for (std::optional<Tensor>* each : {&in.D, &in.delta_bias, &in.initial_states}) *each = contiguous(*each);
}

View view_of(const char* name, const Tensor& tensor) {
  return {tensor.data_ptr(), dtype_of(kOp, name, tensor), tensor.stride(0), tensor.stride(1),
          tensor.stride(2)};
}

Projection projection_of(const Tensor& tensor) {
  const float* data = static_cast<const float*>(tensor.data_ptr());
  if (tensor.dim() == 2) return {data, true, 0, 0, 0};
  return {data, false, tensor.stride(0), tensor.stride(1), tensor.stride(3)};
}

// The states have `states` rows, -1 if there are none.
Plan plan_for(const Inputs& in, int64_t states) {
  check(in.seq_idx.has_value() || states < 0 || states == in.batch(), kOp,
        ": states must have a row for each of the ", in.batch(), " batch rows without seq_idx, got ", states);
  const int32_t* seq_idx = in.seq_idx.has_value() ? int32_data(kOp, "seq_idx", *in.seq_idx) : nullptr;
  return plan_of(sequences_of(seq_idx, in.batch(), in.seqlen(), states), in.batch() * in.seqlen(),
                 in.channels(), groups_of(in));
}

Params params_of(const Inputs& in, const Plan& plan) {
  Params p;
  p.batch = in.batch();
  p.channels = in.channels();
  p.seqlen = in.seqlen();
  p.groups = groups_of(in);
  p.states = in.states();
  p.lane_groups = plan.lane_groups;
  p.block_lane_groups = plan.block_lane_groups;
  p.softplus = in.softplus;
  p.u = view_of("u", in.u);
  p.delta = view_of("delta", in.delta);
  if (in.z.has_value()) p.z = view_of("z", *in.z);
  p.A = static_cast<const float*>(in.A.data_ptr());
  p.B = projection_of(in.B);
  p.C = projection_of(in.C);
  p.D = data_of(in.D);
  p.delta_bias = data_of(in.delta_bias);
  p.initial_states = data_of(in.initial_states);
  p.sequences = plan.sequences.data();
  p.blocks = plan.blocks.data();
  p.tasks = plan.tasks.data();
  return p;
}

// A new (B, D, L) tensor, channel-last where `like` is (the rule of _register.py); padding holds 0.
Tensor new_rows(const Tensor& like, const Plan& plan) {
  const bool channel_last = like.stride(1) == 1 && like.stride(2) != 1;
  std::vector<int64_t> shape = {like.size(0), like.size(1), like.size(2)};
  if (channel_last) std::swap(shape[1], shape[2]);
  const Tensor rows = on_huge_pages(plan.padding ? torch::stable::new_zeros(like, shape)
                                                 : torch::stable::new_empty(like, shape));
  return channel_last ? torch::stable::transpose(rows, 1, 2) : rows;
}

// The states of `count` sequences: those that have no token keep what `from` says, or 0.
Tensor new_states(const Inputs& in, const Plan& plan, int64_t count, const std::optional<Tensor>& from) {
  const std::vector<int64_t> shape = {count, in.channels(), in.states()};
  if (count == static_cast<int64_t>(plan.sequences.size())) return torch::stable::new_empty(in.A, shape);
  Tensor states = torch::stable::new_zeros(in.A, shape);
  if (from.has_value()) torch::stable::copy_(states, *from);
  return states;
}

std::vector<int64_t> saved_shape(const Inputs& in, int64_t lane_groups) {
  return {in.batch(), (in.seqlen() + kChunk - 1) / kChunk, lane_groups, in.states(), kLanes};
}

// Runs `kernel` on every task, with a workspace for each worker.
void run(Params& params, const Plan& plan, const Tensor& like, Kernels::Floats floats, Kernels::Run kernel) {
  params.workspace_stride = (floats(params) + 15) / 16 * 16;
  const int64_t count = static_cast<int64_t>(plan.tasks.size());
  const int64_t workers = std::max<int64_t>(1, std::min<int64_t>(num_threads(), count));
  const Tensor workspace =
      torch::stable::new_empty(like, {workers * params.workspace_stride}, ScalarType::Float);
  params.workspace = static_cast<float*>(workspace.data_ptr());
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

std::tuple<Tensor, Tensor, Tensor> forward_op(Inputs in, int64_t states, bool save_states) {
  check_inputs(in);
  if (in.initial_states.has_value() && states >= 0) {
    check_size(kOp, "initial_states", *in.initial_states, 0, states);
  }
  const Plan plan = plan_for(in, in.initial_states.has_value() ? in.initial_states->size(0) : states);
  Params params = params_of(in, plan);
  Tensor out = new_rows(in.u, plan);
  Tensor final_states = states < 0 ? torch::stable::new_empty(in.A, {0, in.channels(), in.states()})
                                   : new_states(in, plan, states, in.initial_states);
  std::vector<int64_t> shape = saved_shape(in, plan.lane_groups);
  if (!save_states) shape[0] = 0;
  Tensor saved = plan.padding ? torch::stable::new_zeros(in.A, shape) : torch::stable::new_empty(in.A, shape);
  params.out = view_of("out", out);
  if (states >= 0) params.final_states = static_cast<float*>(final_states.data_ptr());
  if (save_states) params.saved = static_cast<float*>(saved.data_ptr());
  run(params, plan, in.A, kernels().forward_workspace, kernels().forward);
  return {out, final_states, saved};
}

// Adds rows [1, count) of (count, size) to the first one, in order.
void add_rows(float* rows, int64_t count, int64_t size) {
  struct Context {
    float* rows;
    int64_t count, size;
  } context{rows, count, size};
  constexpr int64_t kPiece = 16384;
  const auto body = [](void* opaque, int64_t index, int) {
    const Context& c = *static_cast<Context*>(opaque);
    const int64_t begin = index * kPiece, end = std::min(c.size, begin + kPiece);
    for (int64_t row = 1; row < c.count; ++row) {
      const float* from = c.rows + row * c.size;
      for (int64_t i = begin; i < end; ++i) c.rows[i] += from[i];
    }
  };
  if (count > 1) parallel_tasks((size + kPiece - 1) / kPiece, body, &context);
}

// Partial sums: rows of `shape`; the first one becomes the result.
struct Sums {
  std::vector<int64_t> shape;
  int64_t rows;
  std::vector<float> partial;

  Sums(std::vector<int64_t> row_shape, int64_t count) : shape(std::move(row_shape)), rows(count) {
    partial.resize(rows * size());
  }
  int64_t size() const {
    int64_t product = 1;
    for (int64_t extent : shape) product *= extent;
    return product;
  }
  Tensor result(const Tensor& like) {
    Tensor sum = torch::stable::new_zeros(like, shape, ScalarType::Float);
    if (rows == 0 || size() == 0) return sum;
    add_rows(partial.data(), rows, size());
    std::copy(partial.begin(), partial.begin() + size(), static_cast<float*>(sum.data_ptr()));
    return sum;
  }
};

Sums projection_sums(const Tensor& matrix, const Inputs& in, const Plan& plan) {
  if (matrix.dim() == 2) return Sums({in.channels(), in.states()}, plan.parts);
  return Sums({in.batch(), matrix.size(1), in.seqlen(), in.states()}, plan.blocks_per_group);
}

// As the kernels sum it, (B, G, L, N), to the order of the argument.
Tensor projection_result(Sums& sums, const Tensor& like) {
  const Tensor result = sums.result(like);
  return sums.shape.size() == 2 ? result : torch::stable::transpose(result, 2, 3);
}

}  // namespace
}  // namespace selective_scan

using namespace selective_scan;

std::tuple<Tensor, Tensor, Tensor> selective_scan_fwd(Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C,
                                                      std::optional<Tensor> D, std::optional<Tensor> z,
                                                      std::optional<Tensor> delta_bias,
                                                      std::optional<Tensor> seq_idx,
                                                      std::optional<Tensor> initial_states,
                                                      bool delta_softplus, int64_t states, bool save_states) {
  return forward_op({u, delta, A, B, C, D, z, delta_bias, seq_idx, initial_states, delta_softplus}, states,
                    save_states);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor> selective_scan_bwd(
    Tensor dout, std::optional<Tensor> dfinal_states, Tensor u, Tensor delta, Tensor A, Tensor B, Tensor C,
    std::optional<Tensor> D, std::optional<Tensor> z, std::optional<Tensor> delta_bias,
    std::optional<Tensor> seq_idx, std::optional<Tensor> initial_states, Tensor saved, bool delta_softplus) {
  Inputs in{u, delta, A, B, C, D, z, delta_bias, seq_idx, initial_states, delta_softplus};
  check_inputs(in);
  check_shape(kOp, "dout", dout, {in.batch(), in.channels(), in.seqlen()});
  int64_t states = in.initial_states.has_value() ? in.initial_states->size(0) : -1;
  if (dfinal_states.has_value()) {
    if (states < 0) states = dfinal_states->size(0);
    check_float32(kOp, "dfinal_states", *dfinal_states, {states, in.channels(), in.states()});
    dfinal_states = torch::stable::contiguous(*dfinal_states);
  }
  const Plan plan = plan_for(in, states);
  check_float32(kOp, "saved", saved, saved_shape(in, plan.lane_groups));
  saved = torch::stable::contiguous(saved);
  Params params = params_of(in, plan);
  params.saved = static_cast<float*>(saved.data_ptr());
  params.dout = view_of("dout", dout);
  params.dfinal_states = data_of(dfinal_states);
  Tensor du = new_rows(in.u, plan), ddelta = new_rows(in.delta, plan);
  Tensor dz = in.z.has_value() ? new_rows(*in.z, plan) : torch::stable::new_empty(in.u, {0});
  params.du = view_of("du", du);
  params.ddelta = view_of("ddelta", ddelta);
  if (in.z.has_value()) params.dz = view_of("dz", dz);
  Tensor dinitial = in.initial_states.has_value()
                        ? new_states(in, plan, states, dfinal_states)
                        : torch::stable::new_empty(in.A, {0, in.channels(), in.states()});
  if (in.initial_states.has_value()) params.dinitial_states = static_cast<float*>(dinitial.data_ptr());
  Sums dA({in.channels(), in.states()}, plan.parts), dD({in.channels()}, plan.parts),
      dbias({in.channels()}, plan.parts);
  Sums dB = projection_sums(in.B, in, plan), dC = projection_sums(in.C, in, plan);
  params.dA = dA.partial.data();
  params.dD = dD.partial.data();
  params.ddelta_bias = dbias.partial.data();
  params.dB = dB.partial.data();
  params.dC = dC.partial.data();
  run(params, plan, in.A, kernels().backward_workspace, kernels().backward);
  return {du,
          ddelta,
          dA.result(in.A),
          projection_result(dB, in.A),
          projection_result(dC, in.A),
          dD.result(in.A),
          dz,
          dbias.result(in.A),
          dinitial};
}

}  // namespace padfree
