// The two rules for copies. Each fills an outcome from steps that are built and a flow that is
// prepared; false: the plan is at fault.
#pragma once

#include "flow.hpp"

namespace loadmaster {

struct Prepared {
  const Model& model;
  const PlanView& plan;
  const Steps& steps;
  Flow& flow;
  std::vector<i64> run_time;  // [steps] repeat * duration
  std::vector<i64> duration;  // [steps]
  std::vector<i64> slow;      // [steps] time that the home serves
  std::vector<i32> waits;     // [steps] for how many things it waits, copies left out
};

bool run_free(Prepared& prepared, Outcome& outcome);
bool run_idle(Prepared& prepared, Outcome& outcome);

// Step times become op times; views take their root's end.
struct StepTimes {
  std::vector<i64> start, end, stall;
};
void write_op_times(const Prepared& prepared, const StepTimes& steps, Outcome& outcome);

}  // namespace loadmaster
