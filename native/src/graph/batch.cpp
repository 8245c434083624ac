#include "graph/batch.hpp"

#include <algorithm>

#include "parallel.hpp"

namespace loadmaster::graph {
namespace {

constexpr i32 kFifo = 2, kPriority = 3;  // queues of a plan

}  // namespace

std::vector<i32> leads(const StepGraph& graph, const std::vector<i32>& component) {
  std::vector<i32> lead(graph.number);
  for (i32 s = 0; s < graph.count; ++s)
    for (i64 i = graph.member_rows.begin(s); i < graph.member_rows.end(s); ++i)
      if (component[graph.member[i]] >= 0) {
        lead[s] = graph.member[i];
        break;
      }
  return lead;
}

std::vector<i64> run_times(const Model& model, const StepGraph& graph) {
  std::vector<i64> time = home_times(model, graph);
  const std::size_t width = model.devices.size();
  for (std::size_t i = 0; i < time.size(); ++i)
    if (time[i] >= 0) time[i] = times(model.repeat[graph.number[i / width]], time[i]);
  return time;
}

std::vector<i64> step_times(const Model& model, const i32* fusion) {
  const i64 width = model.device_count();
  std::vector<i64> found(static_cast<std::size_t>(model.ops) * width, -1);
  PlanView plan;
  plan.fusion = fusion;
  Outcome outcome;
  StepGraph graph;
  if (!build_graph(model, plan, graph, outcome)) return found;
  const std::vector<i64> once = home_times(model, graph);
  for (i32 s = 0; s < graph.count; ++s)
    std::copy_n(once.begin() + s * width, width, found.begin() + graph.number[s] * width);
  return found;
}

GraphBatch::GraphBatch(const Model& model, const FusionRules& rules, Decisions decisions)
    : model_(model), rules_(rules), decisions_(std::move(decisions)) {
  if (decisions_.fusion >= 0) return;
  PlanView plan;
  plan.fusion = decisions_.base_fusion.data();
  if (!build_graph(model_, plan, base_graph_, base_outcome_)) return;
  base_lead_ = leads(base_graph_, rules_.columns.component);
}

GraphBatch::Work::Work(const GraphBatch& batch)
    : fuser(batch.rules_),
      fusion(batch.decisions_.base_fusion),
      device(batch.model_.ops, 0),
      keys(batch.model_.ops, 0.0),
      priority(batch.model_.ops, 0.0) {
  fusion.resize(batch.model_.ops, -1);
}

Outcome GraphBatch::run(const double* vector, Work& work) const {
  const Decisions& d = decisions_;
  if (base_outcome_.fault != Fault::kNone) return base_outcome_;
  const std::size_t nodes = d.node_op.size();
  const StepGraph* graph = &base_graph_;
  Outcome outcome;
  PlanView plan;
  std::vector<i32> lead;
  if (d.fusion >= 0) {
    for (std::size_t i = 0; i < nodes; ++i) work.keys[d.node_op[i]] = vector[d.fusion + i];
    work.fuser.fuse(work.keys.data(), work.fusion.data());
    plan.fusion = work.fusion.data();
    if (!build_graph(model_, plan, work.graph, outcome)) return outcome;
    graph = &work.graph;
    lead = leads(*graph, rules_.columns.component);
  }
  const std::vector<i32>& decides = d.fusion >= 0 ? lead : base_lead_;
  for (i32 s = 0; s < graph->count; ++s) {
    work.device[graph->number[s]] = d.device_of(vector, d.group[decides[s]]);
  }
  plan.device = work.device.data();
  plan.queue = kFifo;
  if (d.schedule >= 0) {
    for (std::size_t i = 0; i < nodes; ++i) work.priority[d.node_op[i]] = vector[d.schedule + i];
    plan.queue = kPriority;
    plan.critical_path = d.tie_critical_path;
  } else if (d.base_critical_path) {
    plan.queue = kPriority;
    plan.critical_path = true;
  }
  plan.priority = work.priority.data();
  return simulate(model_, plan, *graph);
}

void GraphBatch::evaluate(const double* vectors, i64 count, i64* total, i64* over, i64* fault,
                          int threads) const {
  const std::size_t memories = model_.memories.size();
  in_blocks(count, 1, threads, [&] {
    return [&, work = Work(*this)](i64 begin, i64 end) mutable {
      for (i64 i = begin; i < end; ++i) {
        const Outcome o = run(vectors + i * decisions_.width, work);
        total[i] = o.total;
        for (std::size_t m = 0; m < memories; ++m)
          over[i * memories + m] = o.fault == Fault::kNone ? o.over[m] : 0;
        fault[i * 3] = static_cast<i64>(o.fault);
        fault[i * 3 + 1] = o.fault_a;
        fault[i * 3 + 2] = o.fault_b;
      }
    };
  });
}

Decoded GraphBatch::decode(const double* vector) const {
  Work work(*this);
  Decoded decoded;
  decoded.outcome = run(vector, work);
  decoded.fusion = work.fusion;
  decoded.device = work.device;
  // Members and views follow the step's first op; views, which are not run, what they show.
  std::vector<i32> first(model_.ops, -1);
  for (i32 op = 0; op < model_.ops; ++op) {
    const i32 cluster = decoded.fusion[op];
    if (cluster >= 0 && first[cluster] < 0) first[cluster] = op;
    if (cluster >= 0) decoded.device[op] = decoded.device[first[cluster]];
  }
  for (i32 op = 0; op < model_.ops; ++op) {
    const i32 root = model_.view_root[op];
    if (root >= 0 && model_.writer[root] >= 0) decoded.device[op] = decoded.device[model_.writer[root]];
  }
  return decoded;
}

}  // namespace loadmaster::graph
