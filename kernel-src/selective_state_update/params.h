// What host.cpp hands to the kernels of the single-step state update. Plain data; strides count elements, 64
// bits.
//
// Shapes in comments: B batch, H heads (1 for Mamba 1), P channels of a head, N states, G groups of heads
// that share B and C.
#pragma once

#include <cstdint>

#include "common/types.h"

namespace padfree::selective_state_update {

// One token of each batch row: both forms of Mamba as (B, H, P), state (rows, H, P, N).
struct View {
  void* data = nullptr;  // null: not given
  DType dtype = DType::kFloat32;
  int64_t batch_stride = 0, head_stride = 0, channel_stride = 0;
};

struct Params {
  int64_t batch = 0, heads = 0, head_dim = 0, states = 0, groups = 0;
  bool softplus = false;
  View state;  // unit stride over the states; the batch stride is that of its rows
  View x, dt, z, out;
  View dt_bias, D;                            // (H, P)
  View A;                                     // (H, P, N), float32
  int64_t A_state_stride = 0;                 // 0 or 1
  bool one_decay_a_head = false;              // A, dt and dt_bias are one number a head
  const float *B = nullptr, *C = nullptr;     // (B, G, N)
  const int32_t* state_rows = nullptr;        // (B), -1: output 0 and no state; null: batch row i has state i
  int64_t head_block = 0, channel_block = 0;  // what a task covers of one batch row
};

struct Kernels {
  void (*update)(const Params& params, int64_t task);
};

}  // namespace padfree::selective_state_update
