#include "game/heap.hpp"

#include <algorithm>
#include <limits>

namespace loadmaster::game {

namespace {
constexpr i32 kHeld = std::numeric_limits<i32>::min(), kAll = std::numeric_limits<i32>::max();
}  // namespace

Heap::Heap(i32 steps, i64 capacity, i64 alignment)
    : capacity_(capacity / alignment * alignment), buckets_(static_cast<std::size_t>(steps / kBucket + 1)) {}

void Heap::clear() {
  blocks_.clear();
  unused_.clear();
  seen_.clear();
  query_ = 0;
  for (auto& bucket : buckets_) bucket.clear();
}

i32 Heap::add(const Block& block) {
  i32 id;
  if (unused_.empty()) {
    id = static_cast<i32>(blocks_.size());
    blocks_.push_back(block);
    seen_.push_back(0);
  } else {
    id = unused_.back();
    unused_.pop_back();
    blocks_[id] = block;
  }
  link(id, block.first / kBucket, block.last / kBucket);
  return id;
}

void Heap::remove(i32 id) {
  unlink(id, blocks_[id].first / kBucket, blocks_[id].last / kBucket);
  unused_.push_back(id);
}

void Heap::set_last(i32 id, i32 last) {
  const i32 before = blocks_[id].last / kBucket, after = last / kBucket;
  blocks_[id].last = last;
  if (after > before) link(id, before + 1, after);
  if (after < before) unlink(id, after + 1, before);
}

void Heap::link(i32 id, i32 from, i32 to) {
  for (i32 i = from; i <= to; ++i) buckets_[i].push_back(id);
}

void Heap::unlink(i32 id, i32 from, i32 to) {
  for (i32 i = from; i <= to; ++i) {
    auto& bucket = buckets_[i];
    *std::find(bucket.begin(), bucket.end(), id) = bucket.back();
    bucket.pop_back();
  }
}

// Calls visit(id) for each block that meets [first, last], once; stops when it returns false.
template <class Visit>
void Heap::visit(i32 first, i32 last, Visit&& visit) const {
  ++query_;
  const i32 from = first / kBucket, to = last / kBucket;
  for (i32 i = from; i <= to; ++i)
    for (const i32 id : buckets_[i]) {
      const Block& block = blocks_[id];
      if (block.first > last || block.last < first || seen_[id] == query_) continue;
      seen_[id] = query_;
      if (!visit(id)) return;
    }
}

i64 Heap::best_fit(i32 first, i32 last, i64 size, const std::vector<Wish>& wishes) const {
  spans_ = wishes;
  visit(first, last, [&](i32 id) {
    spans_.push_back({blocks_[id].low, blocks_[id].high, kHeld});
    return true;
  });
  std::sort(spans_.begin(), spans_.end(), [](const Wish& a, const Wish& b) { return a.low < b.low; });
  i64 found = best_gap(size, kAll);
  if (found >= 0 || wishes.empty()) return found;
  patiences_.clear();
  for (const Wish& wish : wishes) patiences_.push_back(wish.patience);
  std::sort(patiences_.begin(), patiences_.end());
  found = best_gap(size, kHeld);
  // With those below `low` respected there is room, with those below `high` there is none.
  std::size_t low = 0, high = patiences_.size();
  while (found >= 0 && high - low > 1) {
    const std::size_t middle = low + (high - low) / 2;
    const i64 offset = best_gap(size, patiences_[middle] - 1);
    (offset < 0 ? high : low) = middle;
    if (offset >= 0) found = offset;
  }
  return found;
}

// The best fit between what is held and wishes of at most that patience; -1: none.
i64 Heap::best_gap(i64 size, i32 respected) const {
  i64 best = -1, best_gap = 0, end = 0;
  const auto offer = [&](i64 low, i64 high) {
    const i64 gap = high - low;
    if (gap >= size && (best < 0 || gap < best_gap)) best = low, best_gap = gap;
  };
  for (const Wish& span : spans_) {
    if (span.patience > respected) continue;
    offer(end, span.low);
    end = std::max(end, span.high);
  }
  offer(end, capacity_);
  return best;
}

bool Heap::is_free(i32 first, i32 last, i64 low, i64 high, i32 but, i32 nor) const {
  if (first > last) return true;
  bool free = true;
  visit(first, last, [&](i32 id) {
    const Block& block = blocks_[id];
    if (id != but && id != nor && block.low < high && low < block.high) free = false;
    return free;
  });
  return free;
}

}  // namespace loadmaster::game
