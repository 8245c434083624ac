// The exact allocator against brute force on thousands of tiny problems, and its promises:
// determinism for any number of threads, irreducible explanations, prompt stops, no overflow.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>

#include "allocate/bounds.hpp"
#include "allocate/exact.hpp"
#include "allocate/orders.hpp"
#include "allocate/repair.hpp"
#include "allocate/sections.hpp"
#include "testing.hpp"

using namespace loadmaster;

namespace {

void add(Buffers& all, i64 lower, i64 upper, i64 size, i64 alignment = 1, i64 pinned = -1) {
  all.lower.push_back(lower);
  all.upper.push_back(upper);
  all.size.push_back(size);
  all.alignment.push_back(alignment);
  all.pinned.push_back(pinned);
  all.hint.push_back(-1);
}

// What a tiny problem has besides lifetimes and sizes.
struct Taste {
  bool alignment = false, pins = false, gaps = false, windows = false, apart = false;
};

Buffers tiny(Random& rng, const Taste& taste) {
  Buffers all;
  const i64 n = 1 + rng.below(6), unit = n < 5 && rng.chance(0.2) ? 4 : 1, most = n < 6 ? 5 : 3;
  for (i64 b = 0; b < n; ++b) {
    const i64 lower = rng.below(6);
    const i64 size = rng.chance(0.05) ? 0 : unit * (1 + rng.below(most));
    const i64 align = taste.alignment ? std::vector<i64>{1, 2, 3, 4}[static_cast<size_t>(rng.below(4))] : 1;
    const i64 pin = taste.pins && rng.chance(0.25) ? align * rng.below(5) : -1;
    add(all, lower, lower + (rng.chance(0.05) ? 0 : 1 + rng.below(5)), size, align, pin);
  }
  if (taste.gaps) {
    all.gaps.resize(static_cast<size_t>(n));
    for (i32 b = 0; b < n; ++b) {
      i64 at = all.lower[b];
      while (at < all.upper[b] && rng.chance(0.5)) {
        const i64 from = at + rng.below(2), to = from + 1 + rng.below(2);
        if (to > all.upper[b]) break;
        i64 low = rng.below(all.size[b] + 1), high = low + rng.below(all.size[b] - low + 1);
        if (!taste.windows) low = high = 0;
        all.gaps[b].push_back({from, to, low, high});
        at = to;
      }
    }
  }
  if (taste.apart)
    for (i32 a = 0; a < n; ++a)
      for (i32 b = 0; b < a; ++b)
        if (rng.chance(0.2)) all.apart.push_back({a, b});
  return all;
}

// The bytes [low, high) that b uses at an instant, relative to its offset.
std::pair<i64, i64> window(const Buffers& all, i32 b, i64 time) {
  if (time < all.lower[b] || time >= all.upper[b]) return {0, 0};
  if (!all.gaps.empty())
    for (const Gap& gap : all.gaps[b])
      if (gap.from <= time && time < gap.to) return {gap.low, gap.high};
  return {0, all.size[b]};
}

bool clash(const Buffers& all, i32 a, i64 x, i32 b, i64 y) {
  const auto meet = [&](std::pair<i64, i64> p, std::pair<i64, i64> q) {
    return p.first < p.second && q.first < q.second && x + p.first < y + q.second &&
           y + q.first < x + p.second;
  };
  for (const auto& [p, q] : all.apart)
    if (((p == a && q == b) || (p == b && q == a)) && meet({0, all.size[a]}, {0, all.size[b]})) return true;
  for (i64 t = std::max(all.lower[a], all.lower[b]); t < std::min(all.upper[a], all.upper[b]); ++t)
    if (meet(window(all, a, t), window(all, b, t))) return true;
  return false;
}

bool allowed(const Buffers& all, i32 b, i64 x) {
  return x % all.alignment[b] == 0 && (all.pinned[b] < 0 || all.pinned[b] == x);
}

// Slow and plain: every offset of every buffer. clashes(a, b, x - y) is tabulated.
class Brute {
 public:
  explicit Brute(const Buffers& all) : all_(all), n_(static_cast<size_t>(all.count())) {
    table_.resize(n_ * n_ * 2 * kSpan);
    for (i32 a = 0; a < all.count(); ++a)
      for (i32 b = 0; b < a; ++b)
        for (i64 d = -kSpan; d < kSpan; ++d) table_[cell(a, b, d)] = clash(all, a, d, b, 0);
  }

  bool fits(i64 capacity) { return extend(0, capacity); }

