#include "cut.hpp"

#include <algorithm>

namespace loadmaster {

CutNetwork::CutNetwork(const OrderGraph& graph)
    : graph_(&graph), source_(graph.ops + graph.values()), sink_(source_ + 1), out_(sink_ + 1) {
  for (i32 op = 0; op < graph.ops; ++op) {
    from_source_.push_back(static_cast<i32>(arcs_.size()));
    add(source_, op, 0);
    to_sink_.push_back(static_cast<i32>(arcs_.size()));
    add(op, sink_, 0);
    for (const i32 other : graph.before[op]) add(op, other, kNoLimit);
  }
  for (i32 v = 0; v < graph.values(); ++v) {
    if (graph.size[v] == 0) continue;
    const i32 node = graph.ops + v;
    add(graph.opener[v] < 0 ? source_ : graph.opener[v], node, graph.size[v]);
    for (const i32 user : graph.users[v]) add(node, user, kNoLimit);
    if (graph.kept[v]) add(node, sink_, kNoLimit);
  }
  for (const Arc& arc : arcs_) full_.push_back(arc.room);
  steps_.resize(out_.size());
  next_.resize(out_.size());
}

void CutNetwork::add(i32 from, i32 to, i64 room) {
  out_[from].push_back(static_cast<i32>(arcs_.size()));
  arcs_.push_back({to, room});
  out_[to].push_back(static_cast<i32>(arcs_.size()));
  arcs_.push_back({from, 0});
}

// Steps from each node to the sink along arcs with room for `least`, as far as the source is away.
bool CutNetwork::measure(i64 least) {
  std::fill(steps_.begin(), steps_.end(), -1);
  std::vector<i32>& queue = stack_;
  queue.assign(1, sink_);
  steps_[sink_] = 0;
  for (size_t i = 0; i < queue.size() && steps_[source_] < 0; ++i)
    for (const i32 a : out_[queue[i]]) {
      const i32 from = arcs_[a].to;
      if (steps_[from] >= 0 || arcs_[a ^ 1].room < least) continue;
      steps_[from] = steps_[queue[i]] + 1;
      queue.push_back(from);
    }
  return steps_[source_] >= 0;
}

// Augments along shortest paths whose arcs all have room for `least`, depth first, and never enters a
// node again from which it has found no way. Whether it pushed anything.
bool CutNetwork::pass(i64 least, i64 enough, i64& bytes) {
  if (!measure(least)) return false;
  // A stack of our own: paths may be as long as the program.
  std::vector<i32>& path = stack_;
  path.clear();
  std::fill(next_.begin(), next_.end(), 0);
  bool pushed = false;
  for (i32 node = source_;;) {
    if (node == sink_) {
      i64 room = kNoLimit;
      for (const i32 a : path) room = std::min(room, arcs_[a].room);
      size_t narrow = 0;
      for (size_t i = path.size(); i-- > 0;) {
        arcs_[path[i]].room -= room;
        arcs_[path[i] ^ 1].room += room;
        if (arcs_[path[i]].room < least) narrow = i;
      }
      node = arcs_[path[narrow] ^ 1].to;
      path.resize(narrow);
      bytes += room;
      pushed = true;
      if (bytes >= enough || out_of_time()) return false;
      continue;
    }
    auto& at = next_[node];
    const auto& arcs = out_[node];
    while (at < static_cast<i32>(arcs.size()) &&
           (arcs_[arcs[at]].room < least || steps_[arcs_[arcs[at]].to] != steps_[node] - 1))
      ++at;
    if (at < static_cast<i32>(arcs.size())) {
      path.push_back(arcs[at]);
      node = arcs_[arcs[at]].to;
    } else if (path.empty()) {
      return pushed;
    } else {
      node = arcs_[path.back() ^ 1].to;
      path.pop_back();
      ++next_[node];
    }
  }
}

bool CutNetwork::out_of_time() {
  if (deadline_ == Clock::time_point::max()) return false;
  late_ = late_ || (++looks_ % 64 == 0 && Clock::now() >= deadline_);
  return late_;
}

// All nodes that the source reaches, or that reach the sink, along arcs with room.
std::vector<i8> CutNetwork::side(bool of_source) const {
  std::vector<i8> met(out_.size(), 0);
  std::vector<i32> queue{of_source ? source_ : sink_};
  met[queue[0]] = 1;
  for (size_t i = 0; i < queue.size(); ++i)
    for (const i32 a : out_[queue[i]])
      if (!met[arcs_[a].to] && arcs_[of_source ? a : a ^ 1].room > 0) {
        met[arcs_[a].to] = 1;
        queue.push_back(arcs_[a].to);
      }
  return met;
}

void CutNetwork::begin(i32 op, double seconds) {
  deadline_ = seconds < 0
                  ? Clock::time_point::max()
                  : Clock::now() + std::chrono::nanoseconds(static_cast<i64>(std::min(seconds, 1e9) * 1e9));
  late_ = false;
  for (size_t a = 0; a < arcs_.size(); ++a) arcs_[a].room = full_[a];
  for (const i32 other : graph_->before[op]) arcs_[from_source_[other]].room = kNoLimit;
  arcs_[to_sink_[op]].room = kNoLimit;
}

// Large flows first: few of them make up most of the whole.
i64 CutNetwork::flow(i64 bytes, i64 enough) {
  i64 least = 1;
  for (const i64 size : graph_->size)
    while (least < size) least *= 4;
  for (; least >= 1; least /= 4)
    while (pass(least, enough, bytes)) {
    }
  return bytes;
}

CutNetwork::Cut CutNetwork::below(i32 op, std::span<const i32> sooner, std::span<const i32> later, i64 enough,
                                  bool largest, double seconds) {
  begin(op, seconds);
  for (const i32 other : sooner) arcs_[from_source_[other]].room = kNoLimit;
  for (const i32 other : later) arcs_[to_sink_[other]].room = kNoLimit;
  Cut cut{flow(graph_->base + graph_->grows[op], enough), false, {}};
  if (cut.bytes >= enough || late_) return cut;
  cut.complete = true;
  const auto met = side(!largest);
  for (i32 other = 0; other < graph_->ops; ++other)
    if (static_cast<bool>(met[other]) != largest) cut.sooner.push_back(other);
  return cut;
}

}  // namespace loadmaster
