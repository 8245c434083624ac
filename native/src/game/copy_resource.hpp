// How much copying each step has room for, in one direction: copies are served in order of issue,
// each from the first step after its issue, the next one when the one before is done.
#pragma once

#include <vector>

#include "units.hpp"

namespace loadmaster::game {

class CopyResource {
 public:
  explicit CopyResource(std::vector<i64> slots) : slots_(std::move(slots)) {}
  void clear() { jobs_.clear(), after_.clear(); }

  // Whether a copy issued after step `start` and needed by step `end`, which may use the steps
  // between, is on time and makes no other copy late.
  bool fits(i32 start, i32 end, i64 need) const;
  void add(i32 start, i32 end, i64 need);     // one that fits
  void remove(i32 start, i32 end, i64 need);  // the newest one like this

  // How many copies are under way at some time between two steps, both included.
  i32 meeting(i32 start, i32 end) const;
  // Whether some copy starts earlier and ends later, or starts later and ends earlier.
  bool crosses(i32 start, i32 end) const;
  std::vector<i64> left() const;  // [steps] what is not used

 private:
  struct Job {
    i32 start, end;
    i64 need;
  };
  struct Spot {
    i32 step = 0;
    i64 used = 0;  // of the step's slot
    bool operator==(const Spot&) const = default;
  };
  bool serve(const Job& job, Spot& spot) const;  // false: it is late
  std::size_t place_of(i32 start) const;
  Spot before(std::size_t index) const { return index == 0 ? Spot{} : after_[index - 1]; }
  void refresh(std::size_t from);

  std::vector<i64> slots_;   // [steps]
  std::vector<Job> jobs_;    // by start; equal ones as they came
  std::vector<Spot> after_;  // [jobs] where the next one may begin
};

}  // namespace loadmaster::game
