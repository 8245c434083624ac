#include "graph/least_time.hpp"

#include <algorithm>

#include "units.hpp"

namespace loadmaster::graph {
namespace {

constexpr i32 kMostLinks = 1'000;            // of a chain
constexpr std::size_t kMostOfGroup = 2'000;  // nodes whose sums are told apart
constexpr i64 kMostKept = i64{1} << 23;      // times from links to nodes behind them
constexpr i32 kEvery = 16;                   // so many links ahead each is looked at, then fewer
constexpr i64 kMostSum = i64{1} << 60;

// Steps that every plan runs one after another, and the work between any two of them.
class Chain {
 public:
  // `links`: single nodes, each before the next.
  Chain(const TimedGraph& graph, std::vector<i32> links);

  i32 count() const { return static_cast<i32>(links_.size()); }
  i32 link(i32 i) const { return links_[i]; }
  // Whether a node comes after link i and before link j; -1 and count(): the two ends.
  bool inside(i32 v, i32 i, i32 j) const { return after_[v] >= i && before_[v] <= j; }
  // Least time between the end of link i and the start of link j, whatever is moved.
  i64 between(i32 i, i32 j) const;

 private:
  struct Sum {
    i64 single = 0, compute = 0, memory = 0, members = 0, grouped = 0;
  };
  void add_groups(const TimedGraph& graph);
  std::size_t cell(i32 i, i32 j) const {
    return static_cast<std::size_t>(i + 1) * (links_.size() + 1) + static_cast<std::size_t>(j);
  }

  std::vector<i32> links_;
  std::vector<i32> after_, before_;  // [nodes] the last link before a node, the first behind it
  std::vector<Sum> sum_;             // [links + 1, links + 1]
  i64 devices_, launch_ = 0, most_members_;
};

Chain::Chain(const TimedGraph& graph, std::vector<i32> links)
    : links_(std::move(links)),
      after_(graph.nodes(), -1),
      before_(graph.nodes(), count()),
      sum_((links_.size() + 1) * (links_.size() + 1)),
      devices_(graph.devices),
      most_members_(graph.most_members) {
  const i32 n = graph.nodes();
  std::vector<i32> number(n, -1);
  for (i32 k = 0; k < count(); ++k) number[links_[k]] = k;
  for (i32 v = 0; v < n; ++v)
    for (i64 i = graph.prev_rows.begin(v); i < graph.prev_rows.end(v); ++i) {
      const i32 u = graph.prev[i];
      after_[v] = std::max({after_[v], after_[u], number[u]});
    }
  for (i32 v = n - 1; v >= 0; --v)
    for (i64 i = graph.prev_rows.begin(v); i < graph.prev_rows.end(v); ++i) {
      const i32 u = graph.prev[i];
      before_[u] = std::min(before_[u], number[v] >= 0 ? number[v] : before_[v]);
    }
  for (i32 v = 0; v < n; ++v) {
    Sum& sum = sum_[cell(after_[v], before_[v])];
    if (graph.single[v]) {
      sum.single += graph.compute[v];
      continue;
    }
    sum.compute += graph.compute[v];
    sum.memory += graph.memory[v];
    if (graph.launch[v] == 0) continue;
    launch_ = launch_ == 0 ? graph.launch[v] : std::min(launch_, graph.launch[v]);
    ++sum.members;
  }
  // Between i and j lies what comes after i or a later one, and before j or an earlier one.
  for (i32 i = count() - 1; i >= -1; --i)
    for (i32 j = 0; j <= count(); ++j) {
      Sum& sum = sum_[cell(i, j)];
      const auto add = [&](i32 a, i32 b, i64 sign) {
        if (a >= count() || b < 0) return;
        const Sum& other = sum_[cell(a, b)];
        sum.single += sign * other.single;
        sum.compute += sign * other.compute;
        sum.memory += sign * other.memory;
        sum.members += sign * other.members;
      };
      add(i + 1, j, 1);
      add(i, j - 1, 1);
      add(i + 1, j - 1, -1);
    }
  add_groups(graph);
}

// What one group has to do between i and j, one node after another.
void Chain::add_groups(const TimedGraph& graph) {
  std::vector<i32> members;
  for (i32 v = 0; v < graph.nodes(); ++v)
    if (graph.single[v] && graph.group[v] >= 0) members.push_back(v);
  std::sort(members.begin(), members.end(), [&](i32 a, i32 b) {
    return std::pair(graph.group[a], after_[b]) < std::pair(graph.group[b], after_[a]);  // the latest first
  });
  std::vector<std::pair<i32, i64>> behind;  // (before, time) of those after link i
  for (std::size_t at = 0; at < members.size();) {
    const i32 group = graph.group[members[at]];
    behind.clear();
    while (at < members.size() && graph.group[members[at]] == group) {
      const i32 i = after_[members[at]];
      for (; at < members.size() && graph.group[members[at]] == group && after_[members[at]] == i; ++at) {
        const std::pair<i32, i64> entry(before_[members[at]], graph.compute[members[at]]);
        behind.insert(std::upper_bound(behind.begin(), behind.end(), entry), entry);
      }
      if (behind.size() > kMostOfGroup) continue;
      i64 sum = 0;
      for (const auto& [j, time] : behind) {
        sum += time;
        i64& grouped = sum_[cell(i, j)].grouped;
        grouped = std::max(grouped, sum);
      }
    }
  }
}

i64 Chain::between(i32 i, i32 j) const {
  const Sum& sum = sum_[cell(i, j)];
  const i64 steps = (sum.members + most_members_ - 1) / most_members_;
  const i64 work = sum.single + std::max(sum.compute, sum.memory) + steps * launch_;
  return std::max((work + devices_ - 1) / devices_, sum.grouped);
}

// The time between two links where what leaves their devices has to be moved.
class Moves {
 public:
  Moves(const TimedGraph& graph, const Chain& chain);

