// Starts the kernel that lays out the blocks of a packed call.
#include "../../common/cuda/launch.h"
#include "kernels.h"
#include "schedule.cuh"

namespace padfree::attention::cuda {

void lay_out_blocks(const ForwardParams& params, int32_t tile_rows, void* stream) {
  launch(lay_out,
         {.op = "attention",
          .kernel = "lay_out",
          .shape = std::to_string(params.sequences.count) + " sequences",
          .blocks = 1,
          .threads = kScheduleThreads,
          .shared_bytes = sizeof(ScheduleShared),
          .stream = stream},
         ScheduleParams{params.sequences, params.schedule, params.heads_kv, params.group, tile_rows});
}

}  // namespace padfree::attention::cuda
