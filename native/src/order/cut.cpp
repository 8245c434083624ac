#include "cut.hpp"

#include <algorithm>
#include <stdexcept>

namespace loadmaster {

CutNetwork::CutNetwork(const OrderGraph& graph) : graph_(&graph) {
  struct Edge {
    i32 from, to;
    i64 room, back;
  };
  std::vector<Edge> edges;
  std::vector<i64> given(graph.ops, 0), kept(graph.ops, 0);
  // [op] where its edge to the op in hand is, and which op that was
  std::vector<i32> place(graph.ops), of(graph.ops, -1);
  for (i32 op = 0; op < graph.ops; ++op) {
    for (const i32 other : graph.before[op]) {
      if (of[other] == op) continue;
      of[other] = op;
      place[other] = static_cast<i32>(edges.size());
      edges.push_back({other, op, 0, kNoLimit});
    }
    for (const i32 v : graph.uses[op]) {
      if (graph.kept[v] || graph.users[v].size() != 1) continue;
      const i32 by = graph.opener[v];
      if (by < 0)
        given[op] += graph.size[v];
      else if (of[by] == op)
        edges[place[by]].room += graph.size[v];
      else
        edges.push_back({by, op, graph.size[v], 0});
    }
  }
  i32 nodes = graph.ops;
  const i32 kSource = -1;
  for (i32 v = 0; v < graph.values(); ++v) {
    const i32 by = graph.opener[v];
    if (graph.kept[v]) {
      (by < 0 ? always_ : kept[by]) += graph.size[v];
    } else if (graph.users[v].size() > 1 && graph.size[v] > 0) {
      edges.push_back({by < 0 ? kSource : by, nodes, graph.size[v], 0});
      for (const i32 user : graph.users[v]) edges.push_back({nodes, user, kNoLimit, 0});
      ++nodes;
    }
  }
  source_ = nodes++;
  sink_ = nodes++;
  for (Edge& edge : edges)
    if (edge.from == kSource) edge.from = source_;
  const i32 ends = static_cast<i32>(edges.size());
  for (i32 op = 0; op < graph.ops; ++op) {
    edges.push_back({source_, op, given[op], 0});
    edges.push_back({op, sink_, kept[op], 0});
  }
  first_.assign(nodes + 1, 0);
  for (const Edge& edge : edges) ++first_[edge.from + 1], ++first_[edge.to + 1];
  for (i32 node = 0; node < nodes; ++node) first_[node + 1] += first_[node];
  std::vector<i32> free(first_.begin(), first_.end() - 1);
  arcs_.resize(2 * edges.size());
  from_source_.resize(graph.ops);
  to_sink_.resize(graph.ops);
  for (i32 e = 0; e < static_cast<i32>(edges.size()); ++e) {
    const Edge& edge = edges[e];
    const i32 there = free[edge.from]++, back = free[edge.to]++;
    arcs_[there] = {edge.to, back, edge.room};
    arcs_[back] = {edge.from, there, edge.back};
    edges_.push_back(there);
    if (e >= ends) ((e - ends) % 2 == 0 ? from_source_ : to_sink_)[(e - ends) / 2] = there;
  }
  for (const Arc& arc : arcs_) full_.push_back(arc.room);
  open_.assign(edges_.size(), 0);
  steps_.resize(nodes);
  next_.resize(nodes);
}

// Steps from each node to the sink along arcs with room for `least`, as far as the source is away.
bool CutNetwork::measure(i64 least) {
  std::fill(steps_.begin(), steps_.end(), -1);
  std::vector<i32>& queue = stack_;
  queue.assign(1, sink_);
  steps_[sink_] = 0;
  for (size_t i = 0; i < queue.size() && steps_[source_] < 0; ++i)
    for (i32 a = first_[queue[i]]; a < first_[queue[i] + 1]; ++a) {
      const i32 from = arcs_[a].to;
      if (steps_[from] >= 0 || arcs_[arcs_[a].back].room < least) continue;
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
  std::copy(first_.begin(), first_.end() - 1, next_.begin());
  bool pushed = false;
  for (i32 node = source_;;) {
    if (node == sink_) {
      i64 room = kNoLimit;
      for (const i32 a : path) room = std::min(room, arcs_[a].room);
      size_t narrow = 0;
      for (size_t i = path.size(); i-- > 0;) {
        arcs_[path[i]].room -= room;
        arcs_[arcs_[path[i]].back].room += room;
        if (arcs_[path[i]].room < least) narrow = i;
      }
      node = arcs_[arcs_[path[narrow]].back].to;
      path.resize(narrow);
      bytes += room;
      pushed = true;
      if (bytes >= enough || out_of_time()) return false;
      continue;
    }
    auto& at = next_[node];
    const i32 end = first_[node + 1];
    while (at < end && (steps_[arcs_[at].to] != steps_[node] - 1 || arcs_[at].room < least)) ++at;
    if (at < end) {
      path.push_back(at);
      node = arcs_[at].to;
    } else if (path.empty()) {
      return pushed;
    } else {
      node = arcs_[arcs_[path.back()].back].to;
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
  std::vector<i8> met(steps_.size(), 0);
  std::vector<i32> queue{of_source ? source_ : sink_};
  met[queue[0]] = 1;
  for (size_t i = 0; i < queue.size(); ++i)
    for (i32 a = first_[queue[i]]; a < first_[queue[i] + 1]; ++a)
      if (!met[arcs_[a].to] && arcs_[of_source ? a : arcs_[a].back].room > 0) {
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

void CutNetwork::go_on_from(const Flow& start) {
  bool fits = start.pushed.size() == edges_.size();
  std::vector<i64> left(steps_.size(), 0);  // what comes in and does not go out
  left[source_] = start.bytes;
  left[sink_] = -start.bytes;
  for (std::size_t e = 0; e < edges_.size() && fits; ++e) {
    Arc& arc = arcs_[edges_[e]];
    Arc& back = arcs_[arc.back];
    arc.room -= start.pushed[e];
    back.room += start.pushed[e];
    left[back.to] -= start.pushed[e];
    left[arc.to] += start.pushed[e];
    fits = arc.room >= 0 && back.room >= 0;
  }
  fits = fits && std::all_of(left.begin(), left.end(), [](i64 bytes) { return bytes == 0; });
  if (!fits) throw std::invalid_argument("this flow is not of fewer bound ops");
}

CutNetwork::Flow CutNetwork::flow() const {
  Flow result{std::vector<i64>(edges_.size()), pushed_};
  for (std::size_t e = 0; e < edges_.size(); ++e) result.pushed[e] = open_[e] - arcs_[edges_[e]].room;
  return result;
}

// Large flows first: few of them make up most of the whole.
i64 CutNetwork::augment(i64 bytes, i64 enough) {
  i64 least = 1;
  for (const i64 size : graph_->size)
    while (least < size) least *= 4;
  for (; least >= 1; least /= 4)
    while (pass(least, enough, bytes)) {
    }
  return bytes;
}

CutNetwork::Cut CutNetwork::below(i32 op, std::span<const i32> sooner, std::span<const i32> later, i64 enough,
                                  bool largest, double seconds, const Flow* start) {
  begin(op, seconds);
  for (const i32 other : sooner) arcs_[from_source_[other]].room = kNoLimit;
  for (const i32 other : later) arcs_[to_sink_[other]].room = kNoLimit;
  for (std::size_t e = 0; e < edges_.size(); ++e) open_[e] = arcs_[edges_[e]].room;
  i64 bytes = graph_->base + always_ + graph_->hump[op];
  pushed_ = -bytes;
  if (start != nullptr) {
    go_on_from(*start);
    bytes += start->bytes;
  }
  if (bytes < enough) bytes = augment(bytes, enough);
  pushed_ += bytes;
  Cut cut{bytes, false, {}};
  if (cut.bytes >= enough || late_) return cut;
  cut.complete = true;
  const auto met = side(!largest);
  for (i32 other = 0; other < graph_->ops; ++other)
    if (static_cast<bool>(met[other]) != largest) cut.sooner.push_back(other);
  return cut;
}

}  // namespace loadmaster
