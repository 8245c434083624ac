#include "game/judge.hpp"

#include <array>
#include <numeric>

#include "idle_rule.hpp"

namespace loadmaster::game {
namespace {

// Copies by the step that issues them (row 0: before the program), in the given order.
std::vector<i32> by_issue(const std::vector<GameCopy>& copies) {
  std::vector<i32> rows(copies.size());
  std::iota(rows.begin(), rows.end(), 0);
  std::stable_sort(rows.begin(), rows.end(),
                   [&](i32 a, i32 b) { return copies[a].issued < copies[b].issued; });
  return rows;
}

// docs/simulation.md, section 5, as the rule wants to see it.
struct IdleRun {
  const GameModel& model;
  const StepTimes& t;
  const std::vector<GameCopy>& copies;

  i32 steps() const { return model.steps(); }
  i64 repeat(i32 step) const { return model.repeat[step]; }
  i64 run_time(i32 step) const { return times(model.repeat[step], t.elapsed[step]); }
  i64 idle(i32 step) const { return model.idle(step, t.elapsed[step], t.slow[step]); }
  const GameCopy& copy(i32 row) const { return copies[row]; }
  void step_ends(i32) {}
  void copy_leaves(i64) {}
  void copies_end(i64) {}
  void copy_starts(i32, i64) {}
  void step_starts(i32, i64, i64) {}
};

Judged judge_idle(const GameModel& model, const StepTimes& t, const std::vector<GameCopy>& copies) {
  IdleRun run{model, t, copies};
  const IdleTimes found = run_idle_rule(run, by_issue(copies));
  return {found.total, found.stall};
}

// docs/simulation.md, section 4, on one device that runs its steps in order: it needs no events, since all
// that a step waits for is known when its turn comes. tests/simulate/test_fast_paths.py holds it to the
// engine.
Judged judge_free(const GameModel& model, const StepTimes& t, const std::vector<GameCopy>& copies) {
  const i32 n = model.steps();
  const std::vector<i32> rows = by_issue(copies);
  std::vector<i64> ready(n + 1, 0);  // when all copies that a step needs have ended
  std::array<i64, 2> engine_free{};
  i64 now = 0;
  std::size_t next = 0;
  Judged result;
  const auto issue = [&](i32 after) {
    for (; next < rows.size() && copies[rows[next]].issued == after; ++next) {
      const GameCopy& copy = copies[rows[next]];
      const bool repeats =
          after >= 0 && copy.needed < n && in_one_loop(model.loop[after], model.loop[copy.needed]);
      const i32 engine = copy.in ? model.engine_in : model.engine_out;
      const i64 duration = repeats ? times(copy.work, model.repeat[copy.needed]) : copy.work;
      const std::span<const i32> engines(&engine, engine < 0 ? 0 : 1);
      const i64 end = book(engines, engine_free, now, duration).end;
      ready[copy.needed] = std::max(ready[copy.needed], end);
    }
  };
  issue(-1);
  for (i32 k = 0; k <= n; ++k) {
    result.stall = plus(result.stall, std::max<i64>(0, ready[k] - now));
    now = std::max(now, ready[k]);
    if (k == n) break;
    now = plus(now, times(model.repeat[k], t.elapsed[k]));
    issue(k);
  }
  result.total = now;
  return result;
}

}  // namespace

StepTimes step_times(const GameModel& model, const std::vector<i8>& is_fast) {
  StepTimes t{std::vector<i64>(model.steps()), model.base_slow};
  for (i32 step = 0; step < model.steps(); ++step) {
    i64 fast = 0;
    for (i64 site = model.site_start[step]; site < model.site_start[step + 1]; ++site)
      (is_fast[site] ? fast : t.slow[step]) += is_fast[site] ? model.site_fast[site] : model.site_slow[site];
    t.elapsed[step] = model.elapsed(step, t.slow[step], fast);
  }
  return t;
}

Judged judge(const GameModel& model, const std::vector<i8>& is_fast, const std::vector<GameCopy>& copies) {
  const StepTimes t = step_times(model, is_fast);
  return model.idle_copies ? judge_idle(model, t, copies) : judge_free(model, t, copies);
}

}  // namespace loadmaster::game
