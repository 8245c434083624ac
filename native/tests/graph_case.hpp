// Random cases of GraphOptimization, for the native tests, and a fusion pass that knows no short cuts.
#pragma once

#include <numeric>
#include <set>

#include "graph/batch.hpp"
#include "random_model.hpp"

namespace loadmaster {

// Some ops only show an earlier tensor: whoever reads theirs reads that.
inline void make_views(Model& m, Random& rng) {
  for (i32 op = 1; op < m.ops; ++op) {
    if (!rng.chance(0.1)) continue;
    m.view[op] = 1;
    m.view_root[op] = m.root[op] = m.root[rng.below(op)];
    m.writer[op] = -1;
    m.output[op] = 0;
  }
  Accesses kept;
  kept.rows.start.push_back(0);
  for (i32 op = 0; op < m.ops; ++op) {
    std::set<i32> seen;
    for (i64 row = m.access.rows.begin(op); row < m.access.rows.end(op) && !m.view[op]; ++row) {
      const i32 t = m.root[m.access.tensor[row]];
      if (!seen.insert(t).second) continue;
      kept.tensor.push_back(t);
      kept.bytes.push_back(m.access.bytes[row]);
      kept.write.push_back(m.access.write[row]);
    }
    kept.rows.start.push_back(static_cast<i64>(kept.tensor.size()));
  }
  m.access = kept;
}

// Several devices, some of which share a memory, with views, loops, hard groups and missing links.
inline Model random_graph_model(Random& rng, const Shape& shape = {}) {
  const int devices = static_cast<int>(1 + rng.below(3));
  Model m = random_model(rng, devices, false, shape);
  make_views(m, rng);
  const i32 first = static_cast<i32>(rng.below(m.ops)), last = first + static_cast<i32>(rng.below(4));
  const bool loops = rng.chance(0.5);
  m.group_op.assign(2, -1);
  for (i32 op = 0; op < m.ops; ++op) {
    if (loops && op >= first && op < last) m.loop[op] = 0, m.repeat[op] = 3;
    if (m.view[op] || !rng.chance(0.2)) continue;
    m.group[op] = static_cast<i32>(rng.below(2));
    if (m.group_op[m.group[op]] < 0) m.group_op[m.group[op]] = op;
  }
  for (i32 t = m.ops; t < m.tensors; ++t)
    if (rng.chance(0.3)) m.tensor_group[t] = static_cast<i32>(rng.below(2));
  for (i32 t = 0; t < m.ops; ++t) m.tied[t] = m.root[t] == t && rng.chance(0.05);
  if (devices > 1 && rng.chance(0.3)) m.devices[1].reach.back() = m.devices[0].reach.back();
  if (rng.chance(0.2))
    for (i32& link : m.link_between)
      if (rng.chance(0.1)) link = -1;
  if (rng.chance(0.3))
    for (LinkModel& link : m.links) link.engines.clear();
  if (rng.chance(0.2))
    for (i8& named : m.named)
      if (rng.chance(0.05)) named = 2;
  if (rng.chance(0.8)) {  // no tensor whose transfer takes for ever
    for (i64& bytes : m.size) bytes = std::min<i64>(bytes, 200);
    m.place_size = m.size;
  }
  if (rng.chance(0.2)) {  // many things happen at one time
    for (DeviceModel& device : m.devices) device.launch = 0;
    for (i64& time : m.compute) time = rng.below(2);
    for (i64& bytes : m.access.bytes) bytes = 0;
  }
  m.prepare();
  return m;
}

inline graph::FusionColumns random_columns(const Model& m, Random& rng) {
  graph::FusionColumns c;
  c.component = m.group;
  for (i32 op = 0; op < m.ops; ++op) {
    c.fusible.push_back(!m.view[op] && rng.chance(0.85));
    c.big_reduction.push_back(rng.chance(0.1));
    c.cheap.push_back(rng.chance(0.5));
  }
  const bool one_size = rng.chance(0.5);
  for (i32 t = 0; t < m.tensors; ++t) c.loop_size.push_back(one_size ? 1 : 1 + rng.below(2));
  for (std::size_t row = 0; row < m.access.tensor.size(); ++row) c.repeats.push_back(rng.chance(0.2));
  if (rng.chance(0.2))
    for (i32 op = 0; op < m.ops; ++op) c.device.push_back(static_cast<i32>(rng.below(2)));
  c.all_readers = rng.chance(0.3);
  return c;
}

// A group for every hard component, others at random; the last one may decide for nothing.
inline std::vector<i32> random_groups(const Model& m, Random& rng, i32 groups) {
  std::vector<i32> group(m.ops, -1);
  for (i32 op = 0; op < m.ops; ++op)
    if (!m.view[op]) group[op] = m.group[op] >= 0 ? m.group[op] : static_cast<i32>(rng.below(groups));
  return group;
}

inline std::vector<double> random_keys(i64 count, Random& rng) {
  std::vector<double> keys(count);
  for (double& key : keys) key = static_cast<double>(rng.below(9)) / 8.0;  // some below kNever, many equal
  return keys;
}

// Tests every union of clusters by the rules as they are told, and for cycles by sorting all clusters.
class SlowFuser {
 public:
  SlowFuser(const Model& model, const graph::FusionColumns& columns) : m_(model), c_(columns) {}

