// Blocks of addresses held over inclusive intervals of steps, and the gaps between them.
#pragma once

#include <utility>
#include <vector>

#include "units.hpp"

namespace loadmaster::game {

struct Block {
  i32 first, last;  // steps, both included
  i64 low, high;    // bytes [low, high)
};

// Exact answers by scanning the blocks that meet an interval, found through buckets of steps.
class Heap {
 public:
  explicit Heap(i32 steps);

  i32 add(const Block& block);      // its id
  void remove(i32 id);              // the id may be given again
  void set_last(i32 id, i32 last);  // longer or shorter
  const Block& block(i32 id) const { return blocks_[id]; }
  void clear();

  // The start of the smallest gap over [first, last] that holds `size` bytes, at the lowest
  // address among equals. The heap has no end: the gap above everything is the largest, and taken
  // last. Gaps start aligned because offsets and sizes are aligned.
  i64 best_fit(i32 first, i32 last, i64 size) const;

  // Whether bytes [low, high) are free over [first, last].
  bool is_free(i32 first, i32 last, i64 low, i64 high) const;

 private:
  static constexpr i32 kBucket = 16;  // steps
  template <class Visit>
  void visit(i32 first, i32 last, Visit&& visit) const;
  void link(i32 id, i32 from, i32 to);
  void unlink(i32 id, i32 from, i32 to);

  std::vector<Block> blocks_;
  std::vector<i32> unused_;
  std::vector<std::vector<i32>> buckets_;  // ids of blocks that meet each bucket
  mutable std::vector<i32> seen_;          // [ids] the last query that met it
  mutable i32 query_ = 0;
  mutable std::vector<std::pair<i64, i64>> spans_;  // what is in the way in the interval asked for
};

}  // namespace loadmaster::game
