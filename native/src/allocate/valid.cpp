#include "valid.hpp"

#include <algorithm>
#include <map>

namespace loadmaster {
namespace {

struct Piece {
  i64 from, to;    // address
  i64 begin, end;  // time
};

// What the buffers occupy, cut at their gaps.
std::vector<Piece> pieces_of(const Buffers& b, const i64* offset) {
  std::vector<Piece> pieces;
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

// Sweeps over time and keeps what is alive by address: only neighbours can collide.
bool collide(const std::vector<Piece>& pieces) {
  struct Event {
    i64 time;
    bool begins;
    i64 piece;
  };
  std::vector<Event> events;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    events.push_back({pieces[i].begin, true, static_cast<i64>(i)});
    events.push_back({pieces[i].end, false, static_cast<i64>(i)});
  }
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return a.time != b.time ? a.time < b.time : a.begins < b.begins;  // ends first
  });
  std::map<i64, i64> alive;  // first address -> one past the last
  for (const Event& event : events) {
    const Piece& piece = pieces[event.piece];
    if (!event.begins) {
      alive.erase(piece.from);
      continue;
    }
    const auto [at, fresh] = alive.emplace(piece.from, piece.to);
    if (!fresh) return true;
    if (const auto next = std::next(at); next != alive.end() && next->first < piece.to) return true;
    if (at != alive.begin() && std::prev(at)->second > piece.from) return true;
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
