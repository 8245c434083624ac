// The game without Python, so that it runs under the sanitizers: the ledger against known answers,
// the heap against a scan of every address, the judge against known times, and random games.
#include "game/batch.hpp"
#include "testing.hpp"

using namespace loadmaster;
using namespace loadmaster::game;

namespace {

constexpr i64 kSecond = 1'000'000'000'000;

// --- the ledger -----------------------------------------------------------------------------------

// One request after the other, each for a given issue: the latest in [issued, issued] or none.
struct Requests {
  explicit Requests(const std::vector<i64>& supply)
      : nests(Nests::single(static_cast<i32>(supply.size()) + 1)), ledger(nests, Queue::kFifo) {
    for (std::size_t i = 0; i < supply.size(); ++i) ledger.supply(static_cast<i32>(i), supply[i]);
    ledger.supply(static_cast<i32>(supply.size()), 0);
  }
  bool accepts(i32 issued, i32 needed, i64 work) {
    // Asked both ways: by the latest issue, and by the first step that could need it.
    const i32 need = ledger.earliest_need(issued, 0, needed, work);
    const bool accepted = need != Ledger::kNoStep;
    const i32 latest = ledger.latest_issue(issued, needed, work);
    CHECK(accepted == (latest != Ledger::kNoStep) || latest > issued);
    CHECK(ledger.fits(issued, needed, 0, work) == accepted);
    if (accepted) ledger.add(count++, issued, needed, 0, work);
    return accepted;
  }
  std::vector<i64> left() const {
    std::vector<i64> used(nests.steps.size(), 0), result;
    ledger.add_used(used);
    for (std::size_t i = 0; i + 1 < used.size(); ++i)
      result.push_back(ledger.supplied(static_cast<i32>(i)) - used[i]);
    return result;
  }
  Nests nests;
  Ledger ledger;
  i32 count = 0;
};

void test_known_requests() {
  Requests first({2, 3, 1, 6, 7, 1, 7, 2, 2, 4});
  CHECK(first.accepts(-1, 3, 5));
  CHECK(first.accepts(1, 4, 4));
  CHECK(first.accepts(5, 9, 10));
  CHECK(!first.accepts(4, 9, 3));
  CHECK(first.accepts(4, 8, 2));

  Requests second(std::vector<i64>(10, 2));
  for (i32 issued = 6; issued >= 1; --issued) CHECK(second.accepts(issued, issued + 4, 2));
  CHECK(second.accepts(0, 4, 3));
  CHECK(second.accepts(0, 4, 3));
  CHECK(!second.accepts(0, 4, 1));
  CHECK((second.left() == std::vector<i64>{2, 0, 0, 0, 0, 0, 0, 0, 0, 0}));

  Requests third(std::vector<i64>(10, 2));
  CHECK(third.accepts(5, 10, 2));
  CHECK(third.accepts(4, 7, 2));
  CHECK(third.accepts(4, 8, 4));
  CHECK(!third.accepts(3, 6, 4));

  Requests fourth(std::vector<i64>(5, 2));
  CHECK(fourth.accepts(1, 3, 2));
  CHECK(!fourth.accepts(0, 4, 4));
}

// When the jobs are done if they are served in order of issue, picosecond by picosecond.
struct SlowJob {
  i32 issued, needed;
  i64 work;
};
std::vector<i32> served(const std::vector<i64>& supply, std::vector<SlowJob> jobs) {
  std::vector<i32> rows(jobs.size()), done(jobs.size(), static_cast<i32>(supply.size()));
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<i32>(i);
  std::stable_sort(rows.begin(), rows.end(), [&](i32 a, i32 b) { return jobs[a].issued < jobs[b].issued; });
  std::size_t next = 0;
  for (i32 step = -1; step < static_cast<i32>(supply.size()); ++step) {
    const auto finish = [&] {
      while (next < rows.size() && jobs[rows[next]].work == 0 && jobs[rows[next]].issued < step)
        done[rows[next++]] = step;
    };
    for (i64 left = step < 0 ? 0 : supply[step]; left > 0; --left) {
      finish();
      if (next < rows.size() && jobs[rows[next]].issued < step) --jobs[rows[next]].work;
    }
    finish();
  }
  return done;
}

void test_ledger_against_a_slow_one(Random& rng) {
  for (int round = 0; round < 2000; ++round) {
    const i32 n = 3 + static_cast<i32>(rng.below(9));
    std::vector<i64> supply(n);
    for (i64& amount : supply) amount = rng.below(5);
    Requests fast(supply);
    std::vector<SlowJob> jobs;
    for (int request = 0; request < 8; ++request) {
      const i32 needed = 1 + static_cast<i32>(rng.below(n)),
                lowest = static_cast<i32>(rng.below(needed + 1)) - 1;
      const i64 work = 1 + rng.below(6);
      i32 wanted = Ledger::kNoStep;
      const std::vector<i32> before = served(supply, jobs);
      for (i32 issued = needed - 2; issued >= lowest && wanted == Ledger::kNoStep; --issued) {
        std::vector<SlowJob> more = jobs;
        more.push_back({issued, needed, work});
        const std::vector<i32> after = served(supply, more);
        bool good = after.back() < needed;
        for (std::size_t i = 0; i < jobs.size(); ++i)
          good &= before[i] >= jobs[i].needed || after[i] < jobs[i].needed;
        if (good) wanted = issued;
      }
      CHECK(fast.ledger.latest_issue(lowest, needed, work) == wanted);
      if (wanted == Ledger::kNoStep) continue;
      jobs.push_back({wanted, needed, work});
      fast.ledger.add(fast.count++, wanted, needed, 0, work);
      if (rng.chance(0.2)) {  // one is taken back, and the supply of a step falls
        fast.ledger.remove(fast.count - 1, wanted, 0);
        jobs.pop_back();
        const i32 step = static_cast<i32>(rng.below(n));
        supply[step] = rng.below(supply[step] + 1);
        for (i32 j = step; j < n; ++j) fast.ledger.supply(j, supply[j]);
        fast.ledger.supply(n, 0);
        fast.ledger.refresh();
      }
    }
  }
}

// --- the heap -------------------------------------------------------------------------------------

void test_heap(Random& rng) {
  for (int round = 0; round < 500; ++round) {
    const i32 steps = 1 + static_cast<i32>(rng.below(60));
    const i64 height = 200;  // above all blocks
    Heap heap(steps);
    std::vector<i32> ids;
    const auto holds = [&](i32 first, i32 last, i64 byte) {
      for (const i32 id : ids) {
        const Block& b = heap.block(id);
        if (b.first <= last && first <= b.last && b.low <= byte && byte < b.high) return true;
      }
      return false;
    };
    for (int change = 0; change < 30; ++change) {
      const i32 first = static_cast<i32>(rng.below(steps)),
                last = first + static_cast<i32>(rng.below(steps - first));
      const i64 size = 1 + rng.below(8);
      // The smallest gap between bytes that are not free, the lowest among equals.
      i64 best = -1, least = height + 1;
      for (i64 low = 0; low < height; ++low) {
        if (holds(first, last, low) || (low > 0 && !holds(first, last, low - 1))) continue;
        i64 high = low;
        while (high < height && !holds(first, last, high)) ++high;
        if (high - low >= size && high - low < least) best = low, least = high - low;
      }
      const i64 found = heap.best_fit(first, last, size);
      CHECK(found == best);
      const i64 low = rng.below(24), high = low + size;
      bool is_free = true;
      for (i64 byte = low; byte < high; ++byte) is_free &= !holds(first, last, byte);
      CHECK(heap.is_free(first, last, low, high) == is_free);
      if (found + size <= 24) ids.push_back(heap.add({first, last, found, found + size}));
      if (!ids.empty() && rng.chance(0.3)) {
        const std::size_t place = static_cast<std::size_t>(rng.below(static_cast<i64>(ids.size())));
        const Block block = heap.block(ids[place]);
        if (rng.chance(0.5)) {
          heap.remove(ids[place]);
          ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(place));
        } else if (heap.is_free(block.last + 1, steps - 1, block.low, block.high)) {
          heap.set_last(ids[place], block.first + static_cast<i32>(rng.below(steps - block.first)));
        }
      }
    }
  }
}

