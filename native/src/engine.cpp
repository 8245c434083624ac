// Section 4: devices with ready queues, transfers and copies on links with engines.
#include "engine.hpp"

#include <algorithm>
#include <queue>

#include "transfer_list.hpp"

namespace loadmaster {
namespace {

// Events of one instant run in the order of their key: phase, kind, tensor or row, device.
enum Phase : u64 { kStepEnds = 0, kMoveEnds = 1, kMoveStarts = 2 };

struct Event {
  i64 time;
  u64 key;
  i32 link;  // whose next move this is, or -1
  bool operator>(const Event& other) const {
    return time != other.time ? time > other.time : key > other.key;
  }
};

constexpr u64 key_of(Phase phase, bool copy, u64 what, u64 device) {
  return phase << 61 | u64{copy} << 60 | what << 16 | device;
}

// Transfers and copies of one link. A link with engines serves one at a time, so starts and ends
// ascend and only the next of each must be in the heap of events: it stays small.
struct Lane {
  struct Move {
    i64 start, end;
    u64 key;  // of its start
  };
  std::vector<Move> moves;
  std::size_t next_start = 0, next_end = 0;
};

// A step that is ready, by the rule of the queue: smaller is better.
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

template <class T>
using MinHeap = std::priority_queue<T, std::vector<T>, std::greater<>>;

class Engine {
 public:
  Engine(const Prepared& prepared, Outcome& outcome)
      : p_(prepared),
        model_(prepared.model),
        steps_(prepared.steps),
        flow_(prepared.flow),
        outcome_(outcome),
        listed_(prepared.model, prepared.flow) {}

  bool run() {
    const std::size_t devices = model_.devices.size();
    running_.assign(devices, -1);
    free_since_.assign(devices, 0);
    dirty_flag_.assign(devices, 0);
    engine_free_.assign(model_.engines, 0);
    link_lanes_.resize(model_.links.size());
    times_.start.assign(steps_.count, 0);
    times_.end.assign(steps_.count, 0);
    times_.stall.assign(steps_.count, 0);
    ready_time_.assign(steps_.count, 0);
    if (!listed_.read(p_.plan, outcome_)) return false;
    count_waits();
    if (!rank_steps()) return false;
    book_given();
    for (i32 s = 0; s < steps_.count; ++s)
      if (waits_[s] == 0) make_ready(s);
    start_steps(0);
    while (!events_.empty()) {
      const i64 now = events_.top().time;
      while (!events_.empty() && events_.top().time == now) {
        const Event event = events_.top();
        events_.pop();
        if (event.link >= 0) queue_next_move(event);
        handle(event.key, now);
      }
      start_steps(now);
    }
    if (done_ < steps_.count) {
      i32 step = 0;
      while (times_.end[step] > 0 || waits_[step] == 0) ++step;
      return outcome_.fail(Fault::kDeadlock, steps_.number[step]);
    }
    write_op_times(p_, times_, outcome_);
    outcome_.total = 0;
    for (const i64 end : times_.end) outcome_.total = std::max(outcome_.total, end);
    for (std::size_t c = 0; c < flow_.copies().size(); ++c)
      if (flow_.copies()[c].need == steps_.count)
        outcome_.total = std::max(outcome_.total, outcome_.copy_end[c]);
    return true;
  }

 private:
  void handle(u64 key, i64 now) {
    const auto phase = static_cast<Phase>(key >> 61);
    const bool copy = (key >> 60 & 1) != 0;
    const i64 what = static_cast<i64>(key >> 16 & ((u64{1} << 44) - 1));
    const i32 device = static_cast<i32>(key & 0xffff);
    if (phase == kStepEnds)
      end_step(static_cast<i32>(what), now);
    else if (phase == kMoveStarts)
      copy ? flow_.start_copy(what, now) : flow_.start_transfer(static_cast<i32>(what), device, now);
    else if (copy)
      end_copy(what, now);
    else
      end_transfer(static_cast<i32>(what), device, now);
  }

