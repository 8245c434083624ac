#include "sweep.hpp"

#include <algorithm>
#include <numeric>
#include <set>
#include <unordered_map>

namespace loadmaster {

namespace {

// A multiple of all alignments, or 0 if it is too large for offsets to be multiples of it.
i64 common_unit(const Buffers& buffers) {
  constexpr i64 kLargest = i64{1} << 20;
  i64 unit = 1;
  for (const i64 alignment : buffers.alignment) {
    if (alignment > kLargest) return 0;
    unit = std::lcm(unit, alignment);
    if (unit > kLargest) return 0;
  }
  return unit;
}

// Free ranges below the top; above it everything is free.
class FreeRanges {
 public:
  i64 take(i64 size) {
    const auto found = by_size_.lower_bound({size, 0});
    if (found == by_size_.end()) {  // at the top, from the range that ends there if there is one
      const auto last = begin_of_.find(top_);
      const i64 from = last == begin_of_.end() ? top_ : last->second;
      if (from != top_) erase(from, top_);
      top_ = from + size;
      return from;
    }
    const auto [room, from] = *found;
    erase(from, from + room);
    if (room > size) insert(from + size, from + room);
    return from;
  }

  void give(i64 from, i64 to) {
    if (const auto before = begin_of_.find(from); before != begin_of_.end()) {
      const i64 begin = before->second;
      erase(begin, from);
      from = begin;
    }
    if (const auto after = end_of_.find(to); after != end_of_.end()) {
      const i64 end = after->second;
      erase(to, end);
      to = end;
    }
    insert(from, to);
  }

 private:
  void insert(i64 from, i64 to) {
    by_size_.emplace(to - from, from);
    end_of_.emplace(from, to);
    begin_of_.emplace(to, from);
  }
  void erase(i64 from, i64 to) {
    by_size_.erase({to - from, from});
    end_of_.erase(from);
    begin_of_.erase(to);
  }

  std::set<std::pair<i64, i64>> by_size_;  // (size, from)
  std::unordered_map<i64, i64> end_of_, begin_of_;
  i64 top_ = 0;
};

}  // namespace

bool place_in_time(const Buffers& buffers, std::vector<i64>& offset) {
  const i32 n = buffers.count();
  const i64 unit = common_unit(buffers);
  const bool pinned =
      std::any_of(buffers.pinned.begin(), buffers.pinned.end(), [](i64 pin) { return pin >= 0; });
  if (unit == 0 || pinned || !buffers.apart.empty()) return false;
  i64 total = 0;
  for (const i64 size : buffers.size) total = plus(total, plus(size, unit));
  if (total >= kForever) return false;
  const auto room = [&](i32 b) { return (buffers.size[b] + unit - 1) / unit * unit; };

  std::vector<i32> starts(n);
  std::iota(starts.begin(), starts.end(), 0);
  std::vector<i32> ends = starts;
  // Of those that start together the largest first; lifetimes are half-open.
  std::sort(starts.begin(), starts.end(), [&](i32 a, i32 b) {
    if (buffers.lower[a] != buffers.lower[b]) return buffers.lower[a] < buffers.lower[b];
    return buffers.size[a] != buffers.size[b] ? buffers.size[a] > buffers.size[b] : a < b;
  });
  std::sort(ends.begin(), ends.end(), [&](i32 a, i32 b) {
    return buffers.upper[a] != buffers.upper[b] ? buffers.upper[a] < buffers.upper[b] : a < b;
  });
  offset.assign(n, 0);
  FreeRanges free;
  auto next_end = ends.begin();
  for (const i32 b : starts) {
    for (; buffers.upper[*next_end] <= buffers.lower[b]; ++next_end)
      if (room(*next_end) > 0) free.give(offset[*next_end], offset[*next_end] + room(*next_end));
    if (room(b) > 0) offset[b] = free.take(room(b));
  }
  return true;
}

}  // namespace loadmaster
