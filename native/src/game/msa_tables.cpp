#include "game/msa_tables.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <tuple>

namespace loadmaster::game {

MsaTables::MsaTables(const GameModel& m, const MsaOptions& o)
    : model(m), options(o), line(Nests::single(m.steps())) {
  find_sites();
  find_groups();
  weigh();
  sort();
}

void MsaTables::find_sites() {
  const i32 n = model.steps(), tensors = model.tensors();
  depth.assign(n, 0);
  for (i32 step = 0; step < n; ++step)
    for (i32 loop = model.loop[step]; loop >= 0; loop = model.loop_parent[loop]) ++depth[step];
  uses.resize(tensors);
  made.assign(tensors, -1);
  made_site.assign(tensors, -1);
  for (i32 site = 0; site < model.sites(); ++site) {
    const i32 tensor = model.site_tensor[site], step = model.site_step[site];
    if (model.site_write[site])
      made[tensor] = step, made_site[tensor] = site;
    else
      uses[tensor].push_back({step, site});
  }
}

void MsaTables::find_groups() {
  const i32 tensors = model.tensors();
  overwritten.assign(tensors, -1);
  for (i32 b = 0; b < tensors; ++b)
    if (model.over[b] >= 0) overwritten[model.over[b]] = b;
  group_of.assign(tensors, -1);
  std::vector<i32> of_carried;
  for (i32 b = 0; b < tensors; ++b) {
    const i32 carried = model.carried[b];
    if (carried >= 0) {
      if (carried >= static_cast<i32>(of_carried.size())) of_carried.resize(carried + 1, -1);
      if (of_carried[carried] < 0) {
        of_carried[carried] = static_cast<i32>(groups.size());
        groups.emplace_back().is_carried = true;
      }
      group_of[b] = of_carried[carried];
      groups[group_of[b]].tensors.push_back(b);
    } else if (model.over[b] < 0) {
      MsaGroup& group = groups.emplace_back();
      for (i32 next = b; next >= 0; next = overwritten[next]) {
        group_of[next] = static_cast<i32>(groups.size()) - 1;
        group.tensors.push_back(next);
      }
    }
  }
  if (std::find(group_of.begin(), group_of.end(), -1) != group_of.end())
    throw std::invalid_argument("a tensor is written over what something else is written over");
  for (MsaGroup& group : groups) {
    for (const i32 b : group.tensors)
      for (const MsaUse& use : uses[b]) group.use_steps.push_back(use.step);
    std::sort(group.use_steps.begin(), group.use_steps.end());
  }
}

void MsaTables::weigh() {
  const i32 n = model.steps();
  benefit.resize(model.sites());
  saved.resize(model.sites());
  for (i32 step = 0; step < n; ++step) {
    i64 slow = model.base_slow[step];
    const i64 begin = model.site_start[step], end = model.site_start[step + 1];
    for (i64 site = begin; site < end; ++site) slow = plus(slow, model.site_slow[site]);
    const i64 elapsed = model.elapsed(step, slow, 0);
    for (i64 site = begin; site < end; ++site) {
      const i64 rest = slow - model.site_slow[site], fast = model.site_fast[site];
      const i64 memory = model.parallel ? std::max(rest, fast) : plus(rest, fast);
      const double weight = std::pow(options.ratios.loop_factor, depth[step]);
      saved[site] = elapsed - model.elapsed(step, rest, fast);
      benefit[site] = slow > model.compute[step] ? static_cast<double>(slow - memory) * weight
                                                 : static_cast<double>(slow - model.compute[step]);
    }
  }
  boundedness.resize(model.tensors());
  for (i32 b = 0; b < model.tensors(); ++b) {
    double sum = made_site[b] >= 0 ? benefit[made_site[b]] : 0.0;
    for (const i32 other : groups[group_of[b]].tensors)
      for (const MsaUse& use : uses[other]) {
        const double more = benefit[use.site];
        sum = sum > 0 && more > 0 ? sum + more : std::max(sum, more);
      }
    boundedness[b] = sum / std::sqrt(static_cast<double>(std::max<i64>(1, model.size[b])));
  }
}

void MsaTables::sort() {
  const i32 n = model.steps();
  const auto key = [&](i32 b) {
    const i32 latest = uses[b].empty() ? -1 : uses[b].back().step;
    const bool to_end = model.output[b] || model.given[b];
    const i32 end = to_end ? n : std::max(latest, made[b]);
    return std::make_tuple(-boundedness[b], -model.size[b], -(end - made[b]), latest, made[b], b);
  };
  sorted.resize(model.tensors());
  std::iota(sorted.begin(), sorted.end(), 0);
  std::sort(sorted.begin(), sorted.end(), [&](i32 a, i32 b) { return key(a) < key(b); });
}

i32 MsaTables::entered(i32 step, i32 from) const {
  i32 found = -1;
  for (i32 loop = step < model.steps() ? model.loop[step] : -1; loop >= 0; loop = model.loop_parent[loop])
    if (!is_in(from, loop)) found = loop;
  return found;
}

i32 MsaTables::held_until(i32 step, i32 first) const {
  const i32 loop = entered(step, first);
  return loop < 0 ? step : std::max(step, model.loop_last[loop]);
}

}  // namespace loadmaster::game
