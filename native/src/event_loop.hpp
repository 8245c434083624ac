// Section 4, the one event loop: devices that run one step at a time, and moves, which take their turn on the
// engines of links. `Run` derives from it, says what the plan decides, and keeps what it wants to know:
//
//   graph(), copies()               the steps (StepGraph), and where data is (HomeCopies)
//   device_count(), tensors()
//   device(step), run_time(step)    where a step runs, and how long, repetitions included
//   start(step), end(step), ready(step)   references to its times
//   readers(tensor), written(i)     of the graph, in the numbers that copies() has for tensors
//   persistent(tensor), size(tensor), factor(tensor)   of a transfer: bytes, and how often it is repeated
//   push_ready(step)                a step may start; calls push_by_rank where the queue goes by rank
//   step_starts(step, now), step_ends(step, now), transfer_starts(tensor, device, now)   for memory
//
// and may hide the functions that stand under "may be hidden". engine.cpp and graph/rerun.hpp are the two.
#pragma once

#include <span>

#include "events.hpp"
#include "home_copies.hpp"

namespace loadmaster {

template <class Run>
class EventLoop {
 protected:
  explicit EventLoop(const Model& model) : links_(model.links), engines_(model.engines) {}

  // --- may be hidden ---
  bool is_cut() const { return false; }               // nothing more is to be known
  bool is_resident(i32, i32) const { return false; }  // (reader, tensor): a residency serves the read
  void data_arrives(i32, i64) {}                      // (step, now): one of the things it waits for, no copy
  void starts(i32, i64) {}                            // (step, now): just before
  void is_booked(i32, i32, i32, i64, const Booking&) {}  // (tensor, device, link, now, when)
  void book_copies(i32, i64) {}  // (step, now): those that it issues; -1: those issued before the program
  void copy_starts(i64, i64) {}
  void copy_ends(i64, i64) {}
  // A transfer may be booked, as far as data are concerned.
  void transfer_ready(i32 tensor, i32 device, i64 now) { run().book_transfer(tensor, device, now); }
  i32 next_step(i32 device) { return run().next_by_rank(device); }
  // ---

  void reset() {
    const std::size_t devices = run().device_count();
    running_.assign(devices, -1);
    is_dirty_.assign(devices, 0);
    dirty_.clear();
    engine_free_.assign(engines_, 0);
    events_.reset(links_.size());
    waiting_.resize(devices);
    for (auto& heap : waiting_) heap.clear();
    done_ = 0;
  }

  // Time 0: transfers of given tensors, then copies that wait for no step, then steps.
  void begin() {
    const auto& copies = run().copies();
    for (i32 t = 0; t < run().tensors() && copies.transfer_count() > 0; ++t)
      for (i32 d = 0; d < run().device_count() && run().persistent(t); ++d)
        if (copies.near(d) == d && copies.transferred(t, d)) run().transfer_ready(t, d, 0);
    run().book_copies(-1, 0);
    for (i32 s = 0; s < run().graph().count; ++s)
      if (waits_[s] == 0) make_ready(s);
    start_steps(0);
  }

  void run_events() {
    while (!events_.empty() && !run().is_cut()) {
      const i64 now = events_.time();
      while (!events_.empty() && events_.time() == now) handle(events_.pop(), now);
      start_steps(now);
    }
  }

  void make_ready(i32 step) {
    run().push_ready(step);
    mark_dirty(run().device(step));
  }

  // One thing that a step waits for has happened.
  void satisfy(i32 step, i64 now) {
    run().ready(step) = now;
    if (--waits_[step] == 0) make_ready(step);
  }

  void book_transfer(i32 tensor, i32 device, i64 now) {
    const i32 link = run().copies().link_to(tensor, device);
    const i64 once = move_time(links_[link].latency, links_[link].bandwidth, run().size(tensor));
    const Booking when = take_turn(link, times(once, run().factor(tensor)), now,
                                   EventKey::make(EventKey::kMoveStarts, false, tensor, device));
    run().is_booked(tensor, device, link, now, when);
  }

  Booking book_copy(i64 copy, i32 link, i64 bytes, i64 factor, i64 now) {
    const i64 once = move_time(links_[link].latency, links_[link].bandwidth, bytes);
    return take_turn(link, times(once, factor), now, EventKey::make(EventKey::kMoveStarts, true, copy, 0));
  }

