#include "graph/placers.hpp"

#include <algorithm>
#include <stdexcept>

namespace loadmaster::graph {
namespace {

// The busy times of a device, ascending and apart from each other.
class Busy {
 public:
  // The first time from `from` on at which nothing runs for `length`.
  i64 gap(i64 from, i64 length) const {
    auto next = std::upper_bound(spans_.begin(), spans_.end(), from,
                                 [](i64 time, const Span& span) { return time < span.end; });
    while (next != spans_.end() && next->begin - from < length) from = (next++)->end;
    return from;
  }
  void take(i64 begin, i64 length) {
    const auto next = std::lower_bound(spans_.begin(), spans_.end(), begin,
                                       [](const Span& span, i64 time) { return span.begin < time; });
    const bool joins = next != spans_.begin() && std::prev(next)->end == begin;
    if (joins)
      std::prev(next)->end = begin + length;
    else
      spans_.insert(next, {begin, begin + length});
  }

 private:
  struct Span {
    i64 begin, end;
  };
  std::vector<Span> spans_;
};

std::vector<i32> finished(const Placing& placing, Placed& placed) {
  // Groups that decide for no step are where their ops are; what is left goes where there is room.
  for (i32 op = 0; op < placing.model.ops; ++op)
    if (const i32 step = placing.graph.of[op]; step >= 0)
      if (const i32 at = placed.device[placing.group[step]]; at >= 0)  // -1: it waits for ever
        placed.decide(placing.columns.group[op], at, [](i32) {});
  for (i32 g = 0; g < placing.groups; ++g) placed.decide(g, placed.roomiest(g), [](i32) {});
  return std::move(placed.device);
}

}  // namespace

ListDecoder::ListDecoder(const Placing& placing) : placing_(placing) {
  for (i32 number = 0; number < kOrders; ++number) {
    std::vector<i32>& order = order_[number] = placing.order;
    if (number == static_cast<i32>(Order::kProgram)) continue;
    const std::vector<i64> rank =
        placing.levels(nullptr, number == static_cast<i32>(Order::kRankWithTransfers));
    // Producers come first even where a rank is not larger than its reader's.
    std::stable_sort(order.begin(), order.end(), [&](i32 a, i32 b) { return rank[a] > rank[b]; });
  }
}

Repaired ListDecoder::repair(const Repair& repair) const {
  const Placing& p = placing_;
  const Outlook& outlook = repair.outlook;
  Placed placed(p, repair.room, outlook);
  for (i32 g = 0; repair.device != nullptr && g < p.groups; ++g)
    if (repair.device[g] >= 0) placed.decide(g, repair.device[g], [](i32) {});
  std::vector<Busy> busy(p.devices);
  Repaired found;
  found.start.resize(p.graph.count);
  for (const i32 step : order_[static_cast<i32>(repair.order)]) {
    const i32 group = p.group[step], given = placed.device[group];
    i32 best = given;
    i64 best_start = 0, best_end = kForever;
    double best_cost = 0.0;
    const auto consider = [&](i32 d) {
      const i64 length = std::max<i64>(0, p.duration(step, d));
      const i64 transfer = given >= 0 ? 1000 : outlook.transfer;
      const i64 start = busy[d].gap(placed.ready(step, d, transfer), length), end = plus(start, length);
      double cost = static_cast<double>(end);
      if (given < 0) {
        cost =
            static_cast<double>(plus(plus(end, placed.later_moves(group, d)), placed.counted_load(group, d)));
        if (repair.bias != nullptr) cost -= repair.bias[static_cast<std::size_t>(group) * p.devices + d];
      }
      if (best >= 0 && best != d && cost >= best_cost) return;
      best = d, best_start = start, best_end = end, best_cost = cost;
    };
    if (given < 0) {
      for (i32 d = 0; d < p.devices; ++d)
        if (p.can(group, d) && placed.fits(step, d)) consider(d);
      if (best < 0) consider(placed.roomiest(group));
    } else {
      consider(given);
    }
    if (given < 0 && outlook.transfer != 1000) {  // it was chosen by other times than those that will be
      const i64 length = std::max<i64>(0, p.duration(step, best));
      best_start = busy[best].gap(placed.ready(step, best), length), best_end = plus(best_start, length);
    }
    placed.put(step, best, best_start, [](i32) {});
    found.start[step] = best_start;
    found.makespan = std::max(found.makespan, best_end);
    if (best_end > best_start && best_end < kForever) busy[best].take(best_start, best_end - best_start);
  }
  found.transferred = placed.transferred();
  found.end = placed.end;
  found.device = finished(p, placed);
  return found;
}

std::vector<i64> ListDecoder::latest_ends(const Repaired& repaired) const {
  const Placing& p = placing_;
  std::vector<i32> order = p.order;
  // Backwards in time; among equal starts readers come before what they read.
  std::stable_sort(order.begin(), order.end(),
                   [&](i32 a, i32 b) { return repaired.start[a] < repaired.start[b]; });
  std::vector<i64> latest(p.graph.count, repaired.makespan), next(p.devices, repaired.makespan);
  for (auto at = order.rbegin(); at != order.rend(); ++at) {
    const i32 s = *at, here = repaired.device[p.group[s]];
    i64 last = next[here];
    for (i64 i = p.graph.write_rows.begin(s); i < p.graph.write_rows.end(s); ++i) {
      const i32 t = p.graph.written[i];
      for (const i32 reader : p.graph.readers(t)) {
        const i32 there = repaired.device[p.group[reader]];
        const i64 length = std::max<i64>(0, p.duration(reader, there));
        last = std::min(last, latest[reader] - length - p.move(t, here, there));
      }
    }
    latest[s] = std::max(last, repaired.end[s]);
    next[here] = latest[s] - std::max<i64>(0, p.duration(s, here));
  }
  return latest;
}

std::vector<i32> heft(const Placing& placing, const i64* room, Outlook outlook) {
  return ListDecoder(placing).repair({.room = room, .outlook = outlook}).device;
}

namespace {

// Steps that may start on one device.
struct Entry {
  i64 ready, level;
  i32 step;
};

class EarliestStart {
 public:
  EarliestStart(const Placing& placing, const i64* room, const i32* favourite, Outlook outlook)
      : p_(placing),
        favourite_(favourite),
        placed_(placing, room, outlook),
        level_(placing.levels(nullptr, false)),
        waits_(placing.graph.count, 0),
        refusals_(placing.graph.count, 0),
        done_(placing.graph.count, 0),
        open_(placing.groups),
        lanes_(placing.devices) {}

