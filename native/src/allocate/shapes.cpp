#include "shapes.hpp"

namespace loadmaster {

ShapeSearch::ShapeSearch(const Sections& sections, i64 capacity) : in_(sections) {
  for (i32 b = 0; b < in_.count(); ++b) latest_.push_back(in_.latest(b, capacity));
  offset_.assign(in_.count(), -1);
}

bool ShapeSearch::free(i32 b, i64 at) {
  for (i32 c = 0; c < in_.count(); ++c) {
    if (offset_[c] < 0 || !in_.conflicts.get(b, c)) continue;
    scratch_.clear();
    forbidden(in_, b, c, offset_[c], scratch_);
    for (const Forbidden& gap : scratch_)
      if (gap.from < at && at < gap.to) return false;
  }
  return true;
}

}  // namespace loadmaster
