#include "repair.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

#include "orders.hpp"

namespace loadmaster {
namespace {

i64 lift(i64 at, i64 alignment) {
  return at <= 0 ? 0 : at > kForever - alignment ? kForever : (at - 1) / alignment * alignment + alignment;
}

// The lowest or tightest free offset of b among intervals it may not touch.
i64 free_offset(const Sections& in, i32 b, std::vector<Forbidden>& taken, bool best) {
  if (in.pinned[b] >= 0) return in.pinned[b];
  std::sort(taken.begin(), taken.end(),
            [](const Forbidden& x, const Forbidden& y) { return x.from < y.from; });
  i64 at = 0, chosen = kForever, tightest = kForever;
  for (const Forbidden& gap : taken) {
    if (at <= gap.from) {  // free from `at` up to and including gap.from
      if (!best) return at;
      if (gap.from - at < tightest) {
        tightest = gap.from - at;
        chosen = at;
      }
    }
    if (gap.to > at) at = lift(gap.to, in.alignment[b]);
  }
  return chosen < kForever ? chosen : at;
}

}  // namespace

Packing first_fit(const Sections& in, std::span<const i32> order, bool best) {
  const i32 n = in.count();
  Packing out;
  out.offset.assign(n, 0);
  out.height = 0;
  std::vector<u64> placed((n + 63) / 64, 0);
  std::vector<Forbidden> taken;
  const auto put = [&](i32 b, i64 at) {
    out.offset[b] = at;
    placed[b >> 6] |= u64{1} << (b & 63);
    out.height = std::max(out.height, plus(times(at, in.unit), in.exact[b]));
  };
  for (i32 b = 0; b < n; ++b)
    if (in.pinned[b] >= 0) {
      if (times(in.pinned[b], in.unit) > kForever - in.exact[b]) return {};
      put(b, in.pinned[b]);
    }
  for (const i32 b : order) {
    if (in.pinned[b] >= 0) continue;
    taken.clear();
    const u64* row = in.conflicts.row(b);
    for (size_t w = 0; w < placed.size(); ++w)
      for (u64 bits = placed[w] & row[w]; bits; bits &= bits - 1) {
        const i32 c = static_cast<i32>(w * 64) + std::countr_zero(bits);
        if (in.pieces.empty())
          taken.push_back({out.offset[c] - in.size[b], out.offset[c] + in.size[c]});
        else
          forbidden(in, b, c, out.offset[c], taken);
      }
    const i64 at = free_offset(in, b, taken, best);
    if (at > kForever - in.size[b] || times(at, in.unit) > kForever - in.exact[b]) return {};
    put(b, at);
  }
  return out;
}

Packing greedy_packing(const Sections& in, i64 good_enough) {
  Packing best;
  if (in.contradictory) return best;
  if (in.count() == 0) return {{}, 0};
  for (const char* letters : {"Z", "ZW", "AZ", "WZ"})
    for (const bool tight : {false, true}) {
      if (tight && letters[1] != 0) continue;  // best fit by size only
      const std::vector<i32> rank = ranked(in, letters);
      std::vector<i32> order(rank.size());
      for (i32 b = 0; b < in.count(); ++b) order[rank[b]] = b;
      Packing next = first_fit(in, order, tight);
      if (best.offset.empty() || next.height < best.height) {
        if (!next.offset.empty()) best = std::move(next);
      }
      if (best.height <= good_enough) return best;
    }
  return best;
}

Packing repaired(const Sections& in, const Packing& from, i64 good_enough, i64 tries, u64 seed,
                 const std::function<bool()>& stop) {
  const i32 n = in.count();
  Packing best = from, now = from;
  if (from.offset.empty()) return from;
  std::vector<i32> order(n), rank(n), blamed;
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](i32 a, i32 b) { return now.offset[a] < now.offset[b]; });
  u64 random = seed * 2 + 1;
  for (i64 t = 0; t < tries && best.height > good_enough && !stop(); ++t) {
    // Blame the highest buffer, what it rests on, and what conflicts with those.
    i32 top = 0;
    for (i32 b = 1; b < n; ++b)
      if (now.offset[b] + in.size[b] > now.offset[top] + in.size[top]) top = b;
    blamed.assign(1, top);
    for (i32 b = 0; b < n; ++b)
      if (in.conflicts.get(top, b)) blamed.push_back(b);
    for (i32 i = 0; i < n; ++i) rank[order[i]] = i;
    const auto draw = [&](size_t limit) {
      random = random * 6364136223846793005 + 1442695040888963407;
      return static_cast<size_t>((random >> 33) % limit);
    };
    const i32 a = blamed[draw(3) ? 0 : draw(blamed.size())], b = blamed[draw(blamed.size())];
    std::swap(order[rank[a]], order[rank[b]]);
    Packing next = first_fit(in, order);
    if (!next.offset.empty() && next.height <= now.height) {
      now = std::move(next);
      if (now.height < best.height) best = now;
    } else {
      std::swap(order[rank[a]], order[rank[b]]);
    }
  }
  return best;
}

}  // namespace loadmaster
