#include <algorithm>
#include <numeric>

#include "offload/offload.hpp"

namespace loadmaster {

namespace {

class Scheduler {
 public:
  Scheduler(const OffloadTables& tables, std::span<const Stay> stays, const Stretch& later,
            const Stretch& earlier)
      : t_(tables), stays_(stays), later_(later), earlier_(earlier) {
    for (const Stay& stay : stays) {
      times_.push_back({stay.first, stay.last, -1, -1});
      earliest_.push_back(stay.earliest);
    }
  }

  std::vector<Times> run(i64 lead) {
    copies_out();
    copies_in(lead);
    return std::move(times_);
  }

 private:
  bool continues(i64 row) const {
    return row + 1 < static_cast<i64>(stays_.size()) && stays_[row + 1].item == stays_[row].item;
  }

  // Hold what leaves until its copy should be done, or until the room is needed.
  void copies_out() {
    std::vector<i64> rows;
    for (i64 row = 0; row < static_cast<i64>(stays_.size()); ++row)
      if (stays_[row].leaves) rows.push_back(row);
    std::stable_sort(rows.begin(), rows.end(),
                     [&](i64 a, i64 b) { return t_.made[stays_[a].item] < t_.made[stays_[b].item]; });
    i64 link_free = 0, delay = 0;
    const auto starts = std::span(t_.clock).first(t_.steps());
    for (const i64 row : rows) {
      const Stay& stay = stays_[row];
      link_free = std::max(link_free, t_.clock[t_.made[stay.item] + 1] + delay) + t_.copy_out[stay.item];
      const auto done = std::lower_bound(starts.begin(), starts.end(), link_free - delay);
      i32 until = std::max(stay.last + 1, static_cast<i32>(done - starts.begin()));
      if (continues(row)) until = std::min(until, stays_[row + 1].first - 1);  // home before it is fetched
      until = later_(row, until - 1) + 1;
      if (until < t_.steps()) delay = std::max(delay, link_free - starts[until]);
      times_[row].last = until - 1;
      times_[row].out_needed = until;
      if (continues(row)) earliest_[row + 1] = std::max(earliest_[row + 1], until);
    }
    // Where the host has it already, it is not fetched before a step went by without it.
    for (i64 row = 0; row < static_cast<i64>(stays_.size()); ++row)
      if (continues(row)) earliest_[row + 1] = std::max(earliest_[row + 1], times_[row].last + 1);
  }

  // In the order of need: as late as the link allows, `lead` earlier, and later where there is no room.
  void copies_in(i64 lead) {
    std::vector<i64> rows;
    for (i64 row = 0; row < static_cast<i64>(stays_.size()); ++row)
      if (stays_[row].begins == kFetched) rows.push_back(row);
    std::stable_sort(rows.begin(), rows.end(),
                     [&](i64 a, i64 b) { return stays_[a].first < stays_[b].first; });
    std::vector<i64> latest(rows.size());
    i64 start = t_.clock.back();
    for (i64 i = static_cast<i64>(rows.size()) - 1; i >= 0; --i) {
      const Stay& stay = stays_[rows[i]];
      start = std::min(start, t_.clock[stay.first]) - t_.copy_in[stay.item];
      latest[i] = start;
    }
    i32 turn = -1;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      const i64 row = rows[i];
      const Stay& stay = stays_[row];
      const auto ends = std::span(t_.clock).subspan(1);
      const auto after = std::upper_bound(ends.begin(), ends.end(), latest[i] - lead);
      i32 issued = std::max(static_cast<i32>(after - ends.begin()) - 1, earliest_[row]);
      issued = std::max(std::min(issued, stay.first - 1), turn);
      issued = earlier_(row, issued + 1) - 1;
      times_[row].first = issued + 1;
      times_[row].issued = issued;
      turn = issued;
    }
  }

  const OffloadTables& t_;
  std::span<const Stay> stays_;
  const Stretch& later_;
  const Stretch& earlier_;
  std::vector<i32> earliest_;
  std::vector<Times> times_;
};

}  // namespace

std::vector<Times> schedule_with(const OffloadTables& tables, std::span<const Stay> stays, i64 lead,
                                 const Stretch& later, const Stretch& earlier) {
  return Scheduler(tables, stays, later, earlier).run(lead);
}

std::vector<Times> schedule(const OffloadTables& tables, std::span<const Stay> stays, i64 capacity, i64 lead,
                            std::vector<i64> room) {
  // Where bytes come and go, not every step between: weights may stay all the time.
  std::vector<i64> change(room.size() + 1, 0);
  for (const Stay& stay : stays)
    if (stay.first <= stay.last) {
      change[stay.first] += tables.size[stay.item];
      change[stay.last + 1] -= tables.size[stay.item];
    }
  std::partial_sum(change.begin(), change.end(), change.begin());
  for (std::size_t step = 0; step < room.size(); ++step) room[step] += change[step];
  const auto take = [&](i64 row, i32 step) {
    const i64 size = tables.size[stays[row].item];
    if (room[step] > capacity - size) return false;
    room[step] += size;
    return true;
  };
  const Stretch later = [&](i64 row, i32 wanted) {
    i32 last = stays[row].last;
    while (last < wanted && take(row, last + 1)) ++last;
    return last;
  };
  const Stretch earlier = [&](i64 row, i32 wanted) {
    i32 first = stays[row].first;
    while (first > wanted && take(row, first - 1)) --first;
    return first;
  };
  return schedule_with(tables, stays, lead, later, earlier);
}

}  // namespace loadmaster
