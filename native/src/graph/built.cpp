#include "graph/built.hpp"

namespace loadmaster::graph {

Built::Built(const Model& model, const Decisions& decisions, const std::vector<i32>& component,
             std::vector<i32> clusters)
    : fusion(std::move(clusters)) {
  PlanView plan;
  plan.fusion = fusion.data();
  Outcome outcome;
  runs = build_graph(model, plan, graph, outcome);
  if (!runs) return;
  const std::vector<i32> lead = leads(graph, component);
  group.resize(graph.count);
  group_rows.start.assign(decisions.base_device.size() + 1, 0);
  for (i32 s = 0; s < graph.count; ++s) ++group_rows.start[group[s] = decisions.group[lead[s]]];
  group_step.resize(group_rows.sum_counts());
  std::vector<i64> next(group_rows.start.begin(), group_rows.start.end() - 1);
  for (i32 s = 0; s < graph.count; ++s) group_step[next[group[s]]++] = s;

  time = run_times(model, graph);
  std::vector<i32> local(model.tensors, -1), local_place(model.tensors, -1);
  for (const i32 t : graph.read) local[t] = 0;
  for (const i32 t : graph.written) local[t] = 0;
  i32 places = 0;
  reader_rows.start.assign(1, 0);
  for (i32 t = 0; t < model.tensors; ++t) {
    if (model.root[t] != t || (local[t] < 0 && !model.persistent(t))) continue;
    local[t] = tensors++;
    const i64 first = graph.reader_rows.begin(t), last = graph.reader_rows.end(t);
    reader.insert(reader.end(), graph.reader.begin() + first, graph.reader.begin() + last);
    reader_rows.start.push_back(static_cast<i64>(reader.size()));
    writer.push_back(graph.writer[t]);
    home_step.push_back(loadmaster::home_step(model, graph, t));
    size.push_back(model.size[t]);
    factor.push_back(writer.back() >= 0 ? model.repeat[graph.number[writer.back()]] : 1);
    persistent.push_back(model.persistent(t));
    input.push_back(model.input(t));
    output.push_back(model.output[t]);
    i32& at = local_place[model.place[t]];
    if (at < 0) {
      at = places++;
      place_size.push_back(model.place_size[model.place[t]]);
    }
    place.push_back(at);
  }
  for (const i32 t : graph.read) read.push_back(local[t]);
  for (const i32 t : graph.written) written.push_back(local[t]);
}

}  // namespace loadmaster::graph
