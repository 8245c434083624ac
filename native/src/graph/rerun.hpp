// The event loop for plans of devices, clusters and keys alone, which can take up an earlier run of a similar
// plan: what came before the first difference is read from its history, not run again.
#pragma once

#include "event_loop.hpp"
#include "graph/built.hpp"

namespace loadmaster::graph {

// What a plan decides once its steps are built.
struct Placement {
  std::vector<i32> device;  // [steps]
  std::vector<i64> run_time;
  std::vector<double> rank;  // smaller is better; then level, then time, then step
  std::vector<i64> level;
  std::vector<i64> tail;  // longest path of run times to the end, without transfers
};

// All that happened, so that the state at any time can be told.
struct History {
  struct Move {
    i32 tensor, device, link;
    i64 booked, start, end;
  };
  struct Peak {
    i64 time, bytes;
  };
  std::vector<i64> start, end, ready;    // [steps]
  std::vector<Move> moves;               // in the order in which they were booked
  std::vector<std::vector<Peak>> peaks;  // [memories] rising
};

struct Judged {
  i64 total = 0;
  bool faulty = false;
  bool cut = false;       // stopped where it was sure to be over the limit: the rest is not known
  std::vector<i64> over;  // [memories]
};

class Rerun : private EventLoop<Rerun>, private HomeCopies<Rerun> {
 public:
  explicit Rerun(const Model& model);

  // Runs a plan from `since` on: before that time everything is as in `old`. `old` is not read where `since`
  // is 0. A run that can't end by `limit` is cut short.
  Judged run(const Built& built, const Placement& placement, const History& old, i64 since, History& now,
             i64 limit = kForever);
  using HomeCopies<Rerun>::near;

 private:
  friend class EventLoop<Rerun>;
  friend class HomeCopies<Rerun>;

  // --- what the plan decides ---
  const StepGraph& graph() const { return built_->graph; }
  HomeCopies<Rerun>& copies() { return *this; }
  i32 device_count() const { return devices_; }
  i32 device(i32 step) const { return placement_->device[step]; }
  i64 run_time(i32 step) const { return placement_->run_time[step]; }
  i64& start(i32 step) { return now_->start[step]; }
  i64& end(i32 step) { return now_->end[step]; }
  i64& ready(i32 step) { return now_->ready[step]; }
  std::span<const i32> readers(i32 tensor) const { return built_->readers(tensor); }
  i32 read(i64 i) const { return built_->read[i]; }
  i32 written(i64 i) const { return built_->written[i]; }
  i32 writer(i32 tensor) const { return built_->writer[tensor]; }
  i32 home(i32 tensor) const {
    const i32 step = built_->home_step[tensor];
    return step >= 0 ? placement_->device[step] : 0;
  }
  i32 tensors() const { return built_->tensors; }
  bool persistent(i32 tensor) const { return built_->persistent[tensor] != 0; }
  bool held_for_ever(i32 tensor) const { return persistent(tensor); }
  bool input(i32 tensor) const { return built_->input[tensor] != 0; }
  bool output(i32 tensor) const { return built_->output[tensor] != 0; }
  i32 place(i32 tensor) const { return built_->place[tensor]; }
  i64 place_size(i32 at) const { return built_->place_size[at]; }
  i64 size(i32 tensor) const { return built_->size[tensor]; }
  i64 factor(i32 tensor) const { return built_->factor[tensor]; }
  static constexpr bool resident_read(i64) { return false; }
  static constexpr bool resident_write(i64) { return false; }
  static constexpr bool no_link(i32, i32) { return false; }

  // --- what happens ---
  bool is_cut() const { return cut_; }
  void step_starts(i32 step, i64 now) { open_written(built_->graph, step, now); }
  void step_ends(i32 step, i64) { close_used(built_->graph, step); }
  void transfer_starts(i32 tensor, i32 near_device, i64 now) { open(tensor, near_device, now); }
  void is_booked(i32 tensor, i32 near_device, i32 link, i64 now, const Booking& when) {
    now_->moves.push_back({tensor, near_device, link, now, when.start, when.end});
  }
  void push_ready(i32 step) {
    at_least(now_->ready[step], placement_->tail[step]);
    push_by_rank({placement_->rank[step], placement_->level[step], now_->ready[step], step});
  }
  void starts(i32 step, i64 now) {
    i64& rest = rest_[placement_->device[step]];
    at_least(now, rest);
    at_least(now, placement_->tail[step]);
    rest -= placement_->run_time[step];
  }
  void holds(i32 memory, i64 bytes, i64 now);
  // Something that takes so long from now on: is it too late for the limit?
  void at_least(i64 now, i64 rest) { cut_ = cut_ || plus(now, rest) > limit_; }

  bool prepare();
  void begin_history();
  void resume(const History& old, i64 since);
  void resume_memory(i64 since);

  using HomeCopies<Rerun>::model_;
  const Built* built_ = nullptr;
  const Placement* placement_ = nullptr;
  History* now_ = nullptr;
  i64 limit_ = kForever;
  bool cut_ = false;
  std::vector<i64> rest_;  // [devices] work that has not begun
};

}  // namespace loadmaster::graph
