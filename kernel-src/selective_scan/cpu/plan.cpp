#include "selective_scan/cpu/plan.h"

#include <algorithm>

#include "common/cpu/runs.h"

namespace padfree::selective_scan {
namespace {

// Enough for the cores of a server; each block more costs another (L, N) of partial sums for dB and dC.
constexpr int64_t kTasks = 32;
constexpr int64_t kMaxBlockLaneGroups = 16;

int64_t div_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// First sequence of part `part`: parts hold about the same number of tokens.
std::vector<int64_t> cut(const std::vector<Sequence>& sequences, int64_t tokens, int64_t parts) {
  std::vector<int64_t> begins{0};
  int64_t before = 0;
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (before * parts >= tokens * static_cast<int64_t>(begins.size()))
      begins.push_back(static_cast<int64_t>(i));
    before += sequences[i].end - sequences[i].begin;
  }
  begins.push_back(static_cast<int64_t>(sequences.size()));
  return begins;
}

}  // namespace

std::vector<Sequence> sequences_of(const int32_t* seq_idx, int64_t batch, int64_t seqlen, int64_t states) {
  const std::vector<Run> runs = runs_of(seq_idx, batch, seqlen);
  if (seq_idx != nullptr && states >= 0) check_numbers("selective_scan", runs, "the states", states);
  std::vector<Sequence> found;
  for (const Run& run : runs) {
    if (run.number >= 0) found.push_back({run.batch, run.begin, run.end, run.number});
  }
  return found;
}

Plan plan_of(std::vector<Sequence> sequences, int64_t tokens, int64_t channels, int64_t groups) {
  Plan plan;
  plan.sequences = std::move(sequences);
  int64_t used = 0;
  for (const Sequence& s : plan.sequences) used += s.end - s.begin;
  plan.padding = used != tokens;

  if (channels == 0) return plan;  // no task

  const int64_t group_channels = channels / groups;
  const int64_t group_lane_groups = div_up(group_channels, kLanes);
  plan.lane_groups = groups * group_lane_groups;
  const int64_t wanted = std::clamp<int64_t>(plan.lane_groups / kTasks, 1, kMaxBlockLaneGroups);
  plan.blocks_per_group = div_up(group_lane_groups, wanted);
  const int64_t block = div_up(group_lane_groups, plan.blocks_per_group);
  plan.block_lane_groups = static_cast<int>(block);
  plan.blocks_per_group = div_up(group_lane_groups, block);
  for (int64_t group = 0; group < groups; ++group) {
    for (int64_t i = 0; i < plan.blocks_per_group; ++i) {
      const int64_t begin = i * block * kLanes, end = std::min(group_channels, begin + block * kLanes);
      plan.blocks.push_back({group, group * group_channels + begin, group * group_channels + end,
                             group * group_lane_groups + i * block, i});
    }
  }

  const int64_t count = static_cast<int64_t>(plan.sequences.size());
  const int64_t blocks = static_cast<int64_t>(plan.blocks.size());
  const std::vector<int64_t> begins =
      cut(plan.sequences, used, std::clamp<int64_t>(div_up(kTasks, blocks), 1, std::max<int64_t>(count, 1)));
  plan.parts = static_cast<int64_t>(begins.size()) - 1;
  for (int64_t part = 0; part < plan.parts; ++part) {
    for (int64_t b = 0; b < blocks; ++b) plan.tasks.push_back({begins[part], begins[part + 1], b, part});
  }
  return plan;
}

}  // namespace padfree::selective_scan
