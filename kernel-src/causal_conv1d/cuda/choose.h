// From the shape of a call to an instance of a kernel and the size of its grid. Host code of the .cu files.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "../../common/dispatch.h"
#include "forward.cuh"
#include "kernels.h"

namespace padfree::causal_conv1d::cuda {

// Calls f(TypeTag<T>, integral_constant<width>, integral_constant<elements that move at once>).
template <typename F>
void with_instance(const Choice& choice, F&& f) {
  with_dtype(choice.dtype, [&](auto tag) {
    constexpr int kElements = kPacketElements<typename decltype(tag)::type>;
    with_one_of<2, 3, 4>(choice.width, [&](auto width) {
      if (choice.vectors) return f(tag, width, std::integral_constant<int, kElements>{});
      f(tag, width, std::integral_constant<int, 1>{});
    });
  });
}

inline int64_t elements_at_once(const Choice& choice) {
  return !choice.vectors ? 1 : choice.dtype == DType::kFloat32 ? 4 : 8;
}

// How a kernel likes its runs: at most so many times (rows), at most so many steps of a warp (lines), and how
// many of the warp's last lanes only look ahead.
struct Cut {
  int64_t longest, steps, halo_lanes;
};

// Runs as long as leaves enough of them: about as many threads as the largest GPUs hold. Never from the
// device at hand, so that gradients have the same bits on each.
inline void cut_time(const Choice& choice, const Cut& cut, ForwardParams& p) {
  constexpr int64_t kThreadsWanted = 1 << 17, kShortest = 8;
  const int64_t at_once = elements_at_once(choice), elements = p.batch * p.channels * p.seqlen;
  if (choice.layout == Layout::kChannelLast) {
    const int64_t times = elements / at_once / kThreadsWanted / kAhead * kAhead;
    p.run = std::clamp(times, kShortest, cut.longest);
  } else {
    const int64_t step = (kWarp - cut.halo_lanes) * at_once;
    const int64_t steps = elements / at_once / kChannels / kThreadsWanted;
    p.run = std::clamp<int64_t>(steps, 1, cut.steps) * step;
  }
  p.runs = (p.seqlen + p.run - 1) / p.run;
}

inline int64_t row_blocks(const ForwardParams& p, int64_t at_once) {
  return (p.channels / at_once * p.runs * p.batch + kThreads - 1) / kThreads;
}

inline int64_t line_blocks(const ForwardParams& p) {
  const int64_t warps = (p.channels + kChannels - 1) / kChannels * p.runs * p.batch;
  return (warps * kWarp + kThreads - 1) / kThreads;
}

inline std::string shape_of(const ForwardParams& p) {
  return "(" + std::to_string(p.batch) + ", " + std::to_string(p.channels) + ", " + std::to_string(p.seqlen) +
         ")";
}

}  // namespace padfree::causal_conv1d::cuda
