// One depth-first search for a placement within a capacity, in one order of preference.
//
// Buffers are placed from the ground up. A waiting buffer has a `rest`: the top of what lies below
// it so far. A node takes a buffer of the lowest rest and either puts it there or refuses: then it
// must be lifted by a buffer still waiting. Any solution can be pushed down into this form, so a
// search that ends without one is a proof.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "sections.hpp"
#include "switches.hpp"

namespace loadmaster {

enum class SearchEnd { kFound, kNone, kOutOfBudget };

class Search {
 public:
  // Which buffer of the lowest rest is decided first: the preferred one of all, or the preferred one
  // of a critical section: with least choice (ties: least slack, or most waiting), or with least
  // choice among the sections without slack.
  enum Style { kFewestTight, kFull, kFewestCrowded, kLowest, kStyles };

  Search(const Sections& sections, i64 capacity, const Switches& switches);

  // rank[b]: smaller is preferred. `obsolete` is asked every few hundred nodes.
  template <class Obsolete>
  SearchEnd run(std::span<const i32> rank, int style, i64 budget, Obsolete&& obsolete) {
    style_ = on_.section_branching ? style : kLowest;
    start(rank);
    SearchEnd outcome = SearchEnd::kOutOfBudget;
    while (nodes_ < budget && !obsolete()) {
      const i64 pause = std::min(budget, nodes_ + kPause);
      outcome = advance(pause);
      if (outcome != SearchEnd::kOutOfBudget) break;
    }
    return outcome;
  }
  i64 nodes() const { return nodes_; }
  std::span<const i64> offsets() const { return rest_; }  // in units, after kFound

 private:
  static constexpr i64 kPause = 256;
  struct Frame {
    i32 from, to;  // the sections of this part
    i32 chosen;    // the buffer on trial
    i32 next;      // where to look for the next part left by the trial
    size_t entry;  // undo marks: at entry, and before the trial
    size_t trial;
    i64 level;       // offset being decided
    u64 slot, sign;  // the state at entry, as a no-good
  };
  struct Change {
    i32 what;
    i64 before;
  };

  void start(std::span<const i32> rank);
  SearchEnd advance(i64 pause);
  i32 choose(Frame& frame);
  bool place(i32 b, const Frame& frame);
  bool refuse(i32 b, const Frame& frame);
  void look(i32 s);
  bool force(i32 b, i64 limit, const Frame& frame);
  bool waits(i32 b) const { return b >= 0 && (waiting_[b >> 6] >> (b & 63) & 1); }
  // May b be put at `level`? Of equal buffers the one with the smallest index goes first.
  bool ready(i32 b, i64 level) const { return rest_[b] == level && start_[b] == level && !waits(twin_[b]); }
  bool known_bad(Frame& frame);
  void fail(Frame& frame);
  bool settle(const Frame& frame);
  bool next_part(const Frame& frame, i32& from, i32& to) const;
  void undo(size_t mark);
  void wait_for(i32 b, i32 step);
  void set(std::vector<i64>& values, i32 base, i32 i, i64 value) {
    log_.push_back({base + i, values[i]});
    values[i] = value;
  }
  i64 lifted(i32 b, i64 at) const {
    const i64 a = in_.alignment[b];
    return a == 1 ? at : (at + a - 1) / a * a;
  }
  template <class Visit>
  void each_waiting(const u64* row, i32 from, i32 to, Visit&& visit) const;

  const Sections& in_;
  const Switches on_;
  i64 roof_;
  i32 n_, m_;
  std::vector<i64> latest_;
  std::vector<i64> rest_;    // per buffer: where it would lie now
  std::vector<i64> start_;   // per buffer: proven lower limit of its offset; above rest: refused
  std::vector<i64> floor_;   // per section: no waiting buffer starts lower
  std::vector<i64> second_;  // per section: the lowest start but one
  struct Next {
    i32 lowest, other;
  };
  std::vector<Next> next_;  // per section: the waiting buffers with the lowest starts, as a hint
  std::vector<i64> waiting_load_;
  std::vector<i32> waiting_count_;
  std::vector<i32> crossings_;  // per boundary: waiting buffers and links across it
  std::vector<u64> waiting_;
  std::vector<i32> twin_;  // the equal buffer of the next smaller index, or -1
  std::vector<i32> rank_;
  std::vector<i32> choices_;  // scratch, per section
  std::vector<Change> log_;
  std::vector<Frame> stack_;
  std::vector<u64> no_goods_;
  u64 epoch_ = 0;
  i64 nodes_ = 0;
  int style_ = kLowest;
  bool dead_ = false;
};

}  // namespace loadmaster
