#include "exact.hpp"

#include <algorithm>

#include "bounds.hpp"
#include "race.hpp"
#include "repair.hpp"

namespace loadmaster {
namespace {

constexpr i64 kMostRounds = 40;
constexpr i64 kFewestRestarts = 100, kMostRestarts = 1 << 16;  // short searches for one target

// A group of buffers that conflicts with nothing outside: solved on its own.
struct Part {
  std::vector<i32> buffers;
  Sections sections;
  i64 bound = 0;
  Packing best;
  Chain chain;      // of short searches
  i64 target = -1;  // the height that they try for; -1: not begun
};

class Parts {
 public:
  Parts(const Buffers& buffers, const Switches& switches, const Stop& stop)
      : in_(buffers), on_(switches), stop_(stop) {
    purse.left = stop.most_nodes;
    for (i32 b = 0; b < buffers.count(); ++b)  // empty buffers are in no section, but may be pinned high
      if (buffers.size[b] == 0 && !buffers.pinned.empty()) ground_ = std::max(ground_, buffers.pinned[b]);
    for (auto& group : components(buffers)) {
      if (static_cast<i32>(group.size()) > kMostExactBuffers) too_large = true;
      if (too_large) return;
      Part part;
      part.sections = sectioned(subset(buffers, group));
      part.buffers = std::move(group);
      part.bound = lower_bound(part.sections);
      all.push_back(std::move(part));
    }
  }

  i64 bound() const {
    i64 most = ground_;
    for (const Part& part : all) most = std::max(most, part.bound);
    return most;
  }
  i64 height() const {
    i64 most = ground_;
    for (const Part& part : all) most = std::max(most, part.best.height);
    return most;
  }

  // A first packing of every part, good enough at `goal` bytes.
  void pack(i64 goal) {
    for (Part& part : all) part.best = greedy_packing(part.sections, std::max(goal, part.bound));
  }

