// What the host hands to the CUDA kernels of causal_conv1d, and the functions that start them. Plain data: no
// torch, no CUDA. Shapes in comments: B batch, D channels, L time, W = width, N states.
#pragma once

#include <cstdint>

#include "../params.h"

namespace padfree::causal_conv1d::cuda {

// weight (D, W) and bias (D), each of its dtype.
struct Filter {
  const void *weight, *bias;  // bias is null if absent
  DType weight_dtype, bias_dtype;
  int64_t channel_stride, tap_stride, bias_stride;
  bool dense;  // strides W and 1, from a multiple of 16 bytes on
};

// Where sequences begin, and what lies before them.
struct Sequences {
  const int32_t* seq_idx;  // [B][L]; null: one sequence per batch row
  const void* states;      // [N][W - 1][D] of x's dtype, oldest first; null if there are none
  int64_t state_rows;
};

struct ForwardParams {
  View x, out;
  Filter filter;
  Sequences sequences;
  int64_t batch, channels, seqlen;
  bool silu;
  // How many times in a row one thread (channel-last) or one warp (channel-first) walks, and how many such
  // runs there are in a batch row.
  int64_t run, runs;
};

struct BackwardParams {
  ForwardParams forward;  // forward.out is not used
  View dout, dx;
  void* dstates;   // [N][W - 1][D] of x's dtype; zeroed
  float* partial;  // [parts][W + 1][D]: sums of dweight (oldest tap first) and dbias over one part of time
};

struct ReduceParams {
  const float* partial;  // [parts][W + 1][D]
  int64_t parts, channels;
  int width;
  DType weight_dtype, bias_dtype;
  void *dweight, *dbias;  // (D, W) and (D), dense
};

struct UpdateParams {
  View x, out;  // (B, D, L)
  View state;   // (N, D, S)
  Filter filter;
  const int32_t* state_index;  // [B], -1: output 0 and no state; null: batch row i has state i
  const int32_t*
      position;  // [B], the state is circular: time t of the call lies at (position + t) % S; or null
  int64_t batch, channels, seqlen, state_length, state_rows;
  bool silu;
  bool quads;  // W = S = 4, L = 1, and each channel's state is one packet
};

// Which instance of a kernel runs.
struct Choice {
  DType dtype;
  Layout layout;
  int width;
  bool vectors;  // whether 16 bytes of x, out, dout and dx may move at once
};

// The cut of time, from shapes alone: the order in which gradients are added depends on it.
void cut_forward(const Choice& choice, ForwardParams& params);
// How many sums of dweight and dbias the backward leaves, of one part of time each.
int64_t parts(const Choice& choice, const ForwardParams& params);
void cut_backward(const Choice& choice, ForwardParams& params);

// Each starts its kernel on the stream; a launch that CUDA refuses throws std::runtime_error.
void forward(const Choice& choice, const ForwardParams& params, void* stream);
void backward(const Choice& choice, const BackwardParams& params, void* stream);
void reduce(const ReduceParams& params, void* stream);
void backward_states(const Choice& choice, const BackwardParams& params, void* stream);
void update(const Choice& choice, const UpdateParams& params, void* stream);

}  // namespace padfree::causal_conv1d::cuda
