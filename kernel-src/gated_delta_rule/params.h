// What host.cpp hands to the gated delta rule kernels. Plain data; all strides and offsets count elements, 64
// bits.
#pragma once

#include <cstdint>

#include "common/types.h"

namespace padfree::gated_delta_rule {

// Tokens of a chunk. Chunks start at the start of their sequence, so a result does not depend on what else is
// packed with it. _register.py repeats the number for the shape of `states`.
constexpr int kChunk = 64;
constexpr int kMaxHeadDim = 256;
// A state's value dim is padded to a multiple of this in `states`, whatever the instruction set.
constexpr int kStatePad = 32;

// (batch, row, head, head_dim) with a unit last stride. Packed tensors have one batch.
struct View {
  void* data = nullptr;
  int64_t batch_stride = 0;
  int64_t row_stride = 0;
  int64_t head_stride = 0;
};

// The same in float32; of g and beta, whose last dimension is the head where the gate is one number a head.
struct FloatView {
  float* data = nullptr;
  int64_t batch_stride = 0;
  int64_t row_stride = 0;
  int64_t head_stride = 0;
};

struct Sequence {
  int64_t batch = 0;
  int64_t begin = 0, length = 0;  // rows
  int64_t first_chunk = 0;        // chunks of all sequences before this one
  int64_t index = 0;              // which row of the states it owns
};

// Value heads [head_begin, head_end) of one key head's group, value columns [panel_begin, panel_end) in
// panels. In the recurrent form: value heads of all groups, whole.
struct Task {
  int32_t sequence = 0;
  int32_t key_head = 0;
  int32_t head_begin = 0, head_end = 0;
  int32_t panel_begin = 0, panel_end = 0;
  int64_t cost = 0;
};

struct Params {
  DType dtype = DType::kFloat32;
  bool gate_per_channel = false;  // g is (batch, row, head, head_dim), else (batch, row, head)
  bool l2norm = false;            // q and k are divided by their norms first
  int heads_k = 1;
  int group = 1;       // value heads a key head serves
  int head_dim = 0;    // of q and k
  int head_dim_v = 0;  // of v and out
  float scale = 1.0f;

  View q, k, v, out;
  FloatView g, beta;
  const float* initial_state = nullptr;  // (sequences, value heads, head_dim, head_dim_v); null: zeros
  float* final_state = nullptr;          // likewise; null: not wanted. May be initial_state (recurrent form)
  float* states = nullptr;               // (chunks, value heads, state_stride): the state before each chunk
  int64_t state_stride = 0;

  const Sequence* sequences = nullptr;
  const Task* tasks = nullptr;
  float* workspace = nullptr;    // workspace_stride floats for each worker
  int64_t workspace_stride = 0;  // a multiple of 16

  // Backward only.
  View dout, dq, dk, dv;
  FloatView dg, dbeta;
  const float* dfinal_state = nullptr;  // null: zeros
  float* dinitial_state = nullptr;      // null: not wanted
};

}  // namespace padfree::gated_delta_rule
