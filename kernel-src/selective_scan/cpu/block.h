// What forward and backward share: a worker's memory for the lane groups of one block, and a tile's way from
// the inputs to the strip that scan.h runs.
#pragma once

#include "selective_scan/cpu/scan.h"
#include "selective_scan/cpu/tiles.h"

namespace padfree::selective_scan {
namespace {

// Matrices are [lane group][states][kLanes], vectors [lane group][kLanes], tiles [kChunk][kLanes].
struct BlockSpace {
  float *A2, *state, *B, *C;  // B and C: constant ones only
  float *D, *delta_bias;
  float* steepest;  // one number a lane group: the largest |A2|
  float* exp2;      // [kExp2Terms][Vec::kLanes]
  float *u, *raw, *dt, *w, *z, *y;
  int64_t matrix;  // floats of one lane group's matrix
};

inline BlockSpace block_space(const Params& p, Arena& arena) {
  BlockSpace space;
  space.matrix = p.states * kLanes;
  for (float** m : {&space.A2, &space.state}) *m = arena.take(p.block_lane_groups * space.matrix);
  space.B = p.B.constant ? arena.take(p.block_lane_groups * space.matrix) : nullptr;
  space.C = p.C.constant ? arena.take(p.block_lane_groups * space.matrix) : nullptr;
  for (float** v : {&space.D, &space.delta_bias}) *v = arena.take(p.block_lane_groups * kLanes);
  space.steepest = arena.take(p.block_lane_groups);
  space.exp2 = arena.take(kExp2Terms * Vec::kLanes);
  for (float** tile : {&space.u, &space.raw, &space.dt, &space.w, &space.z, &space.y}) {
    *tile = arena.take(kChunk * kLanes);
  }
  return space;
}

// One lane group of the block.
struct LaneGroup {
  int index;        // in the block
  int64_t channel;  // its first one
  int channels;
};

template <typename F>
inline void for_lane_groups(const Block& block, F&& f) {
  int index = 0;
  for (int64_t channel = block.channel_begin; channel < block.channel_end; channel += kLanes, ++index) {
    const int64_t left = block.channel_end - channel;
    f(LaneGroup{index, channel, static_cast<int>(left < kLanes ? left : kLanes)});
  }
}

// The largest magnitude of what is a number: of two operands max gives the second where one is NaN.
inline float largest(const float* values, int64_t count) {
  Vec most = zero();
  for (int64_t i = 0; i < count; i += Vec::kLanes) most = max(abs(load(values + i)), most);
  return max_lane(most);
}

// Constants of the block's channels into the worker's memory.
inline void load_constants(const Params& p, const Block& block, const BlockSpace& space) {
  for (int term = 0; term < kExp2Terms; ++term) store(space.exp2 + term * Vec::kLanes, splat(kExp2[term]));
  for_lane_groups(block, [&](LaneGroup g) {
    const int64_t at = g.index * space.matrix;
    pack(p.A + g.channel * p.states, g.channels, p.states, kLog2E, space.A2 + at);
    if (p.B.constant) pack(p.B.data + g.channel * p.states, g.channels, p.states, 1.0f, space.B + at);
    if (p.C.constant) pack(p.C.data + g.channel * p.states, g.channels, p.states, 1.0f, space.C + at);
    space.steepest[g.index] = largest(space.A2 + at, space.matrix);
    for (int c = 0; c < kLanes; ++c) {
      const bool used = c < g.channels;
      space.D[g.index * kLanes + c] = used && p.D != nullptr ? p.D[g.channel + c] : 0.0f;
      space.delta_bias[g.index * kLanes + c] =
          used && p.delta_bias != nullptr ? p.delta_bias[g.channel + c] : 0.0f;
    }
  });
}

// Rows of a (S, D, N) tensor that belong to a lane group; null gives zeros.
inline void load_state(const Params& p, const float* states, int64_t row, LaneGroup g, float* packed) {
  if (states == nullptr)
    __builtin_memset(packed, 0, sizeof(float) * p.states * kLanes);
  else
    pack(states + (row * p.channels + g.channel) * p.states, g.channels, p.states, 1.0f, packed);
}

inline float* saved_state(const Params& p, const Block& block, LaneGroup g, int64_t batch, int64_t time) {
  const int64_t chunks = (p.seqlen + kChunk - 1) / kChunk;
  const int64_t chunk = batch * chunks + time / kChunk;
  return p.saved + (chunk * p.lane_groups + block.lane_group + g.index) * p.states * kLanes;
}

// Projection of a task's group, first token of a tile, as a strip reads it.
inline const float* first_row(const Projection& matrix, const float* constant, const Place& at,
                              int64_t group) {
  if (matrix.constant) return constant;
  return matrix.data + at.batch * matrix.batch_stride + group * matrix.group_stride +
         at.time * matrix.time_stride;
}

// Loads u, delta and z of a tile; makes dt, w = dt u and y = D u.
inline void load_inputs(const Params& p, const BlockSpace& space, LaneGroup g, const Place& at) {
  load_tile(p.u, at, space.u);
  load_tile(p.delta, at, space.raw);
  if (p.z.data != nullptr) load_tile(p.z, at, space.z);
  for (int c = 0; c < kLanes; c += Vec::kLanes) {
    const Vec skip = load(space.D + g.index * kLanes + c),
              bias = load(space.delta_bias + g.index * kLanes + c);
    for (int i = c; i < at.tokens * kLanes; i += kLanes) {
      const Vec raw = load(space.raw + i) + bias;
      store(space.raw + i, raw);
      store(space.dt + i, p.softplus ? exp_below(raw) : raw);
      store(space.y + i, skip * load(space.u + i));
    }
  }
  for (int i = 0; i < at.tokens * kLanes; i += Vec::kLanes) {
    Vec dt = load(space.dt + i);
    if (p.softplus) dt = softplus_of(load(space.raw + i), dt);
    store(space.dt + i, dt);
    store(space.w + i, dt * load(space.u + i));
  }
}

inline Strip strip_of(const Params& p, const Block& block, const BlockSpace& space, LaneGroup g,
                      const Place& at) {
  Strip s;
  const int64_t matrix = g.index * space.matrix;
  s.tokens = at.tokens;
  s.states = p.states;
  s.A2 = space.A2 + matrix;
  s.state = space.state + matrix;
  s.B = first_row(p.B, space.B + matrix, at, block.group);
  s.C = first_row(p.C, space.C + matrix, at, block.group);
  s.B_stride = p.B.time_stride;
  s.C_stride = p.C.time_stride;
  s.dt = space.dt;
  s.w = space.w;
  s.y = space.y;
  s.exp2 = space.exp2;
  return s;
}

// The tile after `at`: of the next lane group, or the block's first one in the chunk that begins at `time`.
// It may lie past the end of the tensor, since it is only asked for.
inline Place next_tile(const Block& block, Place at, int64_t time) {
  at.channel += kLanes;
  if (at.channel >= block.channel_end) {
    at.channel = block.channel_begin;
    at.time = time;
  }
  return at;
}

// Has the strip ask for the tiles that its results go to, and for those of the next one's inputs.
inline void ask_ahead(Strip& s, const Place& at, std::initializer_list<const View*> results,
                      const Place& next, std::initializer_list<const View*> inputs) {
  Lines* lines = s.ahead;
  for (const View* view : results) *lines++ = lines_of(*view, at);
  for (const View* view : inputs) *lines++ = lines_of(*view, next);
}

// Whether no exponent of the tile leaves what exp2_bounded takes. A NaN has no say: it stays one either way.
inline bool is_bounded(const BlockSpace& space, LaneGroup g, const Place& at) {
  return largest(space.dt, at.tokens * kLanes) * space.steepest[g.index] <= 126.0f;
}

}  // namespace
}  // namespace padfree::selective_scan
