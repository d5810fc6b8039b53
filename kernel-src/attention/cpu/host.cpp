// Host side of CPU attention: checks, allocation, the parameters by name, the row of the kernel table.
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "attention/cpu/checks.h"
#include "attention/cpu/kernels.h"
#include "attention/cpu/mask_cells.h"
#include "attention/cpu/plan.h"
#include "attention/cpu/torch_op.h"
#include "attention/params.h"
#include "common/checks.h"
#include "common/cpu/kernel_table.h"
#include "common/cpu/memory.h"
#include "common/cpu/parallel.h"

namespace padfree {
namespace attention {
namespace {

const Kernels& current_kernels() {
  return kernels_in_use<generic::kernels, avx2::kernels, avx512::kernels>();
}

// Of tensors of this dtype: kernel_avx512bf16.cpp's where they can run.
const TileKernels& tile_kernels(DType dtype) {
#if defined(__x86_64__)
  if (dtype == DType::kBFloat16 && has_bfloat16_dot()) return avx512bf16::tiles;
#endif
  return current_kernels().tiles;
}

// A head dim in whole panels, as the kernels lay out sums.
int64_t padded(const Kernels& kernels, int64_t head_dim) {
  return (head_dim + kernels.panel - 1) / kernels.panel * kernels.panel;
}

// Runs `kernel` on every task.
void run(Params& params, const std::vector<Task>& tasks, void (*kernel)(const Params&, const Task&, float*)) {
  struct Context {
    const Params& params;
    void (*kernel)(const Params&, const Task&, float*);
  } context{params, kernel};
  params.tasks = tasks.data();
  const auto body = [](void* opaque, int64_t index, int worker) {
    const auto& [p, run_task] = *static_cast<Context*>(opaque);
    run_task(p, p.tasks[index], p.workspace + worker * p.workspace_stride);
  };
  parallel_tasks(static_cast<int64_t>(tasks.size()), body, &context);
}

// A tensor that a kernel fills.
Tensor new_result(const Tensor& like, const std::vector<int64_t>& shape) {
  return on_huge_pages(torch::stable::new_empty(like, shape));
}

// Workspace for as many workers as there can be.
Tensor allocate_workspace(Params& params, const Tensor& like, int64_t floats, size_t tasks) {
  params.workspace_stride = (floats + 15) / 16 * 16;
  const int64_t workers = std::max<int64_t>(1, std::min<int64_t>(num_threads(), static_cast<int64_t>(tasks)));
  Tensor workspace = new_floats(like, {workers * params.workspace_stride});
  params.workspace = static_cast<float*>(workspace.data_ptr());
  return workspace;
}

std::tuple<Tensor, Tensor> forward_op(Tensor q, Tensor k, Tensor v, const Options& options) {
  check_inputs(q, k, v, options);
  q = unit_last_stride(q);
  k = unit_last_stride(k);
  v = unit_last_stride(v);
  std::vector<Sequence> sequences = sequences_of(q, k, options);
  Params params = params_of(q, k, v, options);
  if (torch_op_takes(params, options, sequences)) {
    return torch_op_forward(params, q, k, v, options, sequences);
  }
  std::vector<int64_t> shape = shape_of(q);
  shape.back() = params.head_dim_v;
  Tensor out = new_result(q, shape);
  Tensor lse = new_floats(q, options.packed() ? std::vector<int64_t>{q.size(1), q.size(0)}
                                              : std::vector<int64_t>{q.size(0), q.size(2), q.size(1)});
  params.out = view_of(out);
  params.lse = stats_of(lse);
  params.sequences = sequences.data();
  choose_blocks(params);
  const Kernels& kernels = current_kernels();
  const std::vector<Task> tasks = forward_tasks(params, sequences, num_threads());
  const StreamPlan streamed =
      stream_plan(params, sequences, padded(kernels, params.head_dim_v), num_threads());
  std::vector<uint8_t> cells;
  if (!tasks.empty()) {
    if (options.mask.has_value()) scan_mask(params, q.size(0), q.size(1), k.size(1), cells);
    const TileKernels& tiles = tile_kernels(params.dtype);
    const Tensor workspace = allocate_workspace(params, q, tiles.forward_workspace(params), tasks.size());
    run(params, tasks, tiles.forward);
  }
  if (!streamed.chunks.empty()) {
    const Tensor partials = new_floats(q, {streamed.floats});
    params.partials = static_cast<float*>(partials.data_ptr());
    const Tensor workspace = allocate_workspace(params, q, kernels.stream_workspace(params),
                                                std::max(streamed.chunks.size(), streamed.merges.size()));
    run(params, streamed.chunks, kernels.stream);
    run(params, streamed.merges, kernels.stream_finish);
  }
  return {out, lse};
}

// A sink's weight is exp(sink - lse) in every row, and its value is 0: dsink = -sum over the rows of weight *
// delta.
void sink_gradient(const Params& p, const std::vector<Sequence>& sequences, float* dsinks) {
  for (int head = 0; head < p.heads_kv * p.group; ++head) {
    double sum = 0.0;
    for (const Sequence& s : sequences) {
      const int64_t rows = s.index < 0 ? 0 : s.seqlen_q;
      const float* lse = p.lse.data + s.batch * p.lse.batch_stride + head * p.lse.head_stride + s.query_begin;
      const float* delta = p.delta + head / p.group * p.virtual_rows + s.first_row + head % p.group;
      for (int64_t i = 0; i < rows; ++i) {
        if (p.sinks[head] != -INFINITY) sum -= std::exp(p.sinks[head] - lse[i]) * delta[i * p.group];
      }
    }
    dsinks[head] = static_cast<float>(sum);
  }
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> backward_op(Tensor dout, std::optional<Tensor> dlse,
                                                               Tensor q, Tensor k, Tensor v, Tensor out,
                                                               Tensor lse, const Options& options,
                                                               bool needs_dmask) {
  check_inputs(q, k, v, options);
  check(!needs_dmask || (options.mask.has_value() && options.mask->scalar_type() != ScalarType::Bool), kOp,
        ": mask must be a tensor of numbers where its gradient is needed, got ",
        options.mask.has_value() ? "bool" : "None");
  std::vector<int64_t> out_shape = shape_of(q), lse_shape;
  out_shape.back() = v.size(v.dim() - 1);
  lse_shape = options.packed() ? std::vector<int64_t>{q.size(1), q.size(0)}
                               : std::vector<int64_t>{q.size(0), q.size(2), q.size(1)};
  check_shape(kOp, "out", out, out_shape);
  check_shape(kOp, "dout", dout, out_shape);
  check_same_dtype(kOp, "out", out, q);
  check_same_dtype(kOp, "dout", dout, q);
  check_shape(kOp, "softmax_lse", lse, lse_shape);
  check(lse.scalar_type() == ScalarType::Float, kOp, ": softmax_lse must be float32");
  if (dlse.has_value()) {
    check_shape(kOp, "dlse", *dlse, lse_shape);
    check(dlse->scalar_type() == ScalarType::Float, kOp, ": dlse must be float32");
    dlse = unit_last_stride(*dlse);
  }
  q = unit_last_stride(q);
  k = unit_last_stride(k);
  v = unit_last_stride(v);
  out = unit_last_stride(out);
  dout = unit_last_stride(dout);
  lse = unit_last_stride(lse);
  std::vector<Sequence> sequences = sequences_of(q, k, options);
  Params params = params_of(q, k, v, options);
  if (!dlse.has_value() && torch_op_takes(params, options, sequences)) {
    const auto [dq, dk, dv] = torch_op_backward(params, dout, q, k, v, out, lse, options, sequences);
    return {dq, dk, dv, new_floats(q, {0}), new_floats(q, {0})};
  }
  Tensor dq = new_result(q, shape_of(q));
  Tensor dk = new_result(k, shape_of(k));
  Tensor dv = new_result(v, shape_of(v));
  params.out = view_of(out);
  params.dout = view_of(dout);
  params.dq = view_of(dq);
  params.dk = view_of(dk);
  params.dv = view_of(dv);
  params.lse = stats_of(lse);
  if (dlse.has_value()) params.dlse = stats_of(*dlse);
  choose_blocks(params);
  const Kernels& kernels = current_kernels();
  const TileKernels& tiles = tile_kernels(params.dtype);
  const std::vector<Task> prepare = prepare_backward_tasks(params, sequences);
  const std::vector<Task> tasks = backward_tasks(params, sequences);
  params.sequences = sequences.data();
  const int64_t rows = params.virtual_rows * params.heads_kv;
  const Tensor delta = new_floats(q, {rows}),
               dq_sum = new_floats(q, {rows * padded(kernels, params.head_dim)});
  std::vector<int32_t> turns(params.query_blocks * params.heads_kv, 0);
  params.delta = static_cast<float*>(delta.data_ptr());
  params.dq_sum = static_cast<float*>(dq_sum.data_ptr());
  params.turns = turns.data();
  const Tensor workspace =
      allocate_workspace(params, q, tiles.backward_workspace(params), std::max(prepare.size(), tasks.size()));
  run(params, prepare, kernels.prepare_backward);
  Tensor dsinks = new_floats(q, {params.sinks == nullptr ? 0 : int64_t{params.heads_kv} * params.group});
  if (params.sinks != nullptr) sink_gradient(params, sequences, static_cast<float*>(dsinks.data_ptr()));
  Tensor dmask =
      needs_dmask ? torch::stable::new_zeros(*options.mask, shape_of(*options.mask)) : new_floats(q, {0});
  if (needs_dmask) {
    check_size(kOp, "mask", *options.mask, 0, q.size(0));
    check_size(kOp, "mask", *options.mask, 1, q.size(2));
    params.dmask = mask_of("dmask", dmask, q, k);
  }
  std::vector<uint8_t> cells;
  if (options.mask.has_value()) scan_mask(params, q.size(0), q.size(1), k.size(1), cells);
  run(params, tasks, tiles.backward);
  return {dq, dk, dv, dsinks, dmask};
}

}  // namespace
}  // namespace attention

std::tuple<Tensor, Tensor> attention_fwd(
    Tensor q, Tensor k, Tensor v, std::optional<Tensor> cu_seqlens_q, std::optional<Tensor> cu_seqlens_k,
    int64_t max_seqlen_q, int64_t max_seqlen_k, double softmax_scale, bool causal, int64_t window_left,
    int64_t window_right, double softcap, std::optional<Tensor> sinks, std::optional<Tensor> alibi_slopes,
    double dropout_p, std::optional<Tensor> rng_state, std::optional<Tensor> seqused_q,
    std::optional<Tensor> seqused_k, std::optional<Tensor> mask, std::optional<Tensor> block_table,
    std::optional<Tensor> cache_batch_idx, std::optional<Tensor> leftpad_k) {
  return attention::forward_op(q, k, v,
                               {cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale, causal,
                                window_left, window_right, softcap, sinks, alibi_slopes, dropout_p, rng_state,
                                seqused_q, seqused_k, mask, block_table, cache_batch_idx, leftpad_k});
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> attention_bwd(
    Tensor dout, std::optional<Tensor> dlse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse,
    std::optional<Tensor> cu_seqlens_q, std::optional<Tensor> cu_seqlens_k, int64_t max_seqlen_q,
    int64_t max_seqlen_k, double softmax_scale, bool causal, int64_t window_left, int64_t window_right,
    double softcap, std::optional<Tensor> sinks, std::optional<Tensor> alibi_slopes, double dropout_p,
    std::optional<Tensor> rng_state, std::optional<Tensor> seqused_q, std::optional<Tensor> seqused_k,
    std::optional<Tensor> mask, bool needs_dmask) {
  return attention::backward_op(dout, dlse, q, k, v, out, softmax_lse,
                                {cu_seqlens_q,
                                 cu_seqlens_k,
                                 max_seqlen_q,
                                 max_seqlen_k,
                                 softmax_scale,
                                 causal,
                                 window_left,
                                 window_right,
                                 softcap,
                                 sinks,
                                 alibi_slopes,
                                 dropout_p,
                                 rng_state,
                                 seqused_q,
                                 seqused_k,
                                 mask,
                                 {},
                                 {},
                                 {}},
                                needs_dmask);
}

}  // namespace padfree
