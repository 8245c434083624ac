// Decision vectors of GraphOptimization: decoded into fused steps, devices and keys, and timed.
#pragma once

#include <optional>

#include "graph/fusion.hpp"
#include "steps.hpp"

namespace loadmaster::graph {

// Where the parts of a vector begin (-1: not decided) and what stands for parts that are not.
struct Decisions {
  i64 width = 0;
  i64 fusion = -1, device = -1, schedule = -1;
  std::vector<i32> node_op;         // [nodes]
  std::vector<i32> group;           // [ops] placement group, -1 for views
  std::vector<i32> base_fusion;     // [ops] clusters
  std::vector<i32> base_device;     // [groups]
  std::vector<i32> pinned;          // [groups] the device that a group must have; -1: any
  bool base_critical_path = false;  // of the schedule that is not decided, else fifo
  bool tie_critical_path = false;   // among equal keys of one that is

  i32 device_of(const double* vector, i32 of_group) const {
    if (pinned[of_group] >= 0) return pinned[of_group];
    return device >= 0 ? static_cast<i32>(vector[device + of_group]) : base_device[of_group];
  }
};

// One vector made explicit.
struct Decoded {
  std::vector<i32> fusion;  // [ops]
  std::vector<i32> device;  // [ops]
  Outcome outcome;
};

class GraphBatch {
 public:
  GraphBatch(const Model& model, const FusionRules& rules, Decisions decisions);

  // vectors[count][width] -> total[count], over[count][memories], fault[count][3].
  void evaluate(const double* vectors, i64 count, i64* total, i64* over, i64* fault, int threads) const;
  Decoded decode(const double* vector) const;

 private:
  // What one thread needs again and again.
  struct Work {
    explicit Work(const GraphBatch& batch);
    Fuser fuser;
    StepGraph graph;
    std::vector<i32> fusion, device;
    std::vector<double> keys, priority;
  };
  Outcome run(const double* vector, Work& work) const;

  const Model& model_;
  const FusionRules& rules_;
  const Decisions decisions_;
  std::vector<i32> base_lead_;  // [steps] of the base: the op that decides for a step
  StepGraph base_graph_;
  Outcome base_outcome_;  // a fault where the base can't be built
};

// The op whose group decides for each step: its first with a hard component, else its first.
std::vector<i32> leads(const StepGraph& graph, const std::vector<i32>& component);

// [steps * devices] everything at home, with repeats; -1: it can't run there.
std::vector<i64> run_times(const Model& model, const StepGraph& graph);

// [ops, devices] the time of the step that begins with an op, everything at home; -1: none.
std::vector<i64> step_times(const Model& model, const i32* fusion);

}  // namespace loadmaster::graph
