// When a copy should start, and how long a tensor may lie in fast memory unused.
#pragma once

#include <vector>

#include "units.hpp"

namespace loadmaster::game {

struct PickerRatios {
  double least = 1;        // of the time between start and use to the time of the copy
  double preferred = 2;    // the same
  double most = 8;         // of the time in fast memory to the time of a copy that fills it
  double loop_factor = 5;  // how often a loop is taken to run
};

// Times are those of all steps with everything in slow memory, weighted by the loops around them.
class IntervalPicker {
 public:
  // `loop` [steps] is the innermost loop or -1, `depth` [steps] how many loops are around a step.
  IntervalPicker(const std::vector<i64>& elapsed, std::vector<i32> loop, const std::vector<i32>& depth,
                 const PickerRatios& ratios, double capacity_copy);

  // Time between two steps, both left out; -1 is before the first step, steps() after the last.
  double between(i32 start, i32 end) const;
  bool may_stay(i32 start, i32 end) const { return between(start, end) < longest_; }

  // The last start that leaves a copy enough time; below `range`: there is none.
  i32 latest_start(i32 range, i32 use, double copy, double saved) const;
  // The first step by which a copy back has preferred time; `limit`: none before it.
  i32 preferred_end(i32 start, i32 limit, double copy, i32 retry) const;

  // Starts of a copy in the order of trial: the preferred one, then later and earlier in turn.
  class Starts {
   public:
    Starts(const IntervalPicker& picker, i32 range, i32 use, double copy, double saved);
    bool next(i32& start);
    i32 latest() const { return latest_; }

   private:
    i32 later(i32 from) const;
    i32 earlier(i32 from, double at_least) const;

    const IntervalPicker& picker_;
    i32 use_, earliest_, latest_, up_, down_;
    bool is_up_ = false;
  };

  i32 steps() const { return static_cast<i32>(loop_.size()); }
  i32 loop_of(i32 step) const { return step < 0 || step >= steps() ? -1 : loop_[step]; }

 private:
  i32 depth_of(i32 step) const { return step < 0 || step >= steps() ? 0 : depth_[step]; }
  i32 least_depth(i32 start, i32 end) const;
  i32 earliest_start(i32 range, i32 use, i32 latest) const;

  std::vector<i32> loop_, depth_;
  std::vector<double> until_;   // [steps + 1] weighted time of the steps before
  std::vector<i32> change_;     // [steps + 1] the last step before with another depth, or -1
  std::vector<double> weight_;  // [depths] of a step
  PickerRatios ratios_;
  double longest_;
  bool has_loops_ = false;
};

}  // namespace loadmaster::game
