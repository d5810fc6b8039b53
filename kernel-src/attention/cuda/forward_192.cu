// The forward for head dims up to 192.
#include "instances.h"

namespace padfree::attention::cuda {

static_assert(kHeadDims[3].tile_rows == Shape<192>::kRows);

void forward_192(DType dtype, const ForwardParams& params, int64_t blocks, const std::string& shape,
                 void* stream) {
  launch_forward<192>(dtype, params, blocks, shape, stream);
}

}  // namespace padfree::attention::cuda
