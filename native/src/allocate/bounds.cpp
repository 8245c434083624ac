#include "bounds.hpp"

#include <algorithm>
#include <bit>

#include "cliques.hpp"

namespace loadmaster {
namespace {

constexpr i32 kMostInCliques = 2000;
constexpr i64 kCliqueSteps = 20'000;

}  // namespace

i64 lower_bound(const Sections& in) {
  if (in.contradictory) return kForever;
  i64 bound = 0;
  // Rounding up to the unit costs every buffer of a section but the topmost.
  std::vector<i64> spared(in.sections(), 0);
  for (i32 b = 0; b < in.count(); ++b) {
    const i64 pad = in.size[b] * in.unit - in.exact[b];
    for (i32 s = in.first[b]; s < in.last[b]; ++s)
      if (in.members.get(s, b)) spared[s] = std::max(spared[s], pad);
    bound = std::max(bound, plus(in.exact[b], in.pinned[b] > 0 ? times(in.pinned[b], in.unit) : 0));
  }
  for (i32 s = 0; s < in.sections(); ++s) bound = std::max(bound, times(in.load[s], in.unit) - spared[s]);
  if (in.links.empty() || !in.pieces.empty() || in.count() > kMostInCliques) return bound;
  i64 together = 0, spare = 0;
  for (const i32 b : heavy_clique(in, kCliqueSteps)) {
    together = plus(together, in.size[b]);
    spare = std::max(spare, in.size[b] * in.unit - in.exact[b]);
  }
  return std::max(bound, times(together, in.unit) - spare);
}

Heights::Heights(const Sections& in, i64 most, const Switches& switches) {
  constexpr i64 kMostUnits = i64{1} << 21, kMostWork = i64{1} << 26;
  if (in.padded) return;
  unit_ = in.unit;
  const i64 units = most / in.unit;
  if (!switches.subset_sum_bounds || units > kMostUnits || !in.pieces.empty() ||
      units / 64 * in.count() > kMostWork)
    return;
  for (i32 b = 0; b < in.count(); ++b)
    if (in.alignment[b] > 1 || in.pinned[b] >= 0) return;
  sums_.assign(static_cast<size_t>(units / 64 + 1), 0);
  sums_[0] = 1;
  const i64 words = static_cast<i64>(sums_.size());
  for (i32 b = 0; b < in.count(); ++b) {
    const i64 skip = in.size[b] / 64;
    const int shift = static_cast<int>(in.size[b] % 64);
    for (i64 w = words - 1; w >= skip; --w) {
      u64 moved = sums_[w - skip] << shift;
      if (shift && w > skip) moved |= sums_[w - skip - 1] >> (64 - shift);
      sums_[w] |= moved;
    }
  }
}

i64 Heights::at_least(i64 height) const {
  i64 k = height / unit_ + (height % unit_ != 0);
  if (sums_.empty()) return k > kForever / unit_ ? kForever : k * unit_;
  for (i64 w = k / 64; w < static_cast<i64>(sums_.size()); ++w, k = w * 64)
    if (const u64 bits = sums_[w] & ~u64{0} << (k & 63)) return (w * 64 + std::countr_zero(bits)) * unit_;
  return (height / unit_ + (height % unit_ != 0)) * unit_;
}

i64 Heights::at_most(i64 height) const {
  i64 k = height / unit_;
  if (sums_.empty() || k >= static_cast<i64>(sums_.size()) * 64) return k * unit_;
  for (i64 w = k / 64; w >= 0; --w, k = w * 64 + 63)
    if (const u64 bits = sums_[w] & ~u64{0} >> (63 - (k & 63)))
      return (w * 64 + 63 - std::countl_zero(bits)) * unit_;
  return -1;
}

}  // namespace loadmaster
