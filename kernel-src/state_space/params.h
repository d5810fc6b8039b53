// What host.cpp hands to the state-space kernels (Mamba 2, SSD). Plain data; all strides and offsets count
// elements, 64 bits.
#pragma once

#include <cstdint>

#include "common/types.h"

namespace padfree::state_space {

// Tokens of a chunk. Chunks start at the start of their sequence, so a result does not depend on what else is
// packed with it. _register.py repeats the number for the shape of `states`.
constexpr int kChunk = 64;
constexpr int kMaxHeadDim = 256;
constexpr int kMaxStateDim = 256;
// A state's head_dim is padded to a multiple of this in `states`, whatever the instruction set.
constexpr int kStatePad = 32;

// (batch, row, head or group, channel) with a unit last stride. Packed tensors have one batch.
struct View {
  void* data = nullptr;
  int64_t batch_stride = 0;
  int64_t row_stride = 0;
  int64_t head_stride = 0;
};

// float32, (batch, row, head).
struct FloatView {
  float* data = nullptr;
  int64_t batch_stride = 0;
  int64_t row_stride = 0;
  int64_t head_stride = 0;
};

struct Sequence {
  int64_t batch = 0;
  int64_t begin = 0, length = 0;  // rows
  int64_t first_state = 0;        // row of `states` that holds the state before its second chunk
  int64_t initial = -1;           // row of initial_states it continues; -1: none, it starts from zero
  int64_t final = -1;             // row of final_states it leaves; -1: nobody asks for it
};

// Heads [head_begin, head_end) of one sequence, all of one group.
struct Task {
  int32_t sequence = 0;
  int32_t head_begin = 0, head_end = 0;
  int32_t part = 0;  // backward: which of the group's parts these heads are
  int64_t cost = 0;
};

struct Params {
  DType dtype = DType::kFloat32;
  int heads = 1;
  int group = 1;      // heads that share B and C
  int head_dim = 0;   // of x
  int state_dim = 0;  // of B and C
  bool dt_softplus = false;
  bool d_per_channel = false;  // D is (heads, head_dim), else (heads)
  float dt_min = 0.0f, dt_max = 0.0f;

  View x, B, C, z, out;  // z.data null: no gate
  FloatView dt;
  const float* A = nullptr;               // heads
  const float* D = nullptr;               // null: 0
  const float* dt_bias = nullptr;         // heads; null: 0
  const float* initial_states = nullptr;  // (rows, heads, head_dim, state_dim); null: zeros
  float* final_states = nullptr;          // likewise; null: not wanted
  float* states = nullptr;                // (chunks, heads, state_stride): the state before each later chunk
  int64_t state_stride = 0;

  const Sequence* sequences = nullptr;
  const Task* tasks = nullptr;
  float* workspace = nullptr;    // workspace_stride floats for each worker
  int64_t workspace_stride = 0;  // a multiple of 16

  // Backward only. The parts are (parts of a group, batch, row, group, state_dim) and are summed in order.
  View dout, dx, dz, dB, dC;
  FloatView ddt;
  float *dB_parts = nullptr, *dC_parts = nullptr;
  int parts = 1;
  int64_t batch = 0, rows = 0;
  double* dA = nullptr;                  // (sequences, heads)
  double* dt_bias_sums = nullptr;        // likewise
  float* dD = nullptr;                   // (sequences, heads) or (sequences, heads, head_dim)
  const float* dfinal_states = nullptr;  // null: zeros
  float* dinitial_states = nullptr;      // null: not wanted
};

}  // namespace padfree::state_space
