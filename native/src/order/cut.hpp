// The least bytes that can be alive while one op runs: a minimum cut.
//
// Let S be what has run when op x starts: closed under "before", with all that x needs, without x and
// what needs x. A value is alive if its opener is in S and a user of it is not. The least over all
// such S is the minimum cut of a network with an arc opener -> value of the value's size, arcs
// value -> user and op -> op before it without limit, x's needs on the source's side and x on the
// sink's. (A value with one user is an arc opener -> user, and one that is kept an arc opener -> sink.) So
// every order has at least that much alive, plus what x opens, while x runs. If it is known of other ops
// whether they have run by then, they are bound to a side too, and the cut is higher.
#pragma once

#include <chrono>
#include <vector>

#include "graph.hpp"

namespace loadmaster {

class CutNetwork {
 public:
  explicit CutNetwork(const OrderGraph& graph);

  struct Cut {
    i64 bytes;                // alive while the op runs, at least
    bool complete;            // else it was stopped: any flow is a bound, and there is no cut
    std::vector<i32> sooner;  // the S that attains it: the smallest one, or the largest
  };
  // What was pushed so far, edge by edge: where a cut of the same op with more ops bound may go on.
  struct Flow {
    std::vector<i64> pushed;
    i64 bytes = 0;
  };
  // Of orders in which `sooner` have run when the op starts and `later` have not; bytes of `enough` or more
  // if there is none. Stops as soon as the bytes reach `enough`, or when `seconds` are over (-1: never).
  // Goes on from the flow `start` if there is one: more ops bound to a side only open arcs, so that a flow of
  // fewer stays one; a flow that does not fit is refused.
  Cut below(i32 op, std::span<const i32> sooner, std::span<const i32> later, i64 enough, bool largest,
            double seconds, const Flow* start = nullptr);
  Flow flow() const;  // of the last cut

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr i64 kNoLimit = i64{1} << 61;
  struct Arc {
    i32 to;
    i32 back;  // the arc between the same nodes the other way
    i64 room;
  };
  void begin(i32 op, double seconds);
  void go_on_from(const Flow& start);
  i64 augment(i64 bytes, i64 enough);
  bool measure(i64 least);
  bool pass(i64 least, i64 enough, i64& bytes);
  bool out_of_time();
  std::vector<i8> side(bool of_source) const;

  const OrderGraph* graph_;
  i32 source_, sink_;
  i64 always_ = 0;          // bytes given and kept
  std::vector<i32> first_;  // [node] its first arc; the last entry: how many there are
  std::vector<Arc> arcs_;
  std::vector<i64> full_;                   // rooms of the unused network
  std::vector<i64> open_;                   // and of the last cut, before anything was pushed
  std::vector<i32> edges_;                  // one of the two arcs of each edge
  i64 pushed_ = 0;                          // by the last cut
  std::vector<i32> from_source_, to_sink_;  // [op] its arcs, without limit if it is bound to a side
  std::vector<i32> next_, stack_, steps_;
  Clock::time_point deadline_;
  i64 looks_ = 0;
  bool late_ = false;
};

}  // namespace loadmaster
