// Which neighbours of a time belong to its sequence, and what the kernel takes for those that do not.
//
// A sequence is a run of equal seq_idx; negative numbers are padding. `since` counts the times before one, at
// most W - 1, that belong to its sequence. A tap further back than that reads the initial state or 0, and
// never what lies in memory: what another sequence holds, NaN too, has no influence.
#pragma once

#include "filter.cuh"

namespace padfree::causal_conv1d::cuda {

// The sequences of one batch row.
struct Row {
  const int32_t* seq_idx;  // of this row; null: one sequence
  int64_t batch, seqlen;

  __device__ __forceinline__ Row(const ForwardParams& p, int64_t batch)
      : seq_idx(p.sequences.seq_idx == nullptr ? nullptr : p.sequences.seq_idx + batch * p.seqlen),
        batch(batch),
        seqlen(p.seqlen) {}

  __device__ __forceinline__ bool inside(int64_t time) const { return time >= 0 && time < seqlen; }
  // The number at a time inside.
  __device__ __forceinline__ int32_t number(int64_t time) const {
    return seq_idx == nullptr ? 0 : __ldg(seq_idx + time);
  }
  // Whether `time` continues the sequence of the time before it.
  __device__ __forceinline__ bool continues(int64_t time) const {
    return time > 0 && (seq_idx == nullptr || number(time) == number(time - 1));
  }
  // The row of the states that lies before the sequence with this number.
  __device__ __forceinline__ int64_t state_row(int32_t number) const {
    return seq_idx == nullptr ? batch : number;
  }
};

// V channels at `back` times before one that has `since` predecessors in its sequence, where back > since. A
// number without a row of states cannot be refused from here: it gives NaN.
template <typename T, int W, int V>
__device__ __forceinline__ void before_sequence(const ForwardParams& p, int64_t state_row, int64_t channel,
                                                int back, int since, float (&values)[V]) {
  const Sequences& s = p.sequences;
  const bool exists = s.states != nullptr && state_row >= 0 && state_row < s.state_rows;
#pragma unroll
  for (int v = 0; v < V; ++v) values[v] = s.states == nullptr ? 0.0f : __uint_as_float(0x7fc00000);
  if (!exists) return;
  const int64_t slot = state_row * (W - 1) + W - 1 - back + since;
  const auto packet = load_vector<V>(static_cast<const T*>(s.states) + slot * p.channels + channel);
#pragma unroll
  for (int v = 0; v < V; ++v) values[v] = element<T>(packet, v);
}

// For V times from `first` on: which times before and after each belong to its sequence. One bit a time, so
// that it all is in a few registers.
template <int W, int V>
struct Neighbours {
  static constexpr int kReach = W - 1;
  // Bit i: time first - kReach + i continues the sequence of the one before it; is padding, or outside of the
  // row.
  uint32_t joined = 0, padding = 0;

  __device__ __forceinline__ Neighbours(const Row& row, int64_t first) {
    static_assert(V + 2 * kReach <= 32);
    int32_t last = 0;
#pragma unroll
    for (int i = 0; i < V + 2 * kReach; ++i) {
      const int64_t time = first - kReach + i;
      const bool inside = row.inside(time);
      const int32_t own = inside ? row.number(time) : -1;
      if (i > 0 && inside && time > 0 && own == last) joined |= 1u << i;
      if (own < 0) padding |= 1u << i;
      last = own;
    }
  }

  // Whether the time `back` before that of v is in its sequence; whether the one `on` after it is; padding.
  __device__ __forceinline__ bool has_before(int v, int back) const {
    const uint32_t between = ((1u << back) - 1) << (v + kReach - back + 1);
    return (joined & between) == between;
  }
  __device__ __forceinline__ bool has_after(int v, int on) const {
    const uint32_t between = ((1u << on) - 1) << (v + kReach + 1);
    return (joined & between) == between;
  }
  __device__ __forceinline__ bool is_padding(int v) const { return (padding >> (v + kReach) & 1) != 0; }
  __device__ __forceinline__ int since(int v) const {
    int count = 0;
#pragma unroll
    for (int back = 1; back <= kReach; ++back) count += has_before(v, back) ? 1 : 0;
    return count;
  }
};

}  // namespace padfree::causal_conv1d::cuda
