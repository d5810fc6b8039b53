// The forward for head dims up to 96.
#include "instances.h"

namespace padfree::attention::cuda {

static_assert(kHeadDims[1].tile_rows == Shape<96>::kRows);

void forward_96(DType dtype, const ForwardParams& params, int64_t blocks, const std::string& shape,
                void* stream) {
  launch_forward<96>(dtype, params, blocks, shape, stream);
}

}  // namespace padfree::attention::cuda
