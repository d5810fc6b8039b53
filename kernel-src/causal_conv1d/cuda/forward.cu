// The instances of the forward kernels, and which of them runs.
#include <algorithm>

#include "../../common/cuda/launch.h"
#include "../../common/dispatch.h"
#include "choose.h"
#include "forward.cuh"

namespace padfree::causal_conv1d::cuda {

void cut_forward(const Choice& choice, ForwardParams& p) {
  const Cut cut = {.longest = 64, .steps = 8, .halo_lanes = 0};
  cut_time(choice, cut, p);
}

void forward(const Choice& choice, const ForwardParams& p, void* stream) {
  with_instance(choice, [&](auto tag, auto width, auto vector) {
    using T = typename decltype(tag)::type;
    constexpr int kWidth = width(), kVector = vector();
    const bool rows = choice.layout == Layout::kChannelLast;
    launch(rows ? forward_rows<T, kWidth, kVector> : forward_lines<T, kWidth, kVector>,
           {.op = "causal_conv1d",
            .kernel = rows ? "forward_rows" : "forward_lines",
            .shape = shape_of(p),
            .blocks = rows ? row_blocks(p, kVector) : line_blocks(p),
            .threads = kThreads,
            .shared_bytes = 0,
            .stream = stream},
           p);
  });
}

}  // namespace padfree::causal_conv1d::cuda
