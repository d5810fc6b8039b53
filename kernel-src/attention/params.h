// What host.cpp hands to the attention kernels. Plain data; all strides and offsets count elements, 64 bits.
//
// Work is laid out in *virtual rows*: for one sequence and one key/value head, row r stands for query
// position r / group of query head kv_head * group + r % group. One packing of K and V so serves the whole
// group, and a single query position of a grouped model still fills a register tile.
#pragma once

#include <cstdint>

#include "common/types.h"

namespace padfree::attention {

// The largest tile: what kernels size their per-tile arrays by.
constexpr int kMaxBlockQ = 192;
constexpr int kMaxBlockK = 256;

// Sequences of at most this many virtual rows and at least this many keys are streamed (stream.h), in chunks
// of kStreamKeys keys.
constexpr int kStreamRows = 16;
constexpr int64_t kStreamLeastKeys = 128;
constexpr int64_t kStreamKeys = 1024;

// (batch, row, head, head_dim) with a unit last stride. Packed tensors have one batch.
struct View {
  void* data = nullptr;
  int64_t batch_stride = 0;
  int64_t row_stride = 0;
  int64_t head_stride = 0;
};

// (batch, heads, row) with a unit last stride, float32.
struct RowStats {
  float* data = nullptr;
  int64_t batch_stride = 0;
  int64_t head_stride = 0;
};

enum class MaskKind : int { kNone, kBool, kFloat };

// (batch, head, row, key), any strides; bool bytes, or numbers of `dtype` added to the scores.
struct MaskView {
  const void* data = nullptr;
  MaskKind kind = MaskKind::kNone;
  DType dtype = DType::kFloat32;
  int64_t batch_stride = 0;
  int64_t head_stride = 0;
  int64_t row_stride = 0;
  int64_t key_stride = 0;
};

// What is known of a mask ahead of the kernels, for each cell of kCellRows positions by kCellKeys keys:
// whether it shows any key, and whether it changes any score. A stride of 0 where the mask is broadcast.
constexpr int kCellRows = 32, kCellKeys = 64;
constexpr int kShows = 1, kChanges = 2;
struct MaskCells {
  const uint8_t* data = nullptr;
  int64_t batch_stride = 0;
  int64_t head_stride = 0;
  int64_t row_stride = 0;
};

// A run of query rows and the run of key rows they may see. Slack (rows that belong to no sequence) is a run
// with only one of the two, so that it gets its zeros from the same code.
struct Sequence {
  int64_t index = -1;  // in the caller's order; -1 for slack
  int64_t batch = 0;
  int64_t key_batch = 0;  // of k and v: another row of a cache, perhaps
  const int32_t* pages =
      nullptr;  // of a paged cache: where each page_size keys lie; key_begin counts from there
  int64_t query_begin = 0, seqlen_q = 0;
  int64_t key_begin = 0, seqlen_k = 0;
  int64_t first_row = 0;      // virtual rows of all sequences before this one (backward)
  int64_t first_block = 0;    // query blocks of all sequences before this one (backward)
  int64_t first_partial = 0;  // floats of `partials` before this one (streamed)
};

// Virtual rows [begin, end) of one sequence and key/value head (forward, prepare), the key block `begin`
// (backward), or keys [begin, end) of `heads` key/value heads (stream).
struct Task {
  int32_t sequence = 0;
  int32_t kv_head = 0;
  int64_t begin = 0, end = 0;
  int64_t cost = 0;
  int32_t heads = 1;
};

struct Params {
  DType dtype = DType::kFloat32;
  int heads_kv = 1;
  int group = 1;       // heads_q / heads_kv
  int head_dim = 0;    // of q and k
  int head_dim_v = 0;  // of v and out
  float scale = 1.0f;
  float softcap = 0.0f;       // 0: none
  int64_t window_left = -1;   // keys visible before the diagonal; -1: all
  int64_t window_right = -1;  // after it; 0 for causal
  int block_q = 0;            // virtual rows of a tile
  int block_k = 0;            // keys of a tile

  int64_t page_size = 0;  // keys of a page, where sequences have pages

  // Modifiers of scores and weights, absent by default.
  const float* sinks = nullptr;   // [heads_q]
  const float* slopes = nullptr;  // ALiBi, [sequence][heads_q]
  int64_t slopes_stride = 0;      // 0: one row for all sequences
  MaskView mask;
  MaskCells mask_cells;         // no data: nothing is known
  float dropout_factor = 0.0f;  // 1 / (1 - dropout_p), 0 without dropout
  uint32_t dropout_threshold = 0;
  uint64_t dropout_seed = 0;

  View q, k, v, out;
  RowStats lse;
  const Sequence* sequences = nullptr;
  const Task* tasks = nullptr;
  float* workspace = nullptr;    // workspace_stride floats for each worker
  int64_t workspace_stride = 0;  // floats, a multiple of 16
  int task_rows = 0;             // the most virtual rows of a forward task

  float* partials = nullptr;  // what the chunks of streamed sequences leave behind

  // Backward only.
  View dout, dq, dk, dv;
  MaskView dmask;            // the mask's gradient, whole and contiguous; not written when its data is null
  RowStats dlse;             // data is null when the log-sum-exp took no gradient
  float* delta = nullptr;    // [heads_kv][virtual rows]: rowsum(dout * out) - dlse
  float* dq_sum = nullptr;   // [heads_kv][virtual rows][head_dim rounded up to a panel]
  int32_t* turns = nullptr;  // [heads_kv][query blocks]: key blocks already added to that block of dq_sum
  int64_t virtual_rows = 0;  // of all sequences, for one key/value head
  int64_t query_blocks = 0;  // likewise
};

}  // namespace padfree::attention