  // What each step waits for: writers or transfers of what it reads, users of what it writes over, copies.
  void count_waits() {
    waits_.assign(steps_.count, 0);
    for (i32 s = 0; s < steps_.count; ++s)
      for (i64 i = steps_.read_rows.begin(s); i < steps_.read_rows.end(s); ++i)
        if (waits_for_read(i, s)) ++waits_[s];
    for (const i32 s : steps_.over) ++waits_[s];
    if (flow_.copies().empty()) return;
    other_ready_.assign(steps_.count, 0);
    copy_ready_.assign(steps_.count, 0);
    for (const CopyModel& copy : flow_.copies())
      if (copy.need < steps_.count) ++waits_[copy.need];
  }

  bool comes_by_transfer(i64 i, i32 step) const {
    const i32 t = steps_.read[i];
    return !flow_.resident_read(i) && flow_.transferred(t, steps_.device[step]);
  }

  bool waits_for_read(i64 i, i32 step) const {
    return steps_.writer[steps_.read[i]] >= 0 || comes_by_transfer(i, step);
  }

  bool rank_steps() {
    const i32 queue = p_.plan.queue;
    if (queue == 0) {
      step_lanes_.resize(model_.devices.size());
      for (const i32 op : steps_.at_position) {
        const i32 s = steps_.of[op];
        if (s >= 0 && steps_.op_position[op] == steps_.position[s])
          step_lanes_[steps_.device[s]].push_back(s);
      }
      lane_next_.assign(model_.devices.size(), 0);
      is_ready_.assign(steps_.count, 0);
      return true;
    }
    heaps_.resize(model_.devices.size());
    rank_.assign(steps_.count, 0.0);
    level_.assign(steps_.count, 0);
    if (queue == 1)
      for (i32 s = 0; s < steps_.count; ++s) rank_[s] = static_cast<double>(steps_.position[s]);
    if (queue == 3) {
      for (i32 s = 0; s < steps_.count; ++s) {
        double key = p_.plan.priority[steps_.number[s]];
        for (i64 i = steps_.member_rows.begin(s); i < steps_.member_rows.end(s); ++i)
          key = std::max(key, p_.plan.priority[steps_.member[i]]);
        rank_[s] = -key;
      }
      if (p_.plan.critical_path) return bottom_levels();
    }
    return true;
  }

  // Longest path of run times to the end, negated so that smaller is better.
  bool bottom_levels() {
    std::vector<i32> readers_left(steps_.count, 0), stack;
    for (i32 s = 0; s < steps_.count; ++s)
      for (i64 i = steps_.read_rows.begin(s); i < steps_.read_rows.end(s); ++i)
        if (steps_.writer[steps_.read[i]] >= 0) ++readers_left[steps_.writer[steps_.read[i]]];
    for (i32 s = 0; s < steps_.count; ++s)
      if (readers_left[s] == 0) stack.push_back(s);
    std::vector<i64> longest(steps_.count, 0);
    i32 seen = 0;
    while (!stack.empty()) {
      const i32 s = stack.back();
      stack.pop_back();
      ++seen;
      const i64 level = plus(longest[s], p_.run_time[s]);
      level_[s] = -level;
      for (i64 i = steps_.read_rows.begin(s); i < steps_.read_rows.end(s); ++i) {
        const i32 writer = steps_.writer[steps_.read[i]];
        if (writer < 0) continue;
        longest[writer] = std::max(longest[writer], level);
        if (--readers_left[writer] == 0) stack.push_back(writer);
      }
    }
    if (seen == steps_.count) return true;
    i32 step = 0;
    while (readers_left[step] == 0) ++step;
    return outcome_.fail(Fault::kDeadlock, steps_.number[step]);
  }

  void make_ready(i32 step) {
    const i32 d = steps_.device[step];
    if (p_.plan.queue == 0)
      is_ready_[step] = 1;
    else
      heaps_[d].push({rank_[step], level_[step], p_.plan.queue == 1 ? 0 : ready_time_[step], step});
    mark_dirty(d);
  }

  void mark_dirty(i32 device) {
    if (dirty_flag_[device]) return;
    dirty_flag_[device] = 1;
    dirty_.push_back(device);
  }

  // One thing that a step waits for has happened.
  void satisfy(i32 step, i64 now) {
    ready_time_[step] = now;
    if (--waits_[step] == 0) make_ready(step);
  }

  void satisfy_data(i32 step, i64 now) {
    if (!other_ready_.empty()) other_ready_[step] = now;
    satisfy(step, now);
  }

