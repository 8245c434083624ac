// Is a placement legal, and how high is it? A sweep of its own, apart from every allocator.
#pragma once

#include "buffers.hpp"

namespace loadmaster {

// The height of a placement (largest offset + size), or -1 if an offset is negative or misaligned,
// a pin is not kept, or two buffers share a byte that they must not.
i64 legal_height(const Buffers& buffers, const i64* offset);

}  // namespace loadmaster
