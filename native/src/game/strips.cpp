#include "game/strips.hpp"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace loadmaster::game {

// The heap has no end: among gaps the one above everything is the largest, so it is taken last.
Strips::Strips(i32 steps, i64 capacity)
    : capacity_(capacity), heap_(steps, kForever, 1), loaded_(static_cast<std::size_t>(steps), 0) {}

void Strips::clear() {
  heap_.clear();
  strips_.clear();
  std::fill(loaded_.begin(), loaded_.end(), 0);
}

i64 Strips::fit(i32 first, i32 last, i64 size) const {
  const i64 offset = heap_.best_fit(first, last, size);
  return offset >= 0 && offset + size <= capacity_ ? offset : -1;
}

i64 Strips::find(i32 first, i32 last, i64 size, const std::vector<i32>& horizon) const {
  const i64 nearest = fit(first, last, size);
  if (nearest < 0) return -1;
  i64 found = nearest;
  std::size_t low = 0, high = horizon.size();  // all below `low` leave a gap, none from `high` on
  for (bool whole = true; low < high; whole = false) {
    const std::size_t middle = whole ? high - 1 : (low + high) / 2;
    const i64 offset = horizon[middle] <= last ? nearest : fit(first, horizon[middle], size);
    if (offset < 0)
      high = middle;
    else
      low = middle + 1, found = offset;
  }
  return found;
}

i32 Strips::open(i32 first, i32 last, i64 size, i64 offset) {
  strips_.push_back({first, last, size, offset, heap_.add({first, last, offset, offset + size})});
  load(first, last, size);
  return count() - 1;
}

bool Strips::can_extend(i32 strip, i32 last) const {
  const Strip& s = strips_[strip];
  return last <= s.last || heap_.is_free(s.last + 1, last, s.offset, s.offset + s.size);
}

bool Strips::extend(i32 strip, i32 last) {
  Strip& s = strips_[strip];
  if (!can_extend(strip, last)) return false;
  if (last <= s.last) return true;
  load(s.last + 1, last, s.size);
  heap_.set_last(s.id, last);
  s.last = last;
  return true;
}

void Strips::close_from(i32 strip) {
  while (count() > strip) {
    const Strip& s = strips_.back();
    heap_.remove(s.id);
    load(s.first, s.last, -s.size);
    strips_.pop_back();
  }
}

void Strips::load(i32 first, i32 last, i64 size) {
  for (i32 step = first; step <= last; ++step) loaded_[step] += size;
}

i32 Strips::roomy_since(i32 from, i64 size) const {
  i32 step = from + 1;
  while (step > 0 && loaded_[step - 1] + size <= capacity_) --step;
  return step;
}

bool Strips::repack() {
  std::vector<i32> order(strips_.size());
  std::iota(order.begin(), order.end(), 0);
  const auto key = [&](i32 i) {
    const Strip& s = strips_[i];
    return std::make_tuple(s.first - s.last, -s.size, i);
  };
  std::sort(order.begin(), order.end(), [&](i32 a, i32 b) { return key(a) < key(b); });
  Heap fresh(end() + 1, kForever, 1);
  std::vector<Strip> moved = strips_;
  for (const i32 i : order) {
    Strip& s = moved[i];
    s.offset = fresh.best_fit(s.first, s.last, s.size);
    if (s.offset + s.size > capacity_) return false;
    s.id = fresh.add({s.first, s.last, s.offset, s.offset + s.size});
  }
  heap_ = std::move(fresh);
  strips_ = std::move(moved);
  return true;
}

}  // namespace loadmaster::game
