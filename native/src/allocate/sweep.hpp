// The quickest placement: through time as an allocator would, each buffer into the tightest free range
// at its start. Near-linear for any lives, and without a hole where they nest.
#pragma once

#include <vector>

#include "buffers.hpp"

namespace loadmaster {

// Fills `offset` and returns true; false if there are pins, pairs to keep apart, or alignments without a
// small common multiple, which it does not know.
bool place_in_time(const Buffers& buffers, std::vector<i64>& offset);

}  // namespace loadmaster