// --- strips ---------------------------------------------------------------------------------------

// Whatever is laid out anew: nothing overlaps, everything is held for as long as it was, and who asked fits.
void test_room_is_made(Random& rng) {
  int moved = 0, refused = 0;
  for (int round = 0; round < 1000; ++round) {
    const i32 steps = 2 + static_cast<i32>(rng.below(20));
    const i64 capacity = 4 + rng.below(30);
    Strips strips(steps, capacity);
    struct Held {
      i32 strip, first, last;
      i64 size;
    };
    std::vector<Held> held;
    for (int change = 0; change < 40; ++change) {
      const bool longer = !held.empty() && rng.chance(0.3);
      const std::size_t which =
          longer ? static_cast<std::size_t>(rng.below(static_cast<i64>(held.size()))) : 0;
      i32 first = static_cast<i32>(rng.below(steps)),
          last = first + static_cast<i32>(rng.below(steps - first));
      i64 size = 1 + rng.below(8);
      if (longer) first = held[which].first, size = held[which].size, last = std::max(last, held[which].last);
      const i32 strip = longer ? held[which].strip : -1;
      i64 offset = longer ? strips.offset(strip) : strips.find(first, last, size, {});
      if (longer ? !strips.can_extend(strip, last) : offset < 0) {
        const std::vector<Strips::Place> places = strips.make_room({strip, first, last, size}, rng.below(9));
        refused += places.empty();
        if (places.empty()) continue;
        ++moved;
        strips.move(places);
        offset = longer ? places[strip].offset : places.back().offset;
      }
      if (longer) {
        CHECK(strips.extend(strip, last));
        held[which].last = last;
      } else {
        held.push_back({strips.open(first, last, size, offset), first, last, size});
      }
      strips.reserve_all();
      if (rng.chance(0.5)) strips.reserve(held.back().strip, steps - 1);
      for (std::size_t a = 0; a < held.size(); ++a) {
        const i64 low = strips.offset(held[a].strip);
        CHECK(low >= 0 && low + held[a].size <= capacity && strips.last(held[a].strip) == held[a].last);
        for (std::size_t b = 0; b < a; ++b) {
          const i64 other = strips.offset(held[b].strip);
          CHECK(held[a].last < held[b].first || held[b].last < held[a].first || low + held[a].size <= other ||
                other + held[b].size <= low);
        }
      }
      if (rng.chance(0.1)) {
        strips.close(held.back().strip);
        held.pop_back();
      }
    }
  }
  CHECK(moved > 200 && refused > 200);
}