  // Lowers a packing by repairing its order: cheap, and of use where the search is stuck.
  void repair(Part& part, i64 goal) {
    if (!on_.repair || part.best.offset.empty()) return;
    const i64 tries = std::min<i64>(300, 200'000 / (1 + part.sections.count()));
    part.best = repaired(part.sections, part.best, std::max(goal, part.bound), tries, on_.seed,
                         [&] { return stopped(stop_); });
  }

  // One round of the race for one part. Keeps what it finds; a proof raises the part's bound.
  SearchEnd round(Part& part, i64 capacity, i64 number, i64 budget) {
    if (part.best.height <= capacity) return SearchEnd::kFound;
    if (part.bound > capacity) return SearchEnd::kNone;
    std::vector<i64> offset;
    const SearchEnd outcome = Race(part.sections, on_).round(capacity, number, budget, purse, stop_, offset);
    if (outcome == SearchEnd::kNone) part.bound = capacity + 1;
    if (outcome == SearchEnd::kFound) part.best = packing(part.sections, std::move(offset));
    return outcome;
  }

  // Short searches with about as many nodes as a round. The height that they found, or -1; keeps what is
  // lower than all before.
  i64 restart(Part& part, i64 capacity, i64 budget) {
    if (over()) return -1;
    Race race(part.sections, on_);
    const i64 count = std::clamp(12 * (budget / race.first_budget()), kFewestRestarts, kMostRestarts);
    if (!race.restart(capacity, count, part.chain, purse, stop_)) return -1;
    Packing found = packing(part.sections, part.chain.offset);
    const i64 height = found.height;
    if (height < part.best.height) part.best = std::move(found);
    return height;
  }

  bool over() const { return purse.empty() || stopped(stop_); }

  // What is known now, in the input's own terms.
  Placement placement(Status status) const {
    Placement out;
    out.status = status;
    out.bound = bound();
    out.nodes = purse.spent;
    if (status == Status::kInfeasible || status == Status::kUnknown) return out;
    out.offset.assign(in_.count(), 0);
    for (i32 b = 0; b < in_.count(); ++b)
      if (!in_.pinned.empty() && in_.pinned[b] >= 0) out.offset[b] = in_.pinned[b];
    for (const Part& part : all)
      for (i32 b = 0; b < part.sections.count(); ++b)
        out.offset[part.buffers[part.sections.original[b]]] = part.best.offset[b] * part.sections.unit;
    for (i32 b = 0; b < in_.count(); ++b) out.height = std::max(out.height, out.offset[b] + in_.size[b]);
    return out;
  }

  std::vector<Part> all;
  Purse purse;
  bool too_large = false;

 private:
  static Packing packing(const Sections& sections, std::vector<i64> offset) {
    Packing out{std::move(offset), 0};
    for (i32 b = 0; b < sections.count(); ++b)
      out.height = std::max(out.height, out.offset[b] * sections.unit + sections.exact[b]);
    return out;
  }

  const Buffers& in_;
  const Switches& on_;
  const Stop& stop_;
  i64 ground_ = 0;
};

// Lowers one part towards `goal`: the goal itself first (tight is often easy), then by halves.
template <class Improved>
void lower(Parts& parts, Part& part, const Heights& heights, i64 goal, i64 number, i64 budget,
           Improved&& improved) {
  i64 tried = goal;  // no placement found up to here
  for (i64 capacity = goal; part.best.height > goal && !parts.over();) {
    if (capacity < std::max(part.bound, goal)) break;
    switch (parts.round(part, capacity, number, budget)) {
      case SearchEnd::kFound:
        improved();
        break;
      case SearchEnd::kNone:
        goal = part.bound = heights.at_least(capacity + 1);
        [[fallthrough]];
      case SearchEnd::kOutOfBudget:
        tried = capacity;
    }
    const i64 below = heights.at_most(part.best.height - 1);
    if (below <= tried) break;
    capacity = std::max(heights.at_least(tried + 1), heights.at_most(tried + (below - tried) / 2));
  }
}

// Lowers one part step by step: an order that won at one height is a good start just below it. Where no
// order near it wins, the target rises a little, until another one does.
template <class Improved>
void descend(Parts& parts, Part& part, const Heights& heights, i64 goal, i64 budget, Improved&& improved) {
  constexpr i64 kSetbacks = 3, kStep = 16, kSetback = 400, kHighest = 50;
  if (part.target < 0) part.target = part.best.height;
  for (i64 setbacks = 0; part.best.height > goal && setbacks < kSetbacks && !parts.over();) {
    const i64 height = parts.restart(part, part.target, budget);
    if (height >= 0) {
      part.target = std::max(goal, heights.at_most(height - 1 - (height - goal) / kStep));
      improved();
    } else {
      const i64 highest = part.best.height + part.best.height / kHighest;
      part.target = std::min(heights.at_least(part.target + 1 + part.target / kSetback), highest);
      ++setbacks;
    }
  }
}

bool pins_contradict(const Parts& parts) {
  return std::any_of(parts.all.begin(), parts.all.end(),
                     [](const Part& part) { return part.sections.contradictory; });
}

}  // namespace

Placement fit(const Buffers& buffers, i64 capacity, const Switches& switches, Stop& stop) {
  capacity = std::min(capacity, kForever);
  Parts parts(buffers, switches, stop);
  if (parts.too_large) return parts.placement(Status::kUnknown);
  if (capacity < 0 || parts.bound() > capacity) return parts.placement(Status::kInfeasible);
  if (switches.first_fit)
    parts.pack(capacity);
  else
    for (Part& part : parts.all) part.best = part.sections.count() == 0 ? Packing{{}, 0} : Packing{};
  std::vector<Part*> open;
  for (Part& part : parts.all)
    if (part.best.height > capacity) open.push_back(&part);
  // The part with least room first: if it fails, the others need not be asked.
  std::stable_sort(open.begin(), open.end(),
                   [](const Part* a, const Part* b) { return a->bound > b->bound; });
  for (Part* part : open) {
    i64 budget = Race(part->sections, switches).first_budget();
    SearchEnd outcome = SearchEnd::kOutOfBudget;
    for (i64 number = 0; outcome == SearchEnd::kOutOfBudget && !parts.over();
         ++number, budget += number < kMostRounds ? budget : 0) {
      if (number == 1) parts.repair(*part, capacity);
      outcome = parts.round(*part, capacity, number, budget);
    }
    if (outcome == SearchEnd::kNone) return parts.placement(Status::kInfeasible);
    if (outcome == SearchEnd::kOutOfBudget) return parts.placement(Status::kUnknown);
  }
  Placement out = parts.placement(Status::kFeasible);
  if (out.height <= out.bound) out.status = Status::kOptimal;
  return out;
}

Placement minimize(const Buffers& buffers, const Switches& switches, Stop& stop,
                   const std::function<void(const Placement&)>& improved) {
  Parts parts(buffers, switches, stop);
  if (parts.too_large) return parts.placement(Status::kUnknown);
  if (pins_contradict(parts)) return parts.placement(Status::kInfeasible);
  const auto answer = [&] {
    Placement out = parts.placement(Status::kFeasible);
    if (out.height <= std::max(out.bound, parts.bound())) out.status = Status::kOptimal;
    return out;
  };
  const i64 floor = parts.bound();
  parts.pack(floor);
  // Sizes near the limits can leave greedy without an answer: then the search finds the first one.
  for (const Part& part : parts.all)
    if (part.best.offset.empty() && part.sections.count() > 0) return parts.placement(Status::kUnknown);
  i64 told = kForever;
  const auto tell = [&] {
    if (!improved || parts.height() >= told) return;
    told = parts.height();
    improved(answer());
  };
  tell();
  std::vector<Heights> heights;
  std::vector<i64> budgets;
  for (Part& part : parts.all) {
    heights.emplace_back(part.sections, part.best.height, switches);
    part.bound = std::min(heights.back().at_least(part.bound), part.best.height);
    budgets.push_back(Race(part.sections, switches).first_budget());
  }
  for (i64 number = 0; parts.height() > parts.bound() && !parts.over(); ++number)
    for (size_t p = 0; p < parts.all.size(); ++p) {
      Part& part = parts.all[p];
      const i64 goal = parts.bound();
      if (number == 1) {
        parts.repair(part, goal);
        tell();
      }
      if (part.best.height <= goal) continue;
      if (number > 0 && switches.restarts && switches.static_preordering)
        descend(parts, part, heights[p], goal, budgets[p], tell);
      if (part.best.height <= goal) continue;
      lower(parts, part, heights[p], goal, number, budgets[p], tell);
      if (number < kMostRounds) budgets[p] *= 2;
    }
  return answer();
}

std::vector<i32> irreducible_infeasible_subset(const Buffers& buffers, i64 capacity, const Switches& switches,
                                               Stop& stop) {
  const auto infeasible = [&](const std::vector<i32>& chosen) {
    const Buffers some = subset(buffers, chosen);
    return fit(some, capacity, switches, stop).status == Status::kInfeasible;
  };
  // Start from the fullest section if its live bytes alone do not fit.
  std::vector<i32> kept(buffers.count());
  for (i32 b = 0; b < buffers.count(); ++b) kept[b] = b;
  if (buffers.count() > kMostExactBuffers) return {};
  const Sections all = sectioned(buffers);
  i32 fullest = -1;
  for (i32 s = 0; s < all.sections(); ++s)
    if (all.load[s] > all.roof(capacity) && (fullest < 0 || all.load[s] > all.load[fullest])) fullest = s;
  if (fullest >= 0) {
    std::vector<i32> live;
    for (i32 b = 0; b < all.count(); ++b)
      if (all.members.get(fullest, b)) live.push_back(all.original[b]);
    std::sort(live.begin(), live.end());
    if (infeasible(live)) kept = std::move(live);
  }
  if (!infeasible(kept)) return {};
  // Leave out blocks, halving them, while the rest stays infeasible; then every single one.
  for (size_t block = std::max<size_t>(1, kept.size() / 2);; block = std::max<size_t>(1, block / 2)) {
    for (size_t at = 0; at < kept.size() && !stopped(stop);) {
      std::vector<i32> rest(kept.begin(), kept.begin() + static_cast<std::ptrdiff_t>(at));
      if (at + block < kept.size())
        rest.insert(rest.end(), kept.begin() + static_cast<std::ptrdiff_t>(at + block), kept.end());
      if (!rest.empty() && infeasible(rest))
        kept = std::move(rest);
      else
        at += block;
    }
    if (block == 1) return kept;
  }
}

}  // namespace loadmaster
