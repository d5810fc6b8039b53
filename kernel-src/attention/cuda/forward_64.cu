// The forward for head dims up to 64.
#include "instances.h"

namespace padfree::attention::cuda {

static_assert(kHeadDims[0].tile_rows == Shape<64>::kRows);

void forward_64(DType dtype, const ForwardParams& params, int64_t blocks, const std::string& shape,
                void* stream) {
  launch_forward<64>(dtype, params, blocks, shape, stream);
}

}  // namespace padfree::attention::cuda