  // -1: the pins contradict each other.
  i64 minimum() {
    i64 capacity = 0;
    for (i32 a = 0; a < all_.count(); ++a) {
      capacity = std::max(capacity, all_.size[a] + std::max<i64>(0, all_.pinned[a]));
      for (i32 b = 0; b < a; ++b)
        if (all_.pinned[a] >= 0 && all_.pinned[b] >= 0 && table_[cell(a, b, all_.pinned[a] - all_.pinned[b])])
          return -1;
    }
    while (!fits(capacity)) ++capacity;
    return capacity;
  }

 private:
  static constexpr i64 kSpan = 128;
  size_t cell(i32 a, i32 b, i64 d) const {
    return (static_cast<size_t>(a) * n_ + static_cast<size_t>(b)) * 2 * kSpan +
           static_cast<size_t>(d + kSpan);
  }
  bool extend(i32 b, i64 capacity) {
    if (b == all_.count()) return true;
    for (i64 x = 0; x + all_.size[b] <= capacity; ++x) {
      bool free = allowed(all_, b, x);
      for (i32 c = 0; free && c < b; ++c) free = !table_[cell(b, c, x - offset_[c])];
      if (!free) continue;
      offset_[b] = x;
      if (extend(b + 1, capacity)) return true;
      if (all_.size[b] == 0) break;  // an empty buffer is nowhere in the way
    }
    return false;
  }

  const Buffers& all_;
  size_t n_;
  std::vector<char> table_;
  i64 offset_[8] = {};
};

bool brute(const Buffers& all, i64 capacity) { return Brute(all).fits(capacity); }

void check_placement(const Buffers& all, const Placement& got, i64 capacity) {
  CHECK(static_cast<i32>(got.offset.size()) == all.count());
  i64 height = 0;
  for (i32 b = 0; b < all.count(); ++b) {
    CHECK(got.offset[b] >= 0 && allowed(all, b, got.offset[b]));
    height = std::max(height, got.offset[b] + all.size[b]);
    for (i32 c = 0; c < b; ++c) CHECK(!clash(all, b, got.offset[b], c, got.offset[c]));
  }
  CHECK(height == got.height);
  CHECK(height <= capacity);
}

constexpr bool Switches::* kTechniques[] = {&Switches::canonical,          &Switches::section_inference,
                                            &Switches::monotonic_floor,    &Switches::unallocated_floor,
                                            &Switches::refused_floor,      &Switches::forced_next,
                                            &Switches::dominance,          &Switches::hatless,
                                            &Switches::decomposition,      &Switches::section_branching,
                                            &Switches::identical_symmetry, &Switches::static_preordering,
                                            &Switches::no_goods,           &Switches::first_fit,
                                            &Switches::restarts,           &Switches::repair,
                                            &Switches::subset_sum_bounds};

void test_against_brute_force(u64 seed, int count, const Taste& taste) {
  Random rng(seed);
  for (int i = 0; i < count; ++i) {
    const Buffers all = tiny(rng, taste);
    const i64 minimum = Brute(all).minimum();
    Switches on;
    Stop stop;
    const i64 bound = [&] {
      i64 highest = 0;
      for (const auto& group : components(all))
        highest = std::max(highest, lower_bound(sectioned(subset(all, group))));
      return highest;
    }();
    const Placement best = minimize(all, on, stop);
    if (minimum < 0) {
      CHECK(best.status == Status::kInfeasible);
      CHECK(fit(all, 1000, on, stop).status == Status::kInfeasible);
      continue;
    }
    CHECK(bound <= minimum);
    CHECK(best.status == Status::kOptimal);
    check_placement(all, best, minimum);
    CHECK(best.height == minimum && best.bound <= minimum);
    on.first_fit = rng.chance(0.2);  // greedy would answer most of these before the search starts
    for (i64 capacity = std::max<i64>(0, minimum - 4); capacity <= minimum + 2; ++capacity) {
      const auto verdict = [&] {
        const Placement got = fit(all, capacity, on, stop);
        CHECK((got.status == Status::kInfeasible) == (capacity < minimum));
        CHECK(got.status != Status::kUnknown);
        if (capacity >= minimum) check_placement(all, got, capacity);
      };
      verdict();
      const size_t k = static_cast<size_t>(rng.below(std::size(kTechniques)));
      on.*kTechniques[k] = false;
      verdict();
      if (rng.chance(0.5)) {  // and a pair of them
        const size_t other = static_cast<size_t>(rng.below(std::size(kTechniques)));
        on.*kTechniques[other] = false;
        verdict();
        on.*kTechniques[other] = true;
      }
      on.*kTechniques[k] = true;
    }
    if (minimum > 0 && rng.chance(0.3)) {
      const i64 capacity = minimum - 1;
      const std::vector<i32> core = irreducible_infeasible_subset(all, capacity, on, stop);
      CHECK(!core.empty());
      CHECK(!brute(subset(all, core), capacity));
      for (size_t leave = 0; leave < core.size(); ++leave) {
        std::vector<i32> rest = core;
        rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(leave));
        CHECK(brute(subset(all, rest), capacity));
      }
      CHECK(irreducible_infeasible_subset(all, minimum, on, stop).empty());
    }
  }
}

