// A program on a machine, as flat arrays: what the engines read. Built once, shared by threads.
// docs/simulation.md says what everything means; the sections are named beside the code.
#pragma once

#include <memory>
#include <vector>

#include "units.hpp"

namespace loadmaster {

struct StepGraph;

// Rows of a table: entries of row i are [start[i], start[i + 1]).
struct Rows {
  std::vector<i64> start;
  i64 begin(i64 row) const { return start[row]; }
  i64 end(i64 row) const { return start[row + 1]; }
  // Turns counts per row (and one entry more) into starts; returns the number of entries.
  i64 sum_counts() {
    i64 sum = 0;
    for (i64& value : start) {
      const i64 count = value;
      value = sum;
      sum += count;
    }
    return sum;
  }
};

// Section 1: the accesses of steps, to roots. `tensor`, `bytes`, `write` are per access.
struct Accesses {
  Rows rows;
  std::vector<i32> tensor;
  std::vector<i64> bytes;
  std::vector<i8> write;
};

struct DeviceModel {
  std::vector<i32> reach;  // memories, fastest first; the last is its home
  i64 launch = 0;
  i32 home() const { return reach.back(); }
};

struct MemoryModel {
  i64 capacity = 0;
  i64 read = 1;
  i64 write = 1;
  i64 latency = 0;
  i64 alignment = 1;
};

struct LinkModel {
  i32 source = 0;
  i32 target = 0;
  i64 bandwidth = 1;
  i64 latency = 0;
  std::vector<i32> engines;
};

enum class Role : i8 { kWeight = 0, kInput = 1, kActivation = 2, kOutput = 3, kState = 4 };

struct Model {
  // The program. Ops and tensors have the numbers they have in the Program.
  i32 ops = 0;
  i32 tensors = 0;
  std::vector<i8> view;           // [ops]
  std::vector<i32> view_root;     // [ops] root that a view shows, -1 for others
  std::vector<i32> loop;          // [ops]
  std::vector<i64> repeat;        // [ops]
  std::vector<i32> group;         // [ops] hard group or -1
  std::vector<i64> other_bytes;   // [ops]
  std::vector<i64> compute;       // [ops * devices] picoseconds, or the cost table's value
  std::vector<i8> named;          // [ops * devices] 1: the cost table names it, 2: cannot run
  Accesses access;                // rows per op; none for views
  std::vector<i32> root;          // [tensors]
  std::vector<i64> size;          // [tensors] storage of a root
  std::vector<i8> role;           // [tensors] kind; meaningful for roots
  std::vector<i8> output;         // [tensors] root is an output
  std::vector<i8> tied;           // [tensors] root is the target of an in-place or carried tie
  std::vector<i32> writer;        // [tensors] op that writes a root, or -1
  std::vector<i32> place;         // [tensors] representative of the place of a root
  std::vector<i32> overwriter;    // [tensors] op that next writes into the place of a root, or -1
  std::vector<i64> place_size;    // [tensors] at representatives
  std::vector<i32> tensor_group;  // [tensors]
  std::vector<i32> group_op;      // [groups] smallest op of each hard group, or -1

  // The machine.
  std::vector<DeviceModel> devices;
  std::vector<MemoryModel> memories;
  std::vector<LinkModel> links;
  std::vector<i32> link_between;  // [memories * memories] link or -1
  i32 engines = 0;
  bool parallel_ports = false;
  i64 overlap = 0;  // millionths
  bool idle_copies = false;

  // Derived by prepare().
  Rows reader_rows;  // readers of each root: ops, ascending, each once
  std::vector<i32> reader;
  std::shared_ptr<const StepGraph> alone;  // every op a step of its own
  std::vector<i64> home_duration;          // [ops * devices] of an op alone with everything at home

  i32 device_count() const { return static_cast<i32>(devices.size()); }
  i32 memory_count() const { return static_cast<i32>(memories.size()); }
  bool persistent(i32 t) const {
    return role[t] == static_cast<i8>(Role::kWeight) || role[t] == static_cast<i8>(Role::kState);
  }
  bool input(i32 t) const { return role[t] == static_cast<i8>(Role::kInput); }
  bool given(i32 t) const { return persistent(t) || input(t); }
  i64 access_time(i64 row, i32 memory) const {
    return access_time(access.bytes[row], access.write[row] != 0, memory);
  }
  i64 access_time(i64 bytes, bool write, i32 memory) const {
    if (bytes == 0) return 0;
    const MemoryModel& m = memories[memory];
    return plus(ceil_time(bytes, write ? m.write : m.read), m.latency);
  }

  void prepare();
};

// What is wrong with a plan that can't be run; Python turns it into a sentence.
enum class Fault : i32 {
  kNone = 0,
  kMixedDevices = 1,  // a: step's first op, b: the other op
  kMixedLoops = 2,    // a: step's first op, b: the other op
  kCannotRun = 3,     // a: op, b: device
  kNoLink = 4,        // a: source memory, b: target memory
  kDeadlock = 5,      // a: an op that waits
  kCopyOrder = 6,     // a: copy
  kCopyNotHome = 7,   // a: copy
  kTransferList = 8,  // a: tensor, b: device
};

// Pointers into arrays that the caller keeps alive; null: not decided.
struct PlanView {
  const i32* device = nullptr;       // [ops]
  const i32* order = nullptr;        // [ops]
  const i32* fusion = nullptr;       // [ops]
  const double* priority = nullptr;  // [ops]
  i32 queue = 0;                     // 0 order, 1 ready, 2 fifo, 3 priority
  bool critical_path = false;
  const i64* residencies = nullptr;  // [r, 5]
  i64 residency_count = 0;
  const i64* copies = nullptr;  // [c, 7]
  i64 copy_count = 0;
  const i64* transfers = nullptr;  // [x, 2]
  i64 transfer_count = -1;         // -1: not listed
};

struct TransferRecord {
  i64 tensor, device, start, end;
};

struct Outcome {
  Fault fault = Fault::kNone;
  i64 fault_a = -1;
  i64 fault_b = -1;
  i64 total = 0;
  std::vector<i64> op_start, op_end, op_stall, copy_start, copy_end;
  std::vector<TransferRecord> transfers;
  std::vector<i64> link_bytes, device_busy, peak, top, over, first_over;

  bool fail(Fault what, i64 a, i64 b = -1) {
    fault = what;
    fault_a = a;
    fault_b = b;
    return false;
  }
};

// Runs a plan. The arrays of the plan must be in range (checked by the caller).
Outcome simulate(const Model& model, const PlanView& plan);
// The same with the steps of the plan's fusion groups built before.
Outcome simulate(const Model& model, const PlanView& plan, const StepGraph& graph);

}  // namespace loadmaster
