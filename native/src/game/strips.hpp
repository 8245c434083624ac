// Strips of fast memory that groups of tensors hold over intervals of steps.
#pragma once

#include <vector>

#include "game/heap.hpp"

namespace loadmaster::game {

class Strips {
 public:
  Strips(i32 steps, i64 capacity);
  void clear();

  // Where `size` bytes are free over [first, last], if possible over a longer time: `horizon` has
  // ends in ascending order, of which the last one that leaves a gap decides. -1: nowhere.
  i64 find(i32 first, i32 last, i64 size, const std::vector<i32>& horizon) const;
  i32 open(i32 first, i32 last, i64 size, i64 offset);  // its number
  bool extend(i32 strip, i32 last);                     // false: something is in the way
  bool can_extend(i32 strip, i32 last) const;
  void close_from(i32 strip);  // this one and all that were opened after it
  i64 offset(i32 strip) const { return strips_[strip].offset; }
  i32 last(i32 strip) const { return strips_[strip].last; }
  i32 count() const { return static_cast<i32>(strips_.size()); }

  // The first step down to which there are `size` bytes left, not looking at addresses; above
  // `from`: not even there.
  i32 roomy_since(i32 from, i64 size) const;

  // Place all anew by best fit, longest first; false, and nothing moves, if that does not fit.
  bool repack();

 private:
  struct Strip {
    i32 first, last;
    i64 size, offset;
    i32 id;  // in the heap
  };
  i64 fit(i32 first, i32 last, i64 size) const;
  void load(i32 first, i32 last, i64 size);
  i32 end() const { return static_cast<i32>(loaded_.size()) - 1; }

  i64 capacity_;
  Heap heap_;
  std::vector<Strip> strips_;
  std::vector<i64> loaded_;  // [steps] bytes held
};

}  // namespace loadmaster::game
