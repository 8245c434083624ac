// Is there an order whose peak stays within a budget? A complete search over sets of ops that ran.
//
// Whether a set can be completed does not depend on the order in which it was reached, so each set is
// looked into once. Two rules cut branches and lose nothing. Write m(S) for the bytes alive after the
// ops of S; m is submodular: m(S | T) + m(S & T) <= m(S) + m(T), because a value is alive if its
// opener is in and a user is out, the cut function of a hypergraph.
//
//  Valley: let V contain S, be reachable from S within the budget, and m(V) <= m(T) for every T
//  between S and V. Then S can be completed if and only if V can. For a completion S = T0, T1, ... the
//  sets V | Ti are one of V: m(V | Ti) <= m(Ti) + m(V) - m(V & Ti) <= m(Ti), for V & Ti lies between.
//  (While an op runs it holds what it opens and what it uses; with each op split into a start that
//  opens and an end that frees, that is a set between, too, and the same holds.)
//  An op with net <= 0 that fits is such a V; so is a longer stretch that ends no higher than it began
//  and first does so at its end, if that is tested for every set between.
//
//  Failed: a set that could not be completed is remembered (128-bit hashes: two of a billion sets
//  collide with a chance below 1e-20).
#pragma once

#include <unordered_set>
#include <vector>

#include "graph.hpp"

namespace loadmaster {

class PeakSearch {
 public:
  PeakSearch(const OrderGraph& graph, i64 budget);

  enum class End { kFound, kNone, kGoesOn };
  End advance(i64 sets);  // looks into at most so many more
  i64 sets() const { return sets_; }
  const std::vector<i32>& order() const { return path_; }  // after kFound

 private:
  struct Hash {
    u64 a = 0, b = 0;
    bool operator==(const Hash&) const = default;
  };
  struct Hasher {
    size_t operator()(const Hash& h) const { return h.a; }
  };
  struct Frame {
    size_t begin;  // length of the path when it was entered
    Hash set;
    std::vector<i32> choices;  // best last
  };

  void run(i32 op);
  void back_to(size_t length);
  bool settle();       // takes every op that loses nothing
  bool find_valley();  // and every short stretch
  void enter();

  const OrderGraph* graph_;
  i64 budget_;
  OrderState state_;
  std::vector<Hash> sign_;  // of each op
  Hash set_;
  std::vector<i32> path_;
  std::vector<Frame> frames_;
  std::unordered_set<Hash, Hasher> failed_;
  i64 sets_ = 0;
  bool started_ = false;
};

}  // namespace loadmaster
