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

// What a search goes by: the rank of every buffer (smaller is preferred) and a Search::Style.
struct Preference {
  std::vector<i32> rank;
  int style = 0;
};

// The index-th of endlessly many: the order of `around` with every rank moved a little by chance, or, every
// other time and where there is none yet, a drawn order with every rank moved a lot.
Preference shuffled(const Sections& sections, const Preference& around, int styles, u64 seed, i64 index);

}  // namespace loadmaster
