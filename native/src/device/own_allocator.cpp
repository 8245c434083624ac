#include "device/own_allocator.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace loadmaster {

namespace {

constexpr i64 kGrain = 512;
constexpr i64 kWaste = 4;  // a cached block is reused for what is at most a quarter smaller

i64 rounded(i64 bytes) { return (bytes + kGrain - 1) / kGrain * kGrain; }

}  // namespace

OwnAllocator::OwnAllocator(std::unique_ptr<Memory> memory) : memory_(std::move(memory)) {}

OwnAllocator::~OwnAllocator() {
  for (const auto& [size, block] : free_) memory_->give(block);
}

void* OwnAllocator::alloc(i64 bytes) {
  if (bytes <= 0) return nullptr;
  const std::lock_guard lock(mutex_);
  if (step_ >= 0) return planned(bytes);
  void* const place = lent(bytes);
  return place != nullptr ? place : ordinary(bytes);
}

void OwnAllocator::lend(void* place, i64 bytes) {
  const std::lock_guard lock(mutex_);
  lending_ = {place, bytes, std::this_thread::get_id()};
}

void* OwnAllocator::lent(i64 bytes) {
  if (lending_.place == nullptr || lending_.bytes != bytes || lending_.taker != std::this_thread::get_id())
    return nullptr;
  void* const place = lending_.place;
  lending_ = {};
  lent_.emplace(place, bytes);
  return place;
}

bool OwnAllocator::lends_from(void* block, i64 bytes) const {
  const auto first = lent_.lower_bound(block);
  return first != lent_.end() && static_cast<char*>(first->first) < static_cast<char*>(block) + bytes;
}

void OwnAllocator::put_back(void* block, i64 bytes) {
  held_ -= bytes;
  cached_ += bytes;
  free_.emplace(bytes, block);
}

void OwnAllocator::free(void* block) {
  const std::lock_guard lock(mutex_);
  if (const auto found = blocks_.find(block); found != blocks_.end()) {
    const i64 bytes = found->second;
    blocks_.erase(found);
    if (lends_from(block, bytes))
      leaving_.emplace(block, bytes);
    else
      put_back(block, bytes);
    return;
  }
  if (lent_.erase(block) != 0) {
    auto from = leaving_.upper_bound(block);
    if (from == leaving_.begin()) return;
    --from;
    if (static_cast<char*>(from->first) + from->second > static_cast<char*>(block) &&
        !lends_from(from->first, from->second)) {
      put_back(from->first, from->second);
      leaving_.erase(from);
    }
    return;
  }
  // In an arena: a result of an earlier step has its room as long as the plan says, and no longer.
  if (step_ < 0) return;
  const i64 low = reinterpret_cast<i64>(block) - rooms_->base;
  const auto piece =
      std::find_if(pieces_.begin(), pieces_.end(), [&](const Piece& each) { return each.low == low; });
  if (piece == pieces_.end()) return;
  if (piece->result < 0) temporary_ -= piece->high - piece->low;
  pieces_.erase(piece);
}

void* OwnAllocator::ordinary(i64 bytes) {
  const i64 size = rounded(bytes);
  void* block = nullptr;
  i64 whole = size;
  if (const auto fits = free_.lower_bound(size); fits != free_.end() && fits->first - size <= size / kWaste) {
    whole = fits->first;
    block = fits->second;
    cached_ -= whole;
    free_.erase(fits);
  } else {
    const auto take = [&] { return size <= limit_ - held_ - cached_ ? memory_->take(size) : nullptr; };
    block = take();
    if (block == nullptr) {
      give_back();
      block = take();
    }
    if (block == nullptr)
      throw std::runtime_error("loadmaster: no room for " + std::to_string(bytes) + " bytes beside the " +
                               std::to_string(held_) + " that are held");
  }
  blocks_.emplace(block, whole);
  held_ += whole;
  most_ = std::max(most_, held_);
  return block;
}

void* OwnAllocator::planned(i64 bytes) {
  const i32 number = count_++;
  const i32 result = wanted(bytes, number);
  i64 low = 0;
  if (result >= 0) {
    low = rooms_->result_offset[result];
  } else {
    Range found = gap(rounded(bytes), false);
    // What is freed again before the result is made may lie in its place.
    if (found.low < 0) found = gap(rounded(bytes), true);
    if (found.low < 0)
      throw std::runtime_error("loadmaster: no room for " + std::to_string(bytes) +
                               " bytes of a kernel beside the plan in step " + std::to_string(step_) +
                               ", where " + std::to_string(found.high) + " are free in one piece");
    low = found.low;
    temporary_ += rounded(bytes);
    rooms_->most[step_] = std::max(rooms_->most[step_], temporary_);
  }
  pieces_.push_back({low, low + (result < 0 ? rounded(bytes) : bytes), number, result});
  return reinterpret_cast<void*>(rooms_->base + low);
}

