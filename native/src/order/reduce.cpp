#include "reduce.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

namespace loadmaster {

namespace {

constexpr int kPasses = 12;
constexpr int kLook = 32;  // ops that a search for "must run before" looks at; then it counts as unknown
constexpr std::size_t kMany = 32;  // more neighbours than that are not looked through
constexpr std::size_t kHub = 256;  // more values than that are not added up for each neighbour

// Groups of ops, each by the number of one of its ops. Lists hold numbers of ops that may have joined
// another's group since: `clean` brings them up to date.
class Reducer {
 public:
  explicit Reducer(const OrderGraph& graph);
  Reduced run();

 private:
  struct Net {
    i64 least, most;
  };

  i32 group(i32 op);
  std::vector<i32>& clean(std::vector<i32>& list, i32 own);
  void clean_values(i32 g);
  bool must_precede(i32 first, i32 second);
  Net net(i32 g);
  bool join_before(i32 u);  // rule 1
  bool join_after(i32 p);   // rule 2
  void join(i32 p, i32 u, i32 anchor, i64 hump);

  const OrderGraph* graph_;
  std::vector<i32> parent_, place_, order_;  // place_: of the anchor in one legal order, order_
  std::vector<i32> anchor_, next_, last_, first_;
  std::vector<i64> hump_;
  std::vector<std::vector<i32>> before_, after_, opens_, uses_, users_;
  std::vector<i32> mark_, value_mark_, queue_;
  i32 stamp_ = 0, value_stamp_ = 0;
};

void append(std::vector<i32>& to, std::vector<i32>& from) {
  if (to.size() < from.size()) to.swap(from);
  to.insert(to.end(), from.begin(), from.end());
  from = {};
}

Reducer::Reducer(const OrderGraph& graph)
    : graph_(&graph),
      parent_(graph.ops),
      place_(graph.ops),
      anchor_(graph.ops),
      next_(graph.ops, -1),
      hump_(graph.hump),
      before_(graph.ops),
      after_(graph.ops),
      opens_(graph.ops),
      uses_(graph.ops),
      users_(graph.values()),
      mark_(graph.ops, 0),
      value_mark_(graph.values(), 0) {
  std::iota(parent_.begin(), parent_.end(), 0);
  anchor_ = first_ = last_ = parent_;
  const auto copy = [](std::span<const i32> row) { return std::vector<i32>(row.begin(), row.end()); };
  std::vector<i32> waits(graph.ops);
  for (i32 op = 0; op < graph.ops; ++op) {
    before_[op] = copy(graph.before[op]);
    after_[op] = copy(graph.after[op]);
    opens_[op] = copy(graph.opens[op]);
    uses_[op] = copy(graph.uses[op]);
    waits[op] = static_cast<i32>(before_[op].size());
    if (waits[op] == 0) order_.push_back(op);
  }
  for (i32 v = 0; v < graph.values(); ++v) users_[v] = copy(graph.users[v]);
  for (std::size_t i = 0; i < order_.size(); ++i) {
    place_[order_[i]] = static_cast<i32>(i);
    for (const i32 next : after_[order_[i]])
      if (--waits[next] == 0) order_.push_back(next);
  }
}

i32 Reducer::group(i32 op) {
  while (parent_[op] != op) op = parent_[op] = parent_[parent_[op]];
  return op;
}

// Each group once, without `own`.
std::vector<i32>& Reducer::clean(std::vector<i32>& list, i32 own) {
  ++stamp_;
  std::size_t kept = 0;
  for (const i32 entry : list) {
    const i32 g = group(entry);
    if (g == own || mark_[g] == stamp_) continue;
    mark_[g] = stamp_;
    list[kept++] = g;
  }
  list.resize(kept);
  return list;
}

// What a group opens for itself alone is no value of the reduced graph: its hump has it.
void Reducer::clean_values(i32 g) {
  std::erase_if(opens_[g], [&](i32 v) { return clean(users_[v], g).empty() && !graph_->kept[v]; });
  ++value_stamp_;
  std::erase_if(uses_[g], [&](i32 v) {
    const i32 by = graph_->opener[v];
    return (by >= 0 && group(by) == g) || std::exchange(value_mark_[v], value_stamp_) == value_stamp_;
  });
}

// Whether the second needs the first, as far as a short look shows.
bool Reducer::must_precede(i32 first, i32 second) {
  if (place_[first] >= place_[second]) return false;
  std::vector<i32> queue{second};
  for (std::size_t i = 0; i < queue.size() && i < kLook; ++i) {
    if (before_[queue[i]].size() > kMany) continue;
    for (const i32 entry : before_[queue[i]]) {
      const i32 g = group(entry);
      if (g == first) return true;
      if (place_[g] > place_[first] && std::find(queue.begin(), queue.end(), g) == queue.end())
        queue.push_back(g);
    }
  }
  return false;
}

// What a group leaves alive, whatever has run before it.
Reducer::Net Reducer::net(i32 g) {
  clean_values(g);
  Net result{0, 0};
  for (const i32 v : opens_[g]) result.least += graph_->size[v];
  result.most = result.least;
  for (const i32 v : uses_[g]) {
    if (graph_->kept[v] || graph_->size[v] == 0) continue;
    const auto& users = clean(users_[v], -1);
    const std::size_t looked = std::min(users.size(), kMany);
    bool surely = users.size() <= kMany, never = false;
    for (std::size_t i = 0; i < looked && !never; ++i) {
      if (users[i] == g) continue;
      never = must_precede(g, users[i]);
      surely = surely && !never && must_precede(users[i], g);
    }
    if (never) continue;
    result.least -= graph_->size[v];
    if (surely) result.most -= graph_->size[v];
  }
  return result;
}

bool Reducer::join_before(i32 u) {
  const auto& needs = clean(before_[u], u);
  if (needs.empty() || needs.size() > kMany) return false;
  const i32 p =
      *std::max_element(needs.begin(), needs.end(), [&](i32 a, i32 b) { return place_[a] < place_[b]; });
  if (opens_[p].size() + uses_[p].size() > kHub) return false;
  if (net(u).most > 0 || net(p).most + hump_[u] > hump_[p]) return false;
  for (const i32 other : needs)
    if (other != p && !must_precede(other, p)) return false;
  join(p, u, anchor_[p], hump_[p]);
  return true;
}

bool Reducer::join_after(i32 p) {
  const auto& needed = clean(after_[p], p);
  if (needed.empty() || needed.size() > kMany) return false;
  const i32 u =
      *std::min_element(needed.begin(), needed.end(), [&](i32 a, i32 b) { return place_[a] < place_[b]; });
  const Net of_p = net(p);
  if (of_p.least < 0 || of_p.least != of_p.most || hump_[p] > of_p.least + hump_[u]) return false;
  for (const i32 other : needed)
    if (other != u && !must_precede(u, other)) return false;
  join(p, u, anchor_[u], of_p.least + hump_[u]);
  return true;
}

void Reducer::join(i32 p, i32 u, i32 anchor, i64 hump) {
  next_[last_[p]] = first_[u];
  last_[p] = last_[u];
  parent_[u] = p;
  place_[p] = anchor == anchor_[u] ? place_[u] : place_[p];
  anchor_[p] = anchor;
  hump_[p] = hump;
  append(before_[p], before_[u]);
  append(after_[p], after_[u]);
  append(opens_[p], opens_[u]);
  append(uses_[p], uses_[u]);
  clean(before_[p], p);
  clean(after_[p], p);
  clean_values(p);
}

Reduced Reducer::run() {
  bool changed = true;
  for (int pass = 0; pass < kPasses && changed; ++pass) {
    changed = false;
    for (const i32 op : order_)
      while (group(op) == op && join_before(op)) changed = true;
    for (std::size_t i = order_.size(); i-- > 0;) {
      const i32 op = order_[i];
      while (group(op) == op && join_after(op)) changed = true;
    }
  }
  Reduced result;
  OrderGraph& graph = result.graph;
  graph.base = graph_->base;
  std::vector<i32> heads, number(graph_->ops, -1);
  for (i32 op = 0; op < graph_->ops; ++op)
    if (group(op) == op) heads.push_back(op);
  // In the order of the anchors: groups keep to it.
  std::sort(heads.begin(), heads.end(), [&](i32 a, i32 b) { return place_[a] < place_[b]; });
  graph.ops = static_cast<i32>(heads.size());
  for (i32 g = 0; g < graph.ops; ++g) number[heads[g]] = g;
  for (const i32 head : heads) {
    auto& row = clean(before_[head], head);
    std::sort(row.begin(), row.end(), [&](i32 a, i32 b) { return place_[a] < place_[b]; });
    for (const i32 other : row) graph.before.entry.push_back(number[other]);
    graph.before.close_row();
    for (i32 op = first_[head]; op >= 0; op = next_[op]) result.members.entry.push_back(op);
    result.members.close_row();
    result.anchor.push_back(anchor_[head]);
    graph.hump.push_back(hump_[head]);
  }
  for (i32 v = 0; v < graph_->values(); ++v) {
    const i32 by = graph_->opener[v];
    const i32 own = by < 0 ? -1 : group(by);
    const auto& users = clean(users_[v], own);
    if (users.empty() && own >= 0 && !graph_->kept[v]) continue;
    for (const i32 user : users) graph.users.entry.push_back(number[user]);
    graph.users.close_row();
    graph.size.push_back(graph_->size[v]);
    graph.opener.push_back(own < 0 ? -1 : number[own]);
    graph.kept.push_back(graph_->kept[v]);
  }
  graph.prepare();
  return result;
}

}  // namespace

Reduced reduced(const OrderGraph& graph) { return Reducer(graph).run(); }

}  // namespace loadmaster
