#include "gated_delta_rule/cpu/plan.h"

#include <algorithm>

namespace padfree::gated_delta_rule {
namespace {

// Narrower slices of value columns spend more on what each slice repeats (the products of keys) than they
// gain.
constexpr int kMinSlice = 32;

int64_t div_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

void longest_first(std::vector<Task>& tasks) {
  std::stable_sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) { return a.cost > b.cost; });
}

}  // namespace

std::vector<Sequence> dense_sequences(int64_t batch, int64_t length) {
  std::vector<Sequence> sequences(batch);
  for (int64_t b = 0; b < batch; ++b) sequences[b] = {b, 0, length, b * div_up(length, kChunk), b};
  return sequences;
}

std::vector<Sequence> packed_sequences(const int32_t* cu_seqlens, int64_t count) {
  std::vector<Sequence> sequences(count);
  int64_t chunks = 0;
  for (int64_t i = 0; i < count; ++i) {
    sequences[i] = {0, cu_seqlens[i], cu_seqlens[i + 1] - cu_seqlens[i], chunks, i};
    chunks += div_up(sequences[i].length, kChunk);
  }
  return sequences;
}

int64_t chunks_bound(int64_t batch, int64_t rows, int64_t sequences, bool packed) {
  return packed ? rows / kChunk + sequences : batch * div_up(rows, kChunk);
}

std::vector<Task> forward_tasks(const Params& params, const std::vector<Sequence>& sequences, int threads,
                                int panel) {
  const int panels = static_cast<int>(div_up(params.head_dim_v, panel));
  const int max_slices = std::max(1, params.head_dim_v / kMinSlice);
  int64_t total = 0;
  for (const Sequence& s : sequences) total += s.length * params.heads_k * params.group;
  const int64_t wanted = threads == 1 ? total + 1 : total / (threads * 2) + 1;
  std::vector<Task> tasks;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const int64_t length = sequences[i].length;
    const int pieces =
        static_cast<int>(std::min<int64_t>(params.group, div_up(length * params.group, wanted)));
    const int heads = static_cast<int>(div_up(params.group, std::max(1, pieces)));
    const int slices = static_cast<int>(std::clamp<int64_t>(div_up(length * heads, wanted), 1, max_slices));
    const int width = static_cast<int>(div_up(panels, slices));
    for (int key_head = 0; key_head < params.heads_k; ++key_head) {
      for (int head = 0; head < params.group; head += heads) {
        const int head_end = std::min(params.group, head + heads);
        for (int column = 0; column < panels; column += width) {
          tasks.push_back({static_cast<int32_t>(i), key_head, head, head_end, column,
                           std::min(panels, column + width), length * (head_end - head)});
        }
      }
    }
  }
  longest_first(tasks);
  return tasks;
}

std::vector<Task> backward_tasks(const Params& params, const std::vector<Sequence>& sequences) {
  std::vector<Task> tasks;
  for (size_t i = 0; i < sequences.size(); ++i) {
    for (int key_head = 0; key_head < params.heads_k; ++key_head) {
      tasks.push_back({static_cast<int32_t>(i), key_head, 0, params.group, 0, 0, sequences[i].length});
    }
  }
  longest_first(tasks);
  return tasks;
}

std::vector<Task> recurrent_tasks(const Params& params, const std::vector<Sequence>& sequences, int threads) {
  const int all = params.heads_k * params.group;
  int64_t total = 0;
  for (const Sequence& s : sequences) total += s.length * all;
  // One piece a thread: heads in a row ask for one another's states, and every cut begins with a state that
  // nobody has asked for.
  const int64_t wanted = div_up(total, threads);
  std::vector<Task> tasks;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const int64_t length = sequences[i].length;
    const int heads =
        static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(all, wanted / std::max<int64_t>(1, length))));
    for (int head = 0; head < all; head += heads) {
      const int end = std::min(all, head + heads);
      tasks.push_back({static_cast<int32_t>(i), 0, head, end, 0, 0, length * (end - head)});
    }
  }
  longest_first(tasks);
  return tasks;
}

}  // namespace padfree::gated_delta_rule
