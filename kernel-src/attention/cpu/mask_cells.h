// A look at a 4-D mask ahead of the kernels: of which cells it hides every key, and which it leaves alone.
// Most masks are one of the two nearly everywhere, and are shared by all heads: the tiles of each head then
// need not read them.
#pragma once

#include <cstdint>
#include <vector>

#include "attention/params.h"

namespace padfree::attention {

// Fills `storage` and params.mask_cells for params.mask, which must have one; reads the mask once, on all
// threads.
void scan_mask(Params& params, int64_t batch, int64_t seqlen_q, int64_t seqlen_k,
               std::vector<uint8_t>& storage);

}  // namespace padfree::attention
