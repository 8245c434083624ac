#include "graph/placing.hpp"

#include <algorithm>
#include <map>
#include <stdexcept>

#include "graph/batch.hpp"
#include "timing.hpp"

namespace loadmaster::graph {

Placing::Placing(const Model& m, PlacingColumns c)
    : model(m),
      columns(std::move(c)),
      groups(static_cast<i32>(columns.bytes.size())),
      devices(m.device_count()),
      near(near_devices(m)) {
  PlanView plan;
  plan.fusion = columns.fusion.data();
  Outcome outcome;
  if (!build_graph(model, plan, graph, outcome)) throw std::invalid_argument("the clusters can't be built");
  const std::vector<i32> lead = leads(graph, columns.component);
  group.resize(graph.count);
  for (i32 s = 0; s < graph.count; ++s) group[s] = columns.group[lead[s]];
  sort_steps();
  find_homes();
  find_times();
  find_moves();
  find_ties();
}

void Placing::sort_steps() {
  std::vector<i32> waits(graph.count, 0);
  for (i32 s = 0; s < graph.count; ++s)
    for (i64 i = graph.read_rows.begin(s); i < graph.read_rows.end(s); ++i)
      waits[s] += graph.writer[graph.read[i]] >= 0;
  for (const i32 s : graph.over) ++waits[s];
  for (i32 s = 0; s < graph.count; ++s)
    if (waits[s] == 0) order.push_back(s);
  for (std::size_t at = 0; at < order.size(); ++at) {
    const i32 s = order[at];
    for (i64 i = graph.write_rows.begin(s); i < graph.write_rows.end(s); ++i) {
      const i32 t = graph.written[i];
      for (i64 r = graph.reader_rows.begin(t); r < graph.reader_rows.end(t); ++r)
        if (--waits[graph.reader[r]] == 0) order.push_back(graph.reader[r]);
    }
    for (i64 i = graph.over_rows.begin(s); i < graph.over_rows.end(s); ++i)
      if (--waits[graph.over[i]] == 0) order.push_back(graph.over[i]);
  }
}

void Placing::find_homes() {
  home.assign(model.tensors, -1);
  for (i32 t = 0; t < model.tensors; ++t) {
    if (model.root[t] != t || !model.persistent(t) || graph.writer[t] >= 0) continue;
    const i32 step = home_step(model, graph, t);
    if (step >= 0) home[t] = group[step];
  }
}

void Placing::find_times() {
  time = run_times(model, graph);
  able.assign(static_cast<std::size_t>(groups) * devices, 1);
  work.assign(static_cast<std::size_t>(groups) * devices, 0);
  for (i32 s = 0; s < graph.count; ++s)
    for (i32 d = 0; d < devices; ++d) {
      const std::size_t at = static_cast<std::size_t>(group[s]) * devices + d;
      if (duration(s, d) < 0)
        able[at] = 0;
      else
        work[at] = plus(work[at], duration(s, d));
    }
}

void Placing::find_moves() {
  std::map<std::pair<i64, i64>, i64> kinds;  // (latency, bandwidth) -> pairs of devices
  i64 pairs = 0;
  for (i32 a = 0; a < devices; ++a)
    for (i32 b = 0; b < devices; ++b) {
      const i32 link =
          model.link_between[model.devices[a].home() * model.memory_count() + model.devices[b].home()];
      if (near[a] == near[b] || link < 0) continue;
      ++kinds[{model.links[link].latency, model.links[link].bandwidth}];
      ++pairs;
    }
  mean_move.assign(model.tensors, 0);
  for (i32 t = 0; t < model.tensors && pairs > 0; ++t) {
    if (model.root[t] != t || model.input(t)) continue;
    i64 sum = 0;
    for (const auto& [link, count] : kinds)
      sum = plus(sum, times(move_time(link.first, link.second, model.size[t]), count));
    mean_move[t] = times(sum / pairs, repeats(t));
  }
}

void Placing::find_ties() {
  std::vector<std::map<i32, i64>> between(groups);
  std::vector<i32> others;
  for (i32 t = 0; t < model.tensors; ++t) {
    if (model.root[t] != t) continue;
    const i32 from = graph.writer[t] >= 0 ? group[graph.writer[t]] : home[t];
    if (from < 0) continue;
    others.clear();
    for (i64 r = graph.reader_rows.begin(t); r < graph.reader_rows.end(t); ++r)
      if (group[graph.reader[r]] != from) others.push_back(group[graph.reader[r]]);
    std::sort(others.begin(), others.end());
    others.erase(std::unique(others.begin(), others.end()), others.end());
    for (const i32 to : others)
      for (const auto& [a, b] : {std::pair(from, to), std::pair(to, from)}) {
        i64& sum = between[a][b];
        sum = plus(sum, mean_move[t]);
      }
  }
  tie_rows.start.assign(1, 0);
  for (const auto& row : between) {
    for (const auto& [other, sum] : row) ties.push_back({other, sum});
    tie_rows.start.push_back(static_cast<i64>(ties.size()));
  }
}

i64 Placing::repeats(i32 tensor) const {
  const i32 writer = graph.writer[tensor];
  return writer >= 0 ? model.repeat[graph.number[writer]] : 1;
}

i64 Placing::move(i32 tensor, i32 from, i32 to) const {
  if (near[from] == near[to]) return 0;
  const i32 number =
      model.link_between[model.devices[from].home() * model.memory_count() + model.devices[to].home()];
  if (number < 0) return kForever;
  const LinkModel& link = model.links[number];
  return times(move_time(link.latency, link.bandwidth, model.size[tensor]), repeats(tensor));
}

std::vector<i64> Placing::levels(const i32* device, bool moves) const {
  std::vector<i64> level(graph.count, 0);
  for (auto at = order.rbegin(); at != order.rend(); ++at) {
    const i32 s = *at;
    i64 behind = 0;
    for (i64 i = graph.write_rows.begin(s); i < graph.write_rows.end(s); ++i) {
      const i32 t = graph.written[i];
      for (i64 r = graph.reader_rows.begin(t); r < graph.reader_rows.end(t); ++r) {
        const i32 reader = graph.reader[r], a = group[s], b = group[reader];
        i64 between = 0;
        if (moves && a != b) between = device == nullptr ? mean_move[t] : move(t, device[a], device[b]);
        behind = std::max(behind, plus(between, level[reader]));
      }
    }
    i64 own = 0, count = 0;
    for (i32 d = 0; d < devices; ++d)
      if (duration(s, d) >= 0 && (device == nullptr || device[group[s]] == d)) {
        own = plus(own, duration(s, d));
        ++count;
      }
    level[s] = plus(behind, own / std::max<i64>(1, count));
  }
  return level;
}

Placed::Placed(const Placing& placing, const i64* room, Outlook outlook)
    : device(placing.groups, -1),
      end(placing.graph.count, 0),
      p_(placing),
      outlook_(outlook),
      room_(room, room + placing.model.memory_count()),
      after_(placing.graph.count, 0),
      arrived_(static_cast<std::size_t>(placing.model.tensors) * placing.devices, -1),
      engine_free_(placing.model.engines, 0),
      load_(placing.devices, 0) {}

i32 Placed::source(i32 tensor) const {
  const i32 writer = p_.graph.writer[tensor];
  const i32 g = writer >= 0 ? p_.group[writer] : p_.home[tensor];
  return g >= 0 ? device[g] : -1;
}

i64 Placed::made(i32 tensor) const {
  const i32 writer = p_.graph.writer[tensor];
  return writer >= 0 ? end[writer] : 0;
}

i64 Placed::arrival(i32 tensor, i32 at, i64 transfer) const {
  const i32 from = source(tensor);
  i64 start = made(tensor);
  if (from < 0 || p_.near[from] == p_.near[at]) return start;
  const i64 known = arrived_[static_cast<std::size_t>(tensor) * p_.devices + p_.near[at]];
  if (known >= 0) return known;
  const Model& m = p_.model;
  const i32 link = m.link_between[m.devices[from].home() * m.memory_count() + m.devices[at].home()];
  if (outlook_.wait > 0 && link >= 0) {
    i64 free = start;
    for (const i32 engine : m.links[link].engines) free = std::max(free, engine_free_[engine]);
    start = plus(start, outlook_.wait == 1000 ? free - start : scaled(free - start, outlook_.wait, 1000));
  }
  const i64 moved = p_.move(tensor, from, at);
  return plus(start, transfer == 1000 ? moved : scaled(moved, transfer, 1000));
}

i64 Placed::ready(i32 step, i32 at, i64 transfer) const {
  i64 latest = after_[step];
  for (i64 i = p_.graph.read_rows.begin(step); i < p_.graph.read_rows.end(step); ++i)
    latest = std::max(latest, arrival(p_.graph.read[i], at, transfer));
  return latest;
}

void Placed::book(i32 step, i32 at) {
  const Model& m = p_.model;
  for (i64 i = p_.graph.read_rows.begin(step); i < p_.graph.read_rows.end(step); ++i) {
    const i32 t = p_.graph.read[i], from = source(t);
    i64& known = arrived_[static_cast<std::size_t>(t) * p_.devices + p_.near[at]];
    if (from < 0 || p_.near[from] == p_.near[at] || known >= 0) continue;
    known = arrival(t, at, 1000);
    transferred_ = plus(transferred_, p_.move(t, from, at));
    const i32 link = m.link_between[m.devices[from].home() * m.memory_count() + m.devices[at].home()];
    if (outlook_.wait > 0 && link >= 0)
      for (const i32 engine : m.links[link].engines)
        engine_free_[engine] = std::max(engine_free_[engine], known);
  }
}

bool Placed::fits(i32 step, i32 at) {
  drawn_.assign(1, p_.group[step]);
  each_drawn(step, at, [&](i32 g) { drawn_.push_back(g); });
  std::sort(drawn_.begin(), drawn_.end());
  drawn_.erase(std::unique(drawn_.begin(), drawn_.end()), drawn_.end());
  i64 needed = 0;
  for (const i32 g : drawn_) needed += p_.columns.bytes[g];
  return needed <= room_[p_.model.devices[at].home()];
}

i64 Placed::later_moves(i32 g, i32 at) const {
  if (outlook_.ahead == 0) return 0;
  i64 sum = 0;
  for (i64 i = p_.tie_rows.begin(g); i < p_.tie_rows.end(g); ++i) {
    const i32 other = device[p_.ties[i].group];
    if (other >= 0 && p_.near[other] != p_.near[at]) sum = plus(sum, p_.ties[i].time);
  }
  return scaled(sum, outlook_.ahead, 1000);
}

i64 Placed::counted_load(i32 g, i32 at) const {
  if (outlook_.load == 0) return 0;
  return scaled(plus(load_[at], p_.work[static_cast<std::size_t>(g) * p_.devices + at]), outlook_.load, 1000);
}

i32 Placed::roomiest(i32 g) const {
  i32 best = -1;
  const auto room = [&](i32 d) { return room_[p_.model.devices[d].home()]; };
  for (i32 d = 0; d < p_.devices; ++d)
    if (p_.can(g, d) && (best < 0 || room(d) > room(best))) best = d;
  return std::max(best, 0);
}

}  // namespace loadmaster::graph
