// Which ops may be fused: columns over a program (graph/rules.py says what each rule is), and
// what follows from them alone.
#pragma once

#include "model.hpp"

namespace loadmaster::graph {

inline constexpr i32 kMostOps = 64;           // in a cluster
inline constexpr i32 kMostEnds = 96;          // outside inputs and results that leave
inline constexpr i32 kMostReductions = 8;     // big ones in a cluster
inline constexpr i32 kMostSeen = 1024;        // clusters that a search for a cycle looks at, each way
inline constexpr double kNever = 1.0 / 16.0;  // a key below it: never fuse this op's results

struct FusionColumns {
  std::vector<i8> fusible;        // [ops]
  std::vector<i8> big_reduction;  // [ops]
  std::vector<i8> cheap;          // [ops] may be computed several times
  std::vector<i64> loop_size;     // [tensors]
  std::vector<i8> repeats;        // [accesses] a read that uses elements more than once
  std::vector<i32> component;     // [ops] hard component, or -1
  std::vector<i32> device;        // [ops] where placement is given, else empty
  bool all_readers = false;       // merge with all readers of a result, or with none
};

// A result and one op that reads it.
struct Edge {
  i32 tensor;
  i32 reader;
};

// The edges along which two ops could ever be fused, and the ops before and behind each op.
class FusionRules {
 public:
  FusionRules(const Model& model, FusionColumns columns);

  const Model& model;
  const FusionColumns columns;
  Rows next_rows, prev_rows;
  std::vector<i32> next, prev;  // [ops] -> ops that read its results or write over what it uses, and back
  Rows edge_rows;
  std::vector<Edge> edges;     // [ops] -> results in the order of its writes, readers ascending
  std::vector<i32> producers;  // ops with an edge, ascending
  std::vector<i8> touched;     // [ops] an end of some edge: it may end up in a cluster

  // Whether an op may read a tensor that is made in its own cluster.
  bool may_read_inside(i64 access_row) const { return inside_[access_row] != 0; }

 private:
  void list_neighbours();
  void list_edges();
  void find_inside();
  bool compatible(i32 a, i32 b) const;
  // Drops edges whose ends are also joined by a path through an op that is never fused.
  void drop_blocked();

  std::vector<i8> inside_;  // [accesses]
};

}  // namespace loadmaster::graph
