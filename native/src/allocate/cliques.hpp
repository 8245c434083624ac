// The heaviest set of buffers that conflict pairwise: with keep-apart pairs it can be heavier than
// any instant, and no placement is lower.
#pragma once

#include "sections.hpp"

namespace loadmaster {

// The heaviest clique found within `steps` of a branch and bound, as buffers.
std::vector<i32> heavy_clique(const Sections& sections, i64 steps);

}  // namespace loadmaster
