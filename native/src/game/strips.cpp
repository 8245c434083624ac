#include "game/strips.hpp"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace loadmaster::game {
namespace {

constexpr i64 kPlaced = 128;  // strips that are laid out anew for each that may be pushed out

}  // namespace

Strips::Strips(i32 steps, i64 capacity)
    : capacity_(capacity), heap_(steps), loaded_(static_cast<std::size_t>(steps), 0) {}

void Strips::clear() {
  heap_.clear();
  strips_.clear();
  std::fill(loaded_.begin(), loaded_.end(), 0);
}

i64 Strips::fit(i32 first, i32 last, i64 size) const {
  const i64 offset = heap_.best_fit(first, last, size);
  return offset + size <= capacity_ ? offset : -1;
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
  const i32 id = heap_.add({first, last, offset, offset + size});
  strips_.push_back({first, last, size, offset, id, last, last});
  load(first, last, size);
  return count() - 1;
}

bool Strips::can_extend(i32 strip, i32 last) const {
  const Strip& s = strips_[strip];
  return last <= s.until || heap_.is_free(s.until + 1, last, s.offset, s.offset + s.size);
}

bool Strips::extend(i32 strip, i32 last) {
  if (!can_extend(strip, last)) return false;
  Strip& s = strips_[strip];
  if (last <= s.last) return true;
  load(s.last + 1, last, s.size);
  s.last = last;
  if (last > s.until) heap_.set_last(s.id, s.until = last);
  s.wish = std::max(s.wish, last);
  return true;
}

bool Strips::stretch(i32 strip, i32 first, i32 last) {
  Strip& s = strips_[strip];
  first = std::min(first, s.first);
  last = std::max(last, s.last);
  heap_.remove(s.id);
  const bool stays = heap_.is_free(first, last, s.offset, s.offset + s.size);
  const i64 offset = stays ? s.offset : fit(first, last, s.size);
  if (offset >= 0) {
    load(s.first, s.last, -s.size);
    load(first, last, s.size);
    s = {first, last, s.size, offset, s.id, last, last};
  }
  s.id = heap_.add({s.first, s.until, s.offset, s.offset + s.size});
  return offset >= 0;
}

void Strips::reserve(i32 strip, i32 last) {
  Strip& s = strips_[strip];
  s.wish = std::max(s.wish, last);
  if (s.wish > s.until && can_extend(strip, s.wish)) heap_.set_last(s.id, s.until = s.wish);
}

void Strips::close(i32 strip) {
  Strip& s = strips_[strip];
  if (s.id < 0) return;
  heap_.remove(s.id);
  load(s.first, s.last, -s.size);
  s.id = -1;
}

