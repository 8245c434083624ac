#include "graph/rules.hpp"

#include <algorithm>

namespace loadmaster::graph {

FusionRules::FusionRules(const Model& m, FusionColumns c) : model(m), columns(std::move(c)) {
  list_neighbours();
  find_inside();
  list_edges();
  drop_blocked();
  touched.assign(model.ops, 0);
  for (i32 op = 0; op < model.ops; ++op) {
    if (edge_rows.begin(op) == edge_rows.end(op)) continue;
    producers.push_back(op);
    touched[op] = 1;
    for (i64 i = edge_rows.begin(op); i < edge_rows.end(op); ++i) touched[edges[i].reader] = 1;
  }
}

void FusionRules::list_neighbours() {
  std::vector<std::pair<i32, i32>> pairs;
  for (i32 t = 0; t < model.tensors; ++t) {
    const i32 writer = model.writer[t];
    if (model.root[t] != t || writer < 0) continue;
    for (i64 i = model.reader_rows.begin(t); i < model.reader_rows.end(t); ++i)
      if (model.reader[i] != writer) pairs.emplace_back(writer, model.reader[i]);
  }
  // Who writes over a result comes after all that use it.
  for (i32 t = 0; t < static_cast<i32>(model.overwriter.size()); ++t) {
    const i32 next_writer = model.overwriter[t];
    if (next_writer < 0) continue;
    if (model.writer[t] >= 0) pairs.emplace_back(model.writer[t], next_writer);
    for (i64 i = model.reader_rows.begin(t); i < model.reader_rows.end(t); ++i)
      if (model.reader[i] != next_writer) pairs.emplace_back(model.reader[i], next_writer);
  }
  std::sort(pairs.begin(), pairs.end());
  pairs.erase(std::unique(pairs.begin(), pairs.end()), pairs.end());
  next_rows.start.assign(model.ops + 1, 0);
  prev_rows.start.assign(model.ops + 1, 0);
  for (const auto& [from, to] : pairs) ++next_rows.start[from], ++prev_rows.start[to];
  next.resize(next_rows.sum_counts());
  prev.resize(prev_rows.sum_counts());
  std::vector<i64> at_next(next_rows.start), at_prev(prev_rows.start);
  for (const auto& [from, to] : pairs) {
    next[at_next[from]++] = to;
    prev[at_prev[to]++] = from;
  }
}

void FusionRules::find_inside() {
  inside_.assign(model.access.tensor.size(), 0);
  for (std::size_t row = 0; row < inside_.size(); ++row) {
    const i32 writer = model.writer[model.access.tensor[row]];
    if (writer < 0 || model.access.write[row]) continue;
    inside_[row] = !columns.big_reduction[writer] && (!columns.repeats[row] || columns.cheap[writer]);
  }
}

bool FusionRules::compatible(i32 a, i32 b) const {
  const auto agree = [](i32 x, i32 y) { return x < 0 || y < 0 || x == y; };
  return columns.fusible[a] && columns.fusible[b] && model.loop[a] == model.loop[b] &&
         agree(columns.component[a], columns.component[b]) && agree(model.group[a], model.group[b]) &&
         (columns.device.empty() || columns.device[a] == columns.device[b]);
}

void FusionRules::list_edges() {
  edge_rows.start.assign(1, 0);
  for (i32 op = 0; op < model.ops; ++op) {
    for (i64 row = model.access.rows.begin(op); row < model.access.rows.end(op); ++row) {
      if (!model.access.write[row]) continue;
      const i32 t = model.access.tensor[row];
      for (i64 i = model.reader_rows.begin(t); i < model.reader_rows.end(t); ++i) {
        const i32 reader = model.reader[i];
        if (reader == op || !compatible(op, reader)) continue;
        bool legal = true;
        for (i64 r = model.access.rows.begin(reader); r < model.access.rows.end(reader); ++r)
          if (model.access.tensor[r] == t && !model.access.write[r]) legal = legal && may_read_inside(r);
        if (legal) edges.push_back({t, reader});
      }
    }
    edge_rows.start.push_back(static_cast<i64>(edges.size()));
  }
}

// 64 producers at a time: which of them reach an op, and which do so through a barrier.
void FusionRules::drop_blocked() {
  std::vector<u64> plain(model.ops, 0), through(model.ops, 0);
  std::vector<i8> blocked(edges.size(), 0);
  std::vector<i32> chunk;
  const auto spread = [&] {
    if (chunk.empty()) return;
    const i32 first = chunk.front();
    i32 last = first;
    for (const i32 op : chunk)
      for (i64 i = edge_rows.begin(op); i < edge_rows.end(op); ++i) last = std::max(last, edges[i].reader);
    std::fill(plain.begin() + first, plain.begin() + last + 1, 0);
    std::fill(through.begin() + first, through.begin() + last + 1, 0);
    for (std::size_t k = 0; k < chunk.size(); ++k) plain[chunk[k]] = u64{1} << k;
    for (i32 op = first; op <= last; ++op) {
      u64 seen = plain[op], behind = 0;
      for (i64 i = prev_rows.begin(op); i < prev_rows.end(op); ++i) {
        if (prev[i] < first) continue;
        seen |= plain[prev[i]];
        behind |= through[prev[i]];
      }
      plain[op] = columns.fusible[op] ? seen : 0;
      through[op] = columns.fusible[op] ? behind : behind | seen;
    }
    for (std::size_t k = 0; k < chunk.size(); ++k)
      for (i64 i = edge_rows.begin(chunk[k]); i < edge_rows.end(chunk[k]); ++i)
        blocked[i] = (through[edges[i].reader] >> k & 1) != 0;
    chunk.clear();
  };
  for (i32 op = 0; op < model.ops; ++op) {
    if (edge_rows.begin(op) == edge_rows.end(op)) continue;
    chunk.push_back(op);
    if (chunk.size() == 64) spread();
  }
  spread();
  std::size_t kept = 0;
  i64 begin = 0;
  for (i32 op = 0; op < model.ops; ++op) {
    const i64 end = edge_rows.end(op);
    for (i64 i = begin; i < end; ++i)
      if (!blocked[i]) edges[kept++] = edges[i];
    begin = end;
    edge_rows.start[op + 1] = static_cast<i64>(kept);
  }
  edges.resize(kept);
}

}  // namespace loadmaster::graph