// --- the judge ------------------------------------------------------------------------------------

// Slow memory 1 B/s, fast 2 B/s, 1 flop/s: steps of (compute, slow, fast) seconds, one site each.
GameModel simulator_machine(const std::vector<std::array<i64, 3>>& steps) {
  GameModel m;
  m.capacity = 1 << 20;
  m.idle_copies = true;
  for (const auto& [compute, slow, fast] : steps) {
    m.compute.push_back(compute * kSecond);
    m.site_slow.push_back(slow * kSecond);
    m.site_fast.push_back(fast * kSecond);
    m.site_step.push_back(static_cast<i32>(m.site_step.size()));
    m.site_start.push_back(static_cast<i64>(m.site_start.size()));
    m.site_tensor.push_back(0);
    m.site_write.push_back(0);
  }
  const std::size_t n = steps.size();
  m.site_start.push_back(static_cast<i64>(n));
  m.base_slow.assign(n, 0);
  m.launch.assign(n, 0);
  m.overlap.assign(n, 0);
  m.repeat.assign(n, 1);
  m.beside.assign(n, 0);
  m.loop.assign(n, -1);
  return m;
}

i64 seconds(const GameModel& m, const std::vector<i8>& fast, const std::vector<GameCopy>& copies) {
  const Judged found = judge(m, fast, copies);
  return found.total / kSecond;  // a step without work takes a picosecond
}

void test_known_times() {
  // A copy of 32 bytes beside a step that keeps slow memory busy for 16 s.
  CHECK(seconds(simulator_machine({{0, 16, 8}}), {0}, {{0, true, -1, 1, 32 * kSecond}}) == 48);
  // Two copies of 256 bytes awaited, then one of 512 beside a step of 384 s in fast memory.
  const std::vector<GameCopy> three{
      {0, true, -1, 0, 256 * kSecond}, {1, true, -1, 0, 256 * kSecond}, {2, true, -1, 1, 512 * kSecond}};
  CHECK(seconds(simulator_machine({{0, 768, 384}}), {1}, three) == 1024);
  // Out 128 bytes beside in 512 bytes: 256 s for the first, then 384 s for the other.
  const std::vector<GameCopy> both{{0, true, -1, 1, 512 * kSecond}, {1, false, -1, 0, 128 * kSecond}};
  CHECK(seconds(simulator_machine({{0, 0, 0}}), {0}, both) == 256 + 384);
  CHECK(seconds(simulator_machine({{0, 0, 0}}), {0}, {both[1]}) == 128);
  // 64 s idle with both queues filled: 32 bytes of each leave, the step takes 192 s.
  GameModel busy = simulator_machine({{192, 128, 64}});
  CHECK(seconds(busy, {0}, {}) == 192);
  const std::vector<GameCopy> filled{{0, true, -1, 1, 128 * kSecond}, {1, false, -1, 1, 128 * kSecond}};
  CHECK(seconds(busy, {0}, filled) == 192 + 2 * (128 - 32));
}

