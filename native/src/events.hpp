// What happens next (section 4, "order of events"): ends of steps, ends and starts of moves, which are
// transfers and copies; and which ready step a device takes.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "units.hpp"

namespace loadmaster {

// A heap whose smallest item is on top, and which keeps its room when it is cleared.
template <class T>
class MinHeap {
 public:
  bool empty() const { return items_.empty(); }
  const T& top() const { return items_.front(); }
  void clear() { items_.clear(); }
  void push(const T& item) {
    items_.push_back(item);
    std::push_heap(items_.begin(), items_.end(), std::greater<>());
  }
  T pop() {
    std::pop_heap(items_.begin(), items_.end(), std::greater<>());
    const T item = items_.back();
    items_.pop_back();
    return item;
  }

 private:
  std::vector<T> items_;
};

// Events of one instant come in the order of their key: phase, transfers before copies, tensor or row or
// step, device.
struct EventKey {
  enum Phase : u64 { kStepEnds = 0, kMoveEnds = 1, kMoveStarts = 2 };

  static constexpr u64 make(Phase phase, bool copy, i64 what, i32 device) {
    return phase << 61 | u64{copy} << 60 | static_cast<u64>(what) << 16 | static_cast<u64>(device);
  }
  static constexpr Phase phase(u64 key) { return static_cast<Phase>(key >> 61); }
  static constexpr bool is_copy(u64 key) { return (key >> 60 & 1) != 0; }
  static constexpr i64 what(u64 key) { return static_cast<i64>(key >> 16 & ((u64{1} << 44) - 1)); }
  static constexpr i32 device(u64 key) { return static_cast<i32>(key & 0xffff); }
  static constexpr u64 end_of(u64 start) { return start - (u64{kMoveStarts} << 61) + (u64{kMoveEnds} << 61); }
};

class EventQueue {
 public:
  void reset(std::size_t links) {
    heap_.clear();
    lanes_.resize(links);
    for (Lane& lane : lanes_) {
      lane.moves.clear();
      lane.next_start = lane.next_end = 0;
    }
  }
  bool empty() const { return heap_.empty(); }
  i64 time() const { return heap_.top().time; }

  void push_step_end(i64 time, i32 step) {
    heap_.push({time, EventKey::make(EventKey::kStepEnds, false, step, 0), -1});
  }

  // A move over a link, by the key of its start; `started`: only its end is to come. A link with engines
  // serves one at a time, so starts and ends ascend and only the next of each is in the heap.
  void push_move(i32 link, bool has_engines, i64 start, i64 end, u64 key, bool started = false) {
    if (!has_engines) {
      if (!started) heap_.push({start, key, -1});
      heap_.push({end, EventKey::end_of(key), -1});
      return;
    }
    Lane& lane = lanes_[link];
    lane.moves.push_back({start, end, key});
    if (started)
      lane.next_start = lane.moves.size();
    else if (lane.next_start + 1 == lane.moves.size())
      heap_.push({start, key, link});
    if (lane.next_end + 1 == lane.moves.size()) heap_.push({end, EventKey::end_of(key), link});
  }

  // The key of the next event, which is gone then.
  u64 pop() {
    const Event event = heap_.pop();
    if (event.link >= 0) push_next_move(event);
    return event.key;
  }

 private:
  struct Event {
    i64 time;
    u64 key;
    i32 link;  // whose next move this is, or -1
    bool operator>(const Event& other) const {
      return time != other.time ? time > other.time : key > other.key;
    }
  };
  struct Lane {
    struct Move {
      i64 start, end;
      u64 key;  // of its start
    };
    std::vector<Move> moves;
    std::size_t next_start = 0, next_end = 0;
  };

  // A link's event has come: the one behind it takes its place in the heap.
  void push_next_move(const Event& event) {
    Lane& lane = lanes_[event.link];
    if (EventKey::phase(event.key) == EventKey::kMoveStarts) {
      if (++lane.next_start == lane.moves.size()) return;
      const Lane::Move& move = lane.moves[lane.next_start];
      heap_.push({move.start, move.key, event.link});
    } else {
      if (++lane.next_end == lane.moves.size()) return;
      const Lane::Move& move = lane.moves[lane.next_end];
      heap_.push({move.end, EventKey::end_of(move.key), event.link});
    }
  }

  MinHeap<Event> heap_;
  std::vector<Lane> lanes_;
};

// A step that is ready, by the rule of its queue ("which step starts"): smaller is better.
struct Ready {
  double rank;
  i64 level;
  i64 time;
  i32 step;
  bool operator>(const Ready& other) const {
    if (rank != other.rank) return rank > other.rank;
    if (level != other.level) return level > other.level;
    if (time != other.time) return time > other.time;
    return step > other.step;
  }
};

}  // namespace loadmaster
