// Section 4: the event loop for whole plans, with residencies, copies, listed transfers and every queue.
#include "engine.hpp"

#include <algorithm>

#include "event_loop.hpp"
#include "transfer_list.hpp"

namespace loadmaster {
namespace {

class Engine : public EventLoop<Engine> {
 public:
  Engine(Prepared& prepared, Outcome& outcome)
      : EventLoop(prepared.model),
        p_(prepared),
        model_(prepared.model),
        steps_(prepared.steps),
        flow_(prepared.flow),
        outcome_(outcome),
        listed_(prepared.model, prepared.flow) {}

  bool run() {
    reset();
    free_since_.assign(model_.devices.size(), 0);
    times_.start.assign(steps_.count, 0);
    times_.end.assign(steps_.count, 0);
    times_.stall.assign(steps_.count, 0);
    ready_time_.assign(steps_.count, 0);
    waits_ = std::move(p_.waits);
    if (!listed_.read(p_.plan, outcome_)) return false;
    count_copies();
    if (!rank_steps()) return false;
    begin();
    run_events();
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
  friend class EventLoop<Engine>;

  // --- what the plan decides, for the loop ---
  const StepGraph& graph() const { return steps_.graph; }
  Flow& copies() { return flow_; }
  i32 device_count() const { return model_.device_count(); }
  i32 device(i32 step) const { return steps_.device[step]; }
  i64 run_time(i32 step) const { return p_.run_time[step]; }
  i64& start(i32 step) { return times_.start[step]; }
  i64& end(i32 step) { return times_.end[step]; }
  i64& ready(i32 step) { return ready_time_[step]; }
  std::span<const i32> readers(i32 tensor) const { return steps_.graph.readers(tensor); }
  i32 written(i64 i) const { return steps_.written[i]; }
  i32 tensors() const { return model_.tensors; }
  bool persistent(i32 tensor) const { return model_.root[tensor] == tensor && model_.persistent(tensor); }
  i64 size(i32 tensor) const { return model_.size[tensor]; }
  i64 factor(i32 tensor) const {
    const i32 writer = steps_.writer[tensor];
    return writer >= 0 ? model_.repeat[steps_.number[writer]] : 1;
  }
  bool is_resident(i32 reader, i32 tensor) const {
    if (p_.plan.residency_count == 0) return false;
    const auto begin = steps_.read.begin() + steps_.read_rows.begin(reader);
    const auto end = steps_.read.begin() + steps_.read_rows.end(reader);
    return flow_.resident_read(std::lower_bound(begin, end, tensor) - steps_.read.begin());
  }

  // --- what happens ---
  void step_starts(i32 step, i64 now) { flow_.start_step(step, now); }
  void step_ends(i32 step, i64 now) {
    free_since_[steps_.device[step]] = now;
    flow_.end_step(step);
  }
  void transfer_starts(i32 tensor, i32 device, i64 now) { flow_.start_transfer(tensor, device, now); }
  void copy_starts(i64 copy, i64 now) { flow_.start_copy(copy, now); }
  void copy_ends(i64 copy, i64 now) {
    flow_.end_copy(copy);
    const i32 need = flow_.copies()[copy].need;
    if (need == steps_.count) return;
    copy_ready_[need] = now;
    satisfy(need, now);
  }
  void data_arrives(i32 step, i64 now) {
    if (!other_ready_.empty()) other_ready_[step] = now;
  }
  void starts(i32 step, i64) {
    if (copy_ready_.empty()) return;
    const i64 since = std::max(free_since_[steps_.device[step]], other_ready_[step]);
    times_.stall[step] = std::max<i64>(0, copy_ready_[step] - since);
  }
  void transfer_ready(i32 tensor, i32 device, i64 now) {
    if (listed_.empty())
      book_transfer(tensor, device, now);
    else
      listed_.produced(tensor, device, now, [this](i32 t, i32 to, i64 when) { book_transfer(t, to, when); });
  }
  void is_booked(i32 tensor, i32 device, i32 link, i64, const Booking& when) {
    outcome_.transfers.push_back({tensor, device, when.start, when.end});
    const i64 bytes = times(model_.size[tensor], factor(tensor));
    outcome_.link_bytes[link] = plus(outcome_.link_bytes[link], bytes);
  }
  void book_copies(i32 step, i64 now) {
    for (i64 i = flow_.issued_begin(step); i < flow_.issued_end(step); ++i) {
      const i64 copy = flow_.issued(i);
      const CopyModel& c = flow_.copies()[copy];
      const Booking when = book_copy(copy, c.link, c.bytes, c.factor, now);
      outcome_.copy_start[copy] = when.start;
      outcome_.copy_end[copy] = when.end;
    }
  }

  // A step waits for the copies that it needs, too.
  void count_copies() {
    if (flow_.copies().empty()) return;
    other_ready_.assign(steps_.count, 0);
    copy_ready_.assign(steps_.count, 0);
    for (const CopyModel& copy : flow_.copies())
      if (copy.need < steps_.count) ++waits_[copy.need];
  }

  // --- which step starts ---
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
      if (p_.plan.critical_path) {
        const i32 circle = find_tails(steps_.graph, steps_.read, steps_.writer, p_.run_time, level_);
        if (circle >= 0) return outcome_.fail(Fault::kDeadlock, steps_.number[circle]);
        for (i64& level : level_) level = -level;  // smaller is better
      }
    }
    return true;
  }

