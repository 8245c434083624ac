// Orders of least peak without Python, so that they run under the sanitizers: bytes alive against the
// definition, and minimum cuts and the complete search against all sets of ops.
#include <numeric>
#include <stdexcept>

#include "order/beam.hpp"
#include "order/cut.hpp"
#include "order/reduce.hpp"
#include "order/search.hpp"
#include "order/simple.hpp"
#include "testing.hpp"

using namespace loadmaster;

namespace {

using Set = unsigned;  // bit i: op i has run

OrderGraph random_graph(Random& rng, i32 ops) {
  OrderGraph g;
  g.ops = ops;
  g.base = rng.below(20);
  // Numbers say nothing about the order: op `at[i]` may need `at[j]` for j < i.
  std::vector<i32> at(ops);
  std::iota(at.begin(), at.end(), 0);
  rng.shuffle(at);
  std::vector<std::vector<i32>> before(ops), users;
  const auto value = [&](i32 opener, i32 first) {
    std::vector<i32> used;
    for (i32 i = first; i < ops; ++i)
      if (rng.chance(0.3)) used.push_back(at[i]);
    const bool kept = rng.chance(0.1);
    if (opener < 0 && used.empty() && !kept) return;  // nobody holds it
    for (const i32 user : used)
      if (opener >= 0) before[user].push_back(opener);
    g.size.push_back(rng.chance(0.1) ? 0 : rng.below(50));
    g.opener.push_back(opener);
    g.kept.push_back(kept);
    users.push_back(std::move(used));
  };
  value(-1, 0);
  for (i32 i = 0; i < ops; ++i)
    for (i64 count = rng.below(3); count > 0; --count) value(at[i], i + 1);
  for (auto& row : before) {
    std::sort(row.begin(), row.end());
    row.erase(std::unique(row.begin(), row.end()), row.end());
    g.before.entry.insert(g.before.entry.end(), row.begin(), row.end());
    g.before.close_row();
  }
  for (const auto& row : users) {
    g.users.entry.insert(g.users.entry.end(), row.begin(), row.end());
    g.users.close_row();
  }
  g.prepare();
  return g;
}

bool has(Set set, i32 op) { return (set >> op & 1) != 0; }

bool closed(const OrderGraph& g, Set set) {
  for (i32 op = 0; op < g.ops; ++op)
    for (const i32 other : g.before[op])
      if (has(set, op) && !has(set, other)) return false;
  return true;
}

bool may_follow(const OrderGraph& g, Set set, i32 op) {
  return !has(set, op) && closed(g, set) && closed(g, set | 1u << op);
}

// The definition: what a value's opener has made and a user, or the end, still needs.
i64 alive(const OrderGraph& g, Set set) {
  i64 bytes = g.base;
  for (i32 v = 0; v < g.values(); ++v) {
    bool needed = g.kept[v] != 0;
    for (const i32 user : g.users[v]) needed |= !has(set, user);
    if (needed && (g.opener[v] < 0 || has(set, g.opener[v]))) bytes += g.size[v];
  }
  return bytes;
}

i64 during(const OrderGraph& g, Set set, i32 op) { return alive(g, set) + g.hump[op]; }

// Of a graph that nobody reduced: what an op opens.
void humps(const OrderGraph& g) {
  std::vector<i64> opened(g.ops, 0);
  for (i32 v = 0; v < g.values(); ++v)
    if (g.opener[v] >= 0) opened[g.opener[v]] += g.size[v];
  CHECK(opened == g.hump);
}

i64 slow_peak(const OrderGraph& g, const std::vector<i32>& order) {
  Set set = 0;
  i64 most = g.ops == 0 ? alive(g, 0) : 0;
  for (const i32 op : order) {
    if (!may_follow(g, set, op)) return -1;
    most = std::max(most, during(g, set, op));
    set |= 1u << op;
  }
  return most;
}

// Over all sets: no search, no rule that cuts.
i64 least_peak(const OrderGraph& g) {
  std::vector<i64> least(std::size_t{1} << g.ops, kForever);
  least[0] = alive(g, 0);
  for (Set set = 0; set < least.size(); ++set)
    for (i32 op = 0; op < g.ops && least[set] < kForever; ++op)
      if (may_follow(g, set, op)) {
        i64& there = least[set | 1u << op];
        there = std::min(there, std::max(least[set], during(g, set, op)));
      }
  return least.back();
}

void simple_orders(const OrderGraph& g, Random& rng, i64 least) {
  std::vector<double> keys(g.ops);
  for (double& key : keys) key = static_cast<double>(rng.below(4));
  PeakBeam narrow(g, 1), wide(g, 1 << 12);
  while (!narrow.advance(1)) {
  }
  CHECK(wide.advance(g.ops));
  for (const auto& order :
       {by_keys(g, keys), greedy(g), depth_first(g), reverse_post_order(g), narrow.order(), wide.order()}) {
    CHECK(static_cast<i32>(order.size()) == g.ops);
    CHECK(peak(g, order) == slow_peak(g, order));
    CHECK(peak(g, order) >= least);
  }
  CHECK(peak(g, wide.order()) == least);  // it keeps every set

  std::vector<i32> any(g.ops);
  std::iota(any.begin(), any.end(), 0);
  rng.shuffle(any);
  CHECK(peak(g, any) == slow_peak(g, any));
  if (g.ops > 0) {
    any[0] = any.back();
    CHECK(peak(g, any) == (g.ops > 1 ? -1 : slow_peak(g, any)));
    any.pop_back();
    CHECK(peak(g, any) == -1);
  }
}

void states_go_back(const OrderGraph& g, Random& rng) {
  OrderState state(g);
  std::vector<i32> path;
  Set set = 0;
  for (int move = 0; move < 40; ++move) {
    if (state.done() < g.ops && (path.empty() || rng.chance(0.6))) {
      const i32 op = state.ready()[rng.below(static_cast<i64>(state.ready().size()))];
      const i64 expected = state.alive() + state.net(op);
      CHECK(state.run(op) == during(g, set, op));
      CHECK(state.alive() == expected);
      path.push_back(op);
      set |= 1u << op;
    } else if (!path.empty()) {
      state.undo(path.back());
      set &= ~(1u << path.back());
      path.pop_back();
    }
    CHECK(state.alive() == alive(g, set));
    for (i32 op = 0; op < g.ops; ++op) CHECK(state.is_ready(op) == may_follow(g, set, op));
    i64 ready = 0;
    for (const i32 op : state.ready()) ready += may_follow(g, set, op);
    CHECK(ready == static_cast<i64>(state.ready().size()));
  }
}

void cuts(const OrderGraph& g, Random& rng, i64 least) {
  CutNetwork network(g);
  for (i32 op = 0; op < g.ops; ++op) {
    i64 bytes = kForever;
    Set smallest = 0, largest = 0;
    for (Set set = 0; set < 1u << g.ops; ++set) {
      if (!may_follow(g, set, op)) continue;
      const i64 here = during(g, set, op);
      if (here < bytes) bytes = here, smallest = largest = set;
      if (here == bytes) smallest &= set, largest |= set;
    }
    CHECK(bytes <= least);
    for (const bool large : {false, true}) {
      const auto cut = network.below(op, {}, {}, kForever, large, -1);
      CHECK(cut.complete && cut.bytes == bytes);
      Set sooner = 0;
      for (const i32 other : cut.sooner) sooner |= 1u << other;
      CHECK(sooner == (large ? largest : smallest));  // the least cuts are a lattice
    }
    for (i32 other = 0; other < g.ops; ++other)
      for (const bool before : {false, true}) {
        if (other == op) continue;
        i64 expected = kForever;
        for (Set set = 0; set < 1u << g.ops; ++set)
          if (has(set, other) == before && may_follow(g, set, op))
            expected = std::min(expected, during(g, set, op));
        const std::span<const i32> one(&other, 1), none;
        const i64 found =
            network.below(op, before ? one : none, before ? none : one, 10'000, false, -1).bytes;
        CHECK(expected < kForever ? found == expected : found >= 10'000);
      }
    const i64 enough = rng.below(bytes + 10);
    const auto cut = network.below(op, {}, {}, enough, false, 1e12);
    CHECK(cut.bytes <= bytes && (cut.complete ? cut.bytes == bytes : cut.bytes >= enough));
  }
}

// A cut that goes on from the flow of fewer bound ops is the same one.
void flows(const OrderGraph& g, Random& rng) {
  CutNetwork network(g);
  for (i32 op = 0; op < g.ops; ++op) {
    std::vector<i32> sooner, later;
    CutNetwork::Flow flow;
    for (int more = 0; more < 4; ++more) {
      const auto fresh = network.below(op, sooner, later, 10'000, false, -1);
      const auto found = network.below(op, sooner, later, 10'000, false, -1, more == 0 ? nullptr : &flow);
      CHECK(found.complete == fresh.complete && found.sooner == fresh.sooner);
      CHECK(fresh.complete ? found.bytes == fresh.bytes : found.bytes >= 10'000);
      if (!fresh.complete) break;                                               // no order has them so
      network.below(op, sooner, later, rng.below(fresh.bytes + 1), false, -1);  // any part of it will do
      flow = network.flow();
      const i32 other = static_cast<i32>(rng.below(g.ops));
      if (other != op) (rng.chance(0.5) ? sooner : later).push_back(other);
    }
    ++flow.bytes;
    bool refused = false;
    try {
      network.below(op, {}, {}, kForever, false, -1, &flow);
    } catch (const std::invalid_argument&) {
      refused = true;
    }
    CHECK(refused);
  }
}

// Groups lose nothing: the least peak stays, an order of ops leads to one of groups that is no higher, and
// an order of groups is one of ops with the same peak.
OrderGraph groups(const OrderGraph& g, Random& rng, i64 least) {
  const Reduced found = reduced(g);
  CHECK(static_cast<i32>(found.members.entry.size()) == g.ops && found.members.rows() == found.graph.ops);
  CHECK(least_peak(found.graph) == least);
  const auto random_order = [&](const OrderGraph& of) {
    std::vector<double> keys(of.ops);
    for (double& key : keys) key = static_cast<double>(rng.below(1'000));
    return by_keys(of, keys);
  };
  for (int trial = 0; trial < 8; ++trial) {
    const std::vector<i32> order = random_order(g), of_groups = random_order(found.graph);
    std::vector<i32> place(g.ops), led(found.graph.ops), ops;
    for (i32 i = 0; i < g.ops; ++i) place[order[i]] = i;
    std::iota(led.begin(), led.end(), 0);
    std::sort(led.begin(), led.end(),
              [&](i32 a, i32 b) { return place[found.anchor[a]] < place[found.anchor[b]]; });
    const i64 no_higher = slow_peak(found.graph, led);
    CHECK(no_higher >= 0 && no_higher <= slow_peak(g, order));
    for (const i32 group : of_groups)
      for (const i32 op : found.members[group]) ops.push_back(op);
    CHECK(slow_peak(g, ops) == slow_peak(found.graph, of_groups));
  }
  return found.graph;
}

void searches(const OrderGraph& g, i64 least) {
  for (const i64 budget : {least - 1, least, least + 7}) {
    PeakSearch whole(g, budget), pieces(g, budget);
    const auto end = whole.advance(i64{1} << 40);
    CHECK(end == (budget < least ? PeakSearch::End::kNone : PeakSearch::End::kFound));
    auto last = PeakSearch::End::kGoesOn;
    while (last == PeakSearch::End::kGoesOn) last = pieces.advance(1);
    CHECK(last == end && pieces.sets() == whole.sets());
    if (end == PeakSearch::End::kNone) continue;
    CHECK(pieces.order() == whole.order());
    const i64 found = slow_peak(g, whole.order());
    CHECK(found >= 0 && found <= budget);
  }
}

// A part of an order needs, op by op, what it needs within the whole.
void parts(const OrderGraph& g, Random& rng) {
  std::vector<double> keys(g.ops);
  for (double& key : keys) key = static_cast<double>(rng.below(100));
  std::vector<i32> order = by_keys(g, keys);
  const i64 begin = rng.below(g.ops + 1), end = begin + rng.below(g.ops - begin + 1);
  std::vector<i8> done(g.ops, 0);
  for (i64 i = 0; i < begin; ++i) done[order[i]] = 1;
  std::vector<i32> members(order.begin() + begin, order.begin() + end);
  rng.shuffle(members);
  const OrderGraph part = g.part(members, done);
  const std::vector<i32> inside = greedy(part);
  CHECK(inside.size() == members.size());
  for (std::size_t i = 0; i < inside.size(); ++i) order[begin + i] = members[inside[i]];
  const std::vector<i64> whole = profile(g, order), small = profile(part, inside);
  CHECK(static_cast<i32>(whole.size()) == g.ops && small.size() == inside.size());
  CHECK(std::equal(small.begin(), small.end(), whole.begin() + begin));
}

}  // namespace

int main() {
  i64 better = 0, joined = 0;
  for (unsigned seed = 0; seed < 500; ++seed) {
    Random rng(seed);
    const OrderGraph whole = random_graph(rng, static_cast<i32>(seed % 9));
    const i64 least = least_peak(whole);
    humps(whole);
    const OrderGraph fewer = groups(whole, rng, least);
    joined += whole.ops - fewer.ops;
    for (const OrderGraph* g : {&whole, &fewer}) {
      simple_orders(*g, rng, least);
      states_go_back(*g, rng);
      cuts(*g, rng, least);
      flows(*g, rng);
      searches(*g, least);
      parts(*g, rng);
    }
    better += peak(whole, greedy(whole)) > least;
  }
  CHECK(better > 20);  // otherwise the search had nothing to find
  CHECK(joined > 200);
  std::printf("%d passed, 0 failed\n", checks);
  return 0;
}