  i32 next_step(i32 device) {
    if (p_.plan.queue == 0) {
      auto& next = lane_next_[device];
      if (next == step_lanes_[device].size() || !is_ready_[step_lanes_[device][next]]) return -1;
      return step_lanes_[device][next++];
    }
    if (heaps_[device].empty()) return -1;
    const i32 step = heaps_[device].top().step;
    heaps_[device].pop();
    return step;
  }

  void start_steps(i64 now) {
    for (const i32 device : dirty_) {
      dirty_flag_[device] = 0;
      if (running_[device] >= 0) continue;
      const i32 step = next_step(device);
      if (step < 0) continue;
      running_[device] = step;
      times_.start[step] = now;
      times_.end[step] = plus(now, p_.run_time[step]);
      if (!copy_ready_.empty())
        times_.stall[step] =
            std::max<i64>(0, copy_ready_[step] - std::max(free_since_[device], other_ready_[step]));
      flow_.start_step(step, now);
      events_.push({times_.end[step], key_of(kStepEnds, false, static_cast<u64>(step), 0), -1});
    }
    dirty_.clear();
  }

  void end_step(i32 step, i64 now) {
    const i32 d = steps_.device[step];
    running_[d] = -1;
    free_since_[d] = now;
    ++done_;
    mark_dirty(d);
    flow_.end_step(step, now);
    for (i64 i = steps_.write_rows.begin(step); i < steps_.write_rows.end(step); ++i)
      produced(steps_.written[i], now);
    for (i64 i = steps_.over_rows.begin(step); i < steps_.over_rows.end(step); ++i)
      satisfy_data(steps_.over[i], now);
    for (i64 i = flow_.issued_begin(step); i < flow_.issued_end(step); ++i) book_copy(flow_.issued(i), now);
  }

  // A tensor is there: steps near it may run, the others get a transfer.
  void produced(i32 tensor, i64 now) {
    for (i64 i = steps_.reader_rows.begin(tensor); i < steps_.reader_rows.end(tensor); ++i) {
      const i32 reader = steps_.reader[i];
      const i32 d = steps_.device[reader];
      if (!flow_.transferred(tensor, d) || read_is_resident(reader, tensor)) {
        satisfy_data(reader, now);
      } else if (std::find(destinations_.begin(), destinations_.end(), flow_.near(d)) ==
                 destinations_.end()) {
        destinations_.push_back(flow_.near(d));
      }
    }
    book_transfers(tensor, now);
  }

  bool read_is_resident(i32 reader, i32 tensor) const {
    if (p_.plan.residency_count == 0) return false;
    const auto begin = steps_.read.begin() + steps_.read_rows.begin(reader);
    const auto end = steps_.read.begin() + steps_.read_rows.end(reader);
    return flow_.resident_read(std::lower_bound(begin, end, tensor) - steps_.read.begin());
  }

  void book_transfers(i32 tensor, i64 now) {
    std::sort(destinations_.begin(), destinations_.end());
    for (const i32 d : destinations_) {
      if (listed_.empty())
        book_transfer(tensor, d, now);
      else
        listed_.produced(tensor, d, now, [this](i32 t, i32 to, i64 when) { book_transfer(t, to, when); });
    }
    destinations_.clear();
  }

  // Transfers of given tensors, then copies that wait for no step.
  void book_given() {
    for (i32 t = 0; t < model_.tensors && flow_.transfer_count() > 0; ++t) {
      if (model_.root[t] != t || !model_.persistent(t)) continue;
      for (i32 d = 0; d < model_.device_count(); ++d)
        if (flow_.near(d) == d && flow_.transferred(t, d)) destinations_.push_back(d);
      book_transfers(t, 0);
    }
    for (i64 i = flow_.issued_begin(-1); i < flow_.issued_end(-1); ++i) book_copy(flow_.issued(i), 0);
  }

  // Fixes start and end on the engines of a link.
  i64 book(const LinkModel& link, i64 duration, i64 now, i64& end) {
    i64 start = now;
    for (const i32 engine : link.engines) start = std::max(start, engine_free_[engine]);
    end = plus(start, duration);
    for (const i32 engine : link.engines) engine_free_[engine] = end;
    return start;
  }

  static u64 end_key(u64 start_key) { return start_key - (u64{kMoveStarts} << 61) + (u64{kMoveEnds} << 61); }

