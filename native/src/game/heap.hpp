// Blocks of addresses held over inclusive intervals of steps, and the gaps between them.
#pragma once

#include <vector>

#include "units.hpp"

namespace loadmaster::game {

struct Block {
  i32 first, last;  // steps, both included
  i64 low, high;    // bytes [low, high)
};

// A strip of addresses that something would like to have to itself for longer than it holds it.
struct Wish {
  i64 low, high;
  i32 patience;  // the smaller, the sooner it is respected
};

// Exact answers by scanning the blocks that meet an interval, found through buckets of steps.
class Heap {
 public:
  Heap(i32 steps, i64 capacity, i64 alignment);

  i32 add(const Block& block);      // its id
  void remove(i32 id);              // the id may be given again
  void set_last(i32 id, i32 last);  // longer or shorter
  const Block& block(i32 id) const { return blocks_[id]; }
  void clear();

  // The start of the smallest gap over [first, last] that holds `size` bytes, at the lowest
  // address among equals; -1: none. Gaps start aligned because offsets and sizes are aligned.
  // Wishes are respected as far as there is room: as few of the most patient ones as need be are not.
  i64 best_fit(i32 first, i32 last, i64 size, const std::vector<Wish>& wishes = {}) const;

  // Whether bytes [low, high) are free over [first, last]; `but` and `nor` are ids that may be there.
  bool is_free(i32 first, i32 last, i64 low, i64 high, i32 but = -1, i32 nor = -1) const;

 private:
  static constexpr i32 kBucket = 16;  // steps
  template <class Visit>
  void visit(i32 first, i32 last, Visit&& visit) const;
  void link(i32 id, i32 from, i32 to);
  void unlink(i32 id, i32 from, i32 to);
  i64 best_gap(i64 size, i32 respected) const;

  i64 capacity_;
  std::vector<Block> blocks_;
  std::vector<i32> unused_;
  std::vector<std::vector<i32>> buckets_;  // ids of blocks that meet each bucket
  mutable std::vector<i32> seen_;          // [ids] the last query that met it
  mutable i32 query_ = 0;
  mutable std::vector<Wish> spans_;     // what is in the way in the interval asked for, by address
  mutable std::vector<i32> patiences_;  // of the wishes among them
};

}  // namespace loadmaster::game
