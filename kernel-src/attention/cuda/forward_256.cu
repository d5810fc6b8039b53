// The forward for head dims up to 256.
#include "instances.h"

namespace padfree::attention::cuda {

static_assert(kHeadDims[4].tile_rows == Shape<256>::kRows);

void forward_256(DType dtype, const ForwardParams& params, int64_t blocks, const std::string& shape,
                 void* stream) {
  launch_forward<256>(dtype, params, blocks, shape, stream);
}

}  // namespace padfree::attention::cuda
