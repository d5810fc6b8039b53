#include "state_space/cpu/plan.h"

#include <algorithm>

#include "common/cpu/runs.h"

namespace padfree::state_space {
namespace {

// States of the heads of one task stay in the second-level cache; more heads share the products of B and C.
constexpr int kMostHeads = 8;
// Below this many parts a single long sequence leaves threads without work.
constexpr int kPartsWanted = 4;

int div_up(int64_t a, int64_t b) {
  return static_cast<int>((a + b - 1) / b);
}

// Each sequence saves one state less than it has chunks.
void number_states(std::vector<Sequence>& sequences) {
  int64_t states = 0;
  for (Sequence& s : sequences) {
    s.first_state = states;
    states += std::max<int64_t>(0, (s.length - 1) / kChunk);
  }
}

// `heads` heads a task, all sequences, longest first.
std::vector<Task> tasks_of(const Params& params, const std::vector<Sequence>& sequences, int heads) {
  std::vector<Task> tasks;
  for (size_t i = 0; i < sequences.size(); ++i) {
    for (int group = 0; group < params.heads; group += params.group) {
      for (int head = 0; head < params.group; head += heads) {
        const int end = std::min(params.group, head + heads);
        tasks.push_back({static_cast<int32_t>(i), group + head, group + end, head / heads,
                         sequences[i].length * (end - head)});
      }
    }
  }
  std::stable_sort(tasks.begin(), tasks.end(), [](const Task& a, const Task& b) { return a.cost > b.cost; });
  return tasks;
}

}  // namespace

std::vector<Sequence> dense_sequences(int64_t batch, int64_t length) {
  std::vector<Sequence> sequences(batch);
  for (int64_t b = 0; b < batch; ++b) sequences[b] = {b, 0, length, 0, b, b};
  number_states(sequences);
  return sequences;
}

std::vector<Sequence> packed_sequences(const int32_t* cu_seqlens, int64_t count) {
  std::vector<Sequence> sequences(count);
  for (int64_t i = 0; i < count; ++i) {
    sequences[i] = {0, cu_seqlens[i], cu_seqlens[i + 1] - cu_seqlens[i], 0, i, i};
  }
  number_states(sequences);
  return sequences;
}

std::vector<Sequence> indexed_sequences(const int32_t* seq_idx, int64_t batch, int64_t length) {
  const std::vector<Run> runs = runs_of(seq_idx, batch, length);
  std::vector<Sequence> sequences;
  auto run = runs.begin();
  for (int64_t b = 0; b < batch; ++b) {
    const size_t first = sequences.size();
    for (; run != runs.end() && run->batch == b; ++run) {
      if (run->number >= 0) sequences.push_back({b, run->begin, run->end - run->begin});
    }
    if (sequences.size() == first) sequences.push_back({b, 0, 0});
    sequences[first].initial = b;
    sequences.back().final = b;
  }
  number_states(sequences);
  return sequences;
}

int64_t states_bound(int64_t batch, int64_t length) {
  return batch * (std::max<int64_t>(0, length - 1) / kChunk);
}

int heads_of_part(const Params& params) {
  return std::clamp(div_up(params.heads, kPartsWanted), 1, std::min(kMostHeads, params.group));
}

std::vector<Task> forward_tasks(const Params& params, const std::vector<Sequence>& sequences, int threads) {
  int heads = std::min(kMostHeads, params.group);
  const int64_t groups = params.heads / params.group, count = static_cast<int64_t>(sequences.size());
  while (threads > 1 && heads > 1 && count * groups * div_up(params.group, heads) < 2 * threads) {
    heads = div_up(heads, 2);
  }
  return tasks_of(params, sequences, heads);
}

std::vector<Task> backward_tasks(const Params& params, const std::vector<Sequence>& sequences) {
  return tasks_of(params, sequences, heads_of_part(params));
}

}  // namespace padfree::state_space