void Strips::close_from(i32 strip) {
  while (count() > strip) {
    close(count() - 1);
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

std::vector<i32> Strips::longest_first(const std::vector<Strip>& strips) {
  std::vector<i32> order;
  for (std::size_t i = 0; i < strips.size(); ++i)
    if (strips[i].id >= 0) order.push_back(static_cast<i32>(i));
  const auto key = [&](i32 i) {
    const Strip& s = strips[i];
    return std::make_tuple(s.first - s.until, -s.size, i);
  };
  std::sort(order.begin(), order.end(), [&](i32 a, i32 b) { return key(a) < key(b); });
  return order;
}

std::size_t Strips::lay_out(std::vector<Strip>& strips, const std::vector<i32>& order) const {
  Heap heap(end() + 1);
  for (std::size_t place = 0; place < order.size(); ++place) {
    Strip& s = strips[order[place]];
    s.offset = heap.best_fit(s.first, s.until, s.size);
    if (s.offset + s.size > capacity_) return place;
    heap.add({s.first, s.until, s.offset, s.offset + s.size});
  }
  return order.size();
}

bool Strips::repack() {
  std::vector<Strip> moved = strips_;
  const std::vector<i32> order = longest_first(moved);
  if (lay_out(moved, order) < order.size()) return false;
  move(places_of(moved));
  return true;
}

std::vector<Strips::Place> Strips::places_of(const std::vector<Strip>& strips) {
  std::vector<Place> places;
  for (const Strip& s : strips) places.push_back({s.offset, s.until});
  return places;
}

void Strips::move(const std::vector<Place>& places) {
  heap_.clear();
  for (std::size_t i = 0; i < strips_.size(); ++i) {
    Strip& s = strips_[i];
    s.offset = places[i].offset;
    s.until = std::max(s.last, places[i].until);
    if (s.id >= 0) s.id = heap_.add({s.first, s.until, s.offset, s.offset + s.size});
  }
}

void Strips::reserve_all() {
  for (i32 i = 0; i < count(); ++i)
    if (strips_[i].id >= 0) reserve(i, strips_[i].wish);
}

bool Strips::reorder(std::vector<Strip>& strips, i64 most) const {
  std::vector<i32> order = longest_first(strips);
  for (i64 placed = static_cast<i64>(order.size()); placed <= most;) {
    const std::size_t failed = lay_out(strips, order);
    if (failed == order.size()) return true;
    placed += static_cast<i64>(failed) + 1;
    const auto begin = order.begin(), at = begin + static_cast<std::ptrdiff_t>(failed);
    std::rotate(begin, at, at + 1);
  }
  return false;
}

bool Strips::insert(std::vector<Strip>& strips, i32 strip, i64 most) const {
  std::vector<i32> homeless{strip}, near;
  std::vector<i64> worth;  // bytes that it costs to push it out: more each time
  for (const Strip& s : strips) worth.push_back(s.size);
  std::vector<std::pair<i64, i64>> low, high;  // (where near ones begin or end, worth up to there)
  for (i64 pushed = 0; pushed < most; ++pushed) {
    const auto next = std::max_element(homeless.begin(), homeless.end(), [&](i32 a, i32 b) {
      return std::pair(worth[a], a) < std::pair(worth[b], b);
    });
    const i32 number = *next;
    homeless.erase(next);
    Strip& s = strips[number];
    near.clear();
    low.clear();
    high.clear();
    for (i32 i = 0; i < static_cast<i32>(strips.size()); ++i) {
      const Strip& other = strips[i];
      if (other.id < 0 || other.offset < 0 || other.first > s.until || other.until < s.first) continue;
      near.push_back(i);
      low.emplace_back(other.offset, worth[i]);
      high.emplace_back(other.offset + other.size, worth[i]);
    }
    const auto add_up = [](std::vector<std::pair<i64, i64>>& ends) {
      std::sort(ends.begin(), ends.end());
      for (std::size_t i = 1; i < ends.size(); ++i) ends[i].second = plus(ends[i].second, ends[i - 1].second);
    };
    add_up(low);
    add_up(high);
    // Of the places right above and right below another strip, and at both ends, the one with the least in
    // it.
    i64 least = kForever;
    const auto before = [](const std::vector<std::pair<i64, i64>>& ends,
                           i64 at) {  // worth that ends before it
      const auto after = std::lower_bound(ends.begin(), ends.end(), std::pair(at, i64{-1}));
      return after == ends.begin() ? 0 : std::prev(after)->second;
    };
    const auto offer = [&](i64 at) {
      if (at < 0 || at + s.size > capacity_) return;
      const i64 cost = before(low, at + s.size) - before(high, at + 1);
      if (cost < least || (cost == least && at < s.offset)) least = cost, s.offset = at;
    };
    offer(0);
    offer(capacity_ - s.size);
    for (const i32 i : near) offer(strips[i].offset + strips[i].size), offer(strips[i].offset - s.size);
    for (const i32 i : near)
      if (strips[i].offset < s.offset + s.size && s.offset < strips[i].offset + strips[i].size) {
        strips[i].offset = -1;
        homeless.push_back(i);
      }
    worth[number] = plus(worth[number], s.size);
    if (homeless.empty()) return true;
  }
  return false;
}

std::vector<Strips::Place> Strips::make_room(const Claim& claim, i64 effort) const {
  const i32 from = claim.strip < 0 ? claim.first : strips_[claim.strip].last + 1;
  for (i32 step = from; step <= claim.last; ++step)
    if (loaded_[step] + claim.size > capacity_) return {};
  for (const bool reserving : {true, false}) {
    std::vector<Strip> moved = strips_;
    if (claim.strip < 0)
      moved.push_back({claim.first, claim.last, claim.size, -1, 0, claim.last, claim.last});
    Strip& s = claim.strip < 0 ? moved.back() : moved[claim.strip];
    s.offset = -1;
    s.last = std::max(s.last, claim.last);
    s.until = std::max(s.until, s.last);
    std::vector<i64> load(loaded_.size() + 1, 0);  // with what is reserved
    for (Strip& each : moved) {
      if (each.id < 0) continue;
      if (!reserving) each.until = each.last;
      load[each.first] += each.size, load[each.until + 1] -= each.size;
    }
    i64 most = 0, now = 0;
    for (const i64 change : load) most = std::max(most, now += change);
    if (most > capacity_) continue;
    std::vector<Strip> again = moved;
    if (!insert(moved, claim.strip < 0 ? count() : claim.strip, effort)) {
      if (!reorder(again, effort * kPlaced)) continue;
      moved = std::move(again);
    }
    return places_of(moved);
  }
  return {};
}

}  // namespace loadmaster::game