// A rectangle cut at random into buffers: they fit its height exactly.
Buffers cut_rectangle(Random& rng, i32 count, i64 height) {
  struct Box {
    i64 from, to, low, high;
  };
  std::vector<Box> boxes{{0, 1000, 0, height}};
  while (static_cast<i32>(boxes.size()) < count) {
    Box& box = boxes[static_cast<size_t>(rng.below(static_cast<i64>(boxes.size())))];
    Box other = box;
    if (rng.chance(0.5) && box.to - box.from > 1)
      box.to = other.from = box.from + 1 + rng.below(box.to - box.from - 1);
    else if (box.high - box.low > 1)
      box.high = other.low = box.low + 1 + rng.below(box.high - box.low - 1);
    else
      continue;
    boxes.push_back(other);
  }
  Buffers all;
  for (const Box& box : boxes) add(all, box.from, box.to, box.high - box.low);
  return all;
}

void test_threads_agree() {
  Random rng(5);
  for (int i = 0; i < 12; ++i) {
    const Buffers all = cut_rectangle(rng, 60 + 20 * i, 1024);
    Placement first, lowest;
    for (const int threads : {1, 2, 4}) {
      Switches on;
      on.threads = threads;
      on.first_budget = 300;
      on.seed = static_cast<u64>(i);
      Stop stop;
      stop.most_nodes = 60'000;
      const Placement got = fit(all, 1024, on, stop);
      const Placement best = minimize(all, on, stop);
      CHECK(best.nodes <= stop.most_nodes && got.nodes <= stop.most_nodes);
      check_placement(all, best, kForever);
      if (threads == 1) {
        first = got;
        lowest = best;
      }
      CHECK(got.status == first.status && got.offset == first.offset && got.nodes == first.nodes);
      CHECK(best.status == lowest.status && best.offset == lowest.offset && best.nodes == lowest.nodes &&
            best.bound == lowest.bound);
    }
    if (!first.offset.empty()) check_placement(all, first, 1024);
  }
}

void test_improvements_are_told() {
  Random rng(6);
  const Buffers all = cut_rectangle(rng, 120, 4096);
  Stop stop;
  stop.most_nodes = 30'000;
  i64 before = kForever, told = 0;
  const Placement best = minimize(all, Switches{}, stop, [&](const Placement& better) {
    check_placement(all, better, before - 1);
    CHECK(better.bound <= better.height);
    before = better.height;
    ++told;
  });
  CHECK(told >= 1 && best.height == before);
}

void test_never_worse_than_greedy() {
  Random rng(7);
  for (int i = 0; i < 200; ++i) {
    const Buffers all = cut_rectangle(rng, 20 + static_cast<i32>(rng.below(40)), 1 + 200 + rng.below(1000));
    const Sections sections = sectioned(all);
    const std::vector<i32> rank = ranked(sections, "Z");
    std::vector<i32> order(rank.size());
    for (i32 b = 0; b < sections.count(); ++b) order[rank[b]] = b;
    const i64 greedy = std::min(first_fit(sections, order).height, first_fit(sections, order, true).height);
    Stop stop;
    stop.most_nodes = 1;
    CHECK(minimize(all, Switches{}, stop).height <= greedy);
  }
}

