#include "baselines.hpp"

#include <algorithm>
#include <random>

#include "greedy.hpp"
#include "large.hpp"

namespace loadmaster {

namespace {

constexpr Recipe kBySize{1.0, By::kSize, By::kSize, Fit::kFirst};
constexpr Recipe kBySizeOnTop{1.0, By::kSize, By::kSize, Fit::kOnTop};
constexpr Recipe kBySizeLife{1.0, By::kSizeLife, By::kSizeLife, Fit::kBest};
constexpr Recipe kByPressure{1.0, By::kPressureLife, By::kPressureLife, Fit::kFirst};

// Status, height and bound of what a placement gave.
void settle(const Buffers& buffers, Packer::Result result, Placement& placement) {
  if (result != Packer::Result::kPlaced) {
    placement.offset.clear();
    placement.status = result == Packer::Result::kPinsClash ? Status::kInfeasible : Status::kUnknown;
    return;
  }
  placement.height = height_of(buffers, placement.offset);
  placement.status = placement.height == placement.bound ? Status::kOptimal : Status::kFeasible;
}

Placement one_pass(const Buffers& buffers, const Recipe& recipe, const Stop& stop) {
  const LifeAxis axis(buffers);
  Packer packer(buffers, axis);
  Placement placement;
  placement.bound = axis.bound;
  const auto order = OrderMaker(buffers, axis).make(recipe);
  settle(buffers, packer.place(order, {.fit = recipe.fit}, stop, placement.offset), placement);
  placement.nodes = packer.placed();
  return placement;
}

bool live_together(const LifeAxis& axis, i32 a, i32 b) {
  return axis.first(a) <= axis.last(b) && axis.first(b) <= axis.last(a);
}

// Orders changed by swaps around the highest buffer.
class HillClimb {
 public:
  HillClimb(const Buffers& buffers, u64 seed, const Stop& stop)
      : buffers_(buffers), axis_(buffers), packer_(buffers, axis_), stop_(stop), random_(seed) {}

  // suspect(highest) draws a buffer whose turn may be changed; -1: none.
  template <class Suspect>
  Placement run(const Recipe& recipe, i64 tries, Suspect&& suspect) {
    std::vector<i32> order = OrderMaker(buffers_, axis_).make(recipe);
    turn_.resize(order.size());
    for (std::size_t i = 0; i < order.size(); ++i) turn_[order[i]] = static_cast<i32>(i);
    best_.bound = axis_.bound;
    settle(buffers_, packer_.place(order, {}, stop_, best_.offset), best_);
    std::vector<i64> offset;
    while (tries-- > 0 && best_.status == Status::kFeasible && !halted(stop_)) {
      if (stop_.most_nodes >= 0 && packer_.placed() >= stop_.most_nodes) break;
      const i32 highest = find_highest();
      const i32 one = suspect(*this, highest), other = suspect(*this, highest);
      if (one < 0 || other < 0 || one == other) continue;
      swap(order, one, other);
      if (packer_.place(order, {.limit = best_.height}, stop_, offset) != Packer::Result::kPlaced) {
        swap(order, one, other);
        continue;
      }
      best_.offset.swap(offset);
      settle(buffers_, Packer::Result::kPlaced, best_);
    }
    best_.nodes = packer_.placed();
    return best_;
  }

  // A buffer drawn from those that live with b and may move, or -1.
  i32 companion(i32 b) {
    i32 drawn = -1;
    u64 seen = 0;
    for (i32 other = 0; other < buffers_.count(); ++other)
      if (buffers_.pinned[other] < 0 && live_together(axis_, b, other) && random_() % ++seen == 0)
        drawn = other;
    return drawn;
  }

  // The buffer that b rests on: of those that live with it and end below it the highest; b if none.
  i32 support(i32 b) const {
    i32 found = b;
    i64 top = -1;
    for (i32 other = 0; other < buffers_.count(); ++other) {
      const i64 end = best_.offset[other] + buffers_.size[other];
      if (end <= best_.offset[b] && end > top && buffers_.pinned[other] < 0 && live_together(axis_, b, other))
        top = end, found = other;
    }
    return found;
  }

  bool coin() { return random_() % 2 == 0; }

 private:
  i32 find_highest() const {
    i32 highest = 0;
    for (i32 b = 0; b < buffers_.count(); ++b)
      if (best_.offset[b] + buffers_.size[b] == best_.height) highest = b;
    return highest;
  }

  void swap(std::vector<i32>& order, i32 a, i32 b) {
    std::swap(order[turn_[a]], order[turn_[b]]);
    std::swap(turn_[a], turn_[b]);
  }

  const Buffers& buffers_;
  const LifeAxis axis_;
  Packer packer_;
  const Stop& stop_;
  std::mt19937_64 random_;
  std::vector<i32> turn_;
  Placement best_;
};

}  // namespace

Placement size_first_fit(const Buffers& buffers, const Stop& stop) {
  return one_pass(buffers, kBySize, stop);
}

Placement xla_best_fit(const Buffers& buffers, const Stop& stop) {
  return one_pass(buffers, kBySizeLife, stop);
}

Placement tvm_greedy(const Buffers& buffers, const Stop& stop) {
  return one_pass(buffers, kBySizeOnTop, stop);
}

Placement tvm_hill_climb(const Buffers& buffers, u64 seed, const Stop& stop, i64 tries) {
  return HillClimb(buffers, seed, stop).run(kBySize, tries, [](HillClimb& climb, i32 highest) {
    const i32 near = climb.companion(highest);
    return near < 0 || climb.coin() ? near : climb.companion(near);
  });
}

Placement vela_hill_climb(const Buffers& buffers, u64 seed, const Stop& stop, i64 tries) {
  return HillClimb(buffers, seed, stop).run(kByPressure, tries, [](HillClimb& climb, i32 highest) {
    const i32 near = climb.companion(highest);
    return near < 0 || climb.coin() ? near : climb.support(near);
  });
}

}  // namespace loadmaster