  // Which links before j are near enough to be looked at: the nearest first.
  std::vector<i32> before(i32 j) const;
  // The least time between the end of link i and the start of link j, from `least` on.
  i64 between(i32 i, i32 j, i64 least);

 private:
  // Least times from a link to nodes behind it, or back to nodes before it: if those run on its device, and
  // if they run on another.
  struct Distances {
    i32 first = 0;  // node
    std::vector<i64> near, far;
  };
  // What goes to one device as a whole.
  struct Item {
    i64 time = 0;
    i64 least_in = kForever, least_out = kForever;  // from the first link, to the second
    i64 least_near_in = kForever, least_near_out = kForever;
    i64 other = 0, with_first = 0, with_second = 0;  // least time between the links if it is on such a device
  };
  Distances spread(i32 link, i32 last) const;
  Distances spread_back(i32 link, i32 first) const;
  void list_items(i32 i, i32 j);
  bool feasible(i64 time, bool together) const;

  const TimedGraph& graph_;
  const Chain& chain_;
  const std::vector<i64>& time_;  // [nodes]
  Rows next_rows_;
  std::vector<i32> next_;
  std::vector<i64> next_move_;
  i32 span_;
  std::vector<Distances> from_;  // [links]
  Distances to_;
  i32 to_link_ = -1;
  std::vector<Item> items_;
  std::vector<i32> item_of_group_;
  i64 total_ = 0, direct_ = 0, apart_ = 0;
};

const std::vector<i64>& larger_measure(const TimedGraph& graph) {
  i64 compute = 0, memory = 0;
  for (i32 v = 0; v < graph.nodes(); ++v) compute += graph.compute[v], memory += graph.memory[v];
  return compute >= memory ? graph.compute : graph.memory;
}

Moves::Moves(const TimedGraph& graph, const Chain& chain)
    : graph_(graph), chain_(chain), time_(larger_measure(graph)), item_of_group_(graph.groups, -1) {
  const i32 n = graph.nodes();
  next_rows_.start.assign(n + 1, 0);
  for (const i32 u : graph.prev) ++next_rows_.start[u];
  next_rows_.sum_counts();
  next_.resize(graph.prev.size()), next_move_.resize(graph.prev.size());
  std::vector<i64> at(next_rows_.start);
  for (i32 v = 0; v < n; ++v)
    for (i64 i = graph.prev_rows.begin(v); i < graph.prev_rows.end(v); ++i) {
      next_[at[graph.prev[i]]] = v;
      next_move_[at[graph.prev[i]]++] = graph.move[i];
    }
  span_ = static_cast<i32>(std::min<i64>(n, kMostKept / std::max(1, chain.count())));
  for (i32 i = 0; i < chain.count(); ++i)
    from_.push_back(spread(chain.link(i), std::min(n - 1, chain.link(i) + span_)));
}

Moves::Distances Moves::spread(i32 link, i32 last) const {
  Distances d;
  d.first = link;
  d.near.assign(last - link + 1, -1);
  d.far.assign(d.near.size(), -1);
  d.near[0] = 0, d.far[0] = kForever;
  const i32 group = graph_.group[link];
  for (i32 v = link + 1; v <= last; ++v) {
    i64 near = -1, far = -1;
    for (i64 i = graph_.prev_rows.begin(v); i < graph_.prev_rows.end(v); ++i) {
      const i32 u = graph_.prev[i];
      if (u < link || d.near[u - link] < 0) continue;
      const i64 time = u == link ? 0 : time_[u];
      const bool one = graph_.group[u] >= 0 && graph_.group[u] == graph_.group[v];
      const i64 moved = one ? kForever : plus(plus(d.near[u - link], time), graph_.move[i]);
      near = std::max(near, plus(d.near[u - link], time));
      far = std::max(far, std::min(moved, plus(d.far[u - link], time)));
    }
    if (near < 0) continue;
    d.near[v - link] = near;
    d.far[v - link] = group >= 0 && graph_.group[v] == group ? kForever : far;
  }
  return d;
}

Moves::Distances Moves::spread_back(i32 link, i32 first) const {
  Distances d;
  d.first = first;
  d.near.assign(link - first + 1, -1);
  d.far.assign(d.near.size(), -1);
  d.near[link - first] = 0, d.far[link - first] = kForever;
  const i32 group = graph_.group[link];
  for (i32 v = link - 1; v >= first; --v) {
    i64 near = -1, far = -1;
    for (i64 i = next_rows_.begin(v); i < next_rows_.end(v); ++i) {
      const i32 w = next_[i];
      if (w > link || d.near[w - first] < 0) continue;
      const i64 time = w == link ? 0 : time_[w];
      const bool one = graph_.group[w] >= 0 && graph_.group[w] == graph_.group[v];
      const i64 moved = one ? kForever : plus(plus(d.near[w - first], time), next_move_[i]);
      near = std::max(near, plus(d.near[w - first], time));
      far = std::max(far, std::min(moved, plus(d.far[w - first], time)));
    }
    if (near < 0) continue;
    d.near[v - first] = near;
    d.far[v - first] = group >= 0 && graph_.group[v] == group ? kForever : far;
  }
  return d;
}

std::vector<i32> Moves::before(i32 j) const {
  std::vector<i32> found;
  for (i32 back = 1; j - back >= 0; back += 1 + back / kEvery) {
    if (chain_.link(j) - chain_.link(j - back) > span_) break;
    found.push_back(j - back);
  }
  return found;
}

void Moves::list_items(i32 i, i32 j) {
  const i32 first = chain_.link(i), last = chain_.link(j);
  if (to_link_ != j) {
    to_ = spread_back(last, std::max(0, last - span_));
    to_link_ = j;
  }
  const Distances& from = from_[i];
  direct_ = from.near[last - first];
  apart_ = from.far[last - first];
  items_.clear();
  total_ = 0;
  std::vector<i32> groups;
  for (i32 v = first + 1; v < last; ++v) {
    if (!chain_.inside(v, i, j)) continue;
    const i32 group = graph_.group[v];
    i32 at = group >= 0 ? item_of_group_[group] : -1;
    if (at < 0) {
      at = static_cast<i32>(items_.size());
      items_.emplace_back();
      if (group >= 0) item_of_group_[group] = at, groups.push_back(group);
    }
    Item& item = items_[at];
    const i64 near_in = from.near[v - first], in = from.far[v - first];
    const i64 near_out = to_.near[v - to_.first], out = to_.far[v - to_.first], time = time_[v];
    total_ += time;
    item.time += time;
    item.least_in = std::min(item.least_in, in);
    item.least_out = std::min(item.least_out, out);
    item.least_near_in = std::min(item.least_near_in, near_in);
    item.least_near_out = std::min(item.least_near_out, near_out);
    item.other = std::max(item.other, plus(plus(in, time), out));
    item.with_first = std::max(item.with_first, plus(plus(near_in, time), out));
    item.with_second = std::max(item.with_second, plus(plus(in, time), near_out));
  }
  for (const i32 group : groups) item_of_group_[group] = -1;
  for (Item& item : items_) {
    item.other = std::max(item.other, plus(plus(item.least_in, item.time), item.least_out));
    item.with_first = std::max(item.with_first, plus(plus(item.least_near_in, item.time), item.least_out));
    item.with_second = std::max(item.with_second, plus(plus(item.least_in, item.time), item.least_near_out));
  }
}

// Whether so much time may be enough if the links are on one device (`together`), or on two. Devices beside
// theirs have no work before the first thing is moved there, and none after the last has to be moved back.
bool Moves::feasible(i64 time, bool together) const {
  const auto room = [time](i64 in, i64 out) { return std::max<i64>(0, time - plus(in, out)); };
  i64 in = kForever, out = kForever;  // of other devices
  i64 first_out = kForever, second_in = kForever;
  i64 must_first = 0, must_second = 0, must_other = 0;
  for (const Item& item : items_) {
    const bool other = item.other <= time && graph_.devices > (together ? 1 : 2);
    if (other) in = std::min(in, item.least_in), out = std::min(out, item.least_out);
    if (together) {
      if (!other) must_first += item.time;
      continue;
    }
    const bool first = item.with_first <= time, second = item.with_second <= time;
    if (first) first_out = std::min(first_out, item.least_out);
    if (second) second_in = std::min(second_in, item.least_in);
    if (first && !second && !other) must_first += item.time;
    if (second && !first && !other) must_second += item.time;
    if (other && !first && !second) must_other += item.time;
    if (!first && !second && !other) return false;
  }
  const i64 others = (graph_.devices - (together ? 1 : 2)) * room(in, out);
  if (together) return must_first <= time && total_ <= time + others;
  const i64 first_room = room(0, first_out), second_room = room(second_in, 0);
  return must_first <= first_room && must_second <= second_room && must_other <= others &&
         total_ <= first_room + second_room + others;
}

i64 Moves::between(i32 i, i32 j, i64 least) {
  list_items(i, j);
  const i32 group = graph_.group[chain_.link(i)];
  const bool may_part = graph_.devices > 1 && !(group >= 0 && group == graph_.group[chain_.link(j)]);
  const auto enough = [&](i64 time) {
    return time >= direct_ && (feasible(time, true) || (may_part && time >= apart_ && feasible(time, false)));
  };
  if (enough(least)) return least;
  i64 low = least, high = std::max(least, std::max(direct_, total_));  // all on one device is enough
  while (high - low > 1) {
    const i64 middle = low + (high - low) / 2;
    (enough(middle) ? high : low) = middle;
  }
  return high;
}

// Longest paths: a stretch of nodes that may be one step counts by one measure, and one launch.
class Heads {
 public:
  explicit Heads(const TimedGraph& graph)
      : graph_(graph), end_(2 * static_cast<std::size_t>(graph.nodes())), from_(end_.size(), -1) {}