  std::vector<i32> fuse(const std::vector<double>& keys) {
    cluster_.resize(m_.ops);
    std::iota(cluster_.begin(), cluster_.end(), 0);
    std::vector<i32> order(cluster_);
    std::stable_sort(order.begin(), order.end(), [&](i32 a, i32 b) { return keys[a] > keys[b]; });
    for (const i32 op : order)
      if (keys[op] >= graph::kNever)
        for (i64 row = m_.access.rows.begin(op); row < m_.access.rows.end(op); ++row)
          if (m_.access.write[row]) visit(op, m_.access.tensor[row]);
    std::vector<i32> fusion(m_.ops, -1);
    for (i32 op = 0; op < m_.ops; ++op)
      if (std::count(cluster_.begin(), cluster_.end(), cluster_[op]) > 1)
        fusion[op] =
            static_cast<i32>(std::find(cluster_.begin(), cluster_.end(), cluster_[op]) - cluster_.begin());
    return fusion;
  }
  i64 merges = 0, cycles = 0, many_ops = 0, many_ends = 0, many_reductions = 0;  // refused for that

 private:
  std::vector<i32> readers(i32 t) const {
    return {m_.reader.begin() + m_.reader_rows.begin(t), m_.reader.begin() + m_.reader_rows.end(t)};
  }
  void visit(i32 op, i32 t) {
    if (c_.all_readers) return try_merge(op, readers(t));
    for (const i32 reader : readers(t)) try_merge(op, {reader});
  }
  void try_merge(i32 op, const std::vector<i32>& with) {
    const std::vector<i32> before = cluster_;
    for (const i32 other : with) {
      const i32 old = cluster_[other];
      for (i32& c : cluster_)
        if (c == old) c = cluster_[op];
    }
    if (cluster_ == before) return;
    if (legal(cluster_[op]) && acyclic())
      ++merges;
    else
      cluster_ = before;
  }
  bool legal(i32 which) {
    std::vector<i32> members;
    for (i32 op = 0; op < m_.ops; ++op)
      if (cluster_[op] == which) members.push_back(op);
    std::set<i32> loops, components, hard, devices, ends;
    std::set<i64> sizes;
    i32 reductions = 0;
    for (const i32 op : members) {
      if (!c_.fusible[op]) return false;
      loops.insert(m_.loop[op]);
      if (c_.component[op] >= 0) components.insert(c_.component[op]);
      if (m_.group[op] >= 0) hard.insert(m_.group[op]);
      if (!c_.device.empty()) devices.insert(c_.device[op]);
      reductions += c_.big_reduction[op];
      for (i64 row = m_.access.rows.begin(op); row < m_.access.rows.end(op); ++row) {
        const i32 t = m_.access.tensor[row], writer = m_.writer[t];
        if (m_.access.write[row]) {
          bool leaves = m_.output[t] || m_.tied[t];
          for (const i32 reader : readers(t)) leaves |= cluster_[reader] != which;
          if (leaves) ends.insert(t), sizes.insert(c_.loop_size[t]);
        } else if (writer < 0 || cluster_[writer] != which) {
          ends.insert(t);
        } else if (c_.big_reduction[writer] || (c_.repeats[row] && !c_.cheap[writer])) {
          return false;
        }
      }
    }
    if (loops.size() > 1 || components.size() > 1 || hard.size() > 1 || devices.size() > 1) return false;
    if (sizes.size() > 1) return false;
    many_ops += members.size() > graph::kMostOps;
    many_ends += ends.size() > graph::kMostEnds;
    many_reductions += reductions > graph::kMostReductions;
    return members.size() <= graph::kMostOps && ends.size() <= graph::kMostEnds &&
           reductions <= graph::kMostReductions;
  }
  // Takes away clusters nothing leads to, until there are none.
  bool acyclic() {
    std::set<std::pair<i32, i32>> edges;
    for (i32 t = 0; t < m_.tensors; ++t)
      for (const i32 reader : readers(t))
        if (m_.writer[t] >= 0 && cluster_[m_.writer[t]] != cluster_[reader])
          edges.emplace(cluster_[m_.writer[t]], cluster_[reader]);
    for (std::size_t before = edges.size() + 1; before != edges.size();) {
      before = edges.size();
      std::set<i32> later;
      for (const auto& edge : edges) later.insert(edge.second);
      std::erase_if(edges, [&](const auto& edge) { return !later.contains(edge.first); });
    }
    cycles += !edges.empty();
    return edges.empty();
  }

  const Model& m_;
  const graph::FusionColumns& c_;
  std::vector<i32> cluster_;
};

}  // namespace loadmaster
