// Section 5 for whole plans: the idle rule over the steps of one device in their order.
#include <algorithm>

#include "engine.hpp"
#include "idle_rule.hpp"

namespace loadmaster {
namespace {

struct IdleCopy {
  i32 issued = -1, needed = 0;  // places in the order
  bool in = false;
  i64 work = 0;
};

class IdleRun {
 public:
  IdleRun(const Prepared& prepared, Outcome& outcome)
      : p_(prepared), steps_(prepared.steps), outcome_(outcome) {}

  bool run() {
    find_order();
    if (!check_order() || !model_copies()) return false;
    times_.start.resize(steps_.count);
    times_.end.resize(steps_.count);
    times_.stall.resize(steps_.count);
    outcome_.total = run_idle_rule(*this, by_issue_).total;
    write_op_times(p_, times_, outcome_);
    return true;
  }

  // For the rule: steps by their place in the order.
  i32 steps() const { return steps_.count; }
  i64 repeat(i32 k) const { return p_.model.repeat[steps_.number[in_order_[k]]]; }
  i64 run_time(i32 k) const { return p_.run_time[in_order_[k]]; }
  i64 idle(i32 k) const { return std::max<i64>(0, p_.duration[in_order_[k]] - p_.slow[in_order_[k]]); }
  const IdleCopy& copy(i32 row) const { return copies_[row]; }
  void step_ends(i32 k) { p_.flow.end_step(in_order_[k]); }
  void copy_leaves(i64 row) { left_.push_back(row); }
  void copies_end(i64 now) {
    std::sort(left_.begin(), left_.end());
    for (const i64 row : left_) {
      outcome_.copy_end[row] = now;
      p_.flow.end_copy(row);
    }
    left_.clear();
  }
  void copy_starts(i32 row, i64 now) {
    outcome_.copy_start[row] = now;
    p_.flow.start_copy(row, now);
  }
  void step_starts(i32 k, i64 now, i64 stall) {
    const i32 step = in_order_[k];
    times_.start[step] = now;
    times_.stall[step] = stall;
    times_.end[step] = plus(now, p_.run_time[step]);
    p_.flow.start_step(step, now);
  }

 private:
  void find_order() {
    rank_.resize(steps_.count);
    for (const i32 op : steps_.at_position) {
      const i32 step = steps_.of[op];
      if (step < 0 || steps_.op_position[op] != steps_.position[step]) continue;
      rank_[step] = static_cast<i32>(in_order_.size());
      in_order_.push_back(step);
    }
  }

  // A step may read only what earlier steps wrote and none wrote over: the order is run as it is.
  bool check_order() {
    for (i32 s = 0; s < steps_.count; ++s)
      for (i64 i = steps_.read_rows.begin(s); i < steps_.read_rows.end(s); ++i) {
        const i32 writer = steps_.writer[steps_.read[i]];
        if (writer >= 0 && rank_[writer] > rank_[s]) return outcome_.fail(Fault::kDeadlock, steps_.number[s]);
      }
    for (i32 s = 0; s < steps_.count; ++s)
      for (i64 i = steps_.over_rows.begin(s); i < steps_.over_rows.end(s); ++i)
        if (rank_[s] > rank_[steps_.over[i]])
          return outcome_.fail(Fault::kDeadlock, steps_.number[steps_.over[i]]);
    return true;
  }

  bool model_copies() {
    const i32 home = p_.model.devices[0].home();
    const MemoryModel& slow = p_.model.memories[home];
    copies_.resize(p_.plan.copy_count);
    for (i32 k = -1; k < steps_.count; ++k) {
      const i32 issuer = k < 0 ? -1 : in_order_[k];
      for (i64 i = p_.flow.issued_begin(issuer); i < p_.flow.issued_end(issuer); ++i) {
        const i64 row = p_.flow.issued(i);
        const CopyModel& c = p_.flow.copies()[row];
        const LinkModel& link = p_.model.links[c.link];
        if (link.source != home && link.target != home) return outcome_.fail(Fault::kCopyNotHome, row);
        IdleCopy& copy = copies_[row];
        copy.issued = k;
        copy.needed = c.need == steps_.count ? steps_.count : rank_[c.need];
        copy.in = link.source == home;
        const i64 bandwidth = std::min(link.bandwidth, copy.in ? slow.read : slow.write);
        copy.work = move_time(link.latency, bandwidth, c.bytes);
        by_issue_.push_back(static_cast<i32>(row));
      }
    }
    return true;
  }

  const Prepared& p_;
  const Steps& steps_;
  Outcome& outcome_;
  StepTimes times_;
  std::vector<i32> in_order_, rank_, by_issue_;
  std::vector<IdleCopy> copies_;
  std::vector<i64> left_;  // copies that have left their queue and not ended
};

}  // namespace

bool run_idle(Prepared& prepared, Outcome& outcome) { return IdleRun(prepared, outcome).run(); }

}  // namespace loadmaster
