// Copies at addresses: stays that are packed without the time of their copies get as much of it as their
// place allows, or another place that allows more.
#include <algorithm>
#include <utility>

#include "offload/offload.hpp"

namespace loadmaster {

namespace {

struct Piece {
  i32 first, last;
  i64 low, high;
  i32 id;
};

struct Gap {
  i64 low, high;
};

constexpr std::size_t kMost = 4;  // gaps that are looked at: one of the largest stays open longest

bool meet(const Gap& a, const Gap& b) { return a.low < b.high && b.low < a.high; }

// Of two of one size the lower one, so that no gaps are equal.
bool smaller(const Gap& a, const Gap& b) {
  return std::pair(a.high - a.low, a.low) < std::pair(b.high - b.low, b.low);
}

class Board {
 public:
  Board(i32 steps, i64 capacity, std::vector<Piece> pieces)
      : capacity_(capacity), pieces_(std::move(pieces)), by_low_(pieces_), begins_(steps), ends_(steps) {
    for (const Piece& piece : pieces_) {
      begins_[piece.first].push_back(piece.id);
      ends_[piece.last].push_back(piece.id);
    }
    std::sort(by_low_.begin(), by_low_.end(), [](const Piece& a, const Piece& b) { return a.low < b.low; });
  }

  const Piece& piece(i64 id) const { return pieces_[id]; }

  // Let a piece begin as early as `wanted`, or as early as can be; where it lies, or elsewhere.
  void stretch_back(i32 id, i32 wanted) {
    Piece now = pieces_[id];
    while (now.first > wanted && is_free(id, ends_[now.first - 1])) --now.first;
    if (now.first > wanted) {
      auto open = gaps(pieces_[id]);
      i32 there = pieces_[id].first;
      while (there > wanted && narrowed(open, id, ends_[there - 1])) --there;
      if (there < now.first) move(now, open), now.first = there;
    }
    change(now);
  }

  // The same for its end.
  void stretch_on(i32 id, i32 wanted) {
    Piece now = pieces_[id];
    while (now.last < wanted && is_free(id, begins_[now.last + 1])) ++now.last;
    if (now.last < wanted) {
      auto open = gaps(pieces_[id]);
      i32 there = pieces_[id].last;
      while (there < wanted && narrowed(open, id, begins_[there + 1])) ++there;
      if (there > now.last) move(now, open), now.last = there;
    }
    change(now);
  }

 private:
  Gap place(i32 id) const { return {pieces_[id].low, pieces_[id].high}; }

  bool is_free(i32 id, const std::vector<i32>& others) const {
    return std::none_of(others.begin(), others.end(),
                        [&](i32 other) { return meet(place(other), place(id)); });
  }

  // Where it could lie for as long as it does; the largest of many.
  std::vector<Gap> gaps(const Piece& own) const {
    const i64 size = own.high - own.low;
    std::vector<Gap> open;
    i64 low = 0;
    for (const Piece& each : by_low_) {
      if (each.first > own.last || each.last < own.first || each.id == own.id) continue;
      if (each.low - low >= size) open.push_back({low, each.low});
      low = std::max(low, each.high);
    }
    if (capacity_ - low >= size) open.push_back({low, capacity_});
    if (open.size() > kMost) {
      std::nth_element(open.begin(), open.begin() + kMost, open.end(),
                       [](const Gap& a, const Gap& b) { return smaller(b, a); });
      open.resize(kMost);
    }
    return open;
  }

  // Take what others have out of the gaps; if none is left that is large enough, leave them as they are.
  bool narrowed(std::vector<Gap>& open, i32 id, const std::vector<i32>& others) const {
    const auto reached = [&](const Gap& gap) { return !is_open(gap, id, others); };
    if (std::none_of(open.begin(), open.end(), reached)) return !open.empty();
    const i64 size = pieces_[id].high - pieces_[id].low;
    std::vector<Gap> left = open, next;
    for (const i32 other : others) {
      if (other == id) continue;
      next.clear();
      for (const Gap& gap : left) {
        if (!meet(gap, place(other))) {
          next.push_back(gap);
          continue;
        }
        if (pieces_[other].low - gap.low >= size) next.push_back({gap.low, pieces_[other].low});
        if (gap.high - pieces_[other].high >= size) next.push_back({pieces_[other].high, gap.high});
      }
      left.swap(next);
    }
    if (left.empty()) return false;
    open.swap(left);
    return true;
  }

  bool is_open(const Gap& gap, i32 id, const std::vector<i32>& others) const {
    return std::none_of(others.begin(), others.end(),
                        [&](i32 other) { return other != id && meet(gap, place(other)); });
  }

  // Into the smallest gap.
  static void move(Piece& piece, const std::vector<Gap>& open) {
    const Gap gap = *std::min_element(open.begin(), open.end(), smaller);
    piece.high += gap.low - piece.low;
    piece.low = gap.low;
  }

  void change(const Piece& now) {
    Piece& old = pieces_[now.id];
    reorder(begins_, old.first, now.first, now.id);
    reorder(ends_, old.last, now.last, now.id);
    const auto below = [](const Piece& piece, i64 low) { return piece.low < low; };
    auto at = std::lower_bound(by_low_.begin(), by_low_.end(), old.low, below);
    while (at->id != now.id) ++at;
    *at = now;
    if (now.low < old.low)
      std::rotate(std::lower_bound(by_low_.begin(), at, now.low, below), at, at + 1);
    else if (now.low > old.low)
      std::rotate(at, at + 1, std::lower_bound(at + 1, by_low_.end(), now.low, below));
    old = now;
  }

  static void reorder(std::vector<std::vector<i32>>& rows, i32 from, i32 to, i32 id) {
    if (from == to) return;
    std::erase(rows[from], id);
    rows[to].push_back(id);
  }

  i64 capacity_;
  std::vector<Piece> pieces_, by_low_;
  std::vector<std::vector<i32>> begins_, ends_;  // [steps] of pieces
};

}  // namespace

std::vector<Times> schedule_placed(const OffloadTables& t, std::span<const Stay> stays, i64 capacity,
                                   i64 lead, std::span<const Scratch> scratch, std::vector<i64>& offset) {
  std::vector<Piece> pieces;
  for (std::size_t row = 0; row < stays.size(); ++row)
    pieces.push_back({stays[row].first, stays[row].last, offset[row], offset[row] + t.size[stays[row].item],
                      static_cast<i32>(row)});
  for (const Scratch& each : scratch)
    pieces.push_back({each.step, each.step, each.low, each.high, static_cast<i32>(pieces.size())});
  Board board(t.steps(), capacity, std::move(pieces));
  auto times = schedule_with(
      t, stays, lead,
      [&](i64 row, i32 last) {
        board.stretch_on(static_cast<i32>(row), last);
        return board.piece(row).last;
      },
      [&](i64 row, i32 first) {
        board.stretch_back(static_cast<i32>(row), first);
        return board.piece(row).first;
      });
  for (std::size_t row = 0; row < stays.size(); ++row) offset[row] = board.piece(static_cast<i64>(row)).low;
  return times;
}

}  // namespace loadmaster
