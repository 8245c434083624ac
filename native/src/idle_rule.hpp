// Section 5, written once: copies move only while ops leave the slowest memory idle, as in XLA's simulator.
#pragma once

#include <deque>
#include <utility>
#include <vector>

#include "timing.hpp"

namespace loadmaster {

// The queues of copies in and out, which share what the slowest memory leaves idle. Work is counted in
// half-picoseconds at full speed.
class IdleQueues {
 public:
  explicit IdleQueues(std::size_t copies) : gone_(copies, 0) {}

  void push(i64 copy, bool in, i64 work) { queues_[in ? 0 : 1].emplace_back(copy, halves_of(work)); }
  bool is_gone(i64 copy) const { return gone_[copy] != 0; }
  // Uses so many picoseconds, and calls `leaves(copy)` for every copy that leaves its queue.
  template <class Leaves>
  void drain(i64 idle, Leaves&& leaves) {
    i64 left = halves_of(idle);
    while (left > 0 && !(queues_[0].empty() && queues_[1].empty())) left -= advance(left, leaves);
  }
  // Picoseconds until a copy has left its queue.
  template <class Leaves>
  i64 wait(i64 copy, Leaves&& leaves) {
    i64 halves = 0;
    while (!gone_[copy]) halves = plus_halves(halves, advance(kForever, leaves));
    return (halves + 1) / 2;
  }

 private:
  using Queue = std::deque<std::pair<i64, i64>>;  // copy, work

  // Works until a copy leaves or `most` half-picoseconds have passed; returns how many passed.
  template <class Leaves>
  i64 advance(i64 most, Leaves& leaves) {
    auto& [in, out] = queues_;
    if (!in.empty() && !out.empty()) {
      // Half speed each: a unit of work takes two half-picoseconds.
      const i64 work = std::min({in.front().second, out.front().second, most / 2});
      in.front().second -= work;
      out.front().second -= work;
      leave(in, leaves);
      leave(out, leaves);
      return work * 2;
    }
    Queue& queue = in.empty() ? out : in;
    const i64 work = std::min(queue.front().second, most);
    queue.front().second -= work;
    leave(queue, leaves);
    return work;
  }

  template <class Leaves>
  void leave(Queue& queue, Leaves& leaves) {
    if (queue.front().second > 0) return;
    gone_[queue.front().first] = 1;
    leaves(queue.front().first);
    queue.pop_front();
  }

  Queue queues_[2];
  std::vector<i8> gone_;
};

// Runs steps 0 … n - 1 in that order. `Run` says
//
//   steps(), repeat(step), run_time(step), idle(step)
//   copy(row)   with `in`, `issued` and `needed` (steps; -1 and n: the ends), `work` in picoseconds
//
// and is told of step_ends(step), step_starts(step, now, stall), copy_starts(row, now), copy_leaves(row), and
// of copies_end(now): those that left have ended. idle.cpp and game/judge.cpp are the two.
//
// `by_issue`: the rows of all copies, in order of issue. Returns the time at the end and all stalls.
struct IdleTimes {
  i64 total = 0, stall = 0;
};
template <class Run>
IdleTimes run_idle_rule(Run& run, const std::vector<i32>& by_issue) {
  const i32 n = run.steps();
  std::vector<std::vector<i32>> needed(n + 1);  // in order of issue
  for (const i32 row : by_issue) needed[run.copy(row).needed].push_back(row);
  IdleQueues queues(by_issue.size());
  IdleTimes times_of;
  i64& now = times_of.total;
  std::size_t next = 0;
  const auto leaves = [&](i64 row) { run.copy_leaves(row); };
  for (i32 k = 0; k <= n; ++k) {
    const i64 repeat = k < n ? run.repeat(k) : 1;
    i64 stall = 0;
    const auto wait_for = [&](i32 row) {
      if (queues.is_gone(row)) return;
      const i64 waited = times(repeat, queues.wait(row, leaves));
      now = plus(now, waited);
      stall = plus(stall, waited);
      run.copies_end(now);
    };
    if (k > 0) {
      run.step_ends(k - 1);
      run.copies_end(now);
    }
    for (const i32 row : needed[k])
      if (run.copy(row).issued < k - 1) wait_for(row);
    for (; next < by_issue.size() && run.copy(by_issue[next]).issued == k - 1; ++next) {
      const auto& copy = run.copy(by_issue[next]);
      queues.push(by_issue[next], copy.in, copy.work);
      run.copy_starts(by_issue[next], now);
    }
    for (const i32 row : needed[k]) wait_for(row);
    times_of.stall = plus(times_of.stall, stall);
    if (k == n) break;
    run.step_starts(k, now, stall);
    queues.drain(run.idle(k), leaves);
    now = plus(now, run.run_time(k));
  }
  return times_of;
}

}  // namespace loadmaster
