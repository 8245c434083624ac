#include "game/judge.hpp"

#include <array>
#include <deque>
#include <numeric>

namespace loadmaster::game {
namespace {

struct Times {
  std::vector<i64> elapsed, slow;  // [steps]
};

Times times_of(const GameModel& model, const std::vector<i8>& is_fast) {
  Times t{std::vector<i64>(model.steps()), model.base_slow};
  for (i32 step = 0; step < model.steps(); ++step) {
    i64 fast = 0;
    for (i64 site = model.site_start[step]; site < model.site_start[step + 1]; ++site)
      (is_fast[site] ? fast : t.slow[step]) += is_fast[site] ? model.site_fast[site] : model.site_slow[site];
    t.elapsed[step] = model.elapsed(step, t.slow[step], fast);
  }
  return t;
}

// Copies by the step that issues them (row 0: before the program), in the given order.
std::vector<i32> by_issue(const std::vector<GameCopy>& copies) {
  std::vector<i32> rows(copies.size());
  std::iota(rows.begin(), rows.end(), 0);
  std::stable_sort(rows.begin(), rows.end(),
                   [&](i32 a, i32 b) { return copies[a].issued < copies[b].issued; });
  return rows;
}

// docs/simulation.md, section 5. Two queues that share what slow memory leaves idle.
class IdleQueues {
 public:
  explicit IdleQueues(std::size_t copies) : gone_(copies, 0) {}
  void push(i32 row, bool in, i64 work) { queues_[in ? 0 : 1].emplace_back(row, halves_of(work)); }
  bool gone(i32 row) const { return gone_[row] != 0; }
  void drain(i64 idle) {
    i64 left = halves_of(idle);
    while (left > 0 && !(queues_[0].empty() && queues_[1].empty())) left -= advance(left);
  }
  // Picoseconds until a copy has left its queue.
  i64 wait(i32 row) {
    i64 halves = 0;
    while (!gone_[row]) halves = plus_halves(halves, advance(kForever));
    return (halves + 1) / 2;
  }

 private:
  // Until a copy leaves or `most` half-picoseconds have passed; returns how many passed.
  i64 advance(i64 most) {
    auto& [in, out] = queues_;
    if (!in.empty() && !out.empty()) {
      const i64 work = std::min({in.front().second, out.front().second, most / 2});
      in.front().second -= work;
      out.front().second -= work;
      leave(in);
      leave(out);
      return work * 2;
    }
    auto& queue = in.empty() ? out : in;
    const i64 work = std::min(queue.front().second, most);
    queue.front().second -= work;
    leave(queue);
    return work;
  }
  void leave(std::deque<std::pair<i32, i64>>& queue) {
    if (queue.front().second > 0) return;
    gone_[queue.front().first] = 1;
    queue.pop_front();
  }

  std::array<std::deque<std::pair<i32, i64>>, 2> queues_;
  std::vector<i8> gone_;
};

Judged judge_idle(const GameModel& model, const Times& t, const std::vector<GameCopy>& copies) {
  const i32 n = model.steps();
  const std::vector<i32> rows = by_issue(copies);
  std::vector<std::vector<i32>> needed(n + 1);  // in order of issue
  for (const i32 row : rows) needed[copies[row].needed].push_back(row);
  IdleQueues queues(copies.size());
  Judged result;
  std::size_t next = 0;
  for (i32 k = 0; k <= n; ++k) {
    const i64 repeat = k < n ? model.repeat[k] : 1;
    const auto wait_for = [&](i32 row) {
      if (queues.gone(row)) return;
      const i64 waited = times(repeat, queues.wait(row));
      result.total = plus(result.total, waited);
      result.stall = plus(result.stall, waited);
    };
    for (const i32 row : needed[k])
      if (copies[row].issued < k - 1) wait_for(row);
    for (; next < rows.size() && copies[rows[next]].issued == k - 1; ++next)
      queues.push(rows[next], copies[rows[next]].in, copies[rows[next]].work);
    for (const i32 row : needed[k]) wait_for(row);
    if (k == n) break;
    queues.drain(model.idle(k, t.elapsed[k], t.slow[k]));
    result.total = plus(result.total, times(model.repeat[k], t.elapsed[k]));
  }
  return result;
}

// docs/simulation.md, section 4, on one device: copies take their turn on engines.
Judged judge_free(const GameModel& model, const Times& t, const std::vector<GameCopy>& copies) {
  const i32 n = model.steps();
  const std::vector<i32> rows = by_issue(copies);
  std::vector<i64> ready(n + 1, 0);  // when all copies that a step needs have ended
  std::array<i64, 2> engine_free{};
  i64 now = 0;
  std::size_t next = 0;
  Judged result;
  const auto book = [&](i32 after) {
    for (; next < rows.size() && copies[rows[next]].issued == after; ++next) {
      const GameCopy& copy = copies[rows[next]];
      const bool repeats = after >= 0 && copy.needed < n && model.loop[after] >= 0 &&
                           model.loop[after] == model.loop[copy.needed];
      const i32 engine = copy.in ? model.engine_in : model.engine_out;
      const i64 start = engine < 0 ? now : std::max(now, engine_free[engine]);
      const i64 end = plus(start, repeats ? times(copy.work, model.repeat[copy.needed]) : copy.work);
      if (engine >= 0) engine_free[engine] = end;
      ready[copy.needed] = std::max(ready[copy.needed], end);
    }
  };
  book(-1);
  for (i32 k = 0; k <= n; ++k) {
    result.stall = plus(result.stall, std::max<i64>(0, ready[k] - now));
    now = std::max(now, ready[k]);
    if (k == n) break;
    now = plus(now, times(model.repeat[k], t.elapsed[k]));
    book(k);
  }
  result.total = now;
  return result;
}

}  // namespace

Judged judge(const GameModel& model, const std::vector<i8>& is_fast, const std::vector<GameCopy>& copies) {
  const Times t = times_of(model, is_fast);
  return model.idle_copies ? judge_idle(model, t, copies) : judge_free(model, t, copies);
}

}  // namespace loadmaster::game
