#include <algorithm>

#include "engine.hpp"

namespace loadmaster {

Outcome simulate(const Model& model, const PlanView& plan) {
  if (!plan.fusion) return simulate(model, plan, *model.alone);
  Outcome outcome;
  StepGraph fused;
  if (!build_graph(model, plan, fused, outcome)) return outcome;
  return simulate(model, plan, fused);
}

Outcome simulate(const Model& model, const PlanView& plan, const StepGraph& graph) {
  Outcome outcome;
  const Steps steps(model, plan, graph);
  const Residencies residencies(model, plan, steps);
  Flow flow(model, plan, steps, residencies, outcome);
  Prepared prepared{model, plan, steps, flow, {}, {}, {}, {}};
  prepared.run_time.resize(steps.count);
  prepared.duration.resize(steps.count);
  prepared.slow.resize(steps.count);
  for (i32 s = 0; s < steps.count; ++s) {
    Duration duration;
    if (!step_duration(model, steps, residencies, s, duration, outcome)) return outcome;
    prepared.duration[s] = duration.time;
    prepared.slow[s] = duration.slow;
    prepared.run_time[s] = times(model.repeat[steps.number[s]], duration.time);
  }
  if (!flow.prepare(prepared.waits)) return outcome;
  outcome.copy_start.assign(plan.copy_count, 0);
  outcome.copy_end.assign(plan.copy_count, 0);
  flow.start_program();
  if (model.idle_copies ? run_idle(prepared, outcome) : run_free(prepared, outcome)) flow.finish();
  return outcome;
}

void write_op_times(const Prepared& prepared, const StepTimes& times_of, Outcome& outcome) {
  const Model& model = prepared.model;
  const Steps& steps = prepared.steps;
  outcome.op_start.assign(model.ops, 0);
  outcome.op_end.assign(model.ops, 0);
  outcome.op_stall.assign(model.ops, 0);
  for (i32 op = 0; op < model.ops; ++op) {
    i32 step = steps.of[op];
    if (step >= 0) {
      outcome.op_start[op] = times_of.start[step];
      outcome.op_end[op] = times_of.end[step];
    } else {
      const i32 root = model.view_root[op];
      step = root >= 0 ? steps.writer[root] : -1;
      outcome.op_start[op] = outcome.op_end[op] = step >= 0 ? times_of.end[step] : 0;
    }
  }
  for (i32 s = 0; s < steps.count; ++s) {
    outcome.op_stall[steps.number[s]] = times_of.stall[s];
    i64& busy = outcome.device_busy[steps.device[s]];
    busy = plus(busy, prepared.run_time[s]);
  }
}

}  // namespace loadmaster
