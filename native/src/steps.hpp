// Steps: what is left of a program once views are gone and fused ops are one (section 1).
#pragma once

#include <span>

#include "model.hpp"

namespace loadmaster {

// What fusion alone decides. Built once for the plans that fuse nothing.
struct StepGraph {
  i32 count = 0;
  std::vector<i32> number;  // [steps] smallest op; ascending
  std::vector<i32> of;      // [ops] step of an op; -1 for views
  Rows member_rows;
  std::vector<i32> member;  // ops of each step, ascending
  Accesses access;          // of each step
  Rows read_rows;
  std::vector<i32> read;  // roots that a step reads and does not write, each once, ascending
  Rows write_rows;
  std::vector<i32> written;  // roots that a step writes and that are not internal, ascending
  std::vector<i32> writer;   // [tensors] step that writes a root (internal ones too), or -1
  Rows reader_rows;
  std::vector<i32> reader;  // [tensors] -> steps that read a root they do not write, ascending
  std::span<const i32> readers(i32 root) const {
    const i64 first = reader_rows.begin(root);
    return std::span(reader).subspan(first, reader_rows.end(root) - first);
  }
  Rows over_rows;
  std::vector<i32> over;  // [steps] -> steps that write over what this one reads or writes: they wait for it
};

// Builds the graph of a plan's fusion groups; false and a fault in `outcome` if it can't.
bool build_graph(const Model& model, const PlanView& plan, StepGraph& graph, Outcome& outcome);

// The step with whose device a root is at home: its writer, or where a weight must be, or its first
// reader; -1: none.
i32 home_step(const Model& model, const StepGraph& graph, i32 root);

// [devices] the first device with the same home.
std::vector<i32> near_devices(const Model& model);

// A step graph with a plan's devices and order.
struct Steps {
  Steps(const Model& model, const PlanView& plan, const StepGraph& graph);
  Steps(const Steps&) = delete;

  const StepGraph& graph;
  const i32& count;
  const std::vector<i32>&number, &of, &member, &read, &written, &writer, &reader, &over;
  const Rows &member_rows, &read_rows, &write_rows, &reader_rows, &over_rows;
  const Accesses& access;
  std::vector<i32> device;       // [steps]
  std::vector<i64> position;     // [steps] smallest position of a member
  std::vector<i64> op_position;  // [ops]
  std::vector<i32> at_position;  // [ops] the op at each position

  // The step at or before a position (-1: none), at or after (count: none).
  i32 at_or_before(i64 position) const;
  i32 at_or_after(i64 position) const;
};

// Section 2: which residencies cover which positions.
class Residencies {
 public:
  Residencies(const Model& model, const PlanView& plan, const Steps& steps);
  bool empty() const { return count_ == 0; }
  // The memory that serves an access, and whether a residency does.
  i32 serves(i32 tensor, i64 position, i32 device, bool& resident) const;
  bool before(i32 tensor) const { return !before_.empty() && before_[tensor] != 0; }

 private:
  struct Window {
    i32 memory;
    i64 first, last;
  };
  void delay_filled_windows(const PlanView& plan, const Steps& steps);

  const Model& model_;
  i64 count_;
  Rows rows_;
  std::vector<Window> windows_;
  std::vector<i8> before_;
};

// Section 3. `slow` is the time of the accesses that the home serves.
struct Duration {
  i64 time = 1;
  i64 slow = 0;
};
bool step_duration(const Model& model, const Steps& steps, const Residencies& residencies, i32 step,
                   Duration& duration, Outcome& outcome);
// [steps * devices] of steps that run once with everything at home; -1: it can't run there.
std::vector<i64> home_times(const Model& model, const StepGraph& graph);

}  // namespace loadmaster