// --- games ----------------------------------------------------------------------------------------

// Steps read a few tensors and write one; some overwrite what they read.
GameModel random_game(Random& rng) {
  GameModel m;
  const i32 n = 2 + static_cast<i32>(rng.below(24)), given = 1 + static_cast<i32>(rng.below(4));
  m.capacity = 8 + rng.below(40);
  m.parallel = rng.chance(0.3);
  m.idle_copies = rng.chance(0.6);
  m.engine_in = 0;
  m.engine_out = rng.chance(0.5) ? 0 : 1;
  std::vector<i32> alive;  // what may be read
  const auto add_tensor = [&](bool is_given, i64 size, i32 over) {
    m.size.push_back(size);
    m.in.push_back(rng.chance(0.1) ? kNever : 1 + size * 4);
    m.out.push_back(rng.chance(0.1) ? kNever : 1 + size * 4);
    m.given.push_back(is_given);
    m.output.push_back(!is_given && rng.chance(0.15));
    m.over.push_back(over);
    m.carried.push_back(-1);
    alive.push_back(m.tensors() - 1);
  };
  const auto add_site = [&](i32 step, i32 tensor, bool write) {
    m.site_step.push_back(step);
    m.site_tensor.push_back(tensor);
    m.site_write.push_back(write);
    m.site_slow.push_back(m.size[tensor] * 4);
    m.site_fast.push_back(m.size[tensor]);
  };
  for (i32 i = 0; i < given; ++i) add_tensor(true, 1 + rng.below(12), -1);
  const i32 loop_first = rng.chance(0.5) ? static_cast<i32>(rng.below(n)) : n;
  const i32 loop_last = loop_first + static_cast<i32>(rng.below(n));
  m.loop_parent = {-1};
  m.loop_first = {n};
  m.loop_last = {-1};
  for (i32 step = 0; step < n; ++step) {
    m.compute.push_back(rng.below(60));
    m.base_slow.push_back(rng.below(10));
    m.launch.push_back(rng.below(3));
    m.overlap.push_back(rng.chance(0.3) ? 300'000 : 0);
    const bool inside = loop_first <= step && step <= loop_last;
    m.repeat.push_back(inside ? 3 : 1);
    m.beside.push_back(0);
    m.loop.push_back(inside ? 0 : -1);
    if (inside) m.loop_first[0] = std::min(m.loop_first[0], step), m.loop_last[0] = step;
    m.site_start.push_back(m.sites());
    std::vector<i32> reads;
    for (i64 i = 1 + rng.below(3); i > 0; --i) {
      const i32 tensor = alive[rng.below(static_cast<i64>(alive.size()))];
      if (std::find(reads.begin(), reads.end(), tensor) == reads.end()) reads.push_back(tensor);
    }
    for (const i32 tensor : reads) add_site(step, tensor, false);
    const bool in_place = rng.chance(0.25);
    const i32 under = in_place ? reads[0] : -1;
    if (in_place) std::erase(alive, under);
    add_tensor(false, in_place ? m.size[under] : 1 + rng.below(12), under);
    add_site(step, m.tensors() - 1, true);
  }
  m.site_start.push_back(m.sites());
  return m;
}

Switches random_switches(Random& rng) {
  Switches s;
  s.supply = rng.chance(0.5) ? Supply::kIdle : Supply::kElapsed;
  s.ledger = rng.chance(0.6) ? Queue::kFifo : Queue::kLatest;
  s.reward = rng.chance(0.5) ? Reward::kGain : Reward::kJudged;
  s.backup = rng.chance(0.6) ? Backup::kRetroactive : rng.chance(0.7) ? Backup::kRewind : Backup::kNone;
  s.repack = rng.chance(0.6) ? static_cast<i32>(rng.below(8)) : 0;
  s.starts = rng.chance(0.6) ? Starts::kAll : Starts::kHidden;
  if (rng.chance(0.1)) s.max_idle = rng.below(500);
  return s;
}

void check_strips(const GameModel& m, const Game& game) {
  const auto stays = game.live_residencies();
  for (std::size_t a = 0; a < stays.size(); ++a) {
    const auto& [tensor, offset, first, last] = stays[a];
    CHECK(0 <= offset && offset + m.size[tensor] <= m.capacity && first <= last && last < m.steps());
    for (std::size_t b = 0; b < a; ++b) {
      const bool meet = stays[b][2] <= last && first <= stays[b][3] &&
                        stays[b][1] < offset + m.size[tensor] && offset < stays[b][1] + m.size[stays[b][0]];
      CHECK(!meet || stays[b][1] == offset);
    }
  }
}

void test_random_games(Random& rng) {
  i32 backups = 0;
  for (int round = 0; round < 400; ++round) {
    const GameModel model = random_game(rng);
    const Board board(model, random_switches(rng));
    Game game(board);
    Observer observer(board, board.all_slow / 2);
    Observer::Scratch scratch;
    std::vector<u8> grid(kColumns * kRows * kPlanes), mask(kMostActions);
    std::vector<float> series(kColumns * kSeries), current(kCurrent), tokens(2 * kTokens * kToken),
        all(kGlobals);
    const Views views{
        grid.data(), series.data(), current.data(),          tokens.data(), tokens.data() + kTokens * kToken,
        all.data(),  mask.data(),   board.switches.actions()};
    i64 earned = 0, moves = 0;
    while (!game.is_over()) {
      CHECK(game.is_legal(game.nearest(kDrop)));
      if (rng.chance(0.2)) observer.observe(game, views, scratch);
      earned += game.step(game.nearest(static_cast<Action>(rng.below(board.switches.actions()))));
      ++moves;
    }
    observer.observe(game, views, scratch);
    CHECK(moves == model.sites());
    CHECK(game.backups() <= model.sites());
    check_strips(model, game);
    const Judged judged = game.judged();
    CHECK(earned == board.all_slow - judged.total);
    backups += game.backups();
    // The same moves again, alone and in a batch, end the same.
    const Played again = play_all(board, game.actions().data(), nullptr, 1, 1);
    CHECK(again.total[0] == judged.total && again.actions == game.actions());
    std::vector<Action> many(static_cast<std::size_t>(9 * model.sites()));
    for (Action& action : many) action = static_cast<Action>(rng.below(kLead + 4));
    const Played one = play_all(board, many.data(), nullptr, 9, 1),
                 three = play_all(board, many.data(), nullptr, 9, 3);
    CHECK(one.total == three.total && one.actions == three.actions && one.backups == three.backups);
    // All slow is always there, needs no copy and saves nothing.
    const std::vector<Action> drops(static_cast<std::size_t>(model.sites()), kDrop);
    const Played slow = play_all(board, drops.data(), nullptr, 1, 1);
    CHECK(slow.total[0] == board.all_slow && slow.stall[0] == 0 && slow.backups[0] == 0);
  }
  CHECK(backups > 100);
}

void test_batch(Random& rng) {
  for (int round = 0; round < 40; ++round) {
    const GameModel model = random_game(rng);
    const Board board(model, Switches{});
    Batch batch(board);
    batch.reset(5, 2);
    std::vector<i64> rewards(5);
    const int listed = board.switches.actions();
    std::vector<u8> before(5 * listed), after(5 * listed);
    for (i32 move = 0; move + 1 < model.sites(); ++move) {
      std::vector<Action> actions(5);
      batch.masks(before.data());
      for (i64 i = 0; i < 5; ++i) {
        actions[i] = static_cast<Action>(rng.below(listed));
        while (!before[i * listed + actions[i]]) actions[i] = static_cast<Action>((actions[i] + 1) % listed);
      }
      CHECK(batch.step(actions.data(), rewards.data()) == -1);
      batch.undo();
      batch.masks(after.data());
      CHECK(before == after);
      CHECK(batch.step(actions.data(), rewards.data()) == -1);
    }
    // A move that is not legal changes nothing.
    batch.masks(before.data());
    std::vector<Action> actions(5, kDrop);
    i64 bad = -1;
    for (i64 i = 4; i >= 0; --i)
      for (Action action = 0; action < listed; ++action)
        if (!before[i * listed + action]) actions[i] = action, bad = i;
    if (bad < 0) continue;
    CHECK(batch.step(actions.data(), rewards.data()) >= 0);
    batch.masks(after.data());
    CHECK(before == after);
  }
}

}  // namespace

int main() {
  Random rng(5);
  test_known_requests();
  test_ledger_against_a_slow_one(rng);
  test_heap(rng);
  test_room_is_made(rng);
  test_known_times();
  test_random_games(rng);
  test_batch(rng);
  std::printf("game_tests: %d checks passed\n", checks);
}
