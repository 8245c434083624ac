// Offload plans without Python, so that they run under the sanitizers: what repair keeps fits wherever it
// can, and copies leave room for each other and come in time.
#include "offload/offload.hpp"
#include "testing.hpp"

using namespace loadmaster;

namespace {

struct Totals {
  i64 repaired = 0, helpless = 0, fetched = 0, left = 0, longer = 0, moved = 0;
};

i32 add_gap(OffloadTables& t, i32 item, GapKind kind, i32 from, i32 to) {
  t.gap_item.push_back(item);
  t.gap_kind.push_back(kind);
  t.gap_from.push_back(from);
  t.gap_to.push_back(to);
  return static_cast<i32>(t.gap_item.size()) - 1;
}

OffloadTables random_tables(Random& rng) {
  OffloadTables t;
  t.clock.push_back(0);
  const i32 steps = static_cast<i32>(1 + rng.below(12));
  for (i32 step = 0; step < steps; ++step) t.clock.push_back(t.clock.back() + rng.below(30));
  t.use_start.push_back(0);
  for (i64 count = rng.below(12); count > 0; --count) {
    const i32 item = t.items();
    std::vector<i32> used;
    for (i32 step = 0; step < steps; ++step)
      if (rng.chance(0.25)) used.push_back(step);
    if (used.empty()) continue;
    const bool weight = rng.chance(0.4), input = !weight && rng.chance(0.2);
    const bool output = !weight && !input && rng.chance(0.3);
    t.size.push_back(1 + rng.below(40));
    t.copy_in.push_back(1 + rng.below(60));
    t.copy_out.push_back(1 + rng.below(60));
    t.made.push_back(weight || input ? -1 : used.front());
    t.output.push_back(output);
    t.first_gap.push_back(weight ? add_gap(t, item, kBeforeUse, -1, used.front()) : -1);
    for (std::size_t i = 0; i < used.size(); ++i) {
      const bool apart = i > 0 && used[i] - used[i - 1] > 1;
      t.use_gap.push_back(apart ? add_gap(t, item, kBetween, used[i - 1], used[i]) : -1);
      t.use_step.push_back(used[i]);
    }
    t.end_gap.push_back(output && used.back() < steps - 1 ? add_gap(t, item, kToEnd, used.back(), steps)
                                                          : -1);
    t.use_start.push_back(static_cast<i64>(t.use_step.size()));
  }
  return t;
}

// The definition: from use to use while gaps are kept.
std::vector<Stay> stays_of(const OffloadTables& t, const std::vector<i8>& kept) {
  std::vector<Stay> stays;
  for (i32 item = 0; item < t.items(); ++item) {
    const bool given = t.made[item] < 0;
    if (t.first_gap[item] >= 0 && kept[t.first_gap[item]]) {
      stays.push_back({item, 0, t.steps() - 1, kResident, false, -1});
      continue;
    }
    const std::size_t begin = stays.size();
    for (i64 use = t.use_start[item]; use < t.use_start[item + 1]; ++use) {
      const i32 step = t.use_step[use], gap = t.use_gap[use];
      const bool first = use == t.use_start[item];
      if (first || (gap >= 0 && !kept[gap]))
        stays.push_back({item, step, step, first && !given ? kMade : kFetched, false, -1});
      stays.back().last = step;
    }
    const bool whole = stays.size() == begin + 1;
    const bool to_end = t.output[item] && whole && (t.end_gap[item] < 0 || kept[t.end_gap[item]]);
    if (to_end) stays.back().last = t.steps() - 1;
    stays[begin].leaves = !given && (!whole || (t.output[item] && !to_end));
  }
  return stays;
}

template <class Rows>
std::vector<i64> room(const OffloadTables& t, const std::vector<Stay>& stays, const Rows& rows) {
  std::vector<i64> bytes(t.steps(), 0);
  for (std::size_t row = 0; row < stays.size(); ++row)
    for (i32 step = rows[row].first; step <= rows[row].last; ++step) bytes[step] += t.size[stays[row].item];
  return bytes;
}

void repair_fits(const OffloadTables& t, const std::vector<i8>& asked, std::vector<i8> kept, i64 capacity,
                 Totals& totals) {
  auto again = kept;
  settle(t, again);
  CHECK(again == kept);
  auto wanted = asked;
  settle(t, wanted);
  for (std::size_t gap = 0; gap < kept.size(); ++gap) CHECK(kept[gap] <= wanted[gap]);
  totals.repaired += kept != wanted;
  const auto stays = stays_of(t, kept), least = stays_of(t, std::vector<i8>(kept.size(), 0));
  const auto bytes = room(t, stays, stays), needed = room(t, least, least);
  for (i32 step = 0; step < t.steps(); ++step) {
    CHECK(bytes[step] <= std::max(capacity, needed[step]));
    totals.helpless += bytes[step] > capacity;
  }
}

void copies_have_room(const OffloadTables& t, const std::vector<i8>& kept, i64 capacity, i64 lead,
                      const std::vector<i64>& others, Totals& totals) {
  const auto stays = stays_of(t, kept);
  const auto times = schedule(t, stays, capacity, lead, others);
  CHECK(times.size() == stays.size());
  const auto before = room(t, stays, stays), after = room(t, stays, times);
  for (i32 step = 0; step < t.steps(); ++step)
    CHECK(after[step] <= std::max(capacity - others[step], before[step]));
  for (std::size_t row = 0; row < stays.size(); ++row) {
    const Stay& stay = stays[row];
    const Times& when = times[row];
    CHECK(when.first >= 0 && when.last < t.steps());
    CHECK(when.first <= stay.first && when.last >= stay.last);
    const bool fetched = stay.begins == kFetched;
    CHECK(when.issued == (fetched ? when.first - 1 : -1));
    CHECK(fetched || when.first == stay.first);
    CHECK(when.out_needed == (stay.leaves ? when.last + 1 : -1));
    CHECK(stay.leaves || when.last == stay.last);
    totals.fetched += fetched;
    totals.left += stay.leaves;
    if (row > 0 && stays[row - 1].item == stay.item) CHECK(times[row - 1].last < when.first);
    for (std::size_t other = 0; other < stays.size(); ++other)  // one link: in the order of need
      if (fetched && stays[other].begins == kFetched && stay.first < stays[other].first)
        CHECK(when.issued <= times[other].issued);
  }
}

bool in_time(i32 first, i32 last, const Times& other) { return first <= other.last && other.first <= last; }

// Each stay at the lowest address that nobody has while it is used.
std::vector<i64> first_fit(const OffloadTables& t, const std::vector<Stay>& stays) {
  std::vector<i64> offset;
  for (const Stay& stay : stays) {
    i64 low = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t other = 0; other < offset.size(); ++other) {
        const i64 end = offset[other] + t.size[stays[other].item];
        const bool meets = stays[other].first <= stay.last && stay.first <= stays[other].last;
        if (meets && low < end && offset[other] < low + t.size[stay.item]) low = end, moved = true;
      }
    }
    offset.push_back(low);
  }
  return offset;
}