  std::vector<i32> run() {
    const StepGraph& g = p_.graph;
    for (i32 s = 0; s < g.count; ++s)
      for (i64 i = g.read_rows.begin(s); i < g.read_rows.end(s); ++i) waits_[s] += g.writer[g.read[i]] >= 0;
    for (const i32 s : g.over) ++waits_[s];
    for (i32 s = 0; s < g.count; ++s)
      if (waits_[s] == 0) open(s);
    for (std::size_t left = p_.order.size(); left > 0; --left) {
      Choice best;
      do {  // looking may decide a group, which opens steps on devices that were looked at before
        changed_ = false;
        best = Choice{};
        for (i32 d = 0; d < p_.devices; ++d) {
          const Choice found = look(d);
          if (found.step >= 0 && before(found, best)) best = found;
        }
      } while (changed_);
      if (best.step < 0) throw std::logic_error("no step can start");
      commit(ahead(best));
    }
    return finished(p_, placed_);
  }

 private:
  struct Choice {
    i32 step = -1, device = -1;
    i64 start = kForever, level = -1;
  };
  struct Lane {
    std::vector<Entry> later, now;  // heaps: by time and level, by level
    i64 free = 0, held = 0;         // others than the favourite may start from `held` on
    i32 favourite = -1;
  };
  static bool later_than(const Entry& a, const Entry& b) {
    if (a.ready != b.ready) return a.ready > b.ready;
    return lower_than(a, b);
  }
  static bool lower_than(const Entry& a, const Entry& b) {
    return a.level != b.level ? a.level < b.level : a.step > b.step;
  }
  static bool before(const Choice& a, const Choice& b) {
    if (b.step < 0 || a.start != b.start) return b.step < 0 || a.start < b.start;
    return a.level > b.level;
  }
  static void push(std::vector<Entry>& heap, const Entry& entry, bool (*less)(const Entry&, const Entry&)) {
    heap.push_back(entry);
    std::push_heap(heap.begin(), heap.end(), less);
  }
  static Entry pop(std::vector<Entry>& heap, bool (*less)(const Entry&, const Entry&)) {
    std::pop_heap(heap.begin(), heap.end(), less);
    const Entry entry = heap.back();
    heap.pop_back();
    return entry;
  }

  void open(i32 step) {
    const i32 g = p_.group[step], given = placed_.device[g];
    i32 places = 0;
    for (i32 d = 0; d < p_.devices; ++d) {
      if (given >= 0 ? d != given : !p_.can(g, d)) continue;
      push(lanes_[d].later, {placed_.ready(step, d), level_[step], step}, later_than);
      ++places;
    }
    refusals_[step] = places;
    if (given < 0) open_[g].push_back(step);
    if (places == 0) place_anywhere(g);
  }

  void place_anywhere(i32 g) {
    placed_.decide(g, placed_.roomiest(g), [this](i32 group) { decided(group); });
  }

  // The open steps of a group that has a device now may have been refused there.
  void decided(i32 g) {
    const i32 d = placed_.device[g];
    for (const i32 step : open_[g])
      if (!done_[step]) push(lanes_[d].later, {placed_.ready(step, d), level_[step], step}, later_than);
    open_[g].clear();
    changed_ = true;
  }

