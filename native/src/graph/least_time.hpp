// No plan is faster: heads of steps from paths and from the work between steps that all plans have.
// loadmaster/graph/bounds.py has the argument.
#pragma once

#include <vector>

#include "model.hpp"

namespace loadmaster::graph {

// Nodes in an order in which every one comes after those before it. A *single* node is a step of its own in
// every plan; the others are members of steps that a plan chooses.
struct TimedGraph {
  Rows prev_rows;
  std::vector<i32> prev;
  std::vector<i8> cut;       // [prev] the two are never in one step
  std::vector<i64> move;     // [prev] least time from one to the other, if they are on two devices
  std::vector<i8> single;    // [nodes]
  std::vector<i64> compute;  // [nodes] by either measure a step takes at least the sum of its members:
  std::vector<i64> memory;   // [nodes] that of a single node is its time, twice
  std::vector<i64> launch;   // [nodes] what its step takes besides
  std::vector<i32> group;    // [nodes] single nodes with one number run on one device; -1: anywhere
  i32 groups = 0;
  i64 devices = 1;
  i32 most_members = 1;  // of a step
  i32 nodes() const { return static_cast<i32>(single.size()); }
};

struct LeastTime {
  i64 path = 0;            // longest
  i64 work = 0;            // with the work between steps of the chain
  std::vector<i32> chain;  // nodes
};

LeastTime least_time(const TimedGraph& graph);

}  // namespace loadmaster::graph
