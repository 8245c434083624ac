#include "graph/timeline.hpp"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace loadmaster::graph {

Timeline find_timeline(const Model& model, const Built& built, const Placement& placement,
                       const History& history, const Rerun& rerun) {
  const StepGraph& graph = built.graph;
  const i32 steps = graph.count, moves = static_cast<i32>(history.moves.size());
  const i64 total = *std::max_element(history.end.begin(), history.end.end());
  Timeline found{std::vector<i64>(steps, total), std::vector<i64>(moves, total), std::vector<i32>(moves, -1)};
  std::vector<i64> device_bound(model.devices.size(), total), engine_bound(model.engines, total);
  std::vector<i64> sent(built.tensors, total);  // the first of the latest starts of its transfers

  // Steps, then transfers; what starts last comes first, for whatever waits for it starts no later.
  std::vector<i32> items(steps + moves);
  std::iota(items.begin(), items.end(), 0);
  const auto when = [&](i32 item) {
    return item < steps
               ? std::tuple(history.start[item], history.end[item], item)
               : std::tuple(history.moves[item - steps].start, history.moves[item - steps].end, item);
  };
  std::sort(items.begin(), items.end(), [&](i32 a, i32 b) { return when(a) > when(b); });
  const auto latest_start = [&](i32 step) {
    return found.latest[step] - (history.end[step] - history.start[step]);
  };
  for (const i32 item : items) {
    if (item >= steps) {
      const History::Move& move = history.moves[item - steps];
      i64& latest = found.move_latest[item - steps];
      i64 first = kForever;
      for (const i32 r : built.readers(move.tensor)) {
        if (rerun.near(placement.device[r]) != move.device || latest_start(r) >= first) continue;
        first = latest_start(r);
        found.reader[item - steps] = r;
      }
      latest = std::min(latest, first);
      const std::vector<i32>& engines = model.links[move.link].engines;
      for (const i32 engine : engines) latest = std::min(latest, engine_bound[engine]);
      const i64 start = latest - (move.end - move.start);
      for (const i32 engine : engines) engine_bound[engine] = start;
      sent[move.tensor] = std::min(sent[move.tensor], start);
      continue;
    }
    const i32 device = placement.device[item], here = rerun.near(device);
    i64& latest = found.latest[item];
    latest = std::min(latest, device_bound[device]);
    for (i64 i = graph.write_rows.begin(item); i < graph.write_rows.end(item); ++i) {
      latest = std::min(latest, sent[built.written[i]]);
      for (const i32 r : built.readers(built.written[i]))
        if (rerun.near(placement.device[r]) == here) latest = std::min(latest, latest_start(r));
    }
    for (i64 i = graph.over_rows.begin(item); i < graph.over_rows.end(item); ++i)
      latest = std::min(latest, latest_start(graph.over[i]));
    device_bound[device] = latest_start(item);
  }
  return found;
}

}  // namespace loadmaster::graph
