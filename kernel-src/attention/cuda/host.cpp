// Host side of attention on CUDA: checks, what the kernels do not take refused by name, padding to whole 16
// bytes, the parameters by name, the row of the table of head dims.
//
// The values of integer tensors stay on the device: looking at them would wait for it. Boundaries that are
// wrong give too few rows there, and touch nothing that is not theirs (sequence.cuh).
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "../../common/cuda/stream.h"
#include "../checks.h"
#include "kernels.h"
#include "torch_binding.h"

namespace padfree::attention {
namespace {

constexpr int64_t kMost = 0x7fffffff;  // of virtual rows, blocks, and numbers of keys plus a window

void refuse(bool wanted, const char* what) {
  check(!wanted, kOp, ": ", what, " must be None on cuda, where it is not built yet, got a tensor");
}

void refuse_options(const Tensor& q, const Tensor& v, const Options& options) {
  check(q.scalar_type() != ScalarType::Float, kOp, ": q must be bfloat16 or float16 on cuda, got float32");
  refuse(options.mask.has_value(), "mask");
  refuse(options.seqused_q.has_value(), "seqused_q");
  refuse(options.seqused_k.has_value(), "seqused_k");
  refuse(options.block_table.has_value(), "block_table");
  refuse(options.cache_batch_idx.has_value(), "cache_batch_idx");
  refuse(options.leftpad_k.has_value(), "leftpad_k");
  check(options.dropout_p == 0, kOp, ": dropout_p must be 0.0 on cuda, where it is not built yet, got ",
        options.dropout_p);
  const int64_t widest = std::max(q.size(q.dim() - 1), v.size(v.dim() - 1)),
                most = std::end(cuda::kHeadDims)[-1].most;
  check(widest <= most, kOp, ": head_dim must be 1 to ", most, " on cuda, got ", widest);
}

// The tensor itself if each of its rows begins at a multiple of 16 bytes and has whole ones, else a padded
// copy.
Tensor whole_chunks(const Tensor& tensor) {
  const int64_t last = tensor.dim() - 1, size = tensor.size(last),
                chunk = 16 / static_cast<int64_t>(tensor.element_size());
  bool fits = size % chunk == 0 && (tensor.stride(last) == 1 || size == 1) &&
              reinterpret_cast<uintptr_t>(tensor.data_ptr()) % 16 == 0;
  for (int64_t dim = 0; dim < last; ++dim)
    fits = fits && (tensor.size(dim) == 1 || tensor.stride(dim) % chunk == 0);
  if (fits) return tensor;
  std::vector<int64_t> shape = shape_of(tensor);
  shape.back() = (size + chunk - 1) / chunk * chunk;
  const Tensor padded = torch::stable::new_zeros(tensor, shape);
  Tensor inside = part_of(padded, last, 0, size);
  torch::stable::copy_(inside, tensor);
  return padded;
}

cuda::View view_of(Call& call, const char* name, const Tensor& tensor) {
  const int64_t row = tensor.dim() - 3;
  return {call.read(name, tensor), row == 1 ? tensor.stride(0) : 0, tensor.stride(row),
          tensor.stride(row + 1)};
}

const int32_t* boundaries(Call& call, const char* name, const Tensor& cu_seqlens) {
  check_device(kOp, name, cu_seqlens);
  check_dim(kOp, name, cu_seqlens, 1);
  check(cu_seqlens.size(0) >= 1, kOp, ": ", name, " must start at 0, got nothing");
  call.read(name, cu_seqlens);
  return int32_data(kOp, name, cu_seqlens);
}

cuda::Sequences sequences_of(Call& call, const Tensor& q, const Tensor& k, const Options& options) {
  check(options.packed() == options.cu_seqlens_k.has_value(), kOp, ": cu_seqlens_k must be ",
        options.packed() ? "a tensor when cu_seqlens_q is, got None"
                         : "None when cu_seqlens_q is, got a tensor");
  cuda::Sequences all = {};
  if (!options.packed()) {
    all.count = static_cast<int32_t>(q.size(0));
    all.seqlen_q = static_cast<int32_t>(q.size(1));
    all.seqlen_k = static_cast<int32_t>(k.size(1));
    return all;
  }
  check_size(kOp, "cu_seqlens_k", *options.cu_seqlens_k, 0, options.cu_seqlens_q->size(0));
  all.cu_q = boundaries(call, "cu_seqlens_q", *options.cu_seqlens_q);
  all.cu_k = boundaries(call, "cu_seqlens_k", *options.cu_seqlens_k);
  all.count = static_cast<int32_t>(options.cu_seqlens_q->size(0) - 1);
  all.total_q = static_cast<int32_t>(q.size(0));
  all.total_k = static_cast<int32_t>(k.size(0));
  return all;
}

// At most so many blocks of tile_rows virtual rows: each sequence may end inside of one.
int64_t blocks_of(const cuda::ForwardParams& p, int64_t tile_rows) {
  const cuda::Sequences& all = p.sequences;
  const auto tiles = [&](int64_t rows) { return (rows * p.group + tile_rows - 1) / tile_rows; };
  return p.heads_kv *
         (all.cu_q == nullptr ? all.count * tiles(all.seqlen_q) : tiles(all.total_q) + all.count);
}

// A window past every key is none.
int32_t window(int64_t keys, int64_t rows) {
  return keys < 0 || keys > rows ? -1 : static_cast<int32_t>(keys);
}

std::tuple<Tensor, Tensor> forward_op(Tensor q, Tensor k, Tensor v, const Options& options) {
  check_inputs(q, k, v, options);
  refuse_options(q, v, options);
  check_scores(options);
  const int64_t head = q.dim() - 2, rows = q.size(head - 1), keys = k.size(head - 1), heads = q.size(head);
  check(rows * heads <= kMost && keys <= kMost && rows + keys <= kMost, kOp, ": q and k must have at most ",
        kMost, " rows in all on cuda, heads counted, got ", rows, " and ", keys);
  const int64_t head_dim_v = v.size(v.dim() - 1);
  std::vector<int64_t> shape = shape_of(q);
  shape.back() = head_dim_v;
  Tensor out = torch::stable::new_empty(q, shape);
  Tensor lse = new_floats(
      q, options.packed() ? std::vector<int64_t>{heads, rows} : std::vector<int64_t>{q.size(0), heads, rows});
  if (out.numel() == 0) return {out, lse};
  q = whole_chunks(q);
  k = whole_chunks(k);
  v = whole_chunks(v);
  Call call(q);
  cuda::ForwardParams p = {};
  p.q = view_of(call, "q", q);
  p.k = view_of(call, "k", k);
  p.v = view_of(call, "v", v);
  p.out = call.write("out", out);
  p.lse = static_cast<float*>(call.write("softmax_lse", lse));
  p.sequences = sequences_of(call, q, k, options);
  p.heads_kv = static_cast<int32_t>(k.size(head));
  p.group = static_cast<int32_t>(heads / k.size(head));
  p.head_dim = static_cast<int32_t>(q.size(q.dim() - 1));
  p.head_dim_v = static_cast<int32_t>(head_dim_v);
  p.scale = static_cast<float>(options.softmax_scale);
  p.softcap = static_cast<float>(options.softcap);
  p.window_left = window(options.window_left, rows + keys);
  p.window_right = options.causal ? 0 : window(options.window_right, rows + keys);
  if (options.sinks) {
    check_dim(kOp, "sinks", *options.sinks, 1);
    call.read("sinks", *options.sinks);
    p.sinks = head_data("sinks", *options.sinks, heads);
  }
  if (options.alibi_slopes) {
    call.read("alibi_slopes", *options.alibi_slopes);
    p.slopes = slopes_data(*options.alibi_slopes, heads, p.sequences.count);
    p.slopes_stride = options.alibi_slopes->dim() == 2 ? heads : 0;
  }
  const auto* size =
      std::find_if(std::begin(cuda::kHeadDims), std::end(cuda::kHeadDims),
                   [&](const auto& each) { return std::max(p.head_dim, p.head_dim_v) <= each.most; });
  const int64_t blocks = blocks_of(p, size->tile_rows);
  check(blocks <= kMost, kOp, ": q must have at most ", kMost, " tiles of rows on cuda, got ", blocks);
  const std::string words = "q (" + std::to_string(rows) + " rows, " + std::to_string(heads) +
                            " heads, head_dim " + std::to_string(p.head_dim) + ")";
  std::optional<Tensor> places;
  if (options.packed()) {  // of the stream's own memory: used again only behind this call
    places = torch::stable::new_empty(q, {2 * int64_t{p.sequences.count} + 3}, ScalarType::Int);
    p.schedule.order = static_cast<int32_t*>(call.write("schedule", *places));
    p.schedule.first_block = p.schedule.order + p.sequences.count + 1;
    cuda::lay_out_blocks(p, size->tile_rows, call.stream());
  }
  size->forward(dtype_of(kOp, "q", q), p, blocks, words, call.stream());
  return {out, lse};
}

}  // namespace
}  // namespace padfree::attention

namespace padfree {

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

}  // namespace padfree