i32 OwnAllocator::wanted(i64 bytes, i32 number) const {
  for (i64 each = rooms_->result_start[step_]; each < rooms_->result_start[step_ + 1]; ++each) {
    const i64 size = rooms_->result_bytes[each], low = rooms_->result_offset[each];
    const i32 known = rooms_->number[each];
    const bool fits = known < 0 ? bytes == size : number == known && bytes <= size;
    if (fits && !taken(low, low + size)) return static_cast<i32>(each);
  }
  return -1;
}

bool OwnAllocator::taken(i64 low, i64 high) const {
  return std::any_of(pieces_.begin(), pieces_.end(),
                     [&](const Piece& piece) { return piece.low < high && low < piece.high; });
}

// The smallest gap that is large enough; low = -1: there is none, and high is the size of the largest.
Range OwnAllocator::gap(i64 bytes, bool borrowed) const {
  std::vector<Range> open;
  for (i64 each = rooms_->free_start[step_]; each < rooms_->free_start[step_ + 1]; ++each)
    open.push_back({rooms_->free_low[each], rooms_->free_high[each]});
  if (borrowed)
    for (i64 each = rooms_->result_start[step_]; each < rooms_->result_start[step_ + 1]; ++each)
      open.push_back({rooms_->result_offset[each], rooms_->result_offset[each] + rooms_->result_room[each]});
  std::vector<Range> shut;
  for (const Piece& piece : pieces_) shut.push_back({piece.low, piece.high});
  const auto by_low = [](const Range& a, const Range& b) { return a.low < b.low; };
  std::sort(open.begin(), open.end(), by_low);
  std::sort(shut.begin(), shut.end(), by_low);
  Range best{-1, -1};
  i64 largest = 0;
  const auto look = [&](i64 low, i64 high) {
    low = rounded(low);
    largest = std::max(largest, high - low);
    if (high - low >= bytes && (best.low < 0 || high - low < best.high - best.low)) best = {low, high};
  };
  for (std::size_t first = 0, last; first < open.size(); first = last) {
    i64 low = open[first].low, high = open[first].high;
    for (last = first + 1; last < open.size() && open[last].low <= high; ++last)
      high = std::max(high, open[last].high);
    for (const Range& each : shut) {
      if (each.low >= high) break;
      look(low, each.low);
      low = std::max(low, each.high);
    }
    look(low, high);
  }
  return best.low < 0 ? Range{-1, largest} : best;
}

i64 OwnAllocator::at(const std::shared_ptr<Rooms>& rooms, i32 step) {
  if (step >= rooms->steps()) throw std::out_of_range("the plan has no such step");
  // Between runs no plan is held: this allocator outlives them all.
  auto next = step < 0 ? nullptr : rooms;
  const std::lock_guard lock(mutex_);
  const i64 left = temporary_ - claimed();
  rooms_.swap(next);
  step_ = step;
  count_ = 0;
  temporary_ = 0;
  pieces_.clear();
  return left;
}

// Bytes of what was taken for a temporary and is a result: a kernel that asks for fewer bytes than the plan
// knows, where no other room was free than the result's own. It is known from now on.
i64 OwnAllocator::claimed() {
  i64 bytes = 0;
  for (const Piece& piece : pieces_) {
    if (piece.result >= 0) continue;
    for (i64 each = rooms_->result_start[step_]; each < rooms_->result_start[step_ + 1]; ++each) {
      const i64 room = rounded(rooms_->result_room[each]);
      if (rooms_->result_offset[each] != piece.low || piece.high - piece.low > room) continue;
      rooms_->number[each] = piece.number;
      bytes += piece.high - piece.low;
      break;
    }
  }
  return bytes;
}

i32 OwnAllocator::number_of(i64 address) const {
  const std::lock_guard lock(mutex_);
  for (const Piece& piece : pieces_)
    if (rooms_->base + piece.low == address) return piece.number;
  return -1;
}

std::vector<i32> OwnAllocator::within(i64 offset, i64 bytes) const {
  const std::lock_guard lock(mutex_);
  std::vector<i32> found;
  for (const Piece& piece : pieces_)
    if (piece.low < offset + bytes && offset < piece.high) found.push_back(piece.number);
  return found;
}

void OwnAllocator::give_back() {
  if (free_.empty()) return;
  memory_->wait();
  for (const auto& [size, block] : free_) memory_->give(block);
  free_.clear();
  cached_ = 0;
}

void OwnAllocator::release() {
  const std::lock_guard lock(mutex_);
  give_back();
}

void OwnAllocator::hold_to(i64 bytes) {
  const std::lock_guard lock(mutex_);
  limit_ = bytes;
  if (held_ + cached_ > limit_) give_back();
}

void OwnAllocator::reset_most() {
  const std::lock_guard lock(mutex_);
  most_ = held_;
}

i64 OwnAllocator::held() const {
  const std::lock_guard lock(mutex_);
  return held_;
}

i64 OwnAllocator::most() const {
  const std::lock_guard lock(mutex_);
  return most_;
}

i64 OwnAllocator::cached() const {
  const std::lock_guard lock(mutex_);
  return cached_;
}

}  // namespace loadmaster
