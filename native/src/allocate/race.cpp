#include "race.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <numeric>

#include "../parallel.hpp"
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

Race::Run Race::race(i64 capacity, i64 count, i64 budget, const std::function<Preference(i64)>& draw,
                     Purse& purse, const Stop& stop, i64& winner) {
  std::vector<Run> done(static_cast<size_t>(count));
  std::atomic<i64> first{count};
  const auto make = [&] {
    return [&, search = std::unique_ptr<Search>()](i64 begin, i64 end) mutable {
      for (i64 i = begin; i < end; ++i) {
        const i64 allowed = purse.left < 0 ? budget : std::clamp<i64>(purse.left - i * budget, 0, budget);
        if (allowed == 0 || first.load() < i || stopped(stop)) continue;
        Preference by = draw(i);
        if (!search) search = std::make_unique<Search>(in_, capacity, on_);
        Run& run = done[i];
        run.outcome = search->run(by.rank, by.style, allowed,
                                  [&] { return first.load(std::memory_order_relaxed) < i || stopped(stop); });
        run.nodes = search->nodes();
        if (run.outcome == SearchEnd::kOutOfBudget) continue;
        run.by = std::move(by);
        if (run.outcome == SearchEnd::kFound)
          run.offset.assign(search->offsets().begin(), search->offsets().end());
        for (i64 known = first.load(); i < known && !first.compare_exchange_weak(known, i);) {
        }
      }
    };
  };
  in_blocks(count, 1, on_.threads, make);
  winner = first.load();
  for (i64 i = 0; i < count && i <= winner; ++i) purse.pay(done[i].nodes);
  return winner < count ? std::move(done[winner]) : Run{};
}

SearchEnd Race::round(i64 capacity, i64 number, i64 budget, Purse& purse, const Stop& stop,
                      std::vector<i64>& offset) {
  const std::vector<std::string>& named = on_.orders.empty() ? usual_orders() : on_.orders;
  const i64 runs = static_cast<i64>(named.size());
  const auto draw = [&](i64 i) {
    Preference by{std::vector<i32>(in_.count()), static_cast<int>((number + i) % Search::kStyles)};
    if (!on_.static_preordering)
      std::iota(by.rank.begin(), by.rank.end(), 0);
    else
      by.rank = number == 0 ? ranked(in_, named[i]) : drawn_order(in_, on_.seed, number * runs + i);
    return by;
  };
  i64 winner;
  Run best = race(capacity, runs, budget, draw, purse, stop, winner);
  if (best.outcome == SearchEnd::kFound) offset = std::move(best.offset);
  if (best.outcome != SearchEnd::kNone || !in_.interlocking) return best.outcome;
  // Bottom-up orders are exhausted, but buffers may still interlock.
  ShapeSearch shapes(in_, capacity);
  const SearchEnd outcome = shapes.run(purse.at_most(budget * runs), [&] { return stopped(stop); });
  purse.pay(shapes.nodes());
  if (outcome == SearchEnd::kFound) offset.assign(shapes.offsets().begin(), shapes.offsets().end());
  return outcome;
}

bool Race::restart(i64 capacity, i64 count, Chain& chain, Purse& purse, const Stop& stop) {
  const auto draw = [&](i64 i) {
    return shuffled(in_, chain.by, Search::kStyles, on_.seed, chain.drawn + i);
  };
  i64 winner;
  Run best = race(capacity, count, first_budget(), draw, purse, stop, winner);
  chain.drawn += std::min(count, winner + 1);
  if (best.outcome != SearchEnd::kFound) return false;
  chain.by = std::move(best.by);
  chain.offset = std::move(best.offset);
  return true;
}

}  // namespace loadmaster
