#include "graph/fusion.hpp"

#include <algorithm>

namespace loadmaster::graph {
namespace {

constexpr i64 kGap = i64{1} << 36;  // between places: room for clusters that move

}  // namespace

Clusters::Clusters(const FusionRules& rules)
    : rules_(rules),
      model_(rules.model),
      alone_(model_.ops),
      nodes_(model_.ops),
      before_(model_.ops + 1),
      after_(model_.ops + 1),
      seen_tensor_(model_.tensors, 0) {
  searches_[kAhead].to = &rules.next;
  searches_[kBack].to = &rules.prev;
  for (i32 op = 0; op <= model_.ops; ++op) {
    searches_[kAhead].start.push_back(static_cast<i32>(rules.next_rows.start[op]));
    searches_[kBack].start.push_back(static_cast<i32>(rules.prev_rows.start[op]));
  }
  for (i32 op = 0; op < model_.ops; ++op) {
    Summary& s = alone_[op];
    s = {1, rules.columns.component[op], model_.group[op], rules.columns.big_reduction[op], 0, 0, 0, false};
    bool any = false;
    for (i64 row = model_.access.rows.begin(op); row < model_.access.rows.end(op); ++row) {
      const i32 t = model_.access.tensor[row];
      ++s.most_ends;
      if (!model_.access.write[row]) {
        s.closed += model_.writer[t] >= 0 && model_.writer[t] != op && !rules.may_read_inside(row);
        continue;
      }
      s.leaves = s.leaves || model_.output[t] || model_.tied[t];
      for (i64 i = model_.reader_rows.begin(t); i < model_.reader_rows.end(t); ++i)
        s.leaves = s.leaves || model_.reader[i] != op;
      const i64 size = rules.columns.loop_size[t];
      s.loop_size = !any || s.loop_size == size ? size : kMixed;
      any = true;
    }
    if (!any) s.loop_size = kMixed;
  }
  reset();
}

void Clusters::reset() {
  summary_ = alone_;
  std::fill(seen_tensor_.begin(), seen_tensor_.end(), 0);
  stamp_ = 0;
  for (i32 op = 0; op < model_.ops; ++op) nodes_[op] = {op, op, 0, 0, {0, 0}};
  // The program's order is one of clusters of one op.
  for (i32 op = 0; op <= model_.ops; ++op) {
    before_[op] = op > 0 ? op - 1 : model_.ops;
    after_[op] = op < model_.ops ? op + 1 : 0;
  }
  spread_places();
}

void Clusters::spread_places() {
  i64 place = 0;
  for (i32 op = after_[model_.ops]; op != model_.ops; op = after_[op]) nodes_[op].place = place += kGap;
}

bool Clusters::visit(i32 producer) {
  bool merged = false;
  const i64 end = rules_.edge_rows.end(producer);
  for (i64 i = rules_.edge_rows.begin(producer); i < end;) {
    if (!rules_.columns.all_readers) {
      pair_.assign({find(producer), find(rules_.edges[i].reader)});
      merged |=
          pair_[0] != pair_[1] && !mixes_loops(rules_.edges[i].tensor, pair_[0], pair_[1]) && merge(pair_);
      ++i;
      continue;
    }
    // All readers of one result: only if each of them has an edge.
    const i32 t = rules_.edges[i].tensor;
    pair_.assign({find(producer)});
    i64 readers = 0;
    for (; i < end && rules_.edges[i].tensor == t; ++i, ++readers) {
      const i32 root = find(rules_.edges[i].reader);
      if (std::find(pair_.begin(), pair_.end(), root) == pair_.end()) pair_.push_back(root);
    }
    i64 others = 0;
    for (i64 r = model_.reader_rows.begin(t); r < model_.reader_rows.end(t); ++r)
      others += model_.reader[r] != producer;
    if (readers == others && pair_.size() > 1) merged |= merge(pair_);
  }
  return merged;
}

// A quick no: the readers leave results of one loop size, and the tensor, of another, still leaves.
bool Clusters::mixes_loops(i32 tensor, i32 from, i32 to) {
  const i64 made = summary_[from].loop_size, left = summary_[to].loop_size;
  if (made == kMixed || left == kMixed || made == left || !summary_[to].leaves) return false;
  if (model_.output[tensor] || model_.tied[tensor]) return true;
  for (i64 i = model_.reader_rows.begin(tensor); i < model_.reader_rows.end(tensor); ++i) {
    const i32 root = find(model_.reader[i]);
    if (root != from && root != to) return true;
  }
  return false;
}

Clusters::Summary Clusters::joined(const std::vector<i32>& roots) const {
  Summary sum = summary_[roots[0]];
  for (std::size_t i = 1; i < roots.size(); ++i) {
    const Summary& s = summary_[roots[i]];
    sum.count += s.count;
    sum.component = std::max(sum.component, s.component);
    sum.group = std::max(sum.group, s.group);
    sum.reductions += s.reductions;
    sum.most_ends += s.most_ends;
    sum.closed += s.closed;
    if (sum.loop_size != s.loop_size) sum.loop_size = kMixed;
    sum.leaves = roots.size() == 2 && s.leaves;  // nobody in the first reads results of the second
  }
  return sum;
}

bool Clusters::keeps_rules(const std::vector<i32>& roots) {
  ++stamp_;
  const Summary sum = joined(roots);
  if (sum.count > kMostOps || sum.reductions > kMostReductions) return false;
  for (const i32 root : roots) {
    const Summary& s = summary_[root];
    if ((s.component >= 0 && s.component != sum.component) || (s.group >= 0 && s.group != sum.group))
      return false;
    nodes_[root].mark = stamp_;
  }
  exact_ends_ = sum.most_ends;
  exact_loop_size_ = sum.loop_size;
  if (sum.closed > 0 && reads_closed(roots)) return false;
  // Mostly the summaries tell: few ends, one loop size.
  return (sum.most_ends <= kMostEnds && sum.loop_size != kMixed) || count_ends(roots);
}

// Whether a member reads what it may not read inside its cluster.
bool Clusters::reads_closed(const std::vector<i32>& roots) {
  for (const i32 root : roots) {
    if (summary_[root].closed == 0) continue;
    i32 op = root;
    do {
      const i64 end = alone_[op].closed > 0 ? model_.access.rows.end(op) : 0;
      for (i64 row = model_.access.rows.begin(op); row < end; ++row) {
        const i32 writer = model_.writer[model_.access.tensor[row]];
        if (!model_.access.write[row] && writer >= 0 && writer != op && !rules_.may_read_inside(row) &&
            is_in(find(writer)))
          return true;
      }
      op = nodes_[op].ring;
    } while (op != root);
  }
  return false;
}

// The rules on ends and loop sizes, with a look at every member.
bool Clusters::count_ends(const std::vector<i32>& roots) {
  i32 ends = 0;
  i64 loop_size = kMixed;
  for (auto at = roots.rbegin(); at != roots.rend(); ++at) {  // a reader's own size is known soonest
    const i32 root = *at;
    i32 op = root;
    do {
      for (i64 row = model_.access.rows.begin(op); row < model_.access.rows.end(op); ++row) {
        const i32 t = model_.access.tensor[row];
        if (model_.access.write[row]) {
          bool leaves = model_.output[t] || model_.tied[t];
          for (i64 i = model_.reader_rows.begin(t); i < model_.reader_rows.end(t) && !leaves; ++i)
            leaves = !is_in(find(model_.reader[i]));
          if (!leaves) continue;
          ++ends;
          if (loop_size != kMixed && loop_size != rules_.columns.loop_size[t]) return false;
          loop_size = rules_.columns.loop_size[t];
          continue;
        }
        const i32 writer = model_.writer[t];
        if (seen_tensor_[t] == stamp_ || (writer >= 0 && is_in(find(writer)))) continue;
        seen_tensor_[t] = stamp_;
        ++ends;
      }
      op = nodes_[op].ring;
    } while (op != root);
    if (ends > kMostEnds) return false;
  }
  exact_ends_ = ends;
  exact_loop_size_ = loop_size;
  return true;
}

// One more cluster of a search; false: it leads back to the clusters that are to become one.
bool Clusters::look_from(i32 cluster, Way way) {
  Search& search = searches_[way];
  const bool is_start = is_in(cluster);
  const i32* const start = search.start.data();
  const i32* const to = search.to->data();
  i32 op = cluster;
  do {
    search.work += static_cast<std::size_t>(start[op + 1] - start[op]) + 1;
    for (i32 i = start[op]; i < start[op + 1]; ++i) {
      const i32 other = find(to[i]);
      Node& node = nodes_[other];
      if (node.mark == stamp_) {
        if (!is_start) return false;
      } else if (node.seen[way] != stamp_ && node.place > low_ && node.place < high_) {
        node.seen[way] = stamp_;
        search.found.push_back(other);
      }
    }
    op = nodes_[op].ring;
  } while (op != cluster);
  return true;
}

// Looks both ways, with equal effort: as soon as one way is at its end, there is no cycle, and what it found
// is all that has to move.
Clusters::Way Clusters::without_cycle(const std::vector<i32>& roots) {
  low_ = high_ = nodes_[roots[0]].place;
  for (const i32 root : roots) {
    low_ = std::min(low_, nodes_[root].place);
    high_ = std::max(high_, nodes_[root].place);
  }
  for (const Way way : {kAhead, kBack}) {
    searches_[way].found.clear();
    searches_[way].done = searches_[way].work = 0;
    // From the first nothing leads back, and from the last nothing leads on, between them.
    for (const i32 root : roots)
      if (nodes_[root].place != (way == kAhead ? high_ : low_)) look_from(root, way);
    if (searches_[way].found.empty()) return way;
  }
  for (;;) {
    const Search &ahead = searches_[kAhead], &back = searches_[kBack];
    const bool far_ahead = ahead.found.size() > kMostSeen, far_back = back.found.size() > kMostSeen;
    if (far_ahead && far_back) return kNone;  // too far to tell
    const Way way = far_back || (!far_ahead && ahead.work <= back.work) ? kAhead : kBack;
    Search& search = searches_[way];
    if (!look_from(search.found[search.done++], way)) return kNone;
    if (search.done == search.found.size()) return way;
  }
}

void Clusters::unlink(i32 cluster) {
  after_[before_[cluster]] = after_[cluster];
  before_[after_[cluster]] = before_[cluster];
}

// The clusters as one, in the place of the last with all that follows from them behind it, or in the
// place of the first with all that leads to them before it.
void Clusters::reorder(const std::vector<i32>& roots, i32 root, Way way) {
  const auto by_place = [this](i32 a, i32 b) { return nodes_[a].place < nodes_[b].place; };
  std::vector<i32>& found = searches_[way].found;
  std::sort(found.begin(), found.end(), by_place);
  i32 left = before_[*std::min_element(roots.begin(), roots.end(), by_place)];
  i32 right = after_[*std::max_element(roots.begin(), roots.end(), by_place)];
  for (const i32 cluster : roots) unlink(cluster);
  for (const i32 cluster : found) unlink(cluster);
  moved_.clear();
  if (way == kAhead) moved_.push_back(root);
  moved_.insert(moved_.end(), found.begin(), found.end());
  if (way == kBack) moved_.push_back(root);
  if (way == kAhead)
    left = before_[right];
  else
    right = after_[left];
  const i64 from = left == model_.ops ? 0 : nodes_[left].place;
  const i64 slots = static_cast<i64>(moved_.size()) + 1;
  const i64 to = right == model_.ops ? from + kGap * slots : nodes_[right].place;
  const i64 step = (to - from) / slots;
  i64 place = from;
  for (const i32 cluster : moved_) {
    nodes_[cluster].place = place += step;
    before_[cluster] = left;
    after_[left] = cluster;
    left = cluster;
  }
  after_[left] = right;
  before_[right] = left;
  if (step == 0) spread_places();
}

bool Clusters::merge(const std::vector<i32>& roots) {
  if (!keeps_rules(roots)) return false;
  const Way way = without_cycle(roots);
  if (way == kNone) return false;
  i32 into = roots[0];
  for (const i32 root : roots)
    if (summary_[root].count > summary_[into].count) into = root;
  reorder(roots, into, way);
  Summary sum = joined(roots);
  sum.most_ends = exact_ends_;
  sum.loop_size = exact_loop_size_;
  for (const i32 other : roots) {
    if (other == into) continue;
    nodes_[other].parent = into;
    std::swap(nodes_[into].ring, nodes_[other].ring);
  }
  summary_[into] = sum;
  return true;
}

void Clusters::write(i32* fusion) {
  std::fill(fusion, fusion + model_.ops, -1);
  for (i32 op = 0; op < model_.ops; ++op) {
    const i32 root = find(op);
    if (summary_[root].count < 2) continue;
    if (fusion[root] < 0) fusion[root] = op;  // the smallest member comes first
    fusion[op] = fusion[root];
  }
}

void Fuser::fuse(const double* keys, i32* fusion) {
  clusters_.reset();
  visits_.clear();
  for (const i32 op : rules_.producers)
    if (keys[op] >= kNever) visits_.emplace_back(-keys[op], op);
  std::sort(visits_.begin(), visits_.end());
  for (const auto& [key, op] : visits_) clusters_.visit(op);
  clusters_.write(fusion);
}

}  // namespace loadmaster::graph
