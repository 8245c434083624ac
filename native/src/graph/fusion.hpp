// The fusion pass: producers by decreasing key are merged with the readers of their results.
#pragma once

#include "graph/rules.hpp"

namespace loadmaster::graph {

// Clusters that grow. One object serves many passes: `reset` starts anew.
class Clusters {
 public:
  explicit Clusters(const FusionRules& rules);
  void reset();

  // Merges a producer with the readers of its results, as far as that is legal.
  bool visit(i32 producer);
  i32 find(i32 op) {
    while (nodes_[op].parent != op) op = nodes_[op].parent = nodes_[nodes_[op].parent].parent;
    return op;
  }
  // Visits every member of the cluster of `root`.
  template <class Visit>
  void each(i32 root, Visit&& visit_op) const {
    i32 op = root;
    do {
      visit_op(op);
      op = nodes_[op].ring;
    } while (op != root);
  }
  // Whether the clusters of `roots`, taken as one, keep every rule but the one about cycles.
  bool keeps_rules(const std::vector<i32>& roots);
  // Clusters of two or more ops, by their smallest op; -1: alone.
  void write(i32* fusion);

 private:
  enum Way : std::size_t { kAhead = 0, kBack = 1, kNone = 2 };

  // What a search looks at, side by side.
  struct Node {
    i32 parent, ring;  // ring: the next member of its cluster
    i64 place;         // in an order of the clusters
    i32 mark;          // stamp: among the clusters that are looked at now
    i32 seen[2];       // stamps of the searches ahead and back
  };
  // What is known of a cluster without looking at its members.
  struct Summary {
    i32 count, component, group, reductions;
    i32 most_ends;  // at most so many outside inputs and results that leave
    i32 closed;     // reads that must stay outside of the cluster that writes
    i64 loop_size;  // of all results that leave; kMixed: there are several
    bool leaves;    // some result does for sure
  };
  struct Search {
    std::vector<i32> start;  // [ops + 1] neighbours of an op in `to`: short numbers for the caches
    const std::vector<i32>* to;
    std::vector<i32> found;  // clusters
    std::size_t done = 0;    // of those that were looked from
    std::size_t work = 0;    // ops and neighbours that it took
  };
  static constexpr i64 kMixed = -1;

  bool merge(const std::vector<i32>& roots);
  bool mixes_loops(i32 tensor, i32 from, i32 to);
  Summary joined(const std::vector<i32>& roots) const;
  bool reads_closed(const std::vector<i32>& roots);
  bool count_ends(const std::vector<i32>& roots);
  // How to order the clusters of `roots` as one: before what follows from them (ahead), behind what
  // leads to them (back), or none: there is a cycle.
  Way without_cycle(const std::vector<i32>& roots);
  bool look_from(i32 cluster, Way way);
  void reorder(const std::vector<i32>& roots, i32 root, Way way);
  void unlink(i32 cluster);
  void spread_places();
  bool is_in(i32 root) const { return nodes_[root].mark == stamp_; }

  const FusionRules& rules_;
  const Model& model_;
  std::vector<Summary> alone_, summary_;  // [ops] of every op; at roots
  std::vector<Node> nodes_;               // [ops]
  std::vector<i32> before_, after_;       // [ops + 1] the clusters in order; both ends are at [ops]
  std::vector<i32> seen_tensor_;          // [tensors] stamps
  i32 stamp_ = 0;
  i64 low_ = 0, high_ = 0;
  Search searches_[2];
  std::vector<i32> pair_, moved_;
  i32 exact_ends_ = 0;  // of the clusters looked at last, or more
  i64 exact_loop_size_ = kMixed;
};

class Fuser {
 public:
  explicit Fuser(const FusionRules& rules) : rules_(rules), clusters_(rules) {}
  // keys[ops] -> fusion[ops], as in a plan.
  void fuse(const double* keys, i32* fusion);

 private:
  const FusionRules& rules_;
  Clusters clusters_;
  std::vector<std::pair<double, i32>> visits_;
};

}  // namespace loadmaster::graph
