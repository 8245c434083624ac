#include "game/msa_feedback.hpp"

#include <algorithm>

namespace loadmaster::game {
namespace {

// [sites] what a site loses in slow memory; what fast ones save goes to `kept`.
std::vector<double> weigh_sites(const GameModel& m, const std::vector<i8>& is_fast,
                                std::vector<double>& kept) {
  std::vector<double> lost(m.sites(), 0.0);
  for (i32 step = 0; step < m.steps(); ++step) {
    const i64 begin = m.site_start[step], end = m.site_start[step + 1];
    i64 slow = m.base_slow[step], fast = 0, all_fast = 0, missing = 0;
    for (i64 site = begin; site < end; ++site) {
      (is_fast[site] ? fast : slow) += is_fast[site] ? m.site_fast[site] : m.site_slow[site];
      all_fast += m.site_fast[site];
      if (!is_fast[site]) missing += std::max<i64>(0, m.site_slow[site] - m.site_fast[site]);
    }
    const i64 elapsed = m.elapsed(step, slow, fast);
    const auto repeat = static_cast<double>(m.repeat[step]);
    const auto spare =
        static_cast<double>(std::max<i64>(0, elapsed - m.elapsed(step, m.base_slow[step], all_fast)));
    for (i64 site = begin; site < end; ++site) {
      const i64 in_slow = m.site_slow[site], in_fast = m.site_fast[site];
      if (is_fast[site]) {
        const i64 without = m.elapsed(step, slow + in_slow, fast - in_fast);
        kept[m.site_tensor[site]] += repeat * static_cast<double>(std::max<i64>(0, without - elapsed));
      } else if (missing > 0) {
        const auto share = static_cast<double>(std::max<i64>(0, in_slow - in_fast));
        lost[site] = repeat * spare * share / static_cast<double>(missing);
      }
    }
  }
  return lost;
}

}  // namespace

MsaFeedback feedback(const MsaTables& tables, const MsaResult& plan) {
  const GameModel& m = tables.model;
  const i32 n = m.steps();
  MsaFeedback found{std::vector<double>(m.tensors(), 0.0), std::vector<double>(m.tensors(), 0.0),
                    std::vector<double>(m.tensors(), 0.0), std::vector<double>(n, 0.0)};
  const std::vector<double> lost = weigh_sites(m, plan.is_fast, found.kept);

  // Bytes in fast memory, and what is missed, by differences from step to step.
  std::vector<double> bytes(n + 1, 0.0), missed(n + 1, 0.0);
  for (const MsaStay& stay : plan.stays) {
    bytes[stay.first] += static_cast<double>(m.size[stay.tensor]);
    bytes[std::min(stay.last, n - 1) + 1] -= static_cast<double>(m.size[stay.tensor]);
  }
  for (i32 tensor = 0; tensor < m.tensors(); ++tensor) {
    i32 previous = tables.made[tensor];
    const auto miss = [&](i32 site, i32 step) {
      found.lost[tensor] += lost[site];
      const i32 from = previous < 0 ? std::max(0, step - 1) : previous;
      const double each = lost[site] / static_cast<double>(step - from + 1);
      missed[from] += each;
      missed[step + 1] -= each;
    };
    if (previous >= 0) miss(tables.made_site[tensor], previous);
    for (const MsaUse& use : tables.uses[tensor]) {
      miss(use.site, use.step);
      previous = use.step;
    }
  }
  std::vector<double> price(n + 1, 0.0);  // of a byte that lies there from the first step on
  double held = 0, wanted = 0;
  for (i32 step = 0; step < n; ++step) {
    held += bytes[step];
    wanted += missed[step];
    found.pressure[step] = held / static_cast<double>(std::max<i64>(1, m.capacity));
    price[step + 1] = price[step] + (held > 0.5 ? wanted / held : 0.0);
  }
  for (const MsaStay& stay : plan.stays)
    found.blamed[stay.tensor] += static_cast<double>(m.size[stay.tensor]) *
                                 (price[std::min(stay.last, n - 1) + 1] - price[stay.first]);
  return found;
}

}  // namespace loadmaster::game
