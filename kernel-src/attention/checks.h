// What the host of every backend checks of an attention call, worded as in Python. For host.cpp files.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "../common/checks.h"

namespace padfree::attention {

constexpr const char* kOp = "attention";
constexpr int64_t kMaxHeadDim = 512;

// What both ops take beside their tensors, in the schemas' order.
struct Options {
  std::optional<Tensor> cu_seqlens_q, cu_seqlens_k;
  int64_t max_seqlen_q, max_seqlen_k;
  double softmax_scale;
  bool causal;
  int64_t window_left, window_right;
  double softcap;
  std::optional<Tensor> sinks, alibi_slopes;
  double dropout_p;
  std::optional<Tensor> rng_state, seqused_q, seqused_k, mask;
  std::optional<Tensor> block_table, cache_batch_idx, leftpad_k;  // of the forward only
  bool packed() const { return cu_seqlens_q.has_value(); }
  bool paged() const { return block_table.has_value(); }
};

inline Tensor new_floats(const Tensor& like, std::vector<int64_t> shape) {
  return torch::stable::new_empty(like, shape, ScalarType::Float);
}

inline void check_inputs(const Tensor& q, const Tensor& k, const Tensor& v, const Options& options) {
  const int64_t dims = options.packed() ? 3 : 4, head = dims - 2, last = dims - 1;
  const int64_t dims_k = options.paged() ? 4 : dims, head_k = dims_k - 2, last_k = dims_k - 1;
  dtype_of(kOp, "q", q);
  check_device(kOp, "q", q);
  check_dim(kOp, "q", q, dims);
  const std::pair<const char*, const Tensor&> others[] = {{"k", k}, {"v", v}};
  for (const auto& [name, tensor] : others) {
    check_same_dtype(kOp, name, tensor, q);
    check_device(kOp, name, tensor);
    check_dim(kOp, name, tensor, dims_k);
  }
  check(q.size(head) >= 1, kOp, ": heads_q must be at least 1, got ", q.size(head));
  check(k.size(head_k) >= 1 && q.size(head) % k.size(head_k) == 0, kOp, ": heads_kv must divide heads_q (",
        q.size(head), "), got ", k.size(head_k));
  if (!options.packed() && !options.paged() && !options.cache_batch_idx.has_value()) {
    check_size(kOp, "k", k, 0, q.size(0));
  }
  check_size(kOp, "k", k, last_k, q.size(last));
  for (int64_t i = 0; i < last_k; ++i) check_size(kOp, "v", v, i, k.size(i));
  check(q.size(last) >= 1 && q.size(last) <= kMaxHeadDim, kOp, ": head_dim must be 1 to ", kMaxHeadDim,
        ", got ", q.size(last));
  check(v.size(last_k) >= 1 && v.size(last_k) <= kMaxHeadDim, kOp, ": head_dim of v must be 1 to ",
        kMaxHeadDim, ", got ", v.size(last_k));
}

inline void check_scores(const Options& options) {
  check(options.softcap >= 0, kOp, ": softcap must be 0.0 (off) or positive, got ", options.softcap);
  check(options.window_left >= -1 && options.window_right >= -1, kOp,
        ": window_size must hold -1 (unbounded) or more, got (", options.window_left, ", ",
        options.window_right, ")");
}

// float32, contiguous, (heads_q,) or (sequences, heads_q): what sinks and slopes are read as.
inline const float* head_data(const char* name, const Tensor& tensor, int64_t heads) {
  check_device(kOp, name, tensor);
  check_size(kOp, name, tensor, tensor.dim() - 1, heads);
  check(tensor.scalar_type() == ScalarType::Float, kOp, ": ", name, " must be float32");
  check(tensor.is_contiguous(), kOp, ": ", name, " must be contiguous");
  return static_cast<const float*>(tensor.data_ptr());
}

// (heads_q,) or (sequences, heads_q).
inline const float* slopes_data(const Tensor& slopes, int64_t heads, int64_t sequences) {
  check(slopes.dim() == 1 || slopes.dim() == 2, kOp, ": alibi_slopes must have 1 or 2 dimensions, got ",
        slopes.dim());
  if (slopes.dim() == 2) check_size(kOp, "alibi_slopes", slopes, 0, sequences);
  return head_data("alibi_slopes", slopes, heads);
}

}  // namespace padfree::attention
