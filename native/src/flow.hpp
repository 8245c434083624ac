// Where data is and what memory it holds while a plan runs (sections 4 and 6). The event engine
// and the idle judge both drive it: they say what starts and ends, it counts bytes.
#pragma once

#include "steps.hpp"

namespace loadmaster {

struct CopyModel {
  i32 tensor = 0;
  i32 issue = -1;  // step, or -1: at time 0
  i32 need = 0;    // step, or the number of steps: the end
  i32 link = -1;
  i64 bytes = 0;
  i64 factor = 1;  // repeat, if both ends are in one loop
};

class Flow {
 public:
  Flow(const Model& model, const PlanView& plan, const Steps& steps, const Residencies& residencies,
       Outcome& outcome);
  bool prepare();  // false: the plan is at fault

  // What the engines report. All times of one run are ascending.
  void start_program();
  void start_step(i32 step, i64 now);
  void end_step(i32 step, i64 now);
  void start_transfer(i32 tensor, i32 device, i64 now) { open(tensor, device, now); }
  void end_transfer(i32 tensor, i32 device);
  void start_copy(i64 copy, i64 now);
  void end_copy(i64 copy);
  void finish();  // writes peaks into the outcome

  i32 home_device(i32 tensor) const { return home_device_[tensor]; }
  i32 near(i32 device) const { return near_[device]; }
  bool is_near(i32 tensor, i32 device) const { return near_[home_device_[tensor]] == near_[device]; }
  bool transferred(i32 tensor, i32 device) const {
    return !needs_.empty() && needs_[cell(tensor, device)] != 0;
  }
  i64 transfer_count() const { return transfer_count_; }
  const std::vector<CopyModel>& copies() const { return copies_; }
  // Copies issued by a step, in row order; step -1: those issued before.
  i64 issued_begin(i32 step) const { return issued_rows_.begin(step + 1); }
  i64 issued_end(i32 step) const { return issued_rows_.end(step + 1); }
  i64 issued(i64 i) const { return issued_[i]; }

 private:
  std::size_t cell(i32 tensor, i32 device) const {
    return static_cast<std::size_t>(tensor) * devices_ + near_[device];
  }
  bool model_copies();
  bool find_transfers();
  void find_home_devices();
  void find_residency_steps();
  bool held_for_ever(i32 tensor) const { return model_.persistent(tensor) && !residencies_.before(tensor); }
  bool opens_home(const CopyModel& copy) const;
  template <class Visit>
  void each_source_device(const CopyModel& copy, Visit&& visit) const;
  void open(i32 tensor, i32 device, i64 now);
  void close(i32 tensor, i32 device);
  void hold(i32 tensor, i32 memory, i64 now);
  void release(i32 tensor, i32 memory);

  const Model& model_;
  const PlanView& plan_;
  const Steps& steps_;
  const Residencies& residencies_;
  Outcome& outcome_;
  i32 devices_;
  i64 transfer_count_ = 0;
  std::vector<i32> home_device_;   // [tensors]
  std::vector<i32> near_;          // [devices] the first device with the same home
  std::vector<i8> needs_;          // [tensors * devices] a transfer is needed
  std::vector<i32> uses_;          // [tensors * devices] uses of the home copy that are not over
  std::vector<i8> opened_;         // [tensors * devices]
  std::vector<i8> resident_read_;  // per entry of steps.read: served by a residency
  std::vector<i32> holds_;         // [tensors * memories], at representatives of places
  std::vector<i64> bytes_;         // [memories] held now
  std::vector<CopyModel> copies_;
  Rows issued_rows_;
  std::vector<i64> issued_;
  Rows begin_rows_, end_rows_;  // residencies that begin and end with a step
  std::vector<i64> begins_, ends_;
  std::vector<i8> over_;  // [residencies] 0: not begun, -1: holds, 1: over

 public:
  bool resident_read(i64 i) const { return !resident_read_.empty() && resident_read_[i] != 0; }
};

}  // namespace loadmaster
