#include "valid.hpp"

#include <algorithm>
#include <bit>

namespace loadmaster {
namespace {

struct Piece {
  i64 from, to;    // address
  i64 begin, end;  // time
};

// What the buffers occupy, cut at their gaps.
std::vector<Piece> pieces_of(const Buffers& b, const i64* offset) {
  std::vector<Piece> pieces;
  pieces.reserve(b.count());
  const auto add = [&](i32 i, i64 begin, i64 end, i64 low, i64 high) {
    if (begin < end && low < high) pieces.push_back({offset[i] + low, offset[i] + high, begin, end});
  };
  for (i32 i = 0; i < b.count(); ++i) {
    i64 at = b.lower[i];
    if (!b.gaps.empty())
      for (const Gap& gap : b.gaps[i]) {
        add(i, at, gap.from, 0, b.size[i]);
        add(i, gap.from, gap.to, gap.low, gap.high);
        at = gap.to;
      }
    add(i, at, b.upper[i], 0, b.size[i]);
  }
  return pieces;
}

// Some of the numbers below a count, and the neighbours of one of them: a bit for each number, above that a
// bit for each word that is not empty, and so on up to a single word. A million are a few words deep, all of
// them near.
class Numbers {
 public:
  explicit Numbers(std::size_t count) {
    do {
      count = count / 64 + 1;
      levels_.emplace_back(count, 0);
    } while (count > 1);
  }

  void insert(std::size_t number) {
    for (std::vector<u64>& level : levels_) {
      level[number / 64] |= u64{1} << number % 64;
      number /= 64;
    }
  }

  void erase(std::size_t number) {
    for (std::vector<u64>& level : levels_) {
      if (level[number / 64] &= ~(u64{1} << number % 64)) return;
      number /= 64;
    }
  }

  // The next one above, or -1.
  i64 above(std::size_t number) const {
    for (std::size_t depth = 0; depth < levels_.size(); ++depth, number /= 64) {
      const u64 rest = number % 64 == 63 ? 0 : levels_[depth][number / 64] >> (number % 64 + 1);
      if (rest) return descend(depth, number + 1 + std::countr_zero(rest), false);
    }
    return -1;
  }

  // The next one below, or -1.
  i64 below(std::size_t number) const {
    for (std::size_t depth = 0; depth < levels_.size(); ++depth, number /= 64) {
      const u64 rest = levels_[depth][number / 64] & ((u64{1} << number % 64) - 1);
      if (rest) return descend(depth, number / 64 * 64 + 63 - std::countl_zero(rest), true);
    }
    return -1;
  }

 private:
  i64 descend(std::size_t depth, std::size_t number, bool last) const {
    while (depth-- > 0) {
      const u64 word = levels_[depth][number];
      number = number * 64 + (last ? 63 - std::countl_zero(word) : std::countr_zero(word));
    }
    return static_cast<i64>(number);
  }

  std::vector<std::vector<u64>> levels_;
};

// Sweeps over time and keeps what is alive by address: only neighbours can collide.
bool collide(std::vector<Piece> pieces) {
  struct Event {
    i64 time;
    i64 piece;  // its end if negative: ~piece
  };
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.from < b.from; });
  std::vector<Event> events;
  events.reserve(2 * pieces.size());
  for (i64 i = 0; i < std::ssize(pieces); ++i) {
    events.push_back({pieces[i].begin, i});
    events.push_back({pieces[i].end, ~i});
  }
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return a.time != b.time ? a.time < b.time : a.piece < b.piece;  // ends first
  });
  Numbers alive(pieces.size());
  for (const Event& event : events) {
    if (event.piece < 0) {
      alive.erase(~event.piece);
      continue;
    }
    const Piece& piece = pieces[event.piece];
    const i64 next = alive.above(event.piece), previous = alive.below(event.piece);
    if (next >= 0 && pieces[next].from < piece.to) return true;
    if (previous >= 0 && pieces[previous].to > piece.from) return true;
    alive.insert(event.piece);
  }
  return false;
}

}  // namespace

i64 legal_height(const Buffers& b, const i64* offset) {
  i64 height = 0;
  for (i32 i = 0; i < b.count(); ++i) {
    if (offset[i] < 0 || offset[i] > kForever / 2 || offset[i] % b.alignment[i] != 0) return -1;
    if (b.pinned[i] >= 0 && offset[i] != b.pinned[i]) return -1;
    height = std::max(height, plus(offset[i], b.size[i]));
  }
  for (const auto& [a, c] : b.apart)
    if (std::max(offset[a], offset[c]) < std::min(offset[a] + b.size[a], offset[c] + b.size[c])) return -1;
  return collide(pieces_of(b, offset)) ? -1 : height;
}

}  // namespace loadmaster
