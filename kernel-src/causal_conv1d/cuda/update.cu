// The instances of the decoding step, and which of them runs.
#include <string>

#include "../../common/cuda/launch.h"
#include "../../common/dispatch.h"
#include "update.cuh"

namespace padfree::causal_conv1d::cuda {

void update(const Choice& choice, const UpdateParams& p, void* stream) {
  with_dtype(choice.dtype, [&](auto tag) {
    with_one_of<2, 3, 4>(choice.width, [&](auto width) {
      launch(update_states<typename decltype(tag)::type, width()>,
             {.op = "causal_conv1d_update",
              .kernel = "update_states",
              .shape = "(" + std::to_string(p.batch) + ", " + std::to_string(p.channels) + ", " +
                       std::to_string(p.seqlen) + ")",
              .blocks = (p.batch * p.channels + kUpdateThreads - 1) / kUpdateThreads,
              .threads = kUpdateThreads,
              .shared_bytes = 0,
              .stream = stream},
             p);
    });
  });
}

}  // namespace padfree::causal_conv1d::cuda
