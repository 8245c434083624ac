// Greedy placement, the baselines and the packing of many buffers, against slow obvious references:
// every placement checked pair by pair, first and best fit compared offset by offset.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>
#include <thread>

#include "allocate/baselines.hpp"
#include "allocate/greedy.hpp"
#include "allocate/large.hpp"
#include "allocate/sweep.hpp"
#include "testing.hpp"

using namespace loadmaster;

namespace {

void add(Buffers& buffers, i64 lower, i64 upper, i64 size) {
  buffers.lower.push_back(lower);
  buffers.upper.push_back(upper);
  buffers.size.push_back(size);
  buffers.alignment.push_back(1);
  buffers.pinned.push_back(-1);
  buffers.hint.push_back(-1);
}

struct Extras {
  bool alignment = false, pins = false, gaps = false, apart = false, hints = false;
};

Extras random_extras(Random& rng) {
  return {rng.chance(0.5), rng.chance(0.3), rng.chance(0.4), rng.chance(0.3), rng.chance(0.2)};
}

// ---- The slow reference -------------------------------------------------------------------------

struct Rectangle {
  i64 from, to, low, high;
};

std::vector<Rectangle> rectangles(const Buffers& buffers, i32 b) {
  std::vector<Rectangle> out;
  i64 from = buffers.lower[b];
  if (!buffers.gaps.empty())
    for (const Gap& gap : buffers.gaps[b]) {
      out.push_back({from, gap.from, 0, buffers.size[b]});
      out.push_back({gap.from, gap.to, gap.low, gap.high});
      from = gap.to;
    }
  out.push_back({from, buffers.upper[b], 0, buffers.size[b]});
  std::erase_if(out, [](const Rectangle& r) { return r.from >= r.to || r.low >= r.high; });
  return out;
}

bool kept_apart(const Buffers& buffers, i32 a, i32 b) {
  for (const auto& [x, y] : buffers.apart)
    if ((x == a && y == b) || (x == b && y == a)) return true;
  return false;
}

// Offsets of b that are not free, between the two ends and without them, given where c is.
std::vector<std::pair<i64, i64>> forbidden(const Buffers& buffers, i32 b, i32 c, i64 offset) {
  std::vector<std::pair<i64, i64>> out;
  for (const Rectangle& own : rectangles(buffers, b))
    for (const Rectangle& other : rectangles(buffers, c))
      if (own.from < other.to && other.from < own.to)
        out.emplace_back(offset + other.low - own.high, offset + other.high - own.low);
  if (kept_apart(buffers, b, c) && buffers.size[b] > 0 && buffers.size[c] > 0)
    out.emplace_back(offset - buffers.size[b], offset + buffers.size[c]);
  return out;
}

bool valid(const Buffers& buffers, const std::vector<i64>& offset, i64 height) {
  if (static_cast<i32>(offset.size()) != buffers.count()) return false;
  i64 top = 0;
  for (i32 b = 0; b < buffers.count(); ++b) {
    if (offset[b] < 0) return false;
    const i64 pin = buffers.pinned[b];
    if (pin >= 0 ? offset[b] != pin : offset[b] % buffers.alignment[b] != 0) return false;
    for (i32 c = 0; c < b; ++c)
      for (const auto& [low, high] : forbidden(buffers, b, c, offset[c]))
        if (low < offset[b] && offset[b] < high) return false;
    top = std::max(top, offset[b] + buffers.size[b]);
  }
  return top == height;
}

// Without a place for some buffer: empty.
std::vector<i64> slow_place(const Buffers& buffers, const std::vector<i32>& order,
                            const Packer::Rules& rules) {
  std::vector<i64> offset = buffers.pinned;
  for (const i32 b : order) {
    if (buffers.pinned[b] >= 0) continue;
    std::vector<std::pair<i64, i64>> walls;
    i64 top = 0;
    for (i32 c = 0; c < buffers.count(); ++c)
      if (c != b && offset[c] >= 0)
        for (const auto& wall : forbidden(buffers, b, c, offset[c])) {
          walls.push_back(wall);
          top = std::max(top, wall.second);
        }
    const i64 step = buffers.alignment[b], highest = rules.limit - buffers.size[b];
    const auto up = [&](i64 x) { return (x + step - 1) / step * step; };
    const auto free_from = [&](i64 x) {
      for (bool moved = true; moved;) {
        moved = false;
        for (const auto& [low, high] : walls)
          if (low < x && x < high) x = up(high), moved = true;
      }
      return x;
    };
    i64 chosen = -1;
    const i64 hint = rules.hints ? buffers.hint[b] : -1;
    if (hint >= 0 && hint % step == 0 && hint <= highest && free_from(hint) == hint) {
      chosen = hint;
    } else if (rules.fit == Fit::kFirst) {
      chosen = free_from(0);
    } else if (rules.fit == Fit::kOnTop) {
      chosen = up(top);
    } else {
      i64 least = -1;
      for (i64 x = free_from(0); x <= highest;) {
        i64 end = -1, next = 0;  // where the range ends, and where to go on
        for (const auto& [low, high] : walls)
          if (low >= x && (end < 0 || low < end)) end = low, next = high;
        if (end < 0) {
          if (chosen < 0) chosen = x;
          break;
        }
        if (chosen < 0 || end - x < least) chosen = x, least = end - x;
        x = free_from(up(next));
      }
    }
    if (chosen < 0 || chosen > highest) return {};
    offset[b] = chosen;
  }
  return offset;
}

// ---- Instances ----------------------------------------------------------------------------------

Buffers random_buffers(Random& rng, i32 n, const Extras& extras) {
  Buffers buffers;
  const i64 horizon = 1 + rng.below(40), largest = 1 + rng.below(50);
  for (i32 b = 0; b < n; ++b) {
    const i64 lower = rng.below(horizon) - 5;
    const i64 life = 1 + rng.below(rng.chance(0.3) ? horizon : 5);
    add(buffers, lower, lower + life, rng.chance(0.05) ? 0 : 1 + rng.below(largest));
    if (extras.alignment) buffers.alignment[b] = rng.chance(0.5) ? i64{1} << rng.below(5) : 1 + rng.below(7);
    if (extras.hints && rng.chance(0.5)) buffers.hint[b] = rng.below(200);
  }
  if (extras.gaps) {
    buffers.gaps.resize(n);
    for (i32 b = 0; b < n; ++b) {
      if (rng.chance(0.5)) continue;
      for (i64 at = buffers.lower[b] + rng.below(3); at < buffers.upper[b]; at += 1 + rng.below(4)) {
        const i64 to = std::min(buffers.upper[b], at + 1 + rng.below(4));
        const i64 low = rng.below(buffers.size[b] + 1), high = low + rng.below(buffers.size[b] - low + 1);
        buffers.gaps[b].push_back({at, to, low, rng.chance(0.5) ? low : high});
        at = to;
      }
    }
  }
  if (extras.apart)
    for (i32 i = 0; i < n / 4; ++i)
      buffers.apart.emplace_back(static_cast<i32>(rng.below(n)), static_cast<i32>(rng.below(n)));
  if (extras.pins) {
    // Some of a placement stay where they are, so that they agree.
    std::vector<i32> order(n);
    std::iota(order.begin(), order.end(), 0);
    rng.shuffle(order);
    const std::vector<i64> offset = slow_place(buffers, order, {});
    for (i32 b = 0; b < n; ++b)
      if (rng.chance(0.2)) buffers.pinned[b] = offset[b];
  }
  return buffers;
}

// Weights that stay, activations kept from the way forth to the way back, and short temporaries.
Buffers training_buffers(Random& rng, i32 layers) {
  Buffers buffers;
  const i64 forth = 20, back = 40, end = layers * (forth + back);
  for (i32 layer = 0; layer < layers; ++layer) {
    const i64 there = layer * forth, again = layers * forth + (layers - 1 - layer) * back;
    const i64 width = 512 * (1 + rng.below(8));
    for (int i = 0; i < 6; ++i) add(buffers, 0, end, width * (1 + i % 3));
    for (int i = 0; i < 8; ++i) {
      const i64 from = there + rng.below(forth), to = again + 1 + rng.below(back);
      add(buffers, from, to, 4096 * (1 + rng.below(8)));
    }
    for (int i = 0; i < 30; ++i) {
      const i64 at = rng.chance(0.4) ? there + rng.below(forth) : again + rng.below(back);
      add(buffers, at, at + 1 + rng.below(5), 1024 * (1 + rng.below(64)));
    }
  }
  return buffers;
}

// A rectangle cut into pieces: the height is the bound by design.
Buffers cut_rectangle(Random& rng, i32 n, i64 height) {
  std::vector<Rectangle> pieces{{0, 1000, 0, height}};
  while (static_cast<i32>(pieces.size()) < n) {
    Rectangle& piece = pieces[rng.below(static_cast<i64>(pieces.size()))];
    Rectangle rest = piece;
    if (rng.chance(0.5)) {
      if (piece.to - piece.from < 2) continue;
      piece.to = rest.from = piece.from + 1 + rng.below(piece.to - piece.from - 1);
    } else {
      if (piece.high - piece.low < 2) continue;
      piece.high = rest.low = piece.low + 1 + rng.below(piece.high - piece.low - 1);
    }
    pieces.push_back(rest);
  }
  Buffers buffers;
  for (const Rectangle& piece : pieces) add(buffers, piece.from, piece.to, piece.high - piece.low);
  return buffers;
}

std::vector<i32> random_order(Random& rng, i32 n) {
  std::vector<i32> order(n);
  std::iota(order.begin(), order.end(), 0);
  rng.shuffle(order);
  return order;
}

// ---- Tests --------------------------------------------------------------------------------------

void test_fits_equal_the_reference() {
  Random rng(1);
  const Stop stop;
  for (int round = 0; round < 1500; ++round) {
    const Extras extras = random_extras(rng);
    const i32 n = static_cast<i32>(1 + rng.below(round % 20 == 0 ? 120 : 25));
    const Buffers buffers = random_buffers(rng, n, extras);
    const LifeAxis axis(buffers);
    Packer packer(buffers, axis);
    std::vector<i32> order = random_order(rng, n);
    if (rng.chance(0.3))
      std::stable_sort(order.begin(), order.end(),
                       [&](i32 a, i32 b) { return buffers.size[a] > buffers.size[b]; });
    for (const Fit fit : {Fit::kFirst, Fit::kBest, Fit::kOnTop}) {
      Packer::Rules rules{.fit = fit, .hints = extras.hints};
      std::vector<i64> offset;
      CHECK(packer.place(order, rules, stop, offset) == Packer::Result::kPlaced);
      CHECK(offset == slow_place(buffers, order, rules));
      const i64 height = height_of(buffers, offset);
      CHECK(valid(buffers, offset, height));
      CHECK(axis.bound <= height);
      // Without patience a buffer may lie higher, but never in the way of another.
      std::vector<i64> hasty;
      const Packer::Rules in_haste{
          .fit = fit, .patience = 0, .patience_per_buffer = 0, .hints = extras.hints};
      CHECK(packer.place(order, in_haste, stop, hasty) == Packer::Result::kPlaced);
      CHECK(valid(buffers, hasty, height_of(buffers, hasty)));
      // Again under a limit that may or may not do, on the same object.
      rules.limit = axis.bound + rng.below(height - axis.bound + 1);
      const std::vector<i64> slow = slow_place(buffers, order, rules);
      const bool placed = packer.place(order, rules, stop, offset) == Packer::Result::kPlaced;
      CHECK(placed == !slow.empty());
      if (placed) CHECK(offset == slow);
    }
  }
}

// Hundreds of lives that cross without nesting, over many frames: lists of thousands of holes, none of
// them common to all.
void test_crossing_lives_equal_the_reference() {
  Random rng(11);
  for (const i32 n : {300, 900}) {
    Buffers buffers;
    for (i32 b = 0; b < n; ++b) {
      const i64 one = rng.below(2 * n), other = rng.below(2 * n);
      const i64 size = 1 + rng.below(10) * rng.below(10) * rng.below(100);
      add(buffers, std::min(one, other), std::max(one, other) + 1, size);
    }
    const LifeAxis axis(buffers);
    Packer packer(buffers, axis);
    std::vector<i32> order(n);
    std::iota(order.begin(), order.end(), 0);
    for (const Fit fit : {Fit::kFirst, Fit::kBest}) {
      std::stable_sort(order.begin(), order.end(),
                       [&](i32 a, i32 b) { return buffers.size[a] > buffers.size[b]; });
      std::vector<i64> offset;
      CHECK(packer.place(order, {.fit = fit}, Stop{}, offset) == Packer::Result::kPlaced);
      CHECK(offset == slow_place(buffers, order, {.fit = fit}));
    }
  }
}

// Byte by byte: what a list of spans has to say, few spans and many.
void test_spans_equal_the_reference() {
  Random rng(10);
  for (int round = 0; round < 40; ++round) {
    const i64 bytes = round % 2 ? 60 : 20'000, rounds = round % 2 ? 40 : 4'000;
    std::vector<char> taken(static_cast<std::size_t>(bytes) + 40, 0);
    SpanList list;
    for (i64 i = 0; i < rounds; ++i) {
      const i64 from = rng.below(bytes), to = from + 1 + rng.below(round % 3 ? 3 : 20);
      list.add({from, to}, 1);
      std::fill(taken.begin() + from, taken.begin() + to, 1);
      if (i % 37) continue;
      SpanCursor cursor(list, 0, 2);  // two bytes
      for (i64 x = 0; x < bytes; x += 1 + rng.below(i % 2 ? 3 : 300)) {
        cursor.seek(x);
        CHECK(cursor.bars(x) == (taken[x] || taken[x + 1]));
      }
    }
    i64 top = static_cast<i64>(taken.size());
    while (!taken[top - 1]) --top;
    CHECK(list.top() == top);
    list.clear();
    CHECK(list.empty());
  }
  SpanList list;  // holes that are too small for anything melt, across chunks too
  for (i64 i = 0; i < 3000; ++i) list.add({10 * i + 5, 10 * i + 8}, 1);
  list.add({7, 29'990}, 8);
  SpanCursor cursor(list, 0, 1);
  cursor.seek(0);
  CHECK(cursor.bars(0) == false || cursor.after() == 29'998);
  cursor.seek(29'997);
  CHECK(cursor.bars(29'997));
  cursor.seek(29'998);
  CHECK(cursor.over());
}

// At its start each buffer goes to the smallest free range among those that live then.
std::vector<i64> slow_in_time(const Buffers& buffers, i64 unit) {
  std::vector<i32> order(buffers.count());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](i32 a, i32 b) {
    return buffers.lower[a] != buffers.lower[b] ? buffers.lower[a] < buffers.lower[b]
                                                : buffers.size[a] > buffers.size[b];
  });
  const auto room = [&](i32 b) { return (buffers.size[b] + unit - 1) / unit * unit; };
  std::vector<i64> offset(buffers.count(), 0);
  std::vector<i32> placed;
  i64 top = 0;  // ever reached: what is above was never taken
  for (const i32 b : order) {
    std::vector<std::pair<i64, i64>> live{{0, 0}};
    for (const i32 c : placed)
      if (buffers.upper[c] > buffers.lower[b] && room(c) > 0)
        live.emplace_back(offset[c], offset[c] + room(c));
    placed.push_back(b);
    if (room(b) == 0) continue;
    live.emplace_back(top, top);
    std::sort(live.begin(), live.end());
    i64 least = -1;
    for (std::size_t i = 1; i < live.size(); ++i) {
      const i64 from = live[i - 1].second, space = live[i].first - from;
      if (space >= room(b) && (least < 0 || space < least)) least = space, offset[b] = from;
    }
    if (least < 0) offset[b] = live[live.size() - 2].second;
    top = std::max(top, offset[b] + room(b));
  }
  return offset;
}

void test_in_time_equals_the_reference() {
  Random rng(11);
  for (int round = 0; round < 400; ++round) {
    Extras extras{.alignment = rng.chance(0.5), .gaps = rng.chance(0.3)};
    Buffers buffers = random_buffers(rng, static_cast<i32>(1 + rng.below(60)), extras);
    i64 unit = 1;
    for (const i64 alignment : buffers.alignment) unit = std::lcm(unit, alignment);
    std::vector<i64> offset;
    CHECK(place_in_time(buffers, offset));
    CHECK(valid(buffers, offset, height_of(buffers, offset)));
    CHECK(offset == slow_in_time(buffers, unit));
    buffers.pinned[0] = 0;
    CHECK(!place_in_time(buffers, offset));
  }
  Buffers nested;  // a stack
  for (i64 i = 0; i < 1000; ++i) add(nested, i, 3000 - i, 1 + rng.below(100));
  std::vector<i64> offset;
  CHECK(place_in_time(nested, offset) && height_of(nested, offset) == LifeAxis(nested).bound);
}

void test_bound_and_optimum() {
  // First fit in the order of a best placement's offsets is as good: all orders give the optimum.
  Random rng(2);
  const Stop stop;
  for (int round = 0; round < 300; ++round) {
    Extras extras = random_extras(rng);
    extras.hints = false;
    const Buffers buffers = random_buffers(rng, static_cast<i32>(1 + rng.below(6)), extras);
    const LifeAxis axis(buffers);
    Packer packer(buffers, axis);
    std::vector<i32> order(buffers.count());
    std::iota(order.begin(), order.end(), 0);
    i64 least = kForever;
    std::vector<i64> offset;
    do {
      CHECK(packer.place(order, {}, stop, offset) == Packer::Result::kPlaced);
      least = std::min(least, height_of(buffers, offset));
    } while (std::next_permutation(order.begin(), order.end()));
    CHECK(axis.bound <= least);
    const Placement packed = pack_large(buffers, -1, {.effort = 20'000}, stop);
    CHECK(packed.height >= least && packed.bound == axis.bound);
    CHECK((packed.status == Status::kOptimal) == (packed.height == packed.bound));
  }
}

void test_every_planner_is_valid() {
  Random rng(3);
  const Stop stop;
  for (int round = 0; round < 200; ++round) {
    const Buffers buffers = random_buffers(rng, static_cast<i32>(1 + rng.below(60)), random_extras(rng));
    const Placement first = size_first_fit(buffers, stop), best = xla_best_fit(buffers, stop);
    const Placement tvm = tvm_hill_climb(buffers, 1, stop, 30), vela = vela_hill_climb(buffers, 1, stop, 30);
    const LargeOptions options{.seed = static_cast<u64>(round), .effort = 100'000};
    const Placement ours = pack_large(buffers, -1, options, stop);
    for (const Placement& placement : {first, best, tvm_greedy(buffers, stop), tvm, vela, ours}) {
      CHECK(valid(buffers, placement.offset, placement.height));
      CHECK(placement.bound <= placement.height);
      CHECK(placement.status == (placement.height == placement.bound ? Status::kOptimal : Status::kFeasible));
    }
    CHECK(ours.height <= first.height && ours.height <= best.height && tvm.height <= first.height);
  }
}

void test_the_same_for_any_number_of_threads() {
  Random rng(4);
  const Stop stop;
  for (int round = 0; round < 12; ++round) {
    const Buffers buffers = round < 4   ? random_buffers(rng, 400, random_extras(rng))
                            : round < 8 ? cut_rectangle(rng, 300, 100'000)
                                        : training_buffers(rng, 20);
    LargeOptions options{.seed = static_cast<u64>(round), .effort = 2'000'000};
    const Placement one = pack_large(buffers, -1, options, stop);
    CHECK(valid(buffers, one.offset, one.height));
    for (const int threads : {2, 4}) {
      options.threads = threads;
      const Placement more = pack_large(buffers, -1, options, stop);
      CHECK(more.offset == one.offset && more.height == one.height && more.status == one.status);
      CHECK(more.nodes == one.nodes);
    }
  }
}

void test_improvement_pays_and_is_told() {
  Random rng(5);
  const Stop stop;
  for (int round = 0; round < 6; ++round) {
    const Buffers buffers = cut_rectangle(rng, 150, 10'000);
    i64 last = kForever;
    int told = 0;
    const LargeOptions options{.effort = 3'000'000};
    const Placement packed = pack_large(buffers, -1, options, stop, [&](const Placement& better) {
      CHECK(better.height < last && valid(buffers, better.offset, better.height));
      last = better.height;
      ++told;
    });
    CHECK(told > 1 && last == packed.height);
    CHECK(packed.height < size_first_fit(buffers, stop).height);
  }
}

void test_capacity() {
  Random rng(6);
  const Stop stop;
  const Buffers buffers = cut_rectangle(rng, 100, 1000);
  const LargeOptions options{.effort = 300'000};
  CHECK(pack_large(buffers, 999, options, stop).status == Status::kInfeasible);
  const Placement tight = pack_large(buffers, 1000, options, stop);
  CHECK(tight.status == (tight.height == 1000 ? Status::kOptimal : Status::kUnknown));
  CHECK(valid(buffers, tight.offset, tight.height));  // the lowest found is returned all the same
  const Placement loose = pack_large(buffers, 100'000, options, stop);
  CHECK(loose.status == Status::kFeasible && loose.nodes == buffers.count());
  Buffers clash;
  add(clash, 0, 2, 10);
  add(clash, 1, 3, 10);
  clash.pinned = {0, 9};
  CHECK(pack_large(clash, -1, options, stop).status == Status::kInfeasible);
  CHECK(size_first_fit(clash, stop).status == Status::kInfeasible);
  clash.pinned = {0, 10};
  CHECK(pack_large(clash, -1, options, stop).height == 20);
}

void test_hints() {
  const Stop stop;
  Buffers buffers;
  add(buffers, 0, 10, 4);
  add(buffers, 0, 5, 4);
  add(buffers, 5, 10, 4);
  buffers.hint = {4, 0, 0};
  const Placement kept = pack_large(buffers, -1, {}, stop);
  CHECK(kept.status == Status::kOptimal && kept.offset == (std::vector<i64>{4, 0, 0}));
  buffers.hint = {100, 0, 0};  // welcome, but not at the price of height
  CHECK(pack_large(buffers, -1, {}, stop).height == 8);
}

void test_empty_and_hostile() {
  const Stop stop;
  Buffers none;
  CHECK(pack_large(none, -1, {}, stop).status == Status::kOptimal);
  CHECK(vela_hill_climb(none, 0, stop).status == Status::kOptimal);

  Random rng(7);
  const i64 huge = i64{1} << 62;
  for (int round = 0; round < 300; ++round) {
    Buffers buffers;
    const i32 n = static_cast<i32>(1 + rng.below(8));
    for (i32 b = 0; b < n; ++b) {
      const i64 lower = rng.chance(0.3) ? -huge + rng.below(10) : rng.below(10);
      const i64 upper = rng.chance(0.3) ? huge - rng.below(10) : std::max(lower, i64{0}) + 1 + rng.below(10);
      add(buffers, lower, upper,
          rng.chance(0.5) ? huge / (1 + rng.below(4)) + rng.below(5) - 2 : rng.below(100));
      if (rng.chance(0.3)) buffers.alignment[b] = rng.chance(0.5) ? huge - rng.below(3) : INT64_MAX;
      if (rng.chance(0.1)) buffers.pinned[b] = huge - rng.below(5);
      if (rng.chance(0.1)) buffers.hint[b] = INT64_MAX - rng.below(5);
    }
    if (n > 1) buffers.apart.emplace_back(0, 1);
    const LargeOptions options{.effort = 20'000};
    for (const Placement& placement :
         {pack_large(buffers, -1, options, stop), size_first_fit(buffers, stop), xla_best_fit(buffers, stop),
          tvm_greedy(buffers, stop), tvm_hill_climb(buffers, 0, stop, 5),
          vela_hill_climb(buffers, 0, stop, 5)}) {
      const bool without = placement.status == Status::kUnknown || placement.status == Status::kInfeasible;
      CHECK(placement.offset.empty() == without);
      if (!placement.offset.empty()) CHECK(valid(buffers, placement.offset, placement.height));
      CHECK(placement.bound >= 0 && placement.bound <= kForever);
    }
  }
}

void test_stop() {
  Random rng(8);
  const Buffers buffers = cut_rectangle(rng, 2000, 1'000'000);
  {
    Stop stop;
    stop.asked = true;
    CHECK(pack_large(buffers, -1, {}, stop).status == Status::kUnknown);
    CHECK(vela_hill_climb(buffers, 0, stop).status == Status::kUnknown);
  }
  {
    // A deadline long past still gives the quickest placement, or with pins, which that does not know,
    // what size first fit gives.
    Stop stop;
    stop.deadline_ns = 0;
    std::vector<i64> quickest;
    CHECK(place_in_time(buffers, quickest));
    CHECK(pack_large(buffers, -1, {.threads = 2}, stop).offset == quickest);
    Buffers pinned = buffers;
    pinned.pinned[0] = 0;
    const Placement packed = pack_large(pinned, -1, {.threads = 2}, stop);
    CHECK(packed.status == Status::kFeasible);
    CHECK(packed.offset == size_first_fit(pinned, Stop{}).offset);
  }
  for (const bool by_clock : {true, false}) {  // that they end is the test: without a stop, none would
    Stop stop;
    const auto start = std::chrono::steady_clock::now();
    if (by_clock)
      stop.deadline_ns =
          std::chrono::nanoseconds((start + std::chrono::milliseconds(200)).time_since_epoch()).count();
    std::jthread asks([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      if (!by_clock) stop.asked = true;
    });
    const Placement packed = pack_large(buffers, -1, {.threads = 2, .effort = kForever}, stop);
    CHECK(packed.status == Status::kFeasible && valid(buffers, packed.offset, packed.height));
  }
  Stop stop;
  stop.most_nodes = 10'000;
  const Placement packed = pack_large(buffers, -1, {}, stop);
  CHECK(packed.nodes >= 10'000 && packed.nodes < 100'000);
}

void test_many() {
  Random rng(9);
  const Buffers buffers = training_buffers(rng, 2300);
  CHECK(buffers.count() > 100'000);
  const Stop stop;
  const Placement packed = pack_large(buffers, -1, {.threads = 2, .effort = 0}, stop);
  CHECK(packed.height <= packed.bound + packed.bound / 20);
  // Valid, by a sweep: what is live together, sorted by offset, must not overlap. A sample of times.
  for (int sample = 0; sample < 100; ++sample) {
    const i64 at = rng.below(2300 * 60);
    std::vector<std::pair<i64, i64>> spans;
    for (i32 b = 0; b < buffers.count(); ++b)
      if (buffers.lower[b] <= at && at < buffers.upper[b])
        spans.emplace_back(packed.offset[b], packed.offset[b] + buffers.size[b]);
    std::sort(spans.begin(), spans.end());
    for (std::size_t i = 1; i < spans.size(); ++i) CHECK(spans[i - 1].second <= spans[i].first);
  }
}

}  // namespace

int main() {
  test_fits_equal_the_reference();
  test_crossing_lives_equal_the_reference();
  test_spans_equal_the_reference();
  test_in_time_equals_the_reference();
  test_bound_and_optimum();
  test_every_planner_is_valid();
  test_the_same_for_any_number_of_threads();
  test_improvement_pays_and_is_told();
  test_capacity();
  test_hints();
  test_empty_and_hostile();
  test_stop();
  test_many();
  std::printf("%d checks\n", checks);
  return 0;
}
