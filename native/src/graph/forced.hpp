// What no fusion avoids: ops that are steps of their own, results that leave their cluster, and bytes that
// clusters read and write. loadmaster/graph/bounds.py has the argument.
#pragma once

#include "graph/rules.hpp"

namespace loadmaster::graph {

struct Forced {
  std::vector<i8> alone;    // [ops] in no legal plan in a cluster with another op
  std::vector<i8> cut;      // [prev] the two ops are never in one cluster
  std::vector<i64> read;    // [ops] bytes that the cluster of an op reads on its account
  std::vector<i64> write;   // [ops]
  std::vector<i64> reads;   // [ops] how many accesses these are, at least
  std::vector<i64> writes;  // [ops]
};

Forced find_forced(const FusionRules& rules);

}  // namespace loadmaster::graph