  void queue_move(i32 link, i64 start, i64 end, u64 start_key) {
    if (model_.links[link].engines.empty()) {
      events_.push({start, start_key, -1});
      events_.push({end, end_key(start_key), -1});
      return;
    }
    Lane& lane = link_lanes_[link];
    lane.moves.push_back({start, end, start_key});
    if (lane.next_start + 1 == lane.moves.size()) events_.push({start, start_key, link});
    if (lane.next_end + 1 == lane.moves.size()) events_.push({end, end_key(start_key), link});
  }

  // A link's event has come: the one behind it takes its place in the heap.
  void queue_next_move(const Event& event) {
    Lane& lane = link_lanes_[event.link];
    if (static_cast<Phase>(event.key >> 61) == kMoveStarts) {
      if (++lane.next_start == lane.moves.size()) return;
      const Lane::Move& move = lane.moves[lane.next_start];
      events_.push({move.start, move.key, event.link});
    } else {
      if (++lane.next_end == lane.moves.size()) return;
      const Lane::Move& move = lane.moves[lane.next_end];
      events_.push({move.end, end_key(move.key), event.link});
    }
  }

  void book_transfer(i32 tensor, i32 device, i64 now) {
    const i32 from = model_.devices[flow_.home_device(tensor)].home();
    const i32 to = model_.devices[device].home();
    const i32 number = model_.link_between[from * model_.memory_count() + to];
    const LinkModel& link = model_.links[number];
    const i32 writer = steps_.writer[tensor];
    const i64 factor = writer >= 0 ? model_.repeat[steps_.number[writer]] : 1;
    const i64 once = std::max<i64>(1, plus(link.latency, ceil_time(model_.size[tensor], link.bandwidth)));
    i64 end = 0;
    const i64 start = book(link, times(once, factor), now, end);
    outcome_.transfers.push_back({tensor, device, start, end});
    outcome_.link_bytes[number] = plus(outcome_.link_bytes[number], times(model_.size[tensor], factor));
    queue_move(number, start, end,
               key_of(kMoveStarts, false, static_cast<u64>(tensor), static_cast<u64>(device)));
  }

  void book_copy(i64 copy, i64 now) {
    const CopyModel& c = flow_.copies()[copy];
    const LinkModel& link = model_.links[c.link];
    const i64 once = std::max<i64>(1, plus(link.latency, ceil_time(c.bytes, link.bandwidth)));
    i64 end = 0;
    const i64 start = book(link, times(once, c.factor), now, end);
    outcome_.copy_start[copy] = start;
    outcome_.copy_end[copy] = end;
    queue_move(c.link, start, end, key_of(kMoveStarts, true, static_cast<u64>(copy), 0));
  }

  void end_transfer(i32 tensor, i32 device, i64 now) {
    flow_.end_transfer(tensor, device);
    for (i64 i = steps_.reader_rows.begin(tensor); i < steps_.reader_rows.end(tensor); ++i) {
      const i32 reader = steps_.reader[i];
      if (flow_.near(steps_.device[reader]) == device && !read_is_resident(reader, tensor))
        satisfy_data(reader, now);
    }
  }

  void end_copy(i64 copy, i64 now) {
    flow_.end_copy(copy);
    const i32 need = flow_.copies()[copy].need;
    if (need == steps_.count) return;
    copy_ready_[need] = now;
    satisfy(need, now);
  }

  const Prepared& p_;
  const Model& model_;
  const Steps& steps_;
  Flow& flow_;
  Outcome& outcome_;
  StepTimes times_;
  i32 done_ = 0;
  MinHeap<Event> events_;
  std::vector<Lane> link_lanes_;
  std::vector<MinHeap<Ready>> heaps_;
  std::vector<std::vector<i32>> step_lanes_;
  std::vector<std::size_t> lane_next_;
  std::vector<i8> is_ready_, dirty_flag_;
  std::vector<i32> waits_, running_, dirty_, destinations_;
  std::vector<i64> ready_time_, other_ready_, copy_ready_, free_since_, engine_free_, level_;
  std::vector<double> rank_;
  TransferList listed_;
};

}  // namespace

bool run_free(const Prepared& prepared, Outcome& outcome) { return Engine(prepared, outcome).run(); }

}  // namespace loadmaster
