// Where data is and what memory it holds while a plan with residencies and copies runs (sections 4 and 6).
// The event engine and the idle rule both drive it: they say what starts and ends, it counts bytes.
#pragma once

#include "home_copies.hpp"

namespace loadmaster {

struct CopyModel {
  i32 tensor = 0;
  i32 issue = -1;  // step, or -1: at time 0
  i32 need = 0;    // step, or the number of steps: the end
  i32 link = -1;
  i64 bytes = 0;
  i64 factor = 1;  // repeat, if both ends are in one loop
};

class Flow : public HomeCopies<Flow> {
 public:
  Flow(const Model& model, const PlanView& plan, const Steps& steps, const Residencies& residencies,
       Outcome& outcome);
  // Also tells for how many things each step waits, copies left out. False: the plan is at fault.
  bool prepare(std::vector<i32>& waits);

  // What the engines report. All times of one run are ascending.
  void start_program();
  void start_step(i32 step, i64 now);
  void end_step(i32 step);
  void start_transfer(i32 tensor, i32 near_device, i64 now) { open(tensor, near_device, now); }
  void start_copy(i64 copy, i64 now);
  void end_copy(i64 copy);
  void finish();  // writes peaks into the outcome

  const std::vector<CopyModel>& copies() const { return copies_; }
  // Copies issued by a step, in row order; step -1: those issued before.
  i64 issued_begin(i32 step) const { return issued_rows_.begin(step + 1); }
  i64 issued_end(i32 step) const { return issued_rows_.end(step + 1); }
  i64 issued(i64 i) const { return issued_[i]; }

  // What is decided, for HomeCopies.
  i32 device(i32 step) const { return steps_.device[step]; }
  i32 home(i32 tensor) const { return home_device_[tensor]; }
  i32 read(i64 i) const { return steps_.read[i]; }
  i32 written(i64 i) const { return steps_.written[i]; }
  i32 writer(i32 tensor) const { return steps_.writer[tensor]; }
  bool resident_read(i64 i) const { return !resident_read_.empty() && resident_read_[i] != 0; }
  bool resident_write(i64 i) const { return !resident_write_.empty() && resident_write_[i] != 0; }
  bool input(i32 tensor) const { return model_.input(tensor); }
  bool output(i32 tensor) const { return model_.output[tensor] != 0; }
  bool held_for_ever(i32 tensor) const { return model_.persistent(tensor) && !residencies_.before(tensor); }
  i32 place(i32 tensor) const { return model_.place[tensor]; }
  i64 place_size(i32 at) const { return model_.place_size[at]; }
  bool no_link(i32 from, i32 to) const { return outcome_.fail(Fault::kNoLink, from, to); }
  void holds(i32 memory, i64 bytes, i64 now) {
    outcome_.peak[memory] = std::max(outcome_.peak[memory], bytes);
    if (bytes > model_.memories[memory].capacity && outcome_.first_over[memory] < 0)
      outcome_.first_over[memory] = now;
  }

 private:
  bool model_copies();
  void find_home_devices();
  void find_residency_steps();
  void find_resident_accesses();
  bool opens_home(const CopyModel& copy) const;
  i32 near_home(i32 tensor) const { return near_[home_device_[tensor]]; }
  // The first device whose home a copy comes from, or -1.
  i32 source_device(const CopyModel& copy) const;

  const PlanView& plan_;
  const Steps& steps_;
  const Residencies& residencies_;
  Outcome& outcome_;
  std::vector<i32> home_device_;                    // [tensors]
  std::vector<i8> resident_read_, resident_write_;  // per entry of steps.read and steps.written
  std::vector<CopyModel> copies_;
  Rows issued_rows_;
  std::vector<i64> issued_;
  Rows begin_rows_, end_rows_;  // residencies that begin and end with a step
  std::vector<i64> begins_, ends_;
  std::vector<i8> over_;  // [residencies] 0: not begun, -1: holds, 1: over
};

}  // namespace loadmaster
