#include "game/board.hpp"

#include <numeric>

namespace loadmaster::game {

i32 Nests::before(i32 nest, i32 step) const {
  if (step <= 0) return 0;
  if (step >= static_cast<i32>(of.size())) return length(nest);
  if (of[step] == nest) return slot[step];
  const auto first = steps.begin() + start[nest], last = steps.begin() + start[nest + 1];
  return static_cast<i32>(std::lower_bound(first, last, step) - first);
}

Nests Nests::single(i32 steps) {
  Nests nests;
  nests.start = {0, steps};
  nests.of.assign(static_cast<std::size_t>(steps), 0);
  nests.steps.resize(static_cast<std::size_t>(steps));
  std::iota(nests.steps.begin(), nests.steps.end(), 0);
  nests.slot = nests.steps;
  return nests;
}

Board::Board(const GameModel& columns, const Switches& chosen) : model(columns), switches(chosen) {
  find_nests();
  find_times();
  find_sites();
  find_groups();
}

i32 Board::entered(i32 step, i32 from) const {
  i32 found = -1;
  for (i32 loop = model.loop[step]; loop >= 0 && !(from >= 0 && inside(loop, from));
       loop = model.loop_parent[loop])
    found = loop;
  return found;
}

i32 Board::stretched(i32 first, i32 step) const {
  if (model.loop[step] < 0 || model.loop[step] == model.loop[first]) return step;
  const i32 loop = entered(step, first);
  return loop < 0 ? step : model.loop_last[loop];
}

void Board::find_nests() {
  const i32 n = steps();
  nests.start.assign(model.loop_parent.size() + 2, 0);
  nests.of.resize(n);
  nests.slot.resize(n);
  nests.steps.resize(n);
  for (i32 step = 0; step < n; ++step) {
    nests.of[step] = model.loop[step] + 1;
    nests.slot[step] = nests.start[nests.of[step] + 1]++;
  }
  for (i32 nest = 0; nest < nests.count(); ++nest) nests.start[nest + 1] += nests.start[nest];
  for (i32 step = 0; step < n; ++step) nests.steps[nests.start[nests.of[step]] + nests.slot[step]] = step;
}

void Board::find_times() {
  const i32 n = steps();
  slow = model.base_slow;
  std::vector<i64> fast(n, 0);  // with every site fast
  for (i32 site = 0; site < sites(); ++site) {
    slow[model.site_step[site]] = plus(slow[model.site_step[site]], model.site_slow[site]);
    fast[model.site_step[site]] = plus(fast[model.site_step[site]], model.site_fast[site]);
  }
  clock.push_back(0);
  for (i32 step = 0; step < n; ++step) {
    elapsed.push_back(model.elapsed(step, slow[step], 0));
    clock.push_back(plus(clock.back(), times(model.repeat[step], elapsed.back())));
    // A write-back runs beside steps that are not decided yet: where it must be hidden, count on the least
    // that they can leave.
    if (switches.supply == Supply::kElapsed || switches.starts == Starts::kAll)
      write_supply.push_back(elapsed.back());
    else if (model.idle_copies)
      write_supply.push_back(model.idle(step, elapsed.back(), slow[step]));
    else
      write_supply.push_back(model.elapsed(step, model.base_slow[step], fast[step]));
  }
  all_slow = clock.back();
}

void Board::find_sites() {
  own_start.assign(model.tensors() + 1, 0);
  own_place.resize(sites());
  for (i32 site = 0; site < sites(); ++site)
    own_place[site] = static_cast<i32>(own_start[model.site_tensor[site] + 1]++);
  for (i32 tensor = 0; tensor < model.tensors(); ++tensor) own_start[tensor + 1] += own_start[tensor];
  own_sites.resize(sites());
  for (i32 site = 0; site < sites(); ++site)
    own_sites[own_start[model.site_tensor[site]] + own_place[site]] = site;
  written.assign(model.tensors(), -1);
  replaced.assign(model.tensors(), steps());
  tied_read.assign(sites(), -1);
  for (i32 site = 0; site < sites(); ++site) {
    const i32 step = model.site_step[site], tensor = model.site_tensor[site];
    const i64 alone = model.elapsed(step, slow[step] - model.site_slow[site], model.site_fast[site]);
    gain_alone.push_back((elapsed[step] - alone) * model.repeat[step]);
    if (!model.site_write[site]) continue;
    written[tensor] = step;
    const i32 under = model.over[tensor];
    if (under < 0) continue;
    replaced[under] = step;
    for (i64 other = model.site_start[step]; other < site; ++other)
      if (model.site_tensor[other] == under && !model.site_write[other])
        tied_read[site] = static_cast<i32>(other);
  }
}

void Board::find_groups() {
  for (i32 site = 0; site < sites(); ++site) {
    const i32 number = model.carried[model.site_tensor[site]];
    if (number < 0) continue;
    if (number >= static_cast<i32>(groups.size())) groups.resize(number + 1);
    Group& group = groups[number];
    if (group.first_site < 0) {
      group.first_site = site;
      group.first = group.last = model.site_step[site];
    }
    // What is given is copied in before the first loop; what is made begins where it is made.
    const bool made = model.site_write[group.first_site] != 0;
    const i32 step = model.site_step[site], loop = entered(step, made ? group.first : -1);
    group.last = std::max({group.last, step, loop < 0 ? 0 : model.loop_last[loop]});
  }
  for (i32 tensor = 0; tensor < model.tensors(); ++tensor)
    if (model.carried[tensor] >= 0) groups[model.carried[tensor]].tensors.push_back(tensor);
  for (Group& group : groups)
    if (group.first_site >= 0) describe(group);
}

// The pattern: made by its first site, or given and read by it; at most one output, written by a step.
void Board::describe(Group& group) const {
  i32 givens = 0, outputs = 0;
  bool begins_well = true;
  for (const i32 tensor : group.tensors) {
    if (model.given[tensor]) ++givens, group.given = tensor;
    if (model.output[tensor]) ++outputs, group.output = tensor;
    begins_well &= model.given[tensor] || model.site_write[own_sites[own_start[tensor]]];
  }
  const bool reads_first = !model.site_write[group.first_site];
  const bool given_first = givens == 1 && model.site_tensor[group.first_site] == group.given;
  group.plain = begins_well && outputs <= 1 && (reads_first ? given_first : givens == 0);
  if (group.output >= 0) {
    const i32 end = written[group.output];
    const i32 loop = end < 0 ? -1 : entered(end, -1);
    group.exit = loop < 0 ? end : model.loop_last[loop];
    group.plain &= end >= 0;
  }
  if (reads_first) {
    const i32 loop = entered(group.first, -1);
    group.entry = (loop < 0 ? group.first : model.loop_first[loop]) - 1;
    group.plain &= group.entry >= 1 && model.loop[group.entry] < 0;
  }
}

}  // namespace loadmaster::game
