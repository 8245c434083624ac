// A placement within a capacity, rolled through time: what lives at one end is placed, and the rest taken
// in time by time. What lives near the new time may move, all else stays, so every step is a small search.
//
// Long problems fall to this whose every part is easy and whose whole is not. It finds placements and
// proves nothing.
#pragma once

#include <vector>

#include "race.hpp"

namespace loadmaster {

class Roll {
 public:
  // Of plain buffers, without gaps or pairs apart. `backwards`: from the last time to the first.
  Roll(const Buffers& buffers, i64 capacity, bool backwards, const Switches& switches);

  i64 capacity() const { return capacity_; }

  // Goes on for about so many nodes. True: every buffer is placed.
  bool advance(i64 nodes, Purse& purse, const Stop& stop);

  const std::vector<i64>& offset() const { return offset_; }  // in bytes; -1: not placed yet

 private:
  bool place(i64 from, i64 near, Purse& purse, const Stop& stop);
  void step_back();
  bool lives(i32 b) const { return buffers_.lower[b] < buffers_.upper[b] && buffers_.size[b] > 0; }
  i64 draw(i64 below);

  Buffers buffers_;  // their times are numbers of distinct times, and the end is reached at 0
  const i64 capacity_;
  Switches on_;
  i64 at_ = 0;     // all that lives after this time is placed
  i64 times_ = 0;  // distinct ones
  i64 near_ = 4;   // how much later than the next time what may move starts at most, in times
  std::vector<i64> offset_;
};

}  // namespace loadmaster
