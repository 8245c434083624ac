#include "roll.hpp"

#include <algorithm>
#include <utility>

#include "bounds.hpp"

namespace loadmaster {

Roll::Roll(const Buffers& buffers, i64 capacity, bool backwards, const Switches& switches)
    : buffers_(buffers), capacity_(capacity), on_(switches), offset_(buffers.count(), -1) {
  std::vector<i64> times(buffers.lower);
  times.insert(times.end(), buffers.upper.begin(), buffers.upper.end());
  std::sort(times.begin(), times.end());
  times.erase(std::unique(times.begin(), times.end()), times.end());
  times_ = std::ssize(times);
  at_ = times_ - 1;
  const auto number = [&](i64 time) {
    return std::lower_bound(times.begin(), times.end(), time) - times.begin();
  };
  for (i32 b = 0; b < buffers.count(); ++b) {
    const i64 lower = number(buffers.lower[b]), upper = number(buffers.upper[b]);
    buffers_.lower[b] = backwards ? lower : times_ - 1 - upper;
    buffers_.upper[b] = backwards ? upper : times_ - 1 - lower;
    if (!lives(b)) offset_[b] = std::max<i64>(buffers.pinned[b], 0);
  }
}

i64 Roll::draw(i64 below) {
  u64 z = on_.seed += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return static_cast<i64>((z ^ (z >> 31)) % static_cast<u64>(below));
}

bool Roll::advance(i64 nodes, Purse& purse, const Stop& stop) {
  constexpr i64 kNearest = 4, kParts = 8;
  const i64 end = purse.spent + nodes;
  const auto over = [&] { return purse.spent >= end || purse.empty() || stopped(stop); };
  // As much as falls to one search, for a start.
  for (i64 part = 1; part < kParts && at_ == times_ - 1 && !over(); ++part)
    if (place(times_ * part / kParts, times_, purse, stop)) at_ = times_ * part / kParts;
  while (at_ > 0 && !over()) {
    bool placed = false;
    for (i64 near = std::exchange(near_, kNearest); !placed && !over(); near *= 2) {
      placed = place(at_ - 1, at_ + near, purse, stop);
      if (at_ + near >= times_) break;
    }
    if (placed)
      --at_;
    else if (!over())
      step_back();
  }
  return at_ == 0;
}

// Forgets what was taken in last, and lets more of the rest move when it is taken in again.
void Roll::step_back() {
  constexpr i64 kFarthest = 24, kWidest = 64;
  at_ = std::min(times_ - 1, at_ + 1 + draw(kFarthest));
  for (i32 b = 0; b < buffers_.count(); ++b)
    if (buffers_.upper[b] <= at_ && lives(b)) offset_[b] = -1;
  near_ = 1 + draw(kWidest);
}

// Places what lives after `from`; what starts at `near` or later stays where it is.
bool Roll::place(i64 from, i64 near, Purse& purse, const Stop& stop) {
  constexpr i64 kRounds = 3;
  purse.pay(1 + buffers_.count());  // making it ready is work too, whatever comes of it
  std::vector<i32> chosen;
  for (i32 b = 0; b < buffers_.count(); ++b)
    if (buffers_.upper[b] > from && lives(b)) chosen.push_back(b);
  Buffers part = subset(buffers_, chosen);
  for (i32 i = 0; i < part.count(); ++i) {
    part.lower[i] = std::max(part.lower[i], from);
    if (part.pinned[i] < 0 && buffers_.lower[chosen[i]] >= near) part.pinned[i] = offset_[chosen[i]];
  }
  const Sections sections = sectioned(part);
  if (sections.contradictory || lower_bound(sections) > capacity_) return false;
  on_.seed = static_cast<u64>(draw(kForever));
  Race race(sections, on_);
  std::vector<i64> found;
  i64 budget = race.first_budget();
  for (i64 number = 0; number < kRounds; ++number, budget *= 2) {
    const SearchEnd outcome = race.round(capacity_, number + draw(2), budget, purse, stop, found);
    if (outcome == SearchEnd::kNone) return false;
    if (outcome == SearchEnd::kOutOfBudget) continue;
    for (i32 b = 0; b < sections.count(); ++b)
      offset_[chosen[sections.original[b]]] = found[b] * sections.unit;
    return true;
  }
  return false;
}

}  // namespace loadmaster
