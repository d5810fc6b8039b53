// What host.cpp hands to the selective scan kernels. Plain data; strides count elements, 64
// bits.
//
// Shapes in comments: B batch, D channels, L time, N states of a channel, G groups of channels that share B
// and C, S sequences.
#pragma once

#include <cstdint>

#include "common/types.h"

namespace padfree::selective_scan {

// Channels that go through the scan side by side, whatever the instruction set: a lane group. It lies in one
// of the G groups; its last lanes may be empty.
constexpr int kLanes = 16;
// Tokens between two states that the forward saves, at multiples of this in a batch row. _register.py repeats
// both numbers for the shape of `saved`.
constexpr int kChunk = 64;

// A (B, D, L) tensor of one of the three storage types.
struct View {
  void* data = nullptr;  // null: not given
  DType dtype = DType::kFloat32;
  int64_t batch_stride = 0, channel_stride = 0, time_stride = 0;
};

// B or C, float32: (B, G, N, L) with a unit state stride, or (D, N) that all tokens share.
struct Projection {
  const float* data = nullptr;
  bool constant = false;
  int64_t batch_stride = 0, group_stride = 0, time_stride = 0;
};

// A run of one sequence in one batch row.
struct Sequence {
  int64_t batch = 0, begin = 0, end = 0;
  int64_t state = 0;  // its row of the states
};

// Lane groups of one of the G groups that a task walks together.
struct Block {
  int64_t group = 0;
  int64_t channel_begin = 0, channel_end = 0;
  int64_t lane_group = 0;  // lane groups of all channels before this block
  int64_t in_group = 0;    // blocks of the same group before this one
};

// Sequences [sequence_begin, sequence_end) through one block, one after the other.
struct Task {
  int64_t sequence_begin = 0, sequence_end = 0;
  int64_t block = 0;
  int64_t part = 0;  // which of the parts that the sequences are cut into
};

struct Params {
  int64_t batch = 0, channels = 0, seqlen = 0, groups = 1, states = 0;
  int64_t lane_groups = 0;    // of all channels
  int block_lane_groups = 0;  // most lane groups of a block
  bool softplus = false;
  View u, delta, z, out;
  const float* A = nullptr;  // (D, N)
  Projection B, C;
  const float* D = nullptr;               // (D); null: not given
  const float* delta_bias = nullptr;      // likewise
  const float* initial_states = nullptr;  // (S, D, N); null: zeros
  float* final_states = nullptr;          // likewise; null: not wanted
  float* saved =
      nullptr;  // (B, ceil(L / kChunk), lane groups, N, kLanes): states before each chunk; null: not wanted

  const Sequence* sequences = nullptr;
  const Block* blocks = nullptr;
  const Task* tasks = nullptr;
  float* workspace = nullptr;  // workspace_stride floats for each worker
  int64_t workspace_stride = 0;

  // Backward only. Sums over tokens have one row a part, sums over channels one a block of their group.
  View dout, du, ddelta, dz;
  const float* dfinal_states = nullptr;                        // null: zeros
  float* dinitial_states = nullptr;                            // null: not wanted
  float *dA = nullptr, *dD = nullptr, *ddelta_bias = nullptr;  // (parts, D, N), (parts, D), (parts, D)
  float *dB = nullptr, *dC = nullptr;  // (blocks of a group, B, G, L, N), or where constant (parts, D, N)
};

}  // namespace padfree::selective_scan
