// Plain calls in 16 bits on a CPU with a matrix unit (AMX) are handed to torch's own flash attention, which
// uses it: no vector code comes near (docs/decisions/0007-amx.md). Plain is what torch's op can express:
// no option beyond the scale and a causal mask, queries and keys of one number where causal, one head dim. It
// knows no packed sequences, so it is called for each. For host.cpp alone.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include "attention/cpu/checks.h"
#include "attention/params.h"
#include "common/cpu/isa.h"

namespace padfree::attention {
namespace {

// Below this many rows a sequence, on average, torch does not take the matrix unit either.
constexpr int64_t kMatrixRows = 64;

bool has_options(const Params& p, const Options& options) {
  const bool causal = p.window_right == 0;
  return p.sinks != nullptr || p.slopes != nullptr || p.mask.data != nullptr || p.softcap != 0 ||
         p.window_left != -1 || !(causal || p.window_right == -1) || options.dropout_p != 0 ||
         options.seqused_q.has_value() || options.seqused_k.has_value() || options.paged() ||
         options.cache_batch_idx.has_value() || options.leftpad_k.has_value();
}

bool torch_op_takes(const Params& p, const Options& options, const std::vector<Sequence>& sequences) {
  const Amx amx = current_amx();
  const bool fast = p.dtype == DType::kBFloat16 ? amx.bfloat16 : p.dtype == DType::kFloat16 && amx.float16;
  if (!fast || has_options(p, options) || p.head_dim != p.head_dim_v || !(p.scale > 0)) return false;
  int64_t count = 0, rows_q = 0, rows_k = 0;
  for (const Sequence& s : sequences) {
    if (s.seqlen_q == 0 && s.seqlen_k == 0) continue;
    const bool slack = s.index < 0, lopsided = p.window_right == 0 && s.seqlen_q != s.seqlen_k;
    if (slack || lopsided || s.seqlen_q == 0 || s.seqlen_k == 0) return false;
    ++count;
    rows_q += s.seqlen_q;
    rows_k += s.seqlen_k;
  }
  return count > 0 && rows_q >= count * kMatrixRows && rows_k >= count * kMatrixRows;
}

template <size_t kResults, size_t kArguments>
std::array<Tensor, kResults> call_torch(const char* op, std::array<StableIValue, kArguments> stack) {
  TORCH_ERROR_CODE_CHECK(torch_call_dispatcher(op, "", stack.data(), TORCH_ABI_VERSION));
  std::array<Tensor, kResults> results;
  for (size_t i = 0; i < kResults; ++i) results[i] = torch::stable::detail::to<Tensor>(stack[i]);
  return results;
}

// torch's op wants (batch, heads, rows, head_dim): the whole batch, or one packed sequence.
Tensor heads_first(const Tensor& x) {
  return torch::stable::transpose(x, 1, 2);
}
Tensor heads_first(const Tensor& x, int64_t begin, int64_t length) {
  Tensor rows = x;
  rows = part_of(rows, 0, begin, length);
  return heads_first(torch::stable::unsqueeze(rows, 0));
}

std::array<Tensor, 2> torch_forward(const Params& p, const Tensor& q, const Tensor& k, const Tensor& v) {
  using torch::stable::detail::from;
  const std::optional<Tensor> no_mask;
  return call_torch<2>(
      "aten::_scaled_dot_product_flash_attention_for_cpu",
      std::array<StableIValue, 7>{from(q), from(k), from(v), from(0.0), from(p.window_right == 0),
                                  from(no_mask), from(std::optional<double>(p.scale))});
}

std::array<Tensor, 3> torch_backward(const Params& p, const Tensor& dout, const Tensor& q, const Tensor& k,
                                     const Tensor& v, const Tensor& out, const Tensor& lse) {
  using torch::stable::detail::from;
  const std::optional<Tensor> no_mask;
  return call_torch<3>("aten::_scaled_dot_product_flash_attention_for_cpu_backward",
                       std::array<StableIValue, 10>{from(dout), from(q), from(k), from(v), from(out),
                                                    from(lse), from(0.0), from(p.window_right == 0),
                                                    from(no_mask), from(std::optional<double>(p.scale))});
}

// to[begin, begin + length) = from, which is (1, heads, length, head_dim).
void put_rows(const Tensor& to, int64_t begin, int64_t length, const Tensor& from) {
  Tensor whole = to, rows = part_of(whole, 0, begin, length);
  torch::stable::copy_(rows, torch::stable::squeeze(heads_first(from), 0));
}

// (out, lse)
std::tuple<Tensor, Tensor> torch_op_forward(const Params& p, const Tensor& q, const Tensor& k,
                                            const Tensor& v, const Options& options,
                                            const std::vector<Sequence>& sequences) {
  if (!options.packed()) {
    const auto [out, lse] = torch_forward(p, heads_first(q), heads_first(k), heads_first(v));
    return {torch::stable::contiguous(heads_first(out)), torch::stable::contiguous(lse)};
  }
  Tensor out = torch::stable::new_empty(q, shape_of(q)), lse = new_floats(q, {q.size(1), q.size(0)});
  for (const Sequence& s : sequences) {
    if (s.seqlen_q == 0) continue;
    const auto [rows, row_lse] =
        torch_forward(p, heads_first(q, s.query_begin, s.seqlen_q), heads_first(k, s.key_begin, s.seqlen_k),
                      heads_first(v, s.key_begin, s.seqlen_k));
    put_rows(out, s.query_begin, s.seqlen_q, rows);
    Tensor columns = part_of(lse, 1, s.query_begin, s.seqlen_q);
    torch::stable::copy_(columns, torch::stable::squeeze(row_lse, 0));
  }
  return {out, lse};
}

// (dq, dk, dv), from the forward's results, whoever computed them.
std::array<Tensor, 3> torch_op_backward(const Params& p, const Tensor& dout, const Tensor& q, const Tensor& k,
                                        const Tensor& v, const Tensor& out, const Tensor& lse,
                                        const Options& options, const std::vector<Sequence>& sequences) {
  if (!options.packed()) {
    auto gradients = torch_backward(p, heads_first(dout), heads_first(q), heads_first(k), heads_first(v),
                                    heads_first(out), lse);
    for (Tensor& gradient : gradients) gradient = torch::stable::contiguous(heads_first(gradient));
    return gradients;
  }
  const std::array<Tensor, 3> gradients = {torch::stable::new_empty(q, shape_of(q)),
                                           torch::stable::new_empty(k, shape_of(k)),
                                           torch::stable::new_empty(v, shape_of(v))};
  for (const Sequence& s : sequences) {
    if (s.seqlen_q == 0) continue;
    const auto queries = [&](const Tensor& x) { return heads_first(x, s.query_begin, s.seqlen_q); };
    const auto keys = [&](const Tensor& x) { return heads_first(x, s.key_begin, s.seqlen_k); };
    Tensor all_lse = lse, row_lse = part_of(all_lse, 1, s.query_begin, s.seqlen_q);
    const auto rows = torch_backward(p, queries(dout), queries(q), keys(k), keys(v), queries(out),
                                     torch::stable::unsqueeze(row_lse, 0));
    put_rows(gradients[0], s.query_begin, s.seqlen_q, rows[0]);
    put_rows(gradients[1], s.key_begin, s.seqlen_k, rows[1]);
    put_rows(gradients[2], s.key_begin, s.seqlen_k, rows[2]);
  }
  return gradients;
}

}  // namespace
}  // namespace padfree::attention
