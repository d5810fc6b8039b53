// The kernels that a head dim's .cu file holds. Host code without torch.
#pragma once

#include <cstdint>
#include <string>

#include "../../common/types.h"
#include "params.h"

namespace padfree::attention::cuda {

// Starts the forward: `blocks` tiles of kTileRows rows. `shape` is for the message of a launch that CUDA
// refuses.
using Forward = void (*)(DType dtype, const ForwardParams& params, int64_t blocks, const std::string& shape,
                         void* stream);

void forward_64(DType, const ForwardParams&, int64_t, const std::string&, void*);
void forward_96(DType, const ForwardParams&, int64_t, const std::string&, void*);
void forward_128(DType, const ForwardParams&, int64_t, const std::string&, void*);
void forward_192(DType, const ForwardParams&, int64_t, const std::string&, void*);
void forward_256(DType, const ForwardParams&, int64_t, const std::string&, void*);

// One row a size that head dims are rounded up to, the smallest first.
struct HeadDim {
  int32_t most;       // of head_dim and head_dim_v
  int32_t tile_rows;  // virtual rows of a block
  Forward forward;
};
constexpr HeadDim kHeadDims[] = {
    {64, 128, forward_64},   {96, 128, forward_96},  {128, 128, forward_128},
    {192, 128, forward_192}, {256, 64, forward_256},
};

// Starts the kernel that lays out the blocks of a packed call, of `tile_rows` virtual rows each.
void lay_out_blocks(const ForwardParams& params, int32_t tile_rows, void* stream);

}  // namespace padfree::attention::cuda