  i64 longest() {
    i64 last = 0;
    for (i32 v = 0; v < graph_.nodes(); ++v) last = std::max(last, find(v));
    return last;
  }

  // The end of all, where links of a chain start no sooner than what lies between them allows.
  i64 longest(const Chain& chain, Moves& moves) {
    i32 next = 0;
    i64 last = 0;
    for (i32 v = 0; v < graph_.nodes(); ++v) {
      i64 end = find(v);
      if (next < chain.count() && chain.link(next) == v) {
        i64 start = by_work(chain, next, end - graph_.compute[v]);
        for (const i32 i : moves.before(next)) {
          const i64 before = end_of(chain.link(i), 0);
          start = std::max(start, before + moves.between(i, next, start - before));
        }
        end = start + graph_.compute[v];
        for (const int mode : {0, 1}) end_of(v, mode) = end;
        ++next;
      }
      last = std::max(last, end);
    }
    return by_work(chain, chain.count(), last);
  }

  // Single nodes on the longest path, in order.
  std::vector<i32> on_longest() const {
    std::size_t at = 0;
    for (std::size_t i = 0; i < end_.size(); ++i)
      if (end_[i] > end_[at]) at = i;
    std::vector<i32> found;
    for (i64 i = end_.empty() ? -1 : static_cast<i64>(at); i >= 0; i = from_[i])
      if (graph_.single[i / 2]) found.push_back(static_cast<i32>(i / 2));
    std::reverse(found.begin(), found.end());
    return found;
  }

