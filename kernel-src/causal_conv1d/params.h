// What the host hands to the causal_conv1d kernels: plain data, filled by name.
//
// Shapes in comments: B batch, D channels, L time, W = width, N states, Dp = D rounded up to kChannelPad.
#pragma once

#include <cstdint>

#include "../common/types.h"

namespace padfree::causal_conv1d {

constexpr int kMinWidth = 2;
constexpr int kMaxWidth = 4;
// Weight and bias (and the sums of their gradients) lie in groups of channels, [Dp / kGroup][W + 1][kGroup]:
// the taps oldest first, then the bias. So they need no partial vectors and are one stream of whole cache
// lines. As W + 1 rows of D floats they would fall into the same cache sets as the rows of x whenever D is a
// power of two.
constexpr int64_t kGroup = 16;
// What their channels are padded to: the widest pair of vectors that the channel-last bodies work on.
constexpr int64_t kChannelPad = 32;
// Most channels a task of the channel-last bodies walks: a few float rows of them stay in L1.
constexpr int64_t kMaxChannelBlock = 512;

// Which dimension of x has stride 1: what the vectors run along.
enum class Layout : int { kChannelFirst = 0, kChannelLast = 1 };

// A stretch [begin, end) of time of one batch row that lies in one sequence and in one chunk.
struct Piece {
  static constexpr int64_t kZeroState = -1;  // the sequence begins with zeros before it
  static constexpr int64_t kPadding = -2;    // seq_idx < 0: output 0, gradient 0
  int64_t batch;
  int64_t begin, end;
  int64_t sequence_begin, sequence_end;
  int64_t state;  // row of initial_states that lies before sequence_begin, or one of the two above
};

// Chunk i holds pieces [first_piece[i], first_piece[i + 1]). A task is one chunk times one channel block; the
// cut depends on shapes and boundaries only, never on the number of threads.
struct Partition {
  const Piece* pieces;
  const int64_t* first_piece;
  int64_t chunks;
  int64_t channel_block;
};

// A (B, D, L) tensor: strides in elements.
struct View {
  void* data;
  int64_t batch_stride, channel_stride, time_stride;
};

struct ForwardParams {
  DType dtype;
  Layout layout;
  int width;
  bool silu;
  int64_t channels, channels_padded;
  View x, out;
  const float* filter;         // weight and bias, grouped as at kGroup
  const void* initial_states;  // [N][W - 1][D] of dtype, oldest first; null if none
  Partition partition;
};

struct BackwardParams {
  ForwardParams forward;  // forward.out is not used
  View dout, dx;
  void* dinitial_states;  // [N][W - 1][D] of dtype
  float* partial;  // [chunks] times grouped as at kGroup: dweight and dbias summed over one chunk; zeroed
};

// Weight and bias of any storage type and stride into float, as the bodies read them.
struct PackParams {
  DType dtype;  // of x
  Layout layout;
  int width;
  int64_t channels, channels_padded;
  DType weight_dtype, bias_dtype;
  const void *weight, *bias;  // [D][W], [D]; bias is null if absent
  int64_t weight_channel_stride, weight_tap_stride, bias_stride;
  float* packed;  // grouped as at kGroup
};

struct ReduceParams {
  DType dtype;  // of x
  Layout layout;
  int width;
  int64_t channels, channels_padded, chunks;
  const float* partial;  // as above
  DType weight_dtype, bias_dtype;
  void* dweight;  // [D][W]
  void* dbias;    // [D]
};

// Square of channels and times that a copy between the layouts moves at once.
constexpr int64_t kRelayoutTile = 64;

// A copy from the layout that `to_layout` is not.
struct RelayoutParams {
  DType dtype;
  Layout to_layout;
  int64_t channels, seqlen;
  View from, to;
};

// A few new times of a running sequence, and the last values before them as state, which is moved on.
struct UpdateParams {
  DType dtype;         // of x, out and state
  DType weight_dtype;  // of weight and bias: dtype or float32
  int width;
  bool silu;
  int64_t channels, seqlen, state_length;
  View x, out;                // (B, D, L)
  View state;                 // (N, D, S)
  const void *weight, *bias;  // bias is null if absent
  int64_t weight_channel_stride, weight_tap_stride, bias_stride;
  const int32_t* state_index;  // [B], -1: output 0 and no state; null: batch row i has state i
  const int32_t*
      position;  // [B], state is circular and time t of the call lies at (position + t) % S; or null
  int64_t batch_block, channel_block, channel_blocks;  // a task: so many batch rows, so many channels
  int64_t batch;
};

// One function of each kind per instruction set.
struct Kernels {
  void (*pack)(const PackParams&);
  void (*forward)(const ForwardParams&, int64_t task);
  void (*backward)(const BackwardParams&, int64_t task);
  void (*reduce)(const ReduceParams&);
  void (*update)(const UpdateParams&, int64_t task);
  void (*relayout)(const RelayoutParams&, int64_t task);
};

}  // namespace padfree::causal_conv1d