i64 now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// A shuffled order is an order of all buffers, the same for the same seed and index, and the nearer ones
// stay near.
void test_shuffled_orders() {
  Random rng(11);
  for (int round = 0; round < 50; ++round) {
    Buffers all;
    for (i64 b = 0, n = 1 + rng.below(200); b < n; ++b) {
      const i64 lower = rng.below(50);
      add(all, lower, lower + 1 + rng.below(20), 1 + rng.below(9));
    }
    const Sections sections = sectioned(all);
    const i32 n = sections.count();
    const Preference around{ranked(sections, "AZ"), 2};
    for (i64 index = 0; index < 8; ++index) {
      const Preference got = shuffled(sections, around, 4, 5, index);
      CHECK(got.rank == shuffled(sections, around, 4, 5, index).rank);
      CHECK(0 <= got.style && got.style < 4);
      std::vector<bool> seen(n, false);
      for (i32 b = 0; b < n; ++b) {
        CHECK(0 <= got.rank[b] && got.rank[b] < n && !seen[got.rank[b]]);
        seen[got.rank[b]] = true;
        if (index % 2 == 1) CHECK(std::abs(got.rank[b] - around.rank[b]) <= 2 + n / 6 + 2);
      }
    }
  }
}

void test_stops() {
  Random rng(8);
  Buffers all = cut_rectangle(rng, 400, i64{1} << 30);
  all.size[0] += 1;  // one section is now a byte too full for the rectangle
  // That the searches end is the test: how soon depends on what else the computer has to do.
  for (const int threads : {1, 3}) {
    Switches on;
    on.threads = threads;
    {
      Stop stop;
      stop.deadline_ns = now_ns() + 30'000'000;
      const Placement got = minimize(all, on, stop);
      CHECK(got.status == Status::kFeasible || got.status == Status::kOptimal);
      const Placement late = fit(all, i64{1} << 31, on, stop);
      if (late.status != Status::kUnknown) check_placement(all, late, i64{1} << 31);
    }
    Stop stop;
    std::jthread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      stop.asked = true;
    });
    minimize(all, on, stop);
  }
  Stop stop;
  stop.most_nodes = 10;
  const Placement got = fit(all, (i64{1} << 30) + 1, Switches{}, stop);
  CHECK(got.status != Status::kInfeasible && got.nodes <= 10);
}

void test_hostile_sizes() {
  const i64 huge = kForever;
  Stop stop;
  const Switches on;
  Buffers all;
  CHECK(minimize(all, on, stop).status == Status::kOptimal);
  CHECK(fit(all, 0, on, stop).status == Status::kOptimal);
  add(all, 0, 2, huge);
  CHECK(fit(all, huge, on, stop).status == Status::kOptimal);
  CHECK(fit(all, huge - 1, on, stop).status == Status::kInfeasible);
  CHECK(fit(all, -5, on, stop).status == Status::kInfeasible);
  add(all, 1, 3, huge);
  add(all, -huge, huge, huge / 2, huge / 3);
  CHECK(fit(all, huge, on, stop).status == Status::kInfeasible);
  CHECK(fit(all, INT64_MAX, on, stop).status == Status::kInfeasible);
  minimize(all, on, stop);
  CHECK(!irreducible_infeasible_subset(all, huge, on, stop).empty());
  Random rng(9);
  for (int i = 0; i < 300; ++i) {
    Buffers some;
    for (int b = 0; b < 8; ++b) {
      const i64 from = rng.below(10) - 5;
      add(some, from, from + 1 + rng.below(5), huge / (1 + rng.below(9)),
          rng.chance(0.5) ? 1 : 1 + rng.below(huge / 4));
      if (rng.chance(0.1))
        some.pinned.back() = rng.below(huge / some.alignment.back()) * some.alignment.back();
    }
    Stop brief;
    brief.most_nodes = 2000;
    for (const i64 capacity : {huge, huge / 2, huge / 3 * 2}) {
      const Placement got = fit(some, capacity, on, brief);
      if (!got.offset.empty()) CHECK(got.height <= capacity);
    }
    minimize(some, on, brief);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int scale = argc > 1 ? std::atoi(argv[1]) : 1;
  test_hostile_sizes();
  test_against_brute_force(1, 1500 * scale, {});
  test_against_brute_force(2, 700 * scale, {.alignment = true});
  test_against_brute_force(3, 700 * scale, {.pins = true});
  test_against_brute_force(4, 500 * scale, {.gaps = true});
  test_against_brute_force(5, 500 * scale, {.gaps = true, .windows = true});
  test_against_brute_force(6, 500 * scale, {.apart = true});
  test_against_brute_force(7, 500 * scale, {.alignment = true, .pins = true, .apart = true});
  test_against_brute_force(8, 500 * scale,
                           {.alignment = true, .pins = true, .gaps = true, .windows = true, .apart = true});
  test_threads_agree();
  test_improvements_are_told();
  test_never_worse_than_greedy();
  test_shuffled_orders();
  test_stops();
  std::printf("allocate: %d checks passed\n", checks);
  return 0;
}
