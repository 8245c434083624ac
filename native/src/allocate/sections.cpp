#include "sections.hpp"

#include <algorithm>
#include <numeric>

namespace loadmaster {
namespace {

// A span of time in which a buffer uses the same bytes.
struct Stretch {
  i32 buffer;
  i64 from, to, low, high;
};

i64 at_or(const std::vector<i64>& values, i32 i, i64 otherwise) {
  return values.empty() ? otherwise : values[i];
}

void add_stretches(const Buffers& in, i32 b, std::vector<Stretch>& out) {
  i64 from = in.lower[b];
  const auto add = [&](i64 begin, i64 end, i64 low, i64 high) {
    if (begin < end && low < high) out.push_back({b, begin, end, low, high});
  };
  if (!in.gaps.empty())
    for (const Gap& gap : in.gaps[b]) {
      const i64 begin = std::clamp(gap.from, from, std::max(from, in.upper[b]));
      const i64 end = std::clamp(gap.to, begin, std::max(begin, in.upper[b]));
      add(from, begin, 0, in.size[b]);
      add(begin, end, gap.low, gap.high);
      from = end;
    }
  add(from, in.upper[b], 0, in.size[b]);
}

std::vector<Stretch> stretches(const Buffers& in) {
  std::vector<Stretch> all;
  for (i32 b = 0; b < in.count(); ++b)
    if (in.size[b] > 0) add_stretches(in, b, all);
  return all;
}

// Only sections with a maximal live set matter: one is closed at the first end after a start.
// Gives every stretch its sections [first, last).
struct Span {
  i32 first = 0, last = 0;
};
std::vector<Span> sweep(const std::vector<Stretch>& all, std::vector<Gap>& times) {
  std::vector<i32> starts(all.size()), ends(all.size());
  std::iota(starts.begin(), starts.end(), 0);
  ends = starts;
  std::stable_sort(starts.begin(), starts.end(), [&](i32 a, i32 b) { return all[a].from < all[b].from; });
  std::stable_sort(ends.begin(), ends.end(), [&](i32 a, i32 b) { return all[a].to < all[b].to; });
  std::vector<Span> spans(all.size());
  i64 newest = 0;
  bool grown = false;
  size_t s = 0;
  for (const i32 e : ends) {
    for (; s < starts.size() && all[starts[s]].from < all[e].to; ++s) {
      spans[starts[s]].first = static_cast<i32>(times.size());
      newest = all[starts[s]].from;
      grown = true;
    }
    if (grown) times.push_back({newest, all[e].to, 0, 0});
    grown = false;
    spans[e].last = static_cast<i32>(times.size());
  }
  return spans;
}

// The largest unit in which every offset worth trying is a whole number.
void choose_unit(const Buffers& in, const std::vector<Stretch>& all, bool windowed, Sections& out) {
  i64 alignments = 0, sizes = 0;
  for (i32 b = 0; b < in.count(); ++b) {
    if (in.size[b] == 0) continue;
    alignments = std::gcd(alignments, at_or(in.alignment, b, 1));
    sizes = std::gcd(sizes, in.size[b]);
    if (at_or(in.pinned, b, -1) >= 0) sizes = std::gcd(sizes, at_or(in.pinned, b, -1));
  }
  if (windowed)
    for (const Stretch& piece : all) sizes = std::gcd(std::gcd(sizes, piece.low), piece.high);
  bool whole = true;  // every alignment divides every size: sums of sizes stay aligned
  for (i32 b = 0; b < in.count(); ++b)
    if (in.size[b] > 0) whole = whole && sizes % at_or(in.alignment, b, 1) == 0;
  out.unit = whole ? sizes : windowed ? 1 : alignments;
  if (out.unit <= 0) out.unit = 1;
  out.padded = !whole && sizes % out.unit != 0;
}

void fill_conflicts(Sections& out) {
  const i32 n = out.count();
  out.conflicts = BitTable(n, n);
  for (i32 b = 0; b < n; ++b) {
    u64* row = out.conflicts.row(b);
    for (i32 s = out.first[b]; s < out.last[b]; ++s)
      if (out.members.get(s, b))
        for (i32 w = 0; w < out.members.words(); ++w) row[w] |= out.members.row(s)[w];
    row[b >> 6] &= ~(u64{1} << (b & 63));
  }
}

// How far apart each conflicting pair must be, and whether one may sit in the other's hollow.
void fill_distances(Sections& out) {
  const i32 n = out.count();
  out.distance.assign(static_cast<size_t>(n) * static_cast<size_t>(n), 0);
  std::vector<Forbidden> gaps;
  for (i32 b = 0; b < n; ++b)
    for (i32 c = 0; c < n; ++c) {
      if (b == c || !out.conflicts.get(b, c)) continue;
      gaps.clear();
      forbidden(out, c, b, 0, gaps);
      std::sort(gaps.begin(), gaps.end(),
                [](const Forbidden& x, const Forbidden& y) { return x.from < y.from; });
      i64 reach = gaps.front().to;
      bool one = true;
      for (const Forbidden& gap : gaps) {
        one = one && gap.from < reach;
        reach = std::max(reach, gap.to);
      }
      if (!one || gaps.front().from >= 0 || reach <= 0) out.interlocking = true;
      out.distance[static_cast<size_t>(b) * static_cast<size_t>(n) + static_cast<size_t>(c)] =
          std::max<i64>(reach, 0);
    }
}

void add_links(const Buffers& in, const std::vector<i32>& where, Sections& out) {
  for (const auto& [a, b] : in.apart) {
    const i32 x = where[a], y = where[b];
    if (x < 0 || y < 0 || x == y) continue;
    if (out.links.empty()) out.links.resize(out.count());
    out.conflicts.set(x, y);
    out.conflicts.set(y, x);
    const i32 from = std::min(out.first[x], out.first[y]) + 1, to = std::max(out.last[x], out.last[y]);
    out.links[x].push_back({y, from, to});
    out.links[y].push_back({x, from, to});
  }
}

bool pins_contradict(const Buffers& in, const Sections& out) {
  std::vector<i32> pins;
  std::vector<Forbidden> gaps;
  for (i32 b = 0; b < out.count(); ++b) {
    if (out.pinned[b] < 0) continue;
    if (in.pinned[out.original[b]] % at_or(in.alignment, out.original[b], 1) != 0) return true;
    gaps.clear();
    for (const i32 c : pins) forbidden(out, b, c, out.pinned[c], gaps);
    for (const Forbidden& gap : gaps)
      if (gap.from < out.pinned[b] && out.pinned[b] < gap.to) return true;
    pins.push_back(b);
  }
  return false;
}

}  // namespace

i64 Sections::latest(i32 b, i64 capacity) const {
  if (exact[b] > capacity) return -1;
  const i64 step = unit * alignment[b];
  return (capacity - exact[b]) / step * alignment[b];
}

void forbidden(const Sections& sections, i32 b, i32 c, i64 offset, std::vector<Forbidden>& out) {
  if (!sections.conflicts.get(b, c)) return;
  const auto add = [&](Piece mine, Piece its) {
    if (mine.low < mine.high && its.low < its.high)
      out.push_back({offset + its.low - mine.high, offset + its.high - mine.low});
  };
  if (sections.pieces.empty()) return add({0, sections.size[b]}, {0, sections.size[c]});
  for (i32 s = std::max(sections.first[b], sections.first[c]);
       s < std::min(sections.last[b], sections.last[c]); ++s)
    add(sections.pieces[b][s - sections.first[b]], sections.pieces[c][s - sections.first[c]]);
  if (!sections.links.empty())
    for (const Link& link : sections.links[b])
      if (link.other == c) return add({0, sections.size[b]}, {0, sections.size[c]});
}

Sections sectioned(const Buffers& in) {
  Sections out;
  std::vector<Stretch> all = stretches(in);
  const bool windowed = std::any_of(
      all.begin(), all.end(), [&](const Stretch& p) { return p.low != 0 || p.high != in.size[p.buffer]; });
  choose_unit(in, all, windowed, out);

  const std::vector<Span> spans = sweep(all, out.times);
  std::vector<Span> life(in.count(), Span{-1, -1});
  for (size_t i = 0; i < all.size(); ++i) {
    Span& of = life[all[i].buffer];
    if (of.first < 0) of.first = spans[i].first;
    of.last = spans[i].last;
  }
  for (i32 b = 0; b < in.count(); ++b) {
    if (in.size[b] == 0) continue;
    if (life[b].first < 0) {  // never present: a section of its own, because pairs may still bind it
      life[b].first = static_cast<i32>(out.times.size());
      out.times.push_back({in.lower[b], in.upper[b], 0, 0});
      life[b].last = static_cast<i32>(out.times.size());
    }
    out.original.push_back(b);
  }
  std::stable_sort(out.original.begin(), out.original.end(),
                   [&](i32 a, i32 b) { return life[a].first < life[b].first; });

  const i32 n = static_cast<i32>(out.original.size()), count = static_cast<i32>(out.times.size());
  std::vector<i32> where(in.count(), -1);
  for (i32 i = 0; i < n; ++i) {
    const i32 b = out.original[i];
    where[b] = i;
    const i64 align = at_or(in.alignment, b, 1), pin = at_or(in.pinned, b, -1);
    out.exact.push_back(in.size[b]);
    out.size.push_back((in.size[b] - 1) / out.unit + 1);
    out.alignment.push_back(align % out.unit == 0 ? align / out.unit : 1);
    out.pinned.push_back(pin < 0 ? -1 : pin / out.unit);
    out.first.push_back(life[b].first);
    out.last.push_back(life[b].last);
  }
  out.begin.assign(count + 1, n);
  for (i32 i = n; i-- > 0;) out.begin[out.first[i]] = i;
  for (i32 s = count; s-- > 0;) out.begin[s] = std::min(out.begin[s], out.begin[s + 1]);

  out.members = BitTable(count, n);
  out.load.assign(count, 0);
  if (windowed) {
    out.pieces.resize(n);
    for (i32 i = 0; i < n; ++i) out.pieces[i].assign(out.last[i] - out.first[i], Piece{0, 0});
  }
  const auto occupy = [&](i32 i, i32 s, Piece piece) {
    out.members.set(s, i);
    const i64 bytes = piece.high - piece.low;
    out.load[s] = out.load[s] > kForever - bytes ? INT64_MAX : out.load[s] + bytes;
    if (windowed) out.pieces[i][s - out.first[i]] = piece;
  };
  std::vector<bool> present(n, false);
  for (size_t p = 0; p < all.size(); ++p) {
    const i32 i = where[all[p].buffer];
    present[i] = true;
    const Piece piece =
        windowed ? Piece{all[p].low / out.unit, all[p].high / out.unit} : Piece{0, out.size[i]};
    for (i32 s = spans[p].first; s < spans[p].last; ++s) occupy(i, s, piece);
  }
  for (i32 i = 0; i < n; ++i)
    if (!present[i]) occupy(i, out.first[i], {0, out.size[i]});
  out.reach.assign(count, n);
  for (i32 i = n; i-- > 0;)
    for (i32 s = out.first[i]; s < out.last[i]; ++s) out.reach[s] = i;
  for (i32 i = 0; i < n && !out.holes; ++i)
    for (i32 s = out.first[i]; s < out.last[i]; ++s) out.holes = out.holes || !out.members.get(s, i);
  fill_conflicts(out);
  add_links(in, where, out);
  if (windowed) fill_distances(out);
  out.contradictory = pins_contradict(in, out);
  return out;
}

Buffers subset(const Buffers& in, std::span<const i32> chosen) {
  Buffers out;
  std::vector<i32> where(in.count(), -1);
  for (const i32 b : chosen) {
    where[b] = out.count();
    out.lower.push_back(in.lower[b]);
    out.upper.push_back(in.upper[b]);
    out.size.push_back(in.size[b]);
    out.alignment.push_back(at_or(in.alignment, b, 1));
    out.pinned.push_back(at_or(in.pinned, b, -1));
    out.hint.push_back(at_or(in.hint, b, -1));
    if (!in.gaps.empty()) out.gaps.push_back(in.gaps[b]);
  }
  for (const auto& [a, b] : in.apart)
    if (where[a] >= 0 && where[b] >= 0) out.apart.push_back({where[a], where[b]});
  return out;
}

std::vector<std::vector<i32>> components(const Buffers& in) {
  std::vector<i32> order(in.count()), group(in.count());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](i32 a, i32 b) { return in.lower[a] < in.lower[b]; });
  std::vector<i32> parent;
  i64 end = 0;
  for (const i32 b : order) {
    if (parent.empty() || in.lower[b] >= end) {
      parent.push_back(static_cast<i32>(parent.size()));
      end = in.upper[b];
    }
    end = std::max(end, in.upper[b]);
    group[b] = static_cast<i32>(parent.size()) - 1;
  }
  const auto root = [&](i32 g) {
    while (parent[g] != g) g = parent[g] = parent[parent[g]];
    return g;
  };
  for (const auto& [a, b] : in.apart)
    parent[std::max(root(group[a]), root(group[b]))] = std::min(root(group[a]), root(group[b]));
  std::vector<std::vector<i32>> all(parent.size());
  for (i32 b = 0; b < in.count(); ++b) all[root(group[b])].push_back(b);
  std::erase_if(all, [](const std::vector<i32>& group_) { return group_.empty(); });
  return all;
}

}  // namespace loadmaster
