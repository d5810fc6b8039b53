// The forward for head dims up to 128.
#include "instances.h"

namespace padfree::attention::cuda {

static_assert(kHeadDims[2].tile_rows == Shape<128>::kRows);

void forward_128(DType dtype, const ForwardParams& params, int64_t blocks, const std::string& shape,
                 void* stream) {
  launch_forward<128>(dtype, params, blocks, shape, stream);
}

}  // namespace padfree::attention::cuda
