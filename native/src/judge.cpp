// Section 5: copies move only while ops leave the slowest memory idle, as in XLA's simulator.
#include <algorithm>
#include <deque>

#include "engine.hpp"

namespace loadmaster {
namespace {

struct Queued {
  i64 copy;
  i64 work;  // half-picoseconds at full speed
};

// The queues of copies in and out, and the clock.
class Judge {
 public:
  Judge(const Prepared& prepared, Outcome& outcome)
      : p_(prepared), outcome_(outcome), gone_(prepared.plan.copy_count, 0) {}

  bool push(i64 copy) {
    const CopyModel& c = p_.flow.copies()[copy];
    const LinkModel& link = p_.model.links[c.link];
    const i32 home = p_.model.devices[0].home();
    const MemoryModel& slow = p_.model.memories[home];
    if (link.source != home && link.target != home) return outcome_.fail(Fault::kCopyNotHome, copy);
    const bool in = link.source == home;
    const i64 bandwidth = std::min(link.bandwidth, in ? slow.read : slow.write);
    const i64 work = std::max<i64>(1, plus(link.latency, ceil_time(c.bytes, bandwidth)));
    queues_[in ? 0 : 1].push_back({copy, halves_of(work)});
    outcome_.copy_start[copy] = now_;
    p_.flow.start_copy(copy, now_);
    return true;
  }

  void wait(i64 copy, i64 repeat, i64& stall) {
    if (gone_[copy]) return;
    i64 halves = 0;
    while (!gone_[copy]) halves = plus_halves(halves, advance(kForever));
    const i64 waited = times(repeat, (halves + 1) / 2);
    now_ = plus(now_, waited);
    stall = plus(stall, waited);
    end_gone();
  }

  void run(i32 step) {
    i64 left = halves_of(std::max<i64>(0, p_.duration[step] - p_.slow[step]));
    while (left > 0 && !(queues_[0].empty() && queues_[1].empty())) left -= advance(left);
    now_ = plus(now_, p_.run_time[step]);
  }

  void end_gone() {
    std::sort(leaving_.begin(), leaving_.end());
    for (const i64 copy : leaving_) {
      outcome_.copy_end[copy] = now_;
      p_.flow.end_copy(copy);
    }
    leaving_.clear();
  }

  i64 now() const { return now_; }

 private:
  // Works until a copy leaves or `most` half-picoseconds have passed; returns how many passed.
  i64 advance(i64 most) {
    auto& in = queues_[0];
    auto& out = queues_[1];
    if (!in.empty() && !out.empty()) {
      // Half speed each: a unit of work takes two half-picoseconds.
      const i64 work = std::min({in.front().work, out.front().work, most / 2});
      in.front().work -= work;
      out.front().work -= work;
      leave(in);
      leave(out);
      return work * 2;
    }
    auto& queue = in.empty() ? out : in;
    const i64 work = std::min(queue.front().work, most);
    queue.front().work -= work;
    leave(queue);
    return work;
  }

  void leave(std::deque<Queued>& queue) {
    if (queue.front().work > 0) return;
    gone_[queue.front().copy] = 1;
    leaving_.push_back(queue.front().copy);
    queue.pop_front();
  }

  const Prepared& p_;
  Outcome& outcome_;
  std::vector<i8> gone_;
  std::vector<i64> leaving_;
  std::deque<Queued> queues_[2];
  i64 now_ = 0;
};

}  // namespace

bool run_idle(const Prepared& p, Outcome& outcome) {
  const Steps& steps = p.steps;
  StepTimes times_of{std::vector<i64>(steps.count), std::vector<i64>(steps.count),
                     std::vector<i64>(steps.count)};
  std::vector<i32> in_order;
  for (const i32 op : steps.at_position) {
    const i32 step = steps.of[op];
    if (step >= 0 && steps.op_position[op] == steps.position[step]) in_order.push_back(step);
  }
  // A step may read only what earlier steps wrote and none wrote over: the order is run as it is.
  std::vector<i32> rank(steps.count);
  for (i32 k = 0; k < steps.count; ++k) rank[in_order[k]] = k;
  for (i32 s = 0; s < steps.count; ++s)
    for (i64 i = steps.read_rows.begin(s); i < steps.read_rows.end(s); ++i) {
      const i32 writer = steps.writer[steps.read[i]];
      if (writer >= 0 && rank[writer] > rank[s]) return outcome.fail(Fault::kDeadlock, steps.number[s]);
    }
  for (i32 s = 0; s < steps.count; ++s)
    for (i64 i = steps.over_rows.begin(s); i < steps.over_rows.end(s); ++i)
      if (rank[s] > rank[steps.over[i]]) return outcome.fail(Fault::kDeadlock, steps.number[steps.over[i]]);
  // Copies that a step needs, in order of issue.
  std::vector<std::vector<i64>> needed(steps.count + 1);
  for (i32 k = -1; k < steps.count; ++k) {
    const i32 issuer = k < 0 ? -1 : in_order[k];
    for (i64 i = p.flow.issued_begin(issuer); i < p.flow.issued_end(issuer); ++i) {
      const i32 need = p.flow.copies()[p.flow.issued(i)].need;
      needed[need == steps.count ? steps.count : rank[need]].push_back(p.flow.issued(i));
    }
  }
  Judge judge(p, outcome);
  std::vector<i8> pushed(p.plan.copy_count, 0);
  for (i32 k = 0; k <= steps.count; ++k) {
    const i32 step = k < steps.count ? in_order[k] : -1;
    const i32 before = k > 0 ? in_order[k - 1] : -1;
    const i64 repeat = step >= 0 ? p.model.repeat[steps.number[step]] : 1;
    i64 stall = 0;
    if (k > 0) {
      p.flow.end_step(before, judge.now());
      judge.end_gone();
    }
    for (const i64 copy : needed[k])
      if (pushed[copy]) judge.wait(copy, repeat, stall);
    for (i64 i = p.flow.issued_begin(before); i < p.flow.issued_end(before); ++i) {
      pushed[p.flow.issued(i)] = 1;
      if (!judge.push(p.flow.issued(i))) return false;
    }
    for (const i64 copy : needed[k]) judge.wait(copy, repeat, stall);
    if (step < 0) break;
    times_of.start[step] = judge.now();
    times_of.stall[step] = stall;
    p.flow.start_step(step, judge.now());
    judge.run(step);
    times_of.end[step] = judge.now();
  }
  outcome.total = judge.now();
  write_op_times(p, times_of, outcome);
  return true;
}

}  // namespace loadmaster
