// Buffers whose windows may interlock (one sits in another's hollow): no bottom-up order describes
// every layout, so this search tries every offset that can matter. For proofs on small inputs.
#pragma once

#include "search.hpp"

namespace loadmaster {

class ShapeSearch {
 public:
  ShapeSearch(const Sections& sections, i64 capacity);
  template <class Obsolete>
  SearchEnd run(i64 budget, Obsolete&& obsolete) {
    const auto go_on = [&] { return ++nodes_ < budget && ((nodes_ & 255) || !obsolete()); };
    const SearchEnd outcome = gather(go_on) ? descend(go_on) : SearchEnd::kOutOfBudget;
    return outcome;
  }
  i64 nodes() const { return nodes_; }
  std::span<const i64> offsets() const { return offset_; }

 private:
  template <class GoOn>
  bool gather(GoOn& go_on);
  template <class GoOn>
  SearchEnd descend(GoOn& go_on);
  bool free(i32 b, i64 at);

  const Sections& in_;
  std::vector<i64> latest_, offset_;
  std::vector<std::vector<i64>> places_;  // per buffer: offsets it can be pushed down to
  std::vector<Forbidden> scratch_;
  i64 nodes_ = 0;
};

// Pushed down, a buffer lies on the ground or on a piece of another: sums of such steps.
template <class GoOn>
bool ShapeSearch::gather(GoOn& go_on) {
  const i32 n = in_.count();
  places_.assign(n, {});
  std::vector<std::pair<i32, i64>> open;
  const auto reach = [&](i32 b, i64 at) {
    at = at <= 0 ? 0 : (at + in_.alignment[b] - 1) / in_.alignment[b] * in_.alignment[b];
    if (in_.pinned[b] >= 0) at = in_.pinned[b];
    auto& known = places_[b];
    const auto where = std::lower_bound(known.begin(), known.end(), at);
    if (at > latest_[b] || (where != known.end() && *where == at)) return;
    known.insert(where, at);
    open.push_back({b, at});
  };
  for (i32 b = 0; b < n; ++b) reach(b, 0);
  while (!open.empty()) {
    const auto [b, at] = open.back();
    open.pop_back();
    if (!go_on()) return false;
    for (i32 c = 0; c < n; ++c) {
      if (!in_.conflicts.get(b, c)) continue;
      scratch_.clear();
      forbidden(in_, c, b, at, scratch_);
      const std::vector<Forbidden> steps = scratch_;
      for (const Forbidden& step : steps)
        if (step.to >= 0) reach(c, step.to);
    }
  }
  return true;
}

template <class GoOn>
SearchEnd ShapeSearch::descend(GoOn& go_on) {
  // The buffer with the fewest offsets left comes next.
  i32 next = -1;
  std::vector<i64> fewest;
  for (i32 b = 0; b < in_.count(); ++b) {
    if (offset_[b] >= 0) continue;
    std::vector<i64> left;
    for (const i64 at : places_[b])
      if (free(b, at)) left.push_back(at);
    if (next < 0 || left.size() < fewest.size()) {
      next = b;
      fewest = std::move(left);
    }
  }
  if (next < 0) return SearchEnd::kFound;
  for (const i64 at : fewest) {
    if (!go_on()) return SearchEnd::kOutOfBudget;
    offset_[next] = at;
    const SearchEnd below = descend(go_on);
    if (below != SearchEnd::kNone) return below;
  }
  offset_[next] = -1;
  return SearchEnd::kNone;
}

}  // namespace loadmaster