void copies_have_addresses(const OffloadTables& t, const std::vector<i8>& kept, i64 more, i64 lead,
                           const std::vector<i64>& others, Totals& totals) {
  const auto stays = stays_of(t, kept);
  auto offset = first_fit(t, stays);
  const auto before = offset;
  i64 top = 0;
  for (std::size_t row = 0; row < stays.size(); ++row)
    top = std::max(top, offset[row] + t.size[stays[row].item]);
  std::vector<Scratch> scratch;
  i64 capacity = top + more;
  for (i32 step = 0; step < t.steps(); ++step) {
    if (others[step] == 0) continue;
    scratch.push_back({step, top, top + others[step]});
    capacity = std::max(capacity, top + others[step]);
  }
  const auto times = schedule_placed(t, stays, capacity, lead, scratch, offset);
  CHECK(times.size() == stays.size() && offset.size() == stays.size());
  for (std::size_t row = 0; row < stays.size(); ++row) {
    const Times& when = times[row];
    const i64 low = offset[row], high = low + t.size[stays[row].item];
    CHECK(low >= 0 && high <= capacity);
    CHECK(when.first >= 0 && when.first <= stays[row].first);
    CHECK(when.last < t.steps() && when.last >= stays[row].last);
    totals.longer += when.last - when.first > stays[row].last - stays[row].first;
    totals.moved += low != before[row];
    for (std::size_t other = 0; other < row; ++other)
      if (in_time(when.first, when.last, times[other]))
        CHECK(high <= offset[other] || offset[other] + t.size[stays[other].item] <= low);
    for (const Scratch& each : scratch)
      if (when.first <= each.step && each.step <= when.last) CHECK(high <= each.low || each.high <= low);
  }
}

}  // namespace

int main() {
  Totals totals;
  for (u64 seed = 0; seed < 3000; ++seed) {
    Random rng(seed);
    const auto t = random_tables(rng);
    std::vector<i8> asked(t.gap_item.size());
    for (i8& keep : asked) keep = rng.chance(0.7);
    const i64 capacity = 20 + rng.below(200);
    auto kept = asked;
    repair(t, kept, capacity, std::vector<i64>(t.steps(), 0));
    repair_fits(t, asked, kept, capacity, totals);
    std::vector<i64> others(t.steps(), 0);
    for (i64& each : others) each = rng.chance(0.3) ? rng.below(100) : 0;
    for (const i64 lead : {i64{0}, i64{25}, kForever / 2}) {
      copies_have_room(t, kept, capacity, lead, others, totals);
      copies_have_addresses(t, kept, rng.below(30), lead, others, totals);
    }
  }
  CHECK(totals.repaired > 100 && totals.helpless > 100 && totals.fetched > 1000 && totals.left > 1000);
  CHECK(totals.longer > 1000 && totals.moved > 300);
  std::printf("%d passed, 0 failed\n", checks);
  return 0;
}