  void push_ready(i32 step) {
    if (p_.plan.queue == 0)
      is_ready_[step] = 1;
    else
      push_by_rank({rank_[step], level_[step], p_.plan.queue == 1 ? 0 : ready_time_[step], step});
  }

  i32 next_step(i32 device) {
    if (p_.plan.queue != 0) return next_by_rank(device);
    auto& next = lane_next_[device];
    if (next == step_lanes_[device].size() || !is_ready_[step_lanes_[device][next]]) return -1;
    return step_lanes_[device][next++];
  }

  Prepared& p_;
  const Model& model_;
  const Steps& steps_;
  Flow& flow_;
  Outcome& outcome_;
  StepTimes times_;
  std::vector<std::vector<i32>> step_lanes_;
  std::vector<std::size_t> lane_next_;
  std::vector<i8> is_ready_;
  std::vector<i64> ready_time_, other_ready_, copy_ready_, free_since_, level_;
  std::vector<double> rank_;
  TransferList listed_;
};

}  // namespace

bool run_free(Prepared& prepared, Outcome& outcome) { return Engine(prepared, outcome).run(); }

i32 find_tails(const StepGraph& graph, const std::vector<i32>& read, const std::vector<i32>& writer,
               const std::vector<i64>& run_time, std::vector<i64>& tail) {
  std::vector<i32> readers_left(graph.count, 0), stack;
  std::vector<i64> longest(graph.count, 0);
  for (const i32 t : read)
    if (writer[t] >= 0) ++readers_left[writer[t]];
  for (i32 s = 0; s < graph.count; ++s)
    if (readers_left[s] == 0) stack.push_back(s);
  i32 seen = 0;
  while (!stack.empty()) {
    const i32 s = stack.back();
    stack.pop_back();
    ++seen;
    // A step that can't run there has no time.
    tail[s] = plus(longest[s], std::max<i64>(0, run_time[s]));
    for (i64 i = graph.read_rows.begin(s); i < graph.read_rows.end(s); ++i) {
      const i32 before = writer[read[i]];
      if (before < 0) continue;
      longest[before] = std::max(longest[before], tail[s]);
      if (--readers_left[before] == 0) stack.push_back(before);
    }
  }
  if (seen == graph.count) return -1;
  i32 step = 0;
  while (readers_left[step] == 0) ++step;
  return step;
}

}  // namespace loadmaster