 private:
  i64& end_of(i32 v, int mode) { return end_[2 * static_cast<std::size_t>(v) + mode]; }

  i64 find(i32 v) {
    const bool single = graph_.single[v];
    const i64 launch = single ? 0 : graph_.launch[v];
    for (const int mode : {0, 1}) {
      i64 best = launch, from = -1;
      for (i64 i = graph_.prev_rows.begin(v); i < graph_.prev_rows.end(v); ++i) {
        const i32 u = graph_.prev[i];
        const bool apart = graph_.cut[i] || single || graph_.single[u];
        const int by = !apart ? mode : end_of(u, 0) >= end_of(u, 1) ? 0 : 1;
        const i64 start = plus(end_of(u, by), apart ? launch : 0);
        if (start > best) best = start, from = 2 * i64{u} + by;
      }
      end_of(v, mode) = plus(best, mode == 0 || single ? graph_.compute[v] : graph_.memory[v]);
      from_[2 * static_cast<std::size_t>(v) + mode] = from;
    }
    return std::max(end_of(v, 0), end_of(v, 1));
  }

  i64 by_work(const Chain& chain, i32 j, i64 start) {
    start = std::max(start, chain.between(-1, j));
    for (i32 i = 0; i < j; ++i) start = std::max(start, end_of(chain.link(i), 0) + chain.between(i, j));
    return start;
  }

  const TimedGraph& graph_;
  std::vector<i64> end_;   // [nodes, 2] of the longest path to a node, by the measure of its last stretch
  std::vector<i64> from_;  // [nodes, 2] its entry before
};

}  // namespace

LeastTime least_time(const TimedGraph& graph) {
  Heads heads(graph);
  LeastTime found;
  found.path = found.work = heads.longest();
  i64 sum = 0;
  for (i32 v = 0; v < graph.nodes(); ++v)
    sum = plus(sum, plus(plus(graph.compute[v], graph.memory[v]), graph.launch[v]));
  if (sum > kMostSum) return found;  // sums would not be exact
  const std::vector<i32> links = heads.on_longest();
  const std::size_t every = links.size() / kMostLinks + 1;
  for (std::size_t k = 0; k < links.size(); k += every) found.chain.push_back(links[k]);
  const Chain chain(graph, found.chain);
  Moves moves(graph, chain);
  found.work = std::max(found.work, heads.longest(chain, moves));
  return found;
}

}  // namespace loadmaster::graph
