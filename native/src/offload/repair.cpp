#include "offload/offload.hpp"

namespace loadmaster {

namespace {

constexpr i64 kSmall = 8192;  // of the capacity: what is smaller makes no room, and costs a copy all the same

class Repair {
 public:
  Repair(const OffloadTables& tables, std::vector<i8>& kept, std::vector<i64>& room)
      : t_(tables), kept_(kept), room_(room), free_(kept) {
    for (i32 item = 0; item < t_.items(); ++item) take(item, 1);
  }

  void run(i64 capacity) {
    small_ = capacity / kSmall;
    for (i32 step = 0; step < t_.steps(); ++step)
      while (room_[step] + always_ > capacity) {
        const i32 gap = victim(step);
        if (gap < 0) break;  // its own reads and writes: it can't be helped
        const i32 item = t_.gap_item[gap];
        take(item, -1);
        kept_[gap] = free_[gap] = 0;
        take(item, 1);
      }
  }

 private:
  bool held(i32 item) const {
    const i32 gap = t_.first_gap[item];
    return gap >= 0 && kept_[gap];
  }

  void add(i32 first, i32 last, i64 amount) {
    for (i32 step = first; step <= last; ++step) room_[step] += amount;
  }

  // Add or take away the room of all stays of an item.
  void take(i32 item, i64 sign) {
    const i64 amount = sign * t_.size[item];
    if (held(item)) {
      always_ += amount;
      return;
    }
    const i64 begin = t_.use_start[item], end = t_.use_start[item + 1];
    i32 first = t_.use_step[begin];
    bool whole = true;
    for (i64 use = begin + 1; use < end; ++use) {
      const i32 gap = t_.use_gap[use];
      if (gap < 0 || kept_[gap]) continue;
      add(first, t_.use_step[use - 1], amount);
      first = t_.use_step[use];
      whole = false;
    }
    const i32 after = t_.end_gap[item];
    const bool to_end = t_.output[item] && whole && (after < 0 || kept_[after]);
    add(first, to_end ? t_.steps() - 1 : t_.use_step[end - 1], amount);
  }

  // When what a gap keeps is used again; -1: it has nothing to do with the step.
  i64 again(i32 gap, i32 step) const {
    const i64 whole = t_.clock.back();
    const i32 item = t_.gap_item[gap];
    if (t_.gap_kind[gap] != kBeforeUse) {
      if (held(item) || t_.gap_from[gap] >= step || step >= t_.gap_to[gap]) return -1;
      return t_.gap_to[gap] == t_.steps() ? 2 * whole : t_.clock[t_.gap_to[gap]];
    }
    for (i64 use = t_.use_start[item]; use < t_.use_start[item + 1]; ++use) {
      if (t_.use_step[use] == step) return -1;
      if (t_.use_step[use] > step) return t_.clock[t_.use_step[use]];
    }
    return whole + t_.clock[t_.use_step[t_.use_start[item]]];
  }

  i32 victim(i32 step) const {
    i32 best = -1;
    i64 latest = -1, largest = -1;
    bool small = true;
    for (i32 gap = 0; gap < static_cast<i32>(free_.size()); ++gap) {
      if (!free_[gap]) continue;
      const i64 size = t_.size[t_.gap_item[gap]];
      if (size <= small_ && !small) continue;
      const i64 when = again(gap, step);
      if (when < 0) continue;
      if ((size <= small_) == small) {
        if (when < latest || (when == latest && size <= largest)) continue;
      }
      best = gap, latest = when, largest = size, small = size <= small_;
    }
    return best;
  }

  const OffloadTables& t_;
  std::vector<i8>& kept_;
  std::vector<i64>& room_;
  std::vector<i8> free_;  // gaps that could still be given up
  i64 always_ = 0;        // bytes of items that never leave: in every step, beside room_
  i64 small_ = 0;         // bytes up to which an item is the last choice
};

}  // namespace

void settle(const OffloadTables& t, std::vector<i8>& kept) {
  const i32 gaps = static_cast<i32>(kept.size());
  std::vector<i8> left(t.items(), 0);
  for (i32 gap = 0; gap < gaps; ++gap) {
    const i32 before = t.first_gap[t.gap_item[gap]];
    if (before >= 0 && kept[before]) kept[gap] = 1;
    if (t.gap_kind[gap] == kBetween && !kept[gap]) left[t.gap_item[gap]] = 1;
  }
  for (i32 item = 0; item < t.items(); ++item)
    if (left[item] && t.end_gap[item] >= 0) kept[t.end_gap[item]] = 0;
}

void repair(const OffloadTables& tables, std::vector<i8>& kept, i64 capacity, std::vector<i64> room) {
  settle(tables, kept);
  Repair(tables, kept, room).run(capacity);
  settle(tables, kept);
}

}  // namespace loadmaster
