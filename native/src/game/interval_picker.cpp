#include "game/interval_picker.hpp"

#include <algorithm>
#include <cmath>

namespace loadmaster::game {
namespace {

constexpr double kEarlyTrials = 100;  // about so many starts are tried far from the use

}  // namespace

IntervalPicker::IntervalPicker(const std::vector<i64>& elapsed, std::vector<i32> loop,
                               const std::vector<i32>& depth, const PickerRatios& ratios,
                               double capacity_copy)
    : loop_(std::move(loop)), depth_(depth), ratios_(ratios), longest_(ratios.most * capacity_copy) {
  const i32 deepest = depth.empty() ? 0 : *std::max_element(depth.begin(), depth.end());
  for (i32 d = 0; d <= deepest; ++d) weight_.push_back(std::pow(ratios.loop_factor, d));
  has_loops_ = deepest > 0;
  until_.assign(1, 0.0);
  change_.assign(elapsed.size() + 1, -1);
  for (i32 step = 0; step < steps(); ++step) {
    until_.push_back(until_[step] + static_cast<double>(elapsed[step]) * weight_[depth_[step]]);
    change_[step + 1] = depth_of(step + 1) != depth_[step] ? step : change_[step];
  }
}

i32 IntervalPicker::least_depth(i32 start, i32 end) const {
  if (!has_loops_) return 0;
  i32 least = std::min(depth_of(start), depth_of(end));
  for (i32 step = change_[std::min(end, steps())]; step > start; step = change_[step])
    least = std::min(least, depth_[step]);
  return least;
}

double IntervalPicker::between(i32 start, i32 end) const {
  if (end - start < 2) return 0.0;
  return (until_[end] - until_[start + 1]) / weight_[least_depth(start, end)];
}

i32 IntervalPicker::latest_start(i32 range, i32 use, double copy, double saved) const {
  i32 start = use - 1;
  while (start >= range &&
         (loop_of(start) != loop_of(use) || between(start, use) + saved < ratios_.least * copy))
    --start;
  return start;
}

i32 IntervalPicker::earliest_start(i32 range, i32 use, i32 latest) const {
  if (!has_loops_) {  // the time only grows towards earlier starts
    i32 start = latest;
    while (start > range && between(start - 1, use) <= longest_) --start;
    return start;
  }
  i32 start = range;
  while (start < latest && (loop_of(start) != loop_of(use) || between(start, use) > longest_)) ++start;
  return start;
}

i32 IntervalPicker::preferred_end(i32 start, i32 limit, double copy, i32 retry) const {
  const double wanted = (1 + 2 * retry) * ratios_.preferred * copy;
  i32 end = start + 1;
  while (end < limit && between(start, end) < wanted) ++end;
  return end;
}

IntervalPicker::Starts::Starts(const IntervalPicker& picker, i32 range, i32 use, double copy, double saved)
    : picker_(picker), use_(use), earliest_(range), latest_(picker.latest_start(range, use, copy, saved)) {
  up_ = latest_ + 1, down_ = range - 1;
  if (latest_ < range) return;
  earliest_ = picker.earliest_start(range, use, latest_);
  const double wanted = picker.ratios_.preferred * copy;
  i32 best = latest_;
  double best_miss = -1;
  for (i32 start = earliest_; start <= latest_; ++start) {
    if (picker.loop_of(start) != picker.loop_of(use)) continue;
    const double miss = std::abs(wanted - picker.between(start, use));
    if (best_miss < 0 || miss < best_miss) best = start, best_miss = miss;
  }
  up_ = later(best);
  down_ = best;
}

i32 IntervalPicker::Starts::later(i32 from) const {
  do ++from;
  while (from <= latest_ && picker_.loop_of(from) != picker_.loop_of(use_));
  return from;
}

i32 IntervalPicker::Starts::earlier(i32 from, double at_least) const {
  do --from;
  while (from >= earliest_ &&
         (picker_.loop_of(from) != picker_.loop_of(use_) || picker_.between(from, use_) < at_least));
  return from;
}

bool IntervalPicker::Starts::next(i32& start) {
  const bool can_up = up_ <= latest_, can_down = down_ >= earliest_ && latest_ >= earliest_;
  if (!can_up && !can_down) return false;
  if (can_up && (is_up_ || !can_down)) {
    start = up_;
    up_ = later(up_);
    is_up_ = false;
  } else {
    start = down_;
    const bool thin = up_ > latest_;
    down_ = earlier(down_, thin ? picker_.between(down_, use_) + picker_.longest_ / kEarlyTrials : 0);
    is_up_ = true;
  }
  return true;
}

}  // namespace loadmaster::game