  // Whether a step may still go to a device.
  bool allowed(i32 step, i32 d) {
    if (done_[step]) return false;
    const i32 given = placed_.device[p_.group[step]];
    if (given >= 0) return given == d;
    if (placed_.fits(step, d)) return true;
    if (--refusals_[step] == 0) place_anywhere(p_.group[step]);
    return false;
  }

  // What a device would start next.
  Choice look(i32 d) {
    Lane& lane = lanes_[d];
    i64 from = lane.free;
    Choice favourite;
    if (const i32 f = lane.favourite; f >= 0) {
      const i32 given = done_[f] ? -2 : placed_.device[p_.group[f]];
      const bool may = given == d || (given == -1 && p_.can(p_.group[f], d) && placed_.fits(f, d));
      if (may) {
        from = std::max(from, lane.held);
        if (waits_[f] == 0) favourite = {f, d, std::max(lane.free, placed_.ready(f, d)), level_[f]};
      } else {
        lane.favourite = -1;
      }
    }
    const Choice other = look_from(d, from);
    return favourite.step >= 0 && (other.step < 0 || favourite.start <= other.start) ? favourite : other;
  }

  Choice look_from(i32 d, i64 from) {
    Lane& lane = lanes_[d];
    for (;;) {
      while (!lane.later.empty() && lane.later.front().ready <= from)
        push(lane.now, pop(lane.later, later_than), lower_than);
      const bool now = !lane.now.empty();
      if (!now && lane.later.empty()) return {};
      // Taken out while it is asked about: that may decide a group and so add to the heaps.
      Entry entry = now ? pop(lane.now, lower_than) : pop(lane.later, later_than);
      if (!allowed(entry.step, d)) continue;
      const i64 ready = placed_.ready(entry.step, d);
      const bool stands = ready <= (now ? from : entry.ready);
      if (!stands) entry.ready = ready;  // weights have found a home elsewhere, or a link is busy
      if (now && stands)
        push(lane.now, entry, lower_than);
      else
        push(lane.later, entry, later_than);
      if (stands) return {entry.step, d, std::max(from, ready), entry.level};
    }
  }

  // A step that decides for its group goes where the group has the fewest transfers too.
  Choice ahead(const Choice& first) {
    const i32 g = p_.group[first.step];
    if (placed_.device[g] >= 0) return first;
    Choice best = first;
    i64 best_cost = plus(first.start, placed_.later_moves(g, first.device));
    for (i32 d = 0; d < p_.devices; ++d) {
      if (d == first.device || !p_.can(g, d) || !placed_.fits(first.step, d)) continue;
      const Lane& lane = lanes_[d];
      const i64 start = std::max(lane.free, placed_.ready(first.step, d));
      const i64 cost = plus(start, placed_.later_moves(g, d));
      if (cost < best_cost) best = {first.step, d, start, first.level}, best_cost = cost;
    }
    return best;
  }

  void commit(const Choice& choice) {
    const i32 s = choice.step, d = choice.device;
    done_[s] = 1;
    placed_.put(s, d, choice.start, [this](i32 g) { decided(g); });
    Lane& lane = lanes_[d];
    lane.free = placed_.end[s];
    lane.favourite = favourite_ == nullptr ? -1 : favourite_[s];
    lane.held = lane.favourite < 0 ? 0 : plus(lane.free, between(s, lane.favourite));
    const StepGraph& g = p_.graph;
    for (i64 i = g.write_rows.begin(s); i < g.write_rows.end(s); ++i)
      for (i64 r = g.reader_rows.begin(g.written[i]); r < g.reader_rows.end(g.written[i]); ++r)
        if (--waits_[g.reader[r]] == 0) open(g.reader[r]);
    for (i64 i = g.over_rows.begin(s); i < g.over_rows.end(s); ++i)
      if (--waits_[g.over[i]] == 0) open(g.over[i]);
  }

  i64 between(i32 a, i32 b) const {
    const StepGraph& g = p_.graph;
    i64 longest = 0;
    for (i64 i = g.read_rows.begin(b); i < g.read_rows.end(b); ++i)
      if (g.writer[g.read[i]] == a) longest = std::max(longest, p_.mean_move[g.read[i]]);
    return longest;
  }

  const Placing& p_;
  const i32* favourite_;
  Placed placed_;
  const std::vector<i64> level_;
  std::vector<i32> waits_, refusals_;  // [steps] refusals: devices that have not refused yet
  std::vector<i8> done_;
  std::vector<std::vector<i32>> open_;  // [groups] steps that could start, of groups without a device
  std::vector<Lane> lanes_;
  bool changed_ = false;
};

}  // namespace

std::vector<i32> earliest_start(const Placing& placing, const i64* room, const i32* favourite,
                                Outlook outlook) {
  return EarliestStart(placing, room, favourite, outlook).run();
}

}  // namespace loadmaster::graph