  void push_by_rank(const Ready& ready) { waiting_[run().device(ready.step)].push(ready); }
  i32 next_by_rank(i32 device) { return waiting_[device].empty() ? -1 : waiting_[device].pop().step; }

  i32 done_ = 0;              // steps that have ended
  std::vector<i32> waits_;    // [steps] things that it still waits for
  std::vector<i32> running_;  // [devices] step or -1
  std::vector<i64> engine_free_;
  EventQueue events_;

 private:
  Run& run() { return static_cast<Run&>(*this); }

  void handle(u64 key, i64 now) {
    const i64 what = EventKey::what(key);
    const i32 number = static_cast<i32>(what), device = EventKey::device(key);
    switch (EventKey::phase(key)) {
      case EventKey::kStepEnds:
        return end_step(number, now);
      case EventKey::kMoveEnds:
        return EventKey::is_copy(key) ? run().copy_ends(what, now) : end_transfer(number, device, now);
      case EventKey::kMoveStarts:
        return EventKey::is_copy(key) ? run().copy_starts(what, now)
                                      : run().transfer_starts(number, device, now);
    }
  }

  void mark_dirty(i32 device) {
    if (is_dirty_[device]) return;
    is_dirty_[device] = 1;
    dirty_.push_back(device);
  }

  // Devices that became idle, or got a step to choose from.
  void start_steps(i64 now) {
    for (const i32 device : dirty_) {
      is_dirty_[device] = 0;
      if (running_[device] >= 0) continue;
      const i32 step = run().next_step(device);
      if (step < 0) continue;
      run().starts(step, now);
      running_[device] = step;
      const i64 end = plus(now, run().run_time(step));
      run().start(step) = now;
      run().end(step) = end;
      run().step_starts(step, now);
      events_.push_step_end(end, step);
    }
    dirty_.clear();
  }

  void end_step(i32 step, i64 now) {
    const i32 device = run().device(step);
    running_[device] = -1;
    ++done_;
    mark_dirty(device);
    run().step_ends(step, now);
    const StepGraph& graph = run().graph();
    for (i64 i = graph.write_rows.begin(step); i < graph.write_rows.end(step); ++i)
      produce(run().written(i), now);
    for (i64 i = graph.over_rows.begin(step); i < graph.over_rows.end(step); ++i)
      satisfy_data(graph.over[i], now);
    run().book_copies(step, now);
  }

  // A tensor is there: steps near it may run, the others get a transfer.
  void produce(i32 tensor, i64 now) {
    const auto& copies = run().copies();
    destinations_.clear();
    for (const i32 reader : run().readers(tensor)) {
      const i32 there = copies.near(run().device(reader));
      if (!copies.transferred(tensor, there) || run().is_resident(reader, tensor))
        satisfy_data(reader, now);
      else if (std::find(destinations_.begin(), destinations_.end(), there) == destinations_.end())
        destinations_.push_back(there);
    }
    std::sort(destinations_.begin(), destinations_.end());
    for (const i32 there : destinations_) run().transfer_ready(tensor, there, now);
  }

  void end_transfer(i32 tensor, i32 device, i64 now) {
    run().copies().end_transfer(tensor, device);
    for (const i32 reader : run().readers(tensor))
      if (run().copies().near(run().device(reader)) == device && !run().is_resident(reader, tensor))
        satisfy_data(reader, now);
  }

  void satisfy_data(i32 step, i64 now) {
    run().data_arrives(step, now);
    satisfy(step, now);
  }

  Booking take_turn(i32 link, i64 duration, i64 now, u64 key) {
    const std::vector<i32>& engines = links_[link].engines;
    const Booking when = book(engines, engine_free_, now, duration);
    events_.push_move(link, !engines.empty(), when.start, when.end, key);
    return when;
  }

  const std::vector<LinkModel>& links_;
  const i32 engines_;
  std::vector<i32> dirty_, destinations_;
  std::vector<i8> is_dirty_;
  std::vector<MinHeap<Ready>> waiting_;  // [devices] by rank
};

// [steps] longest path of run times to the end, own time included, along data alone. `read` and `writer` are
// in the same numbers of tensors. Returns a step on a circle, or -1: there is none.
i32 find_tails(const StepGraph& graph, const std::vector<i32>& read, const std::vector<i32>& writer,
               const std::vector<i64>& run_time, std::vector<i64>& tail);

}  // namespace loadmaster
