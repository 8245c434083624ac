#include "race.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>

#include "../parallel.hpp"
#include "orders.hpp"
#include "shapes.hpp"

namespace loadmaster {

bool stopped(const Stop& stop) {
  if (stop.asked.load(std::memory_order_relaxed)) return true;
  if (stop.deadline_ns < 0) return false;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() >= stop.deadline_ns;
}

Race::Race(const Sections& sections, const Switches& switches) : in_(sections), on_(switches) {}

i64 Race::first_budget() const {
  return on_.first_budget > 0 ? on_.first_budget : std::max<i64>(1000, 3 * in_.count());
}

SearchEnd Race::round(i64 capacity, i64 number, i64 budget, Purse& purse, const Stop& stop,
                      std::vector<i64>& offset) {
  const std::vector<std::string>& named = on_.orders.empty() ? usual_orders() : on_.orders;
  const i64 runs = static_cast<i64>(named.size());
  struct Run {
    SearchEnd outcome = SearchEnd::kOutOfBudget;
    i64 nodes = 0;
    std::vector<i64> offset;
  };
  std::vector<Run> done(static_cast<size_t>(runs));
  std::atomic<i64> winner{runs};
  const auto make = [&] {
    return [&, search = std::unique_ptr<Search>()](i64 begin, i64 end) mutable {
      for (i64 i = begin; i < end; ++i) {
        const i64 allowed = purse.left < 0 ? budget : std::clamp<i64>(purse.left - i * budget, 0, budget);
        if (allowed == 0 || winner.load() < i || stopped(stop)) continue;
        std::vector<i32> rank(in_.count());
        if (!on_.static_preordering)
          std::iota(rank.begin(), rank.end(), 0);
        else
          rank = number == 0 ? ranked(in_, named[i]) : drawn_order(in_, on_.seed, number * runs + i);
        if (!search) search = std::make_unique<Search>(in_, capacity, on_);
        Run& run = done[i];
        run.outcome = search->run(rank, static_cast<int>((number + i) % Search::kStyles), allowed, [&] {
          return winner.load(std::memory_order_relaxed) < i || stopped(stop);
        });
        run.nodes = search->nodes();
        if (run.outcome == SearchEnd::kOutOfBudget) continue;
        if (run.outcome == SearchEnd::kFound)
          run.offset.assign(search->offsets().begin(), search->offsets().end());
        for (i64 known = winner.load(); i < known && !winner.compare_exchange_weak(known, i);) {
        }
      }
    };
  };
  in_blocks(runs, 1, on_.threads, make);
  for (i64 i = 0; i < runs && i <= winner.load(); ++i) purse.pay(done[i].nodes);
  if (winner.load() == runs) return SearchEnd::kOutOfBudget;
  Run& best = done[winner.load()];
  if (best.outcome == SearchEnd::kFound) offset = std::move(best.offset);
  if (best.outcome != SearchEnd::kNone || !in_.interlocking) return best.outcome;
  // Bottom-up orders are exhausted, but buffers may still interlock.
  ShapeSearch shapes(in_, capacity);
  const SearchEnd outcome = shapes.run(purse.at_most(budget * runs), [&] { return stopped(stop); });
  purse.pay(shapes.nodes());
  if (outcome == SearchEnd::kFound) offset.assign(shapes.offsets().begin(), shapes.offsets().end());
  return outcome;
}

}  // namespace loadmaster
