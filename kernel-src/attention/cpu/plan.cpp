#include "attention/cpu/plan.h"

#include <algorithm>

#include "attention/geometry.h"

namespace padfree::attention {
namespace {

// Virtual rows of one forward task. The fewer, the more packing K and V shows (8 % of the time at 96 rows, 4
// % at 768); the more, the larger the state that streams past each key block: up to a few MB of L3 it costs
// nothing.
constexpr int64_t kMinTaskRows = 192;
constexpr int64_t kMaxTaskState = 1 << 20;  // floats of queries and sums
constexpr int64_t kTasksPerThread = 4;

// Query-key pairs of virtual rows [begin, end): exact for whole masks, a trapezium for diagonal ones.
int64_t pairs(const Params& p, const Sequence& s, int64_t begin, int64_t end) {
  const KeyRange first = visible_keys(p, s, begin / p.group), last = visible_keys(p, s, (end - 1) / p.group);
  return (end - begin) * (first.end - first.begin + last.end - last.begin + 2) / 2;
}

void longest_first(std::vector<Task>& tasks) {
  std::stable_sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) { return a.cost > b.cost; });
}

int64_t div_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int64_t round_up(int64_t n, int64_t multiple) {
  return div_up(n, multiple) * multiple;
}

}  // namespace

std::vector<Sequence> dense_sequences(int64_t batch, int64_t seqlen_q, int64_t seqlen_k) {
  std::vector<Sequence> sequences(batch);
  for (int64_t b = 0; b < batch; ++b) {
    sequences[b].index = sequences[b].batch = sequences[b].key_batch = b;
    sequences[b].seqlen_q = seqlen_q;
    sequences[b].seqlen_k = seqlen_k;
  }
  return sequences;
}

std::vector<Sequence> packed_sequences(const int32_t* cu_seqlens_q, const int32_t* cu_seqlens_k,
                                       int64_t count, int64_t total_q, int64_t total_k) {
  std::vector<Sequence> sequences(count);
  for (int64_t i = 0; i < count; ++i) {
    sequences[i].index = i;
    sequences[i].query_begin = cu_seqlens_q[i];
    sequences[i].seqlen_q = cu_seqlens_q[i + 1] - cu_seqlens_q[i];
    sequences[i].key_begin = cu_seqlens_k[i];
    sequences[i].seqlen_k = cu_seqlens_k[i + 1] - cu_seqlens_k[i];
  }
  Sequence queries, keys;  // slack rows: queries that see no key, keys that no query sees
  queries.query_begin = cu_seqlens_q[count];
  queries.seqlen_q = total_q - queries.query_begin;
  keys.key_begin = cu_seqlens_k[count];
  keys.seqlen_k = total_k - keys.key_begin;
  if (queries.seqlen_q > 0) sequences.push_back(queries);
  if (keys.seqlen_k > 0) sequences.push_back(keys);
  return sequences;
}

void use_part(std::vector<Sequence>& sequences, int64_t count, const int32_t* used_q, const int32_t* used_k) {
  for (int64_t i = 0; i < count; ++i) {
    Sequence queries = sequences[i], keys = sequences[i];
    queries.index = keys.index = -1;
    queries.seqlen_k = keys.seqlen_q = 0;
    if (used_q != nullptr) {
      queries.query_begin += used_q[i];
      queries.seqlen_q -= used_q[i];
      sequences[i].seqlen_q = used_q[i];
      if (queries.seqlen_q > 0) sequences.push_back(queries);
    }
    if (used_k != nullptr) {
      keys.key_begin += used_k[i];
      keys.seqlen_k -= used_k[i];
      sequences[i].seqlen_k = used_k[i];
      if (keys.seqlen_k > 0) sequences.push_back(keys);
    }
  }
}

void choose_blocks(Params& params) {
  const int widest = std::max(params.head_dim, params.head_dim_v);
  params.block_q = 96;
  params.block_k = widest <= 128 ? 256 : widest <= 256 ? 128 : 64;
}

bool is_streamed(const Params& params, const Sequence& sequence) {
  const int64_t rows = sequence.seqlen_q * params.group;
  return rows > 0 && rows <= kStreamRows && sequence.seqlen_k >= kStreamLeastKeys;
}

