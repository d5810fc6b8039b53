// Forward: a task walks its sequences one after the other, each in chunks of tokens that end at multiples of
// kChunk in the batch row, and in a chunk one lane group after the other. States stay in the worker's memory.
#pragma once

#include "selective_scan/cpu/block.h"

namespace padfree::selective_scan {
namespace {

inline void store_output(const Params& p, const BlockSpace& space, const Place& at) {
  if (p.z.data != nullptr) {
    for (int i = 0; i < at.tokens * kLanes; i += Vec::kLanes) {
      store(space.y + i, load(space.y + i) * silu(load(space.z + i)));
    }
  }
  store_tile(p.out, at, space.y);
}

void forward(const Params& p, const Task& task, float* workspace) {
  Arena arena{workspace};
  const BlockSpace space = block_space(p, arena);
  const Block& block = p.blocks[task.block];
  load_constants(p, block, space);
  for (int64_t i = task.sequence_begin; i < task.sequence_end; ++i) {
    const Sequence& sequence = p.sequences[i];
    for_lane_groups(block, [&](LaneGroup g) {
      load_state(p, p.initial_states, sequence.state, g, space.state + g.index * space.matrix);
    });
    for (int64_t time = sequence.begin, end; time < sequence.end; time = end) {
      end = (time / kChunk + 1) * kChunk;
      end = end < sequence.end ? end : sequence.end;
      for_lane_groups(block, [&](LaneGroup g) {
        const Place at = {sequence.batch, g.channel, time, g.channels, static_cast<int>(end - time)};
        if (p.saved != nullptr && time % kChunk == 0) {
          __builtin_memcpy(saved_state(p, block, g, at.batch, time), space.state + g.index * space.matrix,
                           sizeof(float) * space.matrix);
        }
        load_inputs(p, space, g, at);
        Strip s = strip_of(p, block, space, g, at);
        ask_ahead(s, at, {&p.out}, next_tile(block, at, end), {&p.u, &p.delta, &p.z});
        run_strip<false>(s, is_bounded(space, g, at), p.B.constant, p.C.constant);
        store_output(p, space, at);
      });
    }
    if (p.final_states == nullptr) continue;
    for_lane_groups(block, [&](LaneGroup g) {
      unpack(space.state + g.index * space.matrix, g.channels, p.states,
             p.final_states + (sequence.state * p.channels + g.channel) * p.states);
    });
  }
}

}  // namespace
}  // namespace padfree::selective_scan
