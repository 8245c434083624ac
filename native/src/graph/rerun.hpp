// The event engine for plans of devices, clusters and keys alone, which can take up an earlier run
// of a similar plan: what came before the first difference is read from its history, not run again.
#pragma once

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

class Rerun {
 public:
  explicit Rerun(const Model& model);

  // Runs a plan from `since` on: before that time everything is as in `old`. `old` is not read where
  // `since` is 0. A run that can't end by `limit` is cut short.
  Judged run(const Built& built, const Placement& placement, const History& old, i64 since, History& now,
             i64 limit = kForever);
  // The first device with the same home.
  i32 near(i32 device) const { return near_[device]; }

 private:
  struct Cell {  // a tensor on a device
    i32 uses = 0;
    i8 open = 0, needed = 0;  // needed: by transfer
  };
  struct Event {
    i64 time;
    u64 key;
    i32 link;
    bool operator>(const Event& other) const {
      return time != other.time ? time > other.time : key > other.key;
    }
  };
  struct Ready {
    double rank;
    i64 level, time;
    i32 step;
    bool operator>(const Ready& other) const;
  };
  struct Lane {
    std::vector<History::Move> moves;
    std::size_t next_start = 0, next_end = 0;
  };

  Cell& cell(i32 tensor, i32 near_device) {
    return cells_[static_cast<std::size_t>(tensor) * devices_ + near_device];
  }
  i32 home(i32 tensor) const {
    const i32 step = built_->home_step[tensor];
    return step >= 0 ? placement_->device[step] : 0;
  }
  i32 link_to(i32 tensor, i32 device) const;
  bool prepare();
  void begin();
  void resume(const History& old, i64 since);
  void resume_memory(i64 since);
  void make_ready(i32 step);
  void satisfy(i32 step, i64 now);
  void start_steps(i64 now);
  void end_step(i32 step, i64 now);
  void book(i32 tensor, i32 device, i64 now);
  void queue_move(const History::Move& move, bool started);
  void queue_next_move(const Event& event);
  void push(const Event& event);
  void end_move(i32 tensor, i32 device, i64 now);
  void open(i32 tensor, i32 near_device, i64 now);
  void close(i32 tensor, i32 near_device);
  void hold(i32 tensor, i32 memory, i64 now);
  // Something that takes so long from now on: is it too late for the limit?
  void at_least(i64 now, i64 rest) { cut_ = cut_ || plus(now, rest) > limit_; }
  bool stays(i32 tensor, i32 near_device) const {
    return built_->output[tensor] && !built_->input[tensor] && near_[home(tensor)] == near_device;
  }
  i32 memory(i32 device) const { return model_.devices[device].home(); }

  const Model& model_;
  i32 devices_;
  std::vector<i32> near_;
  const Built* built_ = nullptr;
  const Placement* placement_ = nullptr;
  History* now_ = nullptr;
  i32 done_ = 0;
  i64 limit_ = kForever;
  bool cut_ = false;
  std::vector<i64> rest_;  // [devices] work that has not begun
  std::vector<Cell> cells_;
  std::vector<i32> holds_;  // [places * memories]
  std::vector<i64> bytes_;  // [memories]
  std::vector<i32> waits_, running_, dirty_, destinations_;
  std::vector<i8> is_dirty_;
  std::vector<i64> engine_free_;
  std::vector<Event> events_;                // heap
  std::vector<std::vector<Ready>> waiting_;  // [devices] heaps
  std::vector<Lane> lanes_;                  // [links]
};

}  // namespace loadmaster::graph