StreamPlan stream_plan(const Params& params, std::vector<Sequence>& sequences, int64_t ld_out, int threads) {
  StreamPlan plan;
  int64_t chunks = 0;
  for (Sequence& s : sequences) {
    if (!is_streamed(params, s)) continue;
    const int64_t of_head = div_up(s.seqlen_k, kStreamKeys);
    s.first_partial = plan.floats;
    plan.floats += of_head * params.heads_kv * partial_floats(s.seqlen_q * params.group, ld_out);
    chunks += of_head;
  }
  // All heads of a key together where they lie together, unless that leaves threads idle, or a mask tells
  // heads apart.
  const bool interleaved = params.k.head_stride < params.k.row_stride;
  int64_t heads = interleaved && params.mask.kind == MaskKind::kNone ? params.heads_kv : 1;
  while (heads > 1 && chunks * div_up(params.heads_kv, heads) < threads * kTasksPerThread)
    heads = div_up(heads, 2);
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Sequence& s = sequences[i];
    if (!is_streamed(params, s)) continue;
    for (int64_t begin = 0; begin < s.seqlen_k; begin += kStreamKeys) {
      const int64_t end = std::min(s.seqlen_k, begin + kStreamKeys);
      for (int64_t head = 0; head < params.heads_kv; head += heads) {
        Task task{static_cast<int32_t>(i), static_cast<int32_t>(head), begin, end, 0};
        task.heads = static_cast<int32_t>(std::min<int64_t>(heads, params.heads_kv - head));
        plan.chunks.push_back(task);
      }
    }
    for (int head = 0; head < params.heads_kv; ++head)
      plan.merges.push_back({static_cast<int32_t>(i), head, 0, 0, 0});
  }
  return plan;
}

std::vector<Task> forward_tasks(Params& params, const std::vector<Sequence>& sequences, int threads) {
  int64_t rows = 0;
  for (const Sequence& s : sequences) {
    if (!is_streamed(params, s)) rows += s.seqlen_q * params.group * params.heads_kv;
  }
  const int64_t most = std::max(kMinTaskRows, kMaxTaskState / (params.head_dim + params.head_dim_v));
  const int64_t fair = threads == 1 ? most : rows / (threads * kTasksPerThread);
  params.task_rows = static_cast<int>(round_up(std::clamp(fair, kMinTaskRows, most), params.block_q));
  std::vector<Task> tasks;
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (is_streamed(params, sequences[i])) continue;
    const int64_t count = sequences[i].seqlen_q * params.group;
    for (int head = 0; head < params.heads_kv; ++head) {
      // Equal pieces: a short last one would pack as much as a long one.
      const int64_t pieces = div_up(count, params.task_rows);
      const int64_t piece = pieces == 0 ? 1 : round_up(div_up(count, pieces), params.block_q);
      for (int64_t begin = 0; begin < count; begin += piece) {
        const int64_t end = std::min(count, begin + piece);
        tasks.push_back({static_cast<int32_t>(i), head, begin, end, pairs(params, sequences[i], begin, end)});
      }
    }
  }
  longest_first(tasks);
  return tasks;
}

std::vector<Task> prepare_backward_tasks(Params& params, std::vector<Sequence>& sequences) {
  params.virtual_rows = params.query_blocks = 0;
  std::vector<Task> tasks;
  for (size_t i = 0; i < sequences.size(); ++i) {
    Sequence& s = sequences[i];
    const int64_t count = s.seqlen_q * params.group;
    s.first_row = params.virtual_rows;
    s.first_block = params.query_blocks;
    params.virtual_rows += count;
    params.query_blocks += div_up(count, params.block_q);
    for (int head = 0; head < params.heads_kv; ++head) {
      for (int64_t begin = 0; begin < count; begin += params.block_q) {
        const int64_t end = std::min<int64_t>(count, begin + params.block_q);
        tasks.push_back({static_cast<int32_t>(i), head, begin, end, 0});
      }
    }
  }
  return tasks;
}

std::vector<Task> backward_tasks(const Params& params, const std::vector<Sequence>& sequences) {
  std::vector<Task> tasks;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const Sequence& s = sequences[i];
    const int64_t blocks = div_up(s.seqlen_k, params.block_k);
    for (int head = 0; head < params.heads_kv; ++head) {
      for (int64_t block = 0; block < blocks; ++block) {
        // Key blocks left in the head times the rows that each meets: long heads start first, blocks rise.
        const int64_t cost = (blocks - block) * std::max<int64_t>(1, s.seqlen_q * params.group);
        tasks.push_back({static_cast<int32_t>(i), head, block, block + 1, cost});
      }
    }
  }
  longest_first(tasks);
  return tasks;
}

}  // namespace padfree::attention
