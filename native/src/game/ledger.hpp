// Which copies the steps can hide: supply per step on one side, work per copy on the other.
//
// Steps of one nest supply picoseconds one after the other, so a copy is a job on a line: it may
// start when its issuing step has ended and must be done when the step that needs it starts.
// `Queue::kFifo`: jobs run in order of issue. `Queue::kLatest`: a copy takes what is left of the
// supply backwards from its end, and nobody is pushed. The ledger says what would be hidden; who adds
// a copy that is not, has it late.
#pragma once

#include "game/board.hpp"

namespace loadmaster::game {

class Ledger {
 public:
  static constexpr i32 kNoStep = -2;

  Ledger(const Nests& nests, Queue order);

  void clear();  // copies, not supply
  // The steps of a nest tell in order what they supply; after a change, from the changed one on.
  void supply(i32 step, i64 amount) {
    i64* sum = sums(nests_.of[step]) + nests_.slot[step];
    sum[1] = plus(sum[0], amount);
  }
  void refresh();  // after a change of supply: who is still on time?

  // The latest step in [lowest, needed - 2], or -1 for before the program, after which a copy of
  // `work` can be issued to be there for `needed`, nobody late who was on time; kNoStep: none.
  i32 latest_issue(i32 lowest, i32 needed, i64 work) const;

  // The first step in [issued + 2, most] of a nest by which a copy is done (n: by the end, in
  // nest 0), nobody late who was on time; kNoStep: none.
  i32 earliest_need(i32 issued, i32 nest, i32 most, i64 work) const;

  // The same without a look at the work: the shortest copies that run beside a step.
  i32 last_issue(i32 lowest, i32 needed) const;
  i32 first_need(i32 issued, i32 nest, i32 most) const;

  // kFifo: whether such a copy is on time and makes nobody late who was on time.
  bool fits(i32 issued, i32 needed, i32 nest, i64 work) const;

  void add(i32 copy, i32 issued, i32 needed, i32 nest, i64 work);
  void remove(i32 copy, i32 issued, i32 nest);

  // kFifo: how many copies of a nest are under way at some time between two steps, both included.
  i32 meeting(i32 issued, i32 needed, i32 nest) const;
  // kFifo: whether some copy starts earlier and ends later, or starts later and ends earlier.
  bool crosses(i32 issued, i32 needed, i32 nest) const;

  // Adds to `used` [n] what copies take of each step's supply.
  void add_used(std::vector<i64>& used) const;
  i64 supplied(i32 step) const {
    const i64* sum = sums(nests_.of[step]) + nests_.slot[step];
    return sum[1] - sum[0];
  }

 private:
  struct Job {
    i32 copy, issued, needed;
    i64 work, from, due, done;
    i64 latest;  // if the job before it is done later, this one or one behind it is late
  };
  struct Take {
    i32 copy, step;
    i64 amount;
  };

  // [steps of the nest + 1] supply before each
  i64* sums(i32 nest) { return sums_.data() + nests_.start[nest] + nest; }
  const i64* sums(i32 nest) const { return sums_.data() + nests_.start[nest] + nest; }
  i64 until(i32 nest, i32 step) const { return sums(nest)[nests_.before(nest, step)]; }
  i64 left(i32 nest, i32 place) const;
  // The last step of the nest up to one, or -1 where that is before the program.
  i32 at_or_before(i32 nest, i32 step) const;
  i32 step_of(i32 nest, i32 place) const;  // the end of the program comes after nest 0; kNoStep: no such step
  static std::size_t behind(const std::vector<Job>& line, i32 issued);  // where a new job is put
  static void settle(std::vector<Job>& line, std::size_t from);
  i32 fifo_issue(i32 nest, i32 lowest, i32 needed, i64 work) const;
  i32 fifo_need(i32 issued, i32 nest, i32 most, i64 work) const;

  const Nests& nests_;
  const Queue order_;
  std::vector<i64> sums_;
  std::vector<std::vector<Job>> lines_;  // kFifo: by nest, in order of issue
  std::vector<i64> used_;                // kLatest: [n]
  std::vector<Take> taken_;              // kLatest
};

}  // namespace loadmaster::game
