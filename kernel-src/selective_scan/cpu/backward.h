// Backward: a task walks its sequences in order, each from its last chunk to its first. A chunk starts from
// the state that the forward saved before it, and is run again; its decays and states are kept for two states
// of a lane group at a time, 16 KiB, and used at once. Sums over tokens stay in the worker's memory until the
// task ends; sums over channels are added lane by lane over the lane groups of the block, then across the
// lanes.
#pragma once

#include "selective_scan/cpu/block.h"

namespace padfree::selective_scan {
namespace {

struct BackwardSpace {
  BlockSpace block;
  float *carry, *dA, *dB_constant, *dC_constant;  // matrices
  float *dD, *ddelta_bias;                        // vectors
  float *dy, *to_w, *to_decay;                    // tiles
  float *decay, *kept;
  float *dB, *dC;  // [states][kChunk][Vec::kLanes]
};

inline BackwardSpace backward_space(const Params& p, Arena& arena) {
  BackwardSpace space;
  space.block = block_space(p, arena);
  const int64_t matrices = p.block_lane_groups * space.block.matrix;
  for (float** m : {&space.carry, &space.dA}) *m = arena.take(matrices);
  space.dB_constant = p.B.constant ? arena.take(matrices) : nullptr;
  space.dC_constant = p.C.constant ? arena.take(matrices) : nullptr;
  for (float** v : {&space.dD, &space.ddelta_bias}) *v = arena.take(p.block_lane_groups * kLanes);
  for (float** tile : {&space.dy, &space.to_w, &space.to_decay}) *tile = arena.take(kChunk * kLanes);
  space.decay = arena.take(kStatesAtATime * kDecayRow);
  space.kept = arena.take(kStatesAtATime * kKeptRow);
  space.dB = p.B.constant ? nullptr : arena.take(p.states * kChunk * Vec::kLanes);
  space.dC = p.C.constant ? nullptr : arena.take(p.states * kChunk * Vec::kLanes);
  return space;
}

inline void clear(float* values, int64_t count) {
  if (values != nullptr) __builtin_memset(values, 0, sizeof(float) * count);
}

// dy = dout silu(z); dz needs y, which is not known yet: it is dout silu'(z) until then.
inline void load_gradients(const Params& p, const BackwardSpace& space, const Place& at) {
  load_tile(p.dout, at, space.dy);
  if (p.z.data == nullptr) return;
  for (int i = 0; i < at.tokens * kLanes; i += Vec::kLanes) {
    const Vec dout = load(space.dy + i), z = load(space.block.z + i), s = sigmoid(z);
    store(space.dy + i, dout * z * s);
    store(space.block.z + i, dout * s * (splat(1.0f) + z * (splat(1.0f) - s)));
  }
}

// From the sums of a strip to du, ddelta and dz, and what of them is summed over tokens.
inline void store_gradients(const Params& p, const BackwardSpace& space, LaneGroup g, const Place& at) {
  const BlockSpace& tiles = space.block;
  for (int c = 0; c < kLanes; c += Vec::kLanes) {
    const int64_t lane = g.index * kLanes + c;
    const Vec skip = load(tiles.D + lane);
    Vec dD = load(space.dD + lane), dbias = load(space.ddelta_bias + lane);
    for (int i = (at.tokens - 1) * kLanes + c; i >= 0; i -= kLanes) {
      const Vec u = load(tiles.u + i), dt = load(tiles.dt + i), dy = load(space.dy + i),
                to_w = load(space.to_w + i);
      Vec ddelta = fma(u, to_w, load(space.to_decay + i) * splat(1.0f / kLog2E));
      if (p.softplus) ddelta = ddelta * sigmoid(load(tiles.raw + i));
      dD = fma(dy, u, dD);
      dbias = dbias + ddelta;
      if (p.z.data != nullptr) store(tiles.z + i, load(tiles.z + i) * load(tiles.y + i));
      store(space.to_w + i, fma(dt, to_w, skip * dy));
      store(space.to_decay + i, ddelta);
    }
    store(space.dD + lane, dD);
    store(space.ddelta_bias + lane, dbias);
  }
  store_tile(p.du, at, space.to_w);
  store_tile(p.ddelta, at, space.to_decay);
  if (p.z.data != nullptr) store_tile(p.dz, at, tiles.z);
}

// One chunk of one lane group.
inline void lane_group_backward(const Params& p, const Block& block, const BackwardSpace& space, LaneGroup g,
                                const Place& at, const Sequence& sequence) {
  const BlockSpace& tiles = space.block;
  const int64_t matrix = g.index * tiles.matrix;
  if (at.time % kChunk == 0)
    __builtin_memcpy(tiles.state + matrix, saved_state(p, block, g, at.batch, at.time),
                     sizeof(float) * tiles.matrix);
  else  // only a sequence's first chunk starts elsewhere
    load_state(p, p.initial_states, sequence.state, g, tiles.state + matrix);
  load_inputs(p, tiles, g, at);
  load_gradients(p, space, at);
  clear(space.to_w, kChunk * kLanes);
  clear(space.to_decay, kChunk * kLanes);
  Strip s = strip_of(p, block, tiles, g, at);
  s.decay = space.decay;
  s.kept = space.kept;
  s.dy = space.dy;
  s.carry = space.carry + matrix;
  s.dA = space.dA + matrix;
  s.to_w = space.to_w;
  s.to_decay = space.to_decay;
  s.dB = p.B.constant ? space.dB_constant + matrix : space.dB;
  s.dC = p.C.constant ? space.dC_constant + matrix : space.dC;
  const int64_t before = at.time > kChunk ? at.time - kChunk : 0;
  ask_ahead(s, at, {&p.du, &p.ddelta, &p.dz}, next_tile(block, at, before), {&p.u, &p.delta, &p.z, &p.dout});
  run_strip<true>(s, is_bounded(tiles, g, at), p.B.constant, p.C.constant);
  store_gradients(p, space, g, at);
}

// The block's sums over channels, across the lanes, to its rows of dB or dC.
inline void store_projection(const Params& p, const Block& block, const Sequence& sequence, int64_t time,
                             int tokens, const float* sums, float* rows) {
  const int64_t batch_row = block.in_group * p.batch + sequence.batch;
  float* to = rows + ((batch_row * p.groups + block.group) * p.seqlen + time) * p.states;
  for (int t = 0; t < tokens; ++t) {
    for (int64_t n = 0; n < p.states; ++n) {
      to[t * p.states + n] = sum(load(sums + (n * kChunk + t) * Vec::kLanes));
    }
  }
}

inline void store_sums(const Params& p, const Task& task, const Block& block, const BackwardSpace& space) {
  for_lane_groups(block, [&](LaneGroup g) {
    const int64_t row = task.part * p.channels + g.channel, matrix = g.index * space.block.matrix;
    unpack(space.dA + matrix, g.channels, p.states, p.dA + row * p.states);
    if (p.B.constant) unpack(space.dB_constant + matrix, g.channels, p.states, p.dB + row * p.states);
    if (p.C.constant) unpack(space.dC_constant + matrix, g.channels, p.states, p.dC + row * p.states);
    unpack(space.dD + g.index * kLanes, g.channels, 1, p.dD + row);
    unpack(space.ddelta_bias + g.index * kLanes, g.channels, 1, p.ddelta_bias + row);
  });
}

inline void sequence_backward(const Params& p, const Block& block, const BackwardSpace& space,
                              const Sequence& sequence) {
  for_lane_groups(block, [&](LaneGroup g) {
    load_state(p, p.dfinal_states, sequence.state, g, space.carry + g.index * space.block.matrix);
  });
  for (int64_t end = sequence.end, time; end > sequence.begin; end = time) {
    time = (end - 1) / kChunk * kChunk;
    time = time > sequence.begin ? time : sequence.begin;
    clear(space.dB, p.states * kChunk * Vec::kLanes);
    clear(space.dC, p.states * kChunk * Vec::kLanes);
    const int tokens = static_cast<int>(end - time);
    for_lane_groups(block, [&](LaneGroup g) {
      lane_group_backward(p, block, space, g, {sequence.batch, g.channel, time, g.channels, tokens},
                          sequence);
    });
    if (!p.B.constant) store_projection(p, block, sequence, time, tokens, space.dB, p.dB);
    if (!p.C.constant) store_projection(p, block, sequence, time, tokens, space.dC, p.dC);
  }
  if (p.dinitial_states == nullptr) return;
  for_lane_groups(block, [&](LaneGroup g) {
    unpack(space.carry + g.index * space.block.matrix, g.channels, p.states,
           p.dinitial_states + (sequence.state * p.channels + g.channel) * p.states);
  });
}

void backward(const Params& p, const Task& task, float* workspace) {
  Arena arena{workspace};
  const BackwardSpace space = backward_space(p, arena);
  const Block& block = p.blocks[task.block];
  load_constants(p, block, space.block);
  const int64_t matrices = p.block_lane_groups * space.block.matrix;
  for (float* sums : {space.dA, space.dB_constant, space.dC_constant}) clear(sums, matrices);
  for (float* sums : {space.dD, space.ddelta_bias}) clear(sums, p.block_lane_groups * kLanes);
  for (int64_t i = task.sequence_begin; i < task.sequence_end; ++i) {
    sequence_backward(p, block, space, p.sequences[i]);
  }
  store_sums(p, task, block, space);
}

}  // namespace
}  // namespace padfree::selective_scan
