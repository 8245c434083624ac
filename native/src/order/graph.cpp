#include "graph.hpp"

#include <algorithm>

namespace loadmaster {

Lists Lists::inverse(i32 count) const {
  Lists result;
  result.start.assign(count + 1, 0);
  for (const i32 e : entry) ++result.start[e + 1];
  for (i32 i = 0; i < count; ++i) result.start[i + 1] += result.start[i];
  result.entry.resize(entry.size());
  std::vector<i64> next(result.start.begin(), result.start.end() - 1);
  for (i32 row = 0; row < rows(); ++row)
    for (const i32 e : (*this)[row]) result.entry[next[e]++] = row;
  return result;
}

void OrderGraph::prepare() {
  after = before.inverse(ops);
  uses = users.inverse(ops);
  grows.assign(ops, 0);
  opens = Lists{};
  std::vector<std::vector<i32>> opened(ops);
  for (i32 v = 0; v < values(); ++v)
    if (opener[v] >= 0) {
      opened[opener[v]].push_back(v);
      grows[opener[v]] += size[v];
    }
  for (const auto& row : opened) {
    opens.entry.insert(opens.entry.end(), row.begin(), row.end());
    opens.close_row();
  }
  if (hump.empty()) hump = grows;
}

OrderGraph OrderGraph::part(std::span<const i32> members, std::span<const i8> done) const {
  OrderGraph result;
  result.ops = static_cast<i32>(members.size());
  result.base = base;
  std::vector<i32> number(ops, -1);
  for (i32 i = 0; i < result.ops; ++i) number[members[i]] = i;
  for (const i32 op : members) {
    for (const i32 other : before[op])
      if (number[other] >= 0) result.before.entry.push_back(number[other]);
    result.before.close_row();
    result.hump.push_back(hump[op]);
  }
  for (i32 v = 0; v < values(); ++v) {
    const i32 by = opener[v];
    const bool inside = by >= 0 && number[by] >= 0;
    if (by >= 0 && !inside && !done[by]) continue;  // it comes later
    bool stays = kept[v];
    const size_t first = result.users.entry.size();
    for (const i32 user : users[v]) {
      if (number[user] >= 0)
        result.users.entry.push_back(number[user]);
      else
        stays |= !done[user];
    }
    if (!inside && result.users.entry.size() == first) {  // there all the time, or not at all
      if (stays) result.base += size[v];
      continue;
    }
    result.users.close_row();
    result.size.push_back(size[v]);
    result.opener.push_back(inside ? number[by] : -1);
    result.kept.push_back(stays);
  }
  result.prepare();
  return result;
}

OrderState::OrderState(const OrderGraph& graph)
    : graph_(&graph), waits_(graph.ops), left_(graph.values()), place_(graph.ops, -1), alive_(graph.base) {
  for (i32 v = 0; v < graph.values(); ++v) {
    left_[v] = static_cast<i32>(graph.users[v].size()) + (graph.kept[v] ? 1 : 0);
    if (graph.opener[v] < 0) alive_ += graph.size[v];
  }
  for (i32 op = 0; op < graph.ops; ++op) {
    waits_[op] = static_cast<i32>(graph.before[op].size());
    if (waits_[op] == 0) add_ready(op);
  }
}

i64 OrderState::net(i32 op) const {
  i64 change = graph_->grows[op];
  for (const i32 v : graph_->uses[op]) change -= left_[v] == 1 ? graph_->size[v] : 0;
  for (const i32 v : graph_->opens[op]) change -= left_[v] == 0 ? graph_->size[v] : 0;
  return change;
}

i64 OrderState::run(i32 op) {
  const i64 during = alive_ + graph_->hump[op];
  alive_ += graph_->grows[op];
  for (const i32 v : graph_->uses[op])
    if (--left_[v] == 0) alive_ -= graph_->size[v];
  for (const i32 v : graph_->opens[op])
    if (left_[v] == 0) alive_ -= graph_->size[v];  // nobody uses it
  drop_ready(op);
  waits_[op] = -1;
  for (const i32 next : graph_->after[op])
    if (--waits_[next] == 0) add_ready(next);
  ++done_;
  return during;
}

void OrderState::undo(i32 op) {
  --done_;
  for (const i32 next : graph_->after[op])
    if (waits_[next]++ == 0) drop_ready(next);
  waits_[op] = 0;
  add_ready(op);
  for (const i32 v : graph_->opens[op])
    if (left_[v] == 0) alive_ += graph_->size[v];
  for (const i32 v : graph_->uses[op])
    if (left_[v]++ == 0) alive_ += graph_->size[v];
  alive_ -= graph_->grows[op];
}

void OrderState::add_ready(i32 op) {
  place_[op] = static_cast<i32>(ready_.size());
  ready_.push_back(op);
}

void OrderState::drop_ready(i32 op) {
  const i32 last = ready_.back();
  ready_[place_[op]] = last;
  place_[last] = place_[op];
  ready_.pop_back();
}

std::vector<i64> profile(const OrderGraph& graph, std::span<const i32> order) {
  if (static_cast<i32>(order.size()) != graph.ops) return {};
  OrderState state(graph);
  std::vector<i64> bytes;
  bytes.reserve(order.size());
  for (const i32 op : order) {
    if (op < 0 || op >= graph.ops || !state.is_ready(op)) return {};
    bytes.push_back(state.run(op));
  }
  return bytes;
}

i64 peak(const OrderGraph& graph, std::span<const i32> order) {
  const auto bytes = profile(graph, order);
  if (static_cast<i32>(bytes.size()) != graph.ops) return -1;
  // A program without ops still holds what is there at its beginning.
  return bytes.empty() ? OrderState(graph).alive() : *std::max_element(bytes.begin(), bytes.end());
}

}  // namespace loadmaster
