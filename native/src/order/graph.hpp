// Ops in an order, and the bytes that are alive: the problem of the least peak.
//
// A value takes its size from the start of the op that opens it (given: from the beginning) to the
// end of the last op that uses it (kept: to the end). An op holds what it uses and what it opens.
#pragma once

#include <span>
#include <vector>

#include "../units.hpp"

namespace loadmaster {

// Rows of different lengths in one array.
struct Lists {
  std::vector<i64> start{0};
  std::vector<i32> entry;

  i32 rows() const { return static_cast<i32>(start.size()) - 1; }
  std::span<const i32> operator[](i32 row) const {
    return {entry.data() + start[row], entry.data() + start[row + 1]};
  }
  // Row r of the result holds every row of this one that has r as an entry.
  Lists inverse(i32 count) const;
  void close_row() { start.push_back(static_cast<i64>(entry.size())); }
};

struct OrderGraph {
  i32 ops = 0;
  i64 base = 0;             // bytes that are there all the time
  Lists before;             // op -> ops that must come before it
  Lists after;              // op -> ops that must come after it
  std::vector<i64> size;    // of each value
  std::vector<i32> opener;  // op, or -1: given
  std::vector<i8> kept;     // alive at the end
  Lists users;              // value -> ops, the opener left out
  Lists uses;               // op -> values
  Lists opens;              // op -> values
  std::vector<i64> grows;   // bytes that an op opens
  std::vector<i64> hump;    // bytes above those alive before it while an op runs: what it opens, unless given

  i32 values() const { return static_cast<i32>(size.size()); }
  void prepare();  // fills after, uses, opens, grows and, if there is none, hump

  // The part of an order between two of its states: ops `members` of this graph, in any order, that
  // run after all of `done`. Their numbers in the part are their positions in `members`.
  OrderGraph part(std::span<const i32> members, std::span<const i8> done) const;
};

// A state of a run: what is done, what is ready, what is alive. Ops can be taken back in turn.
class OrderState {
 public:
  explicit OrderState(const OrderGraph& graph);

  i64 alive() const { return alive_; }
  i32 done() const { return done_; }
  bool is_ready(i32 op) const { return waits_[op] == 0; }
  const std::vector<i32>& ready() const { return ready_; }  // no particular order, but repeatable
  i64 during(i32 op) const { return alive_ + graph_->hump[op]; }
  i64 net(i32 op) const;  // by how much the bytes alive grow once it is over
  i64 run(i32 op);        // the bytes alive while it runs
  void undo(i32 op);      // the op that ran last

 private:
  void add_ready(i32 op);
  void drop_ready(i32 op);

  const OrderGraph* graph_;
  std::vector<i32> waits_;  // ops before it that have not run; -1: it has run itself
  std::vector<i32> left_;   // users of a value that have not run
  std::vector<i32> ready_, place_;
  i64 alive_ = 0;
  i32 done_ = 0;
};

// Bytes alive while each op runs, by position; empty if the order breaks a rule.
std::vector<i64> profile(const OrderGraph& graph, std::span<const i32> order);
// The largest of them; -1 if the order breaks a rule.
i64 peak(const OrderGraph& graph, std::span<const i32> order);

}  // namespace loadmaster
