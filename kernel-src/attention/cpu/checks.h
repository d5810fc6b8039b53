// From the tensors of a call to sequences and parameters of the CPU kernels: every check that memory safety
// needs, worded as in Python. For host.cpp alone.
#pragma once

#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "attention/checks.h"
#include "attention/cpu/plan.h"
#include "attention/params.h"
#include "common/checks.h"

namespace padfree::attention {
namespace {

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

// One int32 for each sequence, or null when the argument is absent.
const int32_t* per_sequence(const char* name, const std::optional<Tensor>& tensor, int64_t count) {
  if (!tensor.has_value()) return nullptr;
  check_cpu(kOp, name, *tensor);
  check_dim(kOp, name, *tensor, 1);
  check_size(kOp, name, *tensor, 0, count);
  return int32_data(kOp, name, *tensor);
}

// seqused: no more rows than the sequence has.
const int32_t* used_rows(const char* name, const std::optional<Tensor>& tensor,
                         const std::vector<Sequence>& sequences, int64_t count, int64_t Sequence::* length) {
  const int32_t* used = per_sequence(name, tensor, count);
  for (int64_t i = 0; i < count && used != nullptr; ++i) {
    check(0 <= used[i] && used[i] <= sequences[i].*length, kOp, ": ", name,
          " must be 0 to the length of the sequence (", sequences[i].*length, "), got ", used[i]);
  }
  return used;
}

// The pages of each sequence; every key has one, and it exists.
void use_pages(std::vector<Sequence>& sequences, int64_t count, const Tensor& table, const Tensor& k) {
  check_cpu(kOp, "block_table", table);
  check_dim(kOp, "block_table", table, 2);
  check_size(kOp, "block_table", table, 0, count);
  const int32_t* pages = int32_data(kOp, "block_table", table);
  const int64_t width = table.size(1), page_size = k.size(1);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t length = sequences[i].key_begin + sequences[i].seqlen_k;
    check(length <= width * page_size, kOp, ": block_table must have room for ", length, " tokens, got ",
          width, " pages of ", page_size, " (", width * page_size, ")");
    sequences[i].pages = pages + i * width;
    for (int64_t page = 0; page * page_size < length; ++page) {
      const int32_t at = sequences[i].pages[page];
      check(0 <= at && at < k.size(0), kOp, ": block_table must hold pages 0 to ", k.size(0) - 1,
            " where tokens lie, got ", at);
    }
  }
}

// The row of the cache, and the tokens at its start that do not exist.
void use_cache(std::vector<Sequence>& sequences, int64_t count, const Tensor& k, const Options& options) {
  const int32_t* rows = per_sequence("cache_batch_idx", options.cache_batch_idx, count);
  const int32_t* leftpad = per_sequence("leftpad_k", options.leftpad_k, count);
  check((rows == nullptr && leftpad == nullptr) || !options.packed(), kOp,
        ": cu_seqlens_q must be None with cache_batch_idx or leftpad_k, got a tensor");
  for (int64_t i = 0; i < count; ++i) {
    if (rows != nullptr) {
      check(0 <= rows[i] && rows[i] < k.size(0), kOp, ": cache_batch_idx must be below ", k.size(0),
            ", the rows of k_cache, got ", rows[i]);
      sequences[i].key_batch = rows[i];
    }
    if (leftpad != nullptr) {
      check(0 <= leftpad[i] && leftpad[i] <= sequences[i].seqlen_k, kOp,
            ": leftpad_k must be 0 to the tokens in the ", "cache (", sequences[i].seqlen_k, "), got ",
            leftpad[i]);
      sequences[i].key_begin += leftpad[i];
      sequences[i].seqlen_k -= leftpad[i];
    }
  }
}

std::vector<Sequence> packed_sequences_of(const Tensor& q, const Tensor& k, const Options& options) {
  check(options.cu_seqlens_k.has_value(), kOp,
        ": cu_seqlens_k must be a tensor when cu_seqlens_q is, got None");
  const Tensor &cu_q = *options.cu_seqlens_q, &cu_k = *options.cu_seqlens_k;
  const int64_t keys = options.paged() ? INT64_MAX : k.size(0);  // of pages, cu_seqlens_k gives lengths only
  const int32_t* ends_q = boundaries("q", cu_q, q.size(0), options.max_seqlen_q);
  const int32_t* ends_k = boundaries("k", cu_k, keys, options.max_seqlen_k);
  const int64_t count = cu_q.size(0) - 1;
  check(cu_k.size(0) == count + 1, kOp, ": cu_seqlens_k must have ", count + 1,
        " elements as cu_seqlens_q has, got ", cu_k.size(0));
  std::vector<Sequence> sequences =
      packed_sequences(ends_q, ends_k, count, q.size(0), options.paged() ? ends_k[count] : keys);
  for (int64_t i = 0; i < count && options.paged(); ++i) sequences[i].key_begin = 0;
  return sequences;
}

std::vector<Sequence> sequences_of(const Tensor& q, const Tensor& k, const Options& options) {
  check(options.packed() || !options.cu_seqlens_k.has_value(), kOp,
        ": cu_seqlens_k must be None when cu_seqlens_q is, got a tensor");
  const int64_t count = options.packed() ? options.cu_seqlens_q->size(0) - 1 : q.size(0);
  if (options.paged()) check_dim(kOp, "block_table", *options.block_table, 2);
  const int64_t capacity = options.paged() ? options.block_table->size(1) * k.size(1) : k.size(1);
  const bool whole = !options.packed() && !options.seqused_q && !options.seqused_k &&
                     !options.cache_batch_idx && !options.leftpad_k && !options.paged();
  if (whole && q.size(1) == 0 && capacity == 0) return {};  // a batch of nothing may say that it is huge
  std::vector<Sequence> sequences =
      options.packed() ? packed_sequences_of(q, k, options) : dense_sequences(count, q.size(1), capacity);
  const int32_t* used_q = used_rows("seqused_q", options.seqused_q, sequences, count, &Sequence::seqlen_q);
  const int32_t* used_k = used_rows("seqused_k", options.seqused_k, sequences, count, &Sequence::seqlen_k);
  use_part(sequences, count, used_q, used_k);
  use_cache(sequences, count, k, options);
  if (options.paged()) use_pages(sequences, count, *options.block_table, k);
  return sequences;
}

MaskView mask_of(const char* name, const Tensor& mask, const Tensor& q, const Tensor& k) {
  const int64_t shape[] = {q.size(0), q.size(2), q.size(1), k.size(1)};
  check_cpu(kOp, name, mask);
  check_dim(kOp, name, mask, 4);
  for (int i = 0; i < 4; ++i) {
    if (i >= 2 || mask.size(i) != 1) check_size(kOp, name, mask, i, shape[i]);
  }
  MaskView view;
  view.data = mask.data_ptr();
  view.kind = mask.scalar_type() == ScalarType::Bool ? MaskKind::kBool : MaskKind::kFloat;
  if (view.kind == MaskKind::kFloat) view.dtype = dtype_of(kOp, name, mask);
  view.batch_stride = mask.size(0) == 1 ? 0 : mask.stride(0);
  view.head_stride = mask.size(1) == 1 ? 0 : mask.stride(1);
  view.row_stride = mask.stride(2);
  view.key_stride = mask.stride(3);
  return view;
}

void set_dropout(Params& p, const Options& options) {
  check(0 <= options.dropout_p && options.dropout_p < 1, kOp, ": dropout_p must be in [0, 1), got ",
        options.dropout_p);
  if (options.dropout_p == 0) return;
  check(options.rng_state.has_value(), kOp, ": rng_state must be given with dropout_p, got None");
  const Tensor& state = *options.rng_state;
  check_cpu(kOp, "rng_state", state);
  check_dim(kOp, "rng_state", state, 1);
  check_size(kOp, "rng_state", state, 0, 1);
  check(state.scalar_type() == ScalarType::Long, kOp, ": rng_state must be int64");
  p.dropout_seed = static_cast<uint64_t>(*static_cast<const int64_t*>(state.data_ptr()));
  p.dropout_threshold = static_cast<uint32_t>(options.dropout_p * 4294967296.0);
  p.dropout_factor = static_cast<float>(1.0 / (1.0 - options.dropout_p));
}

void set_modifiers(Params& p, const Tensor& q, const Tensor& k, const Options& options) {
  const int64_t heads = q.size(q.dim() - 2);
  const int64_t count = options.packed() ? options.cu_seqlens_q->size(0) - 1 : q.size(0);
  if (options.sinks.has_value()) {
    check_dim(kOp, "sinks", *options.sinks, 1);
    p.sinks = head_data("sinks", *options.sinks, heads);
  }
  if (options.alibi_slopes.has_value()) {
    p.slopes = slopes_data(*options.alibi_slopes, heads, count);
    p.slopes_stride = options.alibi_slopes->dim() == 2 ? heads : 0;
  }
  if (options.mask.has_value()) {
    check(!options.packed() && !options.paged() && !options.cache_batch_idx.has_value(), kOp,
          ": mask must be None with cu_seqlens_q or a cache, got a tensor");
    p.mask = mask_of("mask", *options.mask, q, k);
  }
  set_dropout(p, options);
}

Params params_of(const Tensor& q, const Tensor& k, const Tensor& v, const Options& options) {
  const int64_t head = q.dim() - 2, last = q.dim() - 1;
  check_scores(options);
  Params p;
  p.dtype = dtype_of(kOp, "q", q);
  p.heads_kv = static_cast<int>(k.size(k.dim() - 2));
  p.group = static_cast<int>(q.size(head) / k.size(k.dim() - 2));
  p.head_dim = static_cast<int>(q.size(last));
  p.head_dim_v = static_cast<int>(v.size(v.dim() - 1));
  p.scale = static_cast<float>(options.softmax_scale);
  p.softcap = static_cast<float>(options.softcap);
  p.page_size = options.paged() ? k.size(1) : 0;
  const int64_t keys = options.paged() ? options.block_table->size(1) * k.size(1) : k.size(k.dim() - 3);
  const int64_t widest = q.size(head - 1) + keys;  // a window past every row is no window
  p.window_left = options.window_left > widest ? -1 : options.window_left;
  p.window_right = options.causal ? 0 : options.window_right > widest ? -1 : options.window_right;
  p.q = view_of(q);
  p.k = view_of(k);
  p.v = view_of(v);
  set_modifiers(p, q, k, options);
  return p;
}

}  // namespace
}  // namespace padfree::attention
