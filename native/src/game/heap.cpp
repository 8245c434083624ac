#include "game/heap.hpp"

#include <algorithm>

namespace loadmaster::game {

Heap::Heap(i32 steps) : buckets_(static_cast<std::size_t>(steps / kBucket + 1)) {}

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

i64 Heap::best_fit(i32 first, i32 last, i64 size) const {
  spans_.clear();
  visit(first, last, [&](i32 id) {
    spans_.emplace_back(blocks_[id].low, blocks_[id].high);
    return true;
  });
  std::sort(spans_.begin(), spans_.end());
  i64 best = -1, best_gap = 0, end = 0;
  for (const auto& [low, high] : spans_) {
    const i64 gap = low - end;
    if (gap >= size && (best < 0 || gap < best_gap)) best = end, best_gap = gap;
    end = std::max(end, high);
  }
  return best < 0 ? end : best;
}

bool Heap::is_free(i32 first, i32 last, i64 low, i64 high) const {
  if (first > last) return true;
  bool free = true;
  visit(first, last, [&](i32 id) {
    const Block& block = blocks_[id];
    if (block.low < high && low < block.high) free = false;
    return free;
  });
  return free;
}

}  // namespace loadmaster::game
