#include "graph/incremental.hpp"

#include <algorithm>
#include <functional>

namespace loadmaster::graph {

Incremental::Incremental(const Model& model, const FusionRules& rules, const Decisions& decisions)
    : model_(model),
      rules_(rules),
      decisions_(decisions),
      ranked_(decisions.schedule >= 0),
      critical_path_(ranked_ ? decisions.tie_critical_path : decisions.base_critical_path),
      node_of_(model.ops, -1),
      fuser_(rules),
      rerun_(model),
      keys_(model.ops, 0.0),
      fusion_(decisions.base_fusion) {
  fusion_.resize(model.ops, -1);
  for (std::size_t i = 0; i < decisions.node_op.size(); ++i)
    node_of_[decisions.node_op[i]] = static_cast<i32>(i);
}

const Judged& Incremental::start(const double* vector) {
  vector_.assign(vector, vector + decisions_.width);
  undo_.clear();
  stands_.built = nullptr;
  next_.built = fused();
  place_all(next_);
  run(0);
  std::swap(stands_, next_);
  return stands_.judged;
}

// The steps of the vector: those that stand, if fusion gives the same clusters.
std::shared_ptr<const Built> Incremental::fused() {
  if (decisions_.fusion >= 0) {
    for (std::size_t i = 0; i < decisions_.node_op.size(); ++i)
      keys_[decisions_.node_op[i]] = vector_[decisions_.fusion + static_cast<i64>(i)];
    fuser_.fuse(keys_.data(), fusion_.data());
  }
  if (stands_.built && stands_.built->fusion == fusion_) return stands_.built;
  return std::make_shared<const Built>(model_, decisions_, rules_.columns.component, fusion_);
}

double Incremental::rank(const Built& built, i32 step) const {
  if (!ranked_) return 0.0;
  const StepGraph& graph = built.graph;
  const auto key = [&](i64 i) { return vector_[decisions_.schedule + node_of_[graph.member[i]]]; };
  double largest = key(graph.member_rows.begin(step));
  for (i64 i = graph.member_rows.begin(step) + 1; i < graph.member_rows.end(step); ++i)
    largest = std::max(largest, key(i));
  return -largest;
}

void Incremental::place(Stand& stand, i32 step) const {
  const Built& built = *stand.built;
  const i32 group = built.group[step];
  const i32 device = decisions_.device_of(vector_.data(), group);
  stand.placement.device[step] = device;
  stand.placement.run_time[step] = built.time[step * model_.devices.size() + device];
}

void Incremental::place_all(Stand& stand) const {
  Placement& placement = stand.placement;
  const i32 steps = stand.built->graph.count;
  placement.device.resize(steps);
  placement.run_time.resize(steps);
  placement.rank.resize(steps);
  placement.level.assign(steps, 0);
  placement.tail.assign(steps, 0);
  if (!stand.built->runs) return;
  for (i32 s = 0; s < steps; ++s) {
    place(stand, s);
    placement.rank[s] = rank(*stand.built, s);
  }
  find_levels(stand);
}

// As a level negated, so that smaller is better.
void Incremental::find_levels(Stand& stand) const {
  const Built& built = *stand.built;
  Placement& placement = stand.placement;
  find_tails(built.graph, built.read, built.writer, placement.run_time, placement.tail);
  if (critical_path_)
    std::transform(placement.tail.begin(), placement.tail.end(), placement.level.begin(), std::negate<>());
}

const Judged& Incremental::propose(const std::vector<Change>& changes, i64 limit) {
  undo_.clear();
  bool refuse = false;
  std::vector<i32> moved, ranked;
  const Built& built = *stands_.built;
  const i64 nodes = static_cast<i64>(decisions_.node_op.size());
  const i64 groups = static_cast<i64>(decisions_.base_device.size());
  for (const Change& change : changes) {
    double& value = vector_[change.index];
    if (value == change.value) continue;
    undo_.push_back({change.index, value});
    value = change.value;
    const auto within = [&](i64 begin, i64 size) {
      return begin >= 0 && change.index >= begin && change.index < begin + size;
    };
    if (within(decisions_.fusion, nodes)) {
      refuse = true;
    } else if (within(decisions_.device, groups) && built.runs) {
      const i64 group = change.index - decisions_.device;
      for (i64 i = built.group_rows.begin(group); i < built.group_rows.end(group); ++i)
        moved.push_back(built.group_step[i]);
    } else if (built.runs) {
      ranked.push_back(built.graph.of[decisions_.node_op[change.index - decisions_.schedule]]);
    }
  }
  next_.built = refuse ? fused() : stands_.built;
  // Times that stick to kForever no longer tell what came first.
  const bool told = built.runs && !stands_.judged.faulty && stands_.judged.total < kForever;
  if (next_.built != stands_.built || !told) {
    place_all(next_);
    run(0, limit);
    return next_.judged;
  }
  next_.placement = stands_.placement;
  const i64 since = first_difference(moved, ranked);
  if (since == kForever) {
    next_.history = stands_.history;
    next_.judged = stands_.judged;
  } else {
    run(since, limit);
  }
  return next_.judged;
}

// Makes the new placement, and finds until when the plan that stands runs in the same way.
i64 Incremental::first_difference(const std::vector<i32>& moved, const std::vector<i32>& ranked) {
  const Built& built = *stands_.built;
  const StepGraph& graph = built.graph;
  const History& history = stands_.history;
  const Placement& before = stands_.placement;
  i64 since = kForever;
  bool slower = false;
  std::vector<i32> given;
  for (const i32 s : moved) {
    place(next_, s);
    if (next_.placement.device[s] == before.device[s]) continue;
    slower = slower || next_.placement.run_time[s] != before.run_time[s];
    if (next_.placement.run_time[s] < 0) return 0;
    i64 earliest = kForever;  // end of what it reads: until then nobody asks where it will be
    for (i64 i = graph.read_rows.begin(s); i < graph.read_rows.end(s); ++i) {
      const i32 t = built.read[i];
      if (built.writer[t] >= 0)
        earliest = std::min(earliest, history.end[built.writer[t]]);
      else
        given.push_back(t);
    }
    since = earliest == kForever ? 0 : std::min(since, earliest);
    if (since == 0) break;
  }
  if (since > 0)
    for (const i32 t : given) since = std::min(since, first_given_difference(t));
  if (since > 0 && since < kForever)  // some step has moved
    for (i32 t = 0; t < built.tensors && since > 0; ++t)
      if (built.persistent[t] && built.home_step[t] >= 0 &&
          before.device[built.home_step[t]] != next_.placement.device[built.home_step[t]])
        since = 0;
  if (since == 0)  // it stopped early: all steps have to be placed for a full run
    for (const i32 s : moved) {
      place(next_, s);
      slower = slower || next_.placement.run_time[s] != before.run_time[s];
    }
  for (const i32 s : ranked) {
    next_.placement.rank[s] = rank(built, s);
    if (next_.placement.rank[s] != before.rank[s]) since = std::min(since, history.ready[s]);
  }
  if (slower) {
    find_levels(next_);
    for (i32 s = 0; s < graph.count; ++s)
      if (next_.placement.level[s] != before.level[s]) since = std::min(since, history.ready[s]);
  }
  return since;
}

// A given tensor is on every device that reads it until the last reader there: the time at which
// that first differs, 0 where other devices read it now.
i64 Incremental::first_given_difference(i32 tensor) const {
  const Built& built = *stands_.built;
  const auto &before = stands_.placement.device, &after = next_.placement.device;
  const i32 devices = model_.device_count();
  const i32 home = built.persistent[tensor] && built.home_step[tensor] >= 0
                       ? rerun_.near(before[built.home_step[tensor]])
                       : -1;
  std::vector<i64> last(devices, -1);  // end of readers that stay
  std::vector<i8> was(devices, 0), is(devices, 0), differs(devices, 0);
  for (i64 r = built.reader_rows.begin(tensor); r < built.reader_rows.end(tensor); ++r) {
    const i32 reader = built.reader[r];
    const i32 from = rerun_.near(before[reader]), to = rerun_.near(after[reader]);
    was[from] = is[to] = 1;
    if (from == to)
      last[from] = std::max(last[from], stands_.history.end[reader]);
    else
      differs[from] = differs[to] = 1;
  }
  i64 since = kForever;
  for (i32 d = 0; d < devices; ++d) {
    if (!differs[d] || d == home) continue;
    if (was[d] != is[d] || last[d] < 0) return 0;
    since = std::min(since, last[d]);
  }
  return since;
}

void Incremental::run(i64 since, i64 limit) {
  ++runs_;
  full_runs_ += since == 0;
  if (next_.built->runs) {
    next_.judged = rerun_.run(*next_.built, next_.placement, stands_.history, since, next_.history, limit);
  } else {
    next_.judged = Judged{0, true, false, std::vector<i64>(model_.memories.size(), 0)};
  }
}

Incremental::Standing Incremental::standing() const {
  return {*stands_.built, stands_.placement, stands_.history,
          find_timeline(model_, *stands_.built, stands_.placement, stands_.history, rerun_)};
}

void Incremental::accept() {
  undo_.clear();
  std::swap(stands_, next_);
}

void Incremental::reject() {
  for (auto change = undo_.rbegin(); change != undo_.rend(); ++change) vector_[change->index] = change->value;
  undo_.clear();
}

void Incremental::spread(const Change& change, std::vector<Change>& changes) const {
  const Built& built = *stands_.built;
  const i64 node = change.index - decisions_.schedule;
  const i64 nodes = static_cast<i64>(decisions_.node_op.size());
  if (decisions_.schedule < 0 || node < 0 || node >= nodes || !built.runs) {
    changes.push_back(change);
    return;
  }
  const i32 step = built.graph.of[decisions_.node_op[node]];
  for (i64 i = built.graph.member_rows.begin(step); i < built.graph.member_rows.end(step); ++i)
    changes.push_back({decisions_.schedule + node_of_[built.graph.member[i]], change.value});
}

}  // namespace loadmaster::graph
