#include "beam.hpp"

#include <algorithm>
#include <tuple>
#include <unordered_set>

namespace loadmaster {

namespace {

u64 sign(i32 op) {
  u64 x = (static_cast<u64>(op) + 1) * 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 31)) * 0xD6E8FEB86659FD93ull;
  return x ^ (x >> 32);
}

}  // namespace

PeakBeam::PeakBeam(const OrderGraph& graph, i32 width) : graph_(&graph), width_(std::max(1, width)) {
  OrderState state(graph);
  const i64 alive = state.alive();
  kept_.push_back({std::move(state), alive, 0});
}

void PeakBeam::level() {
  struct Child {
    i64 peak, alive;
    i32 parent, op;
    u64 hash;
  };
  std::vector<Child> children;
  for (i32 p = 0; p < static_cast<i32>(kept_.size()); ++p) {
    const auto& [state, peak, hash] = kept_[p];
    const auto first = children.size();
    for (const i32 op : state.ready()) {
      const i64 net = state.net(op), during = state.during(op);
      const Child child{std::max(peak, during), state.alive() + net, p, op, hash ^ sign(op)};
      if (net <= 0 && during <= peak) {  // it loses nothing: no other op need be tried first
        children.resize(first);
        children.push_back(child);
        break;
      }
      children.push_back(child);
    }
  }
  std::sort(children.begin(), children.end(), [](const Child& a, const Child& b) {
    return std::tie(a.peak, a.alive, a.parent, a.op) < std::tie(b.peak, b.alive, b.parent, b.op);
  });
  std::vector<Kept> next;
  std::vector<Step> steps;
  std::unordered_set<u64> met;
  for (const Child& child : children) {
    if (next.size() == width_) break;
    if (!met.insert(child.hash).second) continue;
    next.push_back({kept_[child.parent].state, child.peak, child.hash});
    next.back().state.run(child.op);
    steps.push_back({child.parent, child.op});
  }
  kept_ = std::move(next);
  steps_.push_back(std::move(steps));
}

bool PeakBeam::advance(i32 levels) {
  for (i32 i = 0; i < levels && static_cast<i32>(steps_.size()) < graph_->ops; ++i) level();
  return static_cast<i32>(steps_.size()) == graph_->ops;
}

std::vector<i32> PeakBeam::order() const {
  std::vector<i32> order(steps_.size());
  i32 at = 0;
  for (size_t level = steps_.size(); level-- > 0;) {
    order[level] = steps_[level][at].op;
    at = steps_[level][at].parent;
  }
  return order;
}

}  // namespace loadmaster
