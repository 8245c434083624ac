// Static orders of preference: which of several buffers at the same offset is tried first.
#pragma once

#include <string>
#include <vector>

#include "sections.hpp"

namespace loadmaster {

// Letters, most significant first; a capital prefers the largest, a small letter the smallest:
// A area, C sections, L start, O conflicts, T fullest section's load, U end, W lifetime, Z size.
// Ties keep the input's order. Returns each buffer's rank.
std::vector<i32> ranked(const Sections& sections, const std::string& letters);

// The orders tried first, and the index-th one after them (drawn from the seed).
const std::vector<std::string>& usual_orders();
std::vector<i32> drawn_order(const Sections& sections, u64 seed, i64 index);

}  // namespace loadmaster
