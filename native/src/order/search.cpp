#include "search.hpp"

#include <algorithm>
#include <tuple>

namespace loadmaster {

namespace {

constexpr int kStretch = 40;  // longest stretch that is looked at for a valley

u64 mixed(u64 x) {  // a fixed bijection that scatters
  x += 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

}  // namespace

PeakSearch::PeakSearch(const OrderGraph& graph, i64 budget) : graph_(&graph), budget_(budget), state_(graph) {
  for (i32 op = 0; op < graph.ops; ++op)
    sign_.push_back({mixed(2 * static_cast<u64>(op)), mixed(mixed(2 * static_cast<u64>(op) + 1))});
}

void PeakSearch::run(i32 op) {
  state_.run(op);
  set_.a ^= sign_[op].a;
  set_.b ^= sign_[op].b;
  path_.push_back(op);
}

void PeakSearch::back_to(size_t length) {
  while (path_.size() > length) {
    const i32 op = path_.back();
    state_.undo(op);
    set_.a ^= sign_[op].a;
    set_.b ^= sign_[op].b;
    path_.pop_back();
  }
}

bool PeakSearch::settle() {
  bool any = false;
  for (bool again = true; again;) {
    again = false;
    for (size_t i = 0; i < state_.ready().size(); ++i) {
      const i32 op = state_.ready()[i];
      if (state_.during(op) > budget_ || state_.net(op) > 0) continue;
      run(op);
      any = again = true;
      break;
    }
  }
  return any;
}

// A chain x1, x2, ... in which each op is the only thing made ready by the one before has no sets
// between but its own beginnings: if it fits and first gets back to where it began, it is a valley.
bool PeakSearch::find_valley() {
  const i64 level = state_.alive();
  const size_t begin = path_.size();
  const std::vector<i32> starts = state_.ready();
  for (const i32 first : starts) {
    i32 op = first;
    for (int length = 0; length < kStretch; ++length) {
      if (state_.during(op) > budget_) break;
      run(op);
      if (state_.alive() <= level) return true;
      i32 next = -1;
      for (const i32 after : graph_->after[op])
        if (state_.is_ready(after)) next = next < 0 ? after : -2;
      if (next < 0) break;
      op = next;
    }
    back_to(begin);
  }
  return false;
}

void PeakSearch::enter() {
  do settle();
  while (state_.done() < graph_->ops && find_valley());
  std::vector<std::tuple<i64, i64, i32>> able;
  if (failed_.contains(set_)) return;  // no choices: the caller turns back
  for (const i32 op : state_.ready())
    if (state_.during(op) <= budget_) able.push_back({state_.net(op), state_.during(op), op});
  std::sort(able.rbegin(), able.rend());
  for (const auto& [net, during, op] : able) frames_.back().choices.push_back(op);
  frames_.back().set = set_;
  ++sets_;
}

PeakSearch::End PeakSearch::advance(i64 sets) {
  const i64 until = sets_ + sets;
  if (!started_) {
    started_ = true;
    if (state_.alive() > budget_) return End::kNone;
    frames_.push_back({0, {}, {}});
    enter();
  }
  while (!frames_.empty()) {
    if (state_.done() == graph_->ops) return End::kFound;
    if (sets_ >= until) return End::kGoesOn;
    Frame& frame = frames_.back();
    if (frame.choices.empty()) {
      failed_.insert(set_);
      const size_t begin = frame.begin;
      frames_.pop_back();
      back_to(begin);
      continue;
    }
    const i32 op = frame.choices.back();
    frame.choices.pop_back();
    const size_t begin = path_.size();
    run(op);
    frames_.push_back({begin, {}, {}});
    enter();
  }
  return End::kNone;
}

}  // namespace loadmaster
