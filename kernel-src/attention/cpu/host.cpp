// Host side of CPU attention: checks, allocation, the parameters by name, the row of the kernel table.
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include "attention/cpu/kernels.h"
#include "attention/cpu/plan.h"
#include "attention/params.h"
#include "common/checks.h"
#include "common/cpu/isa.h"
#include "common/cpu/parallel.h"

namespace padfree {
namespace attention {
namespace {

constexpr const char* kOp = "attention";
constexpr int64_t kMaxHeadDim = 512;

struct KernelRow {
  Isa isa;
  const Kernels* kernels;
};
constexpr KernelRow kTable[] = {
    {Isa::kGeneric, &generic::kernels},
#if defined(__x86_64__)
    {Isa::kAvx2, &avx2::kernels},
#endif
};

const Kernels& current_kernels() {
  for (const KernelRow& row : kTable) {
    if (row.isa == current_isa()) return *row.kernels;
  }
  fail(kOp, ": PADFREE_ISA must name a path that attention is built for, got ",
       kIsaNames[static_cast<int>(current_isa())]);
}

// What both ops take beside their tensors.
struct Options {
  std::optional<Tensor> cu_seqlens_q, cu_seqlens_k;
  int64_t max_seqlen_q, max_seqlen_k;
  double softmax_scale;
  bool causal;
  int64_t window_left, window_right;
  double softcap;
  bool packed() const { return cu_seqlens_q.has_value(); }
};

Tensor unit_last_stride(const Tensor& tensor) {
  const int64_t last = tensor.dim() - 1;
  return tensor.size(last) <= 1 || tensor.stride(last) == 1 ? tensor : torch::stable::contiguous(tensor);
}

View view_of(const Tensor& tensor) {
  View view;
  view.data = tensor.data_ptr();
  const int64_t row = tensor.dim() - 3;
  view.batch_stride = row == 1 ? tensor.stride(0) : 0;
  view.row_stride = tensor.stride(row);
  view.head_stride = tensor.stride(row + 1);
  return view;
}

RowStats stats_of(const Tensor& stats) {
  RowStats view;
  view.data = static_cast<float*>(stats.data_ptr());
  const int64_t head = stats.dim() - 2;
  view.batch_stride = head == 1 ? stats.stride(0) : 0;
  view.head_stride = stats.stride(head);
  return view;
}

Tensor new_floats(const Tensor& like, std::vector<int64_t> shape) {
  return torch::stable::new_empty(like, shape, ScalarType::Float);
}

std::vector<int64_t> shape_of(const Tensor& tensor) {
  std::vector<int64_t> shape(tensor.dim());
  for (int64_t i = 0; i < tensor.dim(); ++i) shape[i] = tensor.size(i);
  return shape;
}

void check_inputs(const Tensor& q, const Tensor& k, const Tensor& v, bool packed) {
  const int64_t dims = packed ? 3 : 4, head = dims - 2, last = dims - 1;
  dtype_of(kOp, "q", q);
  check_cpu(kOp, "q", q);
  check_dim(kOp, "q", q, dims);
  const std::pair<const char*, const Tensor&> others[] = {{"k", k}, {"v", v}};
  for (const auto& [name, tensor] : others) {
    check_same_dtype(kOp, name, tensor, q);
    check_cpu(kOp, name, tensor);
    check_dim(kOp, name, tensor, dims);
  }
  check(q.size(head) >= 1, kOp, ": heads_q must be at least 1, got ", q.size(head));
  check(k.size(head) >= 1 && q.size(head) % k.size(head) == 0, kOp, ": heads_kv must divide heads_q (",
        q.size(head), "), got ", k.size(head));
  if (!packed) check_size(kOp, "k", k, 0, q.size(0));
  check_size(kOp, "k", k, last, q.size(last));
  for (int64_t i = 0; i < last; ++i) check_size(kOp, "v", v, i, k.size(i));
  check(q.size(last) >= 1 && q.size(last) <= kMaxHeadDim, kOp, ": head_dim must be 1 to ", kMaxHeadDim,
        ", got ", q.size(last));
  check(v.size(last) >= 1 && v.size(last) <= kMaxHeadDim, kOp, ": head_dim of v must be 1 to ", kMaxHeadDim,
        ", got ", v.size(last));
}

// Checked entries of one cu_seqlens.
const int32_t* boundaries(const char* side, const Tensor& cu_seqlens, int64_t rows, int64_t max_seqlen) {
  const std::string name = std::string("cu_seqlens_") + side;
  check_cpu(kOp, name.c_str(), cu_seqlens);
  check_dim(kOp, name.c_str(), cu_seqlens, 1);
  const int32_t* ends = int32_data(kOp, name.c_str(), cu_seqlens);
  const int64_t count = cu_seqlens.size(0);
  check(count > 0, kOp, ": ", name, " must start at 0, got nothing");
  check(ends[0] == 0, kOp, ": ", name, " must start at 0, got ", ends[0]);
  int64_t longest = 0;
  for (int64_t i = 1; i < count; ++i) {
    check(ends[i] >= ends[i - 1], kOp, ": ", name, " must not decrease, got ", ends[i], " after ",
          ends[i - 1]);
    longest = std::max<int64_t>(longest, ends[i] - ends[i - 1]);
  }
  check(ends[count - 1] <= rows, kOp, ": ", name, " must end at or below the number of rows of ", side, " (",
        rows, "), got ", ends[count - 1]);
  check(max_seqlen >= longest, kOp, ": max_seqlen_", side, " must be at least the longest sequence (",
        longest, "), got ", max_seqlen);
  return ends;
}

std::vector<Sequence> sequences_of(const Tensor& q, const Tensor& k, const Options& options) {
  if (!options.packed()) {
    check(!options.cu_seqlens_k.has_value(), kOp,
          ": cu_seqlens_k must be None when cu_seqlens_q is, got a tensor");
    return dense_sequences(q.size(0), q.size(1), k.size(1));
  }
  check(options.cu_seqlens_k.has_value(), kOp,
        ": cu_seqlens_k must be a tensor when cu_seqlens_q is, got None");
  const Tensor &cu_q = *options.cu_seqlens_q, &cu_k = *options.cu_seqlens_k;
  const int32_t* ends_q = boundaries("q", cu_q, q.size(0), options.max_seqlen_q);
  const int32_t* ends_k = boundaries("k", cu_k, k.size(0), options.max_seqlen_k);
  check(cu_k.size(0) == cu_q.size(0), kOp, ": cu_seqlens_k must have ", cu_q.size(0),
        " elements as cu_seqlens_q has, got ", cu_k.size(0));
  return packed_sequences(ends_q, ends_k, cu_q.size(0) - 1, q.size(0), k.size(0));
}

Params params_of(const Tensor& q, const Tensor& k, const Tensor& v, const Options& options) {
  const int64_t head = q.dim() - 2, last = q.dim() - 1;
  check(options.softcap >= 0, kOp, ": softcap must be 0.0 (off) or positive, got ", options.softcap);
  check(options.window_left >= -1 && options.window_right >= -1, kOp,
        ": window_size must hold -1 (unbounded) or more, got (", options.window_left, ", ",
        options.window_right, ")");
  Params p;
  p.dtype = dtype_of(kOp, "q", q);
  p.heads_kv = static_cast<int>(k.size(head));
  p.group = static_cast<int>(q.size(head) / k.size(head));
  p.head_dim = static_cast<int>(q.size(last));
  p.head_dim_v = static_cast<int>(v.size(last));
  p.scale = static_cast<float>(options.softmax_scale);
  p.softcap = static_cast<float>(options.softcap);
  const int64_t widest = q.size(head - 1) + k.size(head - 1);  // a window past every row is no window
  p.window_left = options.window_left > widest ? -1 : options.window_left;
  p.window_right = options.causal ? 0 : options.window_right > widest ? -1 : options.window_right;
  p.q = view_of(q);
  p.k = view_of(k);
  p.v = view_of(v);
  return p;
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

// Workspace for as many workers as there can be.
Tensor allocate_workspace(Params& params, const Tensor& like, int64_t floats, int64_t tasks) {
  params.workspace_stride = (floats + 15) / 16 * 16;
  const int64_t workers = std::max<int64_t>(1, std::min<int64_t>(num_threads(), tasks));
  Tensor workspace = new_floats(like, {workers * params.workspace_stride});
  params.workspace = static_cast<float*>(workspace.data_ptr());
  return workspace;
}

void check_shape(const char* name, const Tensor& tensor, const std::vector<int64_t>& shape) {
  check_cpu(kOp, name, tensor);
  check_dim(kOp, name, tensor, static_cast<int64_t>(shape.size()));
  for (size_t i = 0; i < shape.size(); ++i) check_size(kOp, name, tensor, static_cast<int64_t>(i), shape[i]);
}

std::tuple<Tensor, Tensor> forward_op(Tensor q, Tensor k, Tensor v, const Options& options) {
  check_inputs(q, k, v, options.packed());
  q = unit_last_stride(q);
  k = unit_last_stride(k);
  v = unit_last_stride(v);
  std::vector<Sequence> sequences = sequences_of(q, k, options);
  Params params = params_of(q, k, v, options);
  std::vector<int64_t> shape = shape_of(q);
  shape.back() = params.head_dim_v;
  Tensor out = torch::stable::new_empty(q, shape);
  Tensor lse = new_floats(q, options.packed() ? std::vector<int64_t>{q.size(1), q.size(0)}
                                              : std::vector<int64_t>{q.size(0), q.size(2), q.size(1)});
  params.out = view_of(out);
  params.lse = stats_of(lse);
  params.sequences = sequences.data();
  choose_forward_blocks(params);
  const Kernels& kernels = current_kernels();
  const std::vector<Task> tasks = forward_tasks(params, sequences, num_threads());
  const Tensor workspace =
      allocate_workspace(params, q, kernels.forward_workspace(params), static_cast<int64_t>(tasks.size()));
  run(params, tasks, kernels.forward);
  return {out, lse};
}

std::tuple<Tensor, Tensor, Tensor> backward_op(Tensor dout, std::optional<Tensor> dlse, Tensor q, Tensor k,
                                               Tensor v, Tensor out, Tensor lse, const Options& options) {
  check_inputs(q, k, v, options.packed());
  std::vector<int64_t> out_shape = shape_of(q), lse_shape;
  out_shape.back() = v.size(v.dim() - 1);
  lse_shape = options.packed() ? std::vector<int64_t>{q.size(1), q.size(0)}
                               : std::vector<int64_t>{q.size(0), q.size(2), q.size(1)};
  check_shape("out", out, out_shape);
  check_shape("dout", dout, out_shape);
  check_same_dtype(kOp, "out", out, q);
  check_same_dtype(kOp, "dout", dout, q);
  check_shape("softmax_lse", lse, lse_shape);
  check(lse.scalar_type() == ScalarType::Float, kOp, ": softmax_lse must be float32");
  if (dlse.has_value()) {
    check_shape("dlse", *dlse, lse_shape);
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
  Tensor dq = torch::stable::new_empty(q, shape_of(q));
  Tensor dk = torch::stable::new_empty(k, shape_of(k));
  Tensor dv = torch::stable::new_empty(v, shape_of(v));
  params.out = view_of(out);
  params.dout = view_of(dout);
  params.dq = view_of(dq);
  params.dk = view_of(dk);
  params.dv = view_of(dv);
  params.lse = stats_of(lse);
  if (dlse.has_value()) params.dlse = stats_of(*dlse);
  choose_backward_blocks(params);
  const Kernels& kernels = current_kernels();
  const std::vector<Task> prepare = prepare_backward_tasks(params, sequences);
  const std::vector<Task> tasks = backward_tasks(params, sequences);
  params.sequences = sequences.data();
  const int64_t rows = params.virtual_rows * params.heads_kv;
  const int64_t padded = (params.head_dim + kernels.panel - 1) / kernels.panel * kernels.panel;
  const Tensor delta = new_floats(q, {rows}), dq_sum = new_floats(q, {rows * padded});
  std::vector<int32_t> turns(params.query_blocks * params.heads_kv, 0);
  params.delta = static_cast<float*>(delta.data_ptr());
  params.dq_sum = static_cast<float*>(dq_sum.data_ptr());
  params.turns = turns.data();
  const Tensor workspace = allocate_workspace(params, q, kernels.backward_workspace(params),
                                              static_cast<int64_t>(std::max(prepare.size(), tasks.size())));
  run(params, prepare, kernels.prepare_backward);
  run(params, tasks, kernels.backward);
  return {dq, dk, dv};
}

}  // namespace
}  // namespace attention

std::tuple<Tensor, Tensor> attention_fwd(Tensor q, Tensor k, Tensor v, std::optional<Tensor> cu_seqlens_q,
                                         std::optional<Tensor> cu_seqlens_k, int64_t max_seqlen_q,
                                         int64_t max_seqlen_k, double softmax_scale, bool causal,
                                         int64_t window_left, int64_t window_right, double softcap) {
  return attention::forward_op(q, k, v,
                               {cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale, causal,
                                window_left, window_right, softcap});
}

std::tuple<Tensor, Tensor, Tensor> attention_bwd(Tensor dout, std::optional<Tensor> dlse, Tensor q, Tensor k,
                                                 Tensor v, Tensor out, Tensor softmax_lse,
                                                 std::optional<Tensor> cu_seqlens_q,
                                                 std::optional<Tensor> cu_seqlens_k, int64_t max_seqlen_q,
                                                 int64_t max_seqlen_k, double softmax_scale, bool causal,
                                                 int64_t window_left, int64_t window_right, double softcap) {
  return attention::backward_op(dout, dlse, q, k, v, out, softmax_lse,
                                {cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale,
                                 causal, window_left, window_right, softcap});
}

}  // namespace padfree
