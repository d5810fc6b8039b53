// The instances of the backward kernels, and which of them runs.
#include "../../common/cuda/launch.h"
#include "backward.cuh"
#include "choose.h"
#include "reduce.cuh"

namespace padfree::causal_conv1d::cuda {

void cut_backward(const Choice& choice, ForwardParams& p) {
  const int64_t at_once = elements_at_once(choice);
  cut_time(choice, {.longest = 64, .steps = 16, .halo_lanes = (choice.width - 1 + at_once - 1) / at_once}, p);
}

int64_t parts(const Choice& choice, const ForwardParams& p) {
  const int64_t runs = choice.layout == Layout::kChannelLast ? (p.runs + kWarps - 1) / kWarps : p.runs;
  return runs * p.batch;
}

void backward(const Choice& choice, const BackwardParams& p, void* stream) {
  with_instance(choice, [&](auto tag, auto width, auto vector) {
    using T = typename decltype(tag)::type;
    constexpr int kWidth = width(), kRow = kRowVector<vector()>;
    const bool rows = choice.layout == Layout::kChannelLast;
    const int64_t groups = (p.forward.channels / kRow + kWarp - 1) / kWarp;
    launch(rows ? backward_rows<T, kWidth, kRow> : backward_lines<T, kWidth, vector()>,
           {.op = "causal_conv1d",
            .kernel = rows ? "backward_rows" : "backward_lines",
            .shape = shape_of(p.forward),
            .blocks = rows ? groups * parts(choice, p.forward) : line_blocks(p.forward),
            .threads = kThreads,
            .shared_bytes = rows ? sizeof(Sums<kWidth, kRow>) : 0,
            .stream = stream},
           p);
  });
}

void backward_states(const Choice& choice, const BackwardParams& p, void* stream) {
  const ForwardParams& f = p.forward;
  const int64_t blocks = (f.channels + kThreads - 1) / kThreads;
  const int64_t stretches = (f.seqlen + kStateTimes - 1) / kStateTimes * f.batch;
  with_dtype(choice.dtype, [&](auto tag) {
    with_one_of<2, 3, 4>(choice.width, [&](auto width) {
      launch(backward_states<typename decltype(tag)::type, width()>,
             {.op = "causal_conv1d",
              .kernel = "backward_states",
              .shape = shape_of(f),
              .blocks = blocks * stretches,
              .threads = kThreads,
              .shared_bytes = 0,
              .stream = stream},
             p);
    });
  });
}

void reduce(const ReduceParams& p, void* stream) {
  launch(reduce_parts,
         {.op = "causal_conv1d",
          .kernel = "reduce_parts",
          .shape = std::to_string(p.parts) + " parts of " + std::to_string(p.channels) + " channels",
          .blocks = (p.channels + 31) / 32 * (p.width + 1),
          .threads = kReduceThreads,
          .shared_bytes = sizeof(SliceSums),
          .stream = stream},
         p);
}

}  // namespace padfree::causal_conv1d::cuda
