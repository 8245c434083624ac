#include "steps.hpp"

#include <algorithm>

#include "timing.hpp"

namespace loadmaster {
namespace {

bool assign_steps(const Model& model, const PlanView& plan, StepGraph& steps, Outcome& outcome) {
  steps.of.assign(model.ops, -1);
  steps.number.clear();
  std::vector<i32> step_of_group(plan.fusion ? model.ops : 0, -1);
  for (i32 op = 0; op < model.ops; ++op) {
    if (model.view[op]) continue;
    const i32 group = plan.fusion ? plan.fusion[op] : -1;
    if (group >= 0 && step_of_group[group] >= 0) {
      const i32 step = step_of_group[group];
      const i32 first = steps.number[step];
      steps.of[op] = step;
      if (plan.device && plan.device[op] != plan.device[first])
        return outcome.fail(Fault::kMixedDevices, first, op);
      if (model.loop[op] != model.loop[first]) return outcome.fail(Fault::kMixedLoops, first, op);
      continue;
    }
    steps.of[op] = static_cast<i32>(steps.number.size());
    if (group >= 0) step_of_group[group] = steps.of[op];
    steps.number.push_back(op);
  }
  steps.count = static_cast<i32>(steps.number.size());
  return true;
}

void list_members(const Model& model, StepGraph& steps) {
  auto& start = steps.member_rows.start;
  start.assign(steps.count + 1, 0);
  for (i32 op = 0; op < model.ops; ++op)
    if (steps.of[op] >= 0) ++start[steps.of[op]];
  steps.member.resize(steps.member_rows.sum_counts());
  std::vector<i64> next(start.begin(), start.end() - 1);
  for (i32 op = 0; op < model.ops; ++op)
    if (steps.of[op] >= 0) steps.member[next[steps.of[op]]++] = op;
}

// Whether a root that a member of `step` writes is seen by anybody else.
bool leaves(const Model& model, const StepGraph& steps, i32 tensor, i32 step) {
  if (model.output[tensor] || model.tied[tensor]) return true;
  for (i64 i = model.reader_rows.begin(tensor); i < model.reader_rows.end(tensor); ++i)
    if (steps.of[model.reader[i]] != step) return true;
  return false;
}

// Gathers the accesses of each step. `mark` remembers where in the step a root was seen.
void gather_accesses(const Model& model, StepGraph& steps) {
  Accesses& to = steps.access;
  const Accesses& from = model.access;
  to.rows.start.assign(1, 0);
  to.tensor.clear(), to.bytes.clear(), to.write.clear();
  steps.read_rows.start.assign(1, 0);
  steps.write_rows.start.assign(1, 0);
  steps.read.clear(), steps.written.clear();
  std::vector<i64> mark(model.tensors, -1);
  const auto add = [&to](i32 tensor, i64 bytes, i8 write) {
    to.tensor.push_back(tensor);
    to.bytes.push_back(bytes);
    to.write.push_back(write);
  };
  for (i32 s = 0; s < steps.count; ++s) {
    const bool fused = steps.member_rows.end(s) - steps.member_rows.begin(s) > 1;
    const i64 reads_before = static_cast<i64>(to.tensor.size());
    const i64 distinct_before = static_cast<i64>(steps.read.size());
    for (i64 i = steps.member_rows.begin(s); i < steps.member_rows.end(s); ++i) {
      const i32 op = steps.member[i];
      for (i64 row = from.rows.begin(op); row < from.rows.end(op); ++row) {
        const i32 t = from.tensor[row];
        const bool inside = model.writer[t] >= 0 && steps.of[model.writer[t]] == s;
        if (from.write[row]) {
          if (!fused || leaves(model, steps, t, s)) {
            add(t, from.bytes[row], 1);
            steps.written.push_back(t);
          }
        } else if (!inside) {
          const bool seen = mark[t] >= reads_before;
          if (!seen) steps.read.push_back(t);
          if (!fused || !seen) {
            if (!seen) mark[t] = static_cast<i64>(to.tensor.size());
            add(t, fused ? std::min(from.bytes[row], model.size[t]) : from.bytes[row], 0);
          } else {
            i64& bytes = to.bytes[mark[t]];
            bytes = std::min(model.size[t], plus(bytes, from.bytes[row]));
          }
        } else if (!fused) {
          add(t, from.bytes[row], 0);  // scratch: written and read by the op itself
        }
      }
    }
    std::sort(steps.read.begin() + distinct_before, steps.read.end());
    to.rows.start.push_back(static_cast<i64>(to.tensor.size()));
    steps.read_rows.start.push_back(static_cast<i64>(steps.read.size()));
    std::sort(steps.written.begin() + steps.write_rows.start.back(), steps.written.end());
    steps.write_rows.start.push_back(static_cast<i64>(steps.written.size()));
  }
}

void list_readers(const Model& model, StepGraph& steps) {
  steps.writer.assign(model.tensors, -1);
  for (i32 t = 0; t < model.tensors; ++t)
    if (model.writer[t] >= 0) steps.writer[t] = steps.of[model.writer[t]];
  auto& start = steps.reader_rows.start;
  start.assign(model.tensors + 1, 0);
  for (const i32 t : steps.read) ++start[t];
  steps.reader.resize(steps.reader_rows.sum_counts());
  std::vector<i64> next(start.begin(), start.end() - 1);
  for (i32 s = 0; s < steps.count; ++s)
    for (i64 i = steps.read_rows.begin(s); i < steps.read_rows.end(s); ++i)
      steps.reader[next[steps.read[i]]++] = s;
}

// Section 4: a step that writes into a place waits for all others that use what lies there.
void list_overwriters(const Model& model, StepGraph& steps) {
  std::vector<std::pair<i32, i32>> waits;
  for (i32 t = 0; t < static_cast<i32>(model.overwriter.size()); ++t) {
    if (model.overwriter[t] < 0) continue;
    const i32 to = steps.of[model.overwriter[t]];
    const auto add = [&](i32 op) {
      if (steps.of[op] != to) waits.emplace_back(steps.of[op], to);
    };
    if (model.writer[t] >= 0) add(model.writer[t]);
    for (i64 i = model.reader_rows.begin(t); i < model.reader_rows.end(t); ++i) add(model.reader[i]);
  }
  std::sort(waits.begin(), waits.end());
  waits.erase(std::unique(waits.begin(), waits.end()), waits.end());
  auto& start = steps.over_rows.start;
  start.assign(steps.count + 1, 0);
  steps.over.clear();
  for (const auto& [from, to] : waits) {
    ++start[from];
    steps.over.push_back(to);
  }
  steps.over_rows.sum_counts();
}

}  // namespace

void Model::prepare() {
  auto& start = reader_rows.start;
  std::vector<i32> last(tensors, -1);
  start.assign(tensors + 1, 0);
  const auto each_read = [&](auto&& visit) {
    std::fill(last.begin(), last.end(), -1);
    for (i32 op = 0; op < ops; ++op)
      for (i64 row = access.rows.begin(op); row < access.rows.end(op); ++row) {
        const i32 t = access.tensor[row];
        if (access.write[row] || last[t] == op) continue;
        last[t] = op;
        visit(t, op);
      }
  };
  each_read([&](i32 t, i32) { ++start[t]; });
  reader.resize(reader_rows.sum_counts());
  std::vector<i64> next(start.begin(), start.end() - 1);
  each_read([&](i32 t, i32 op) { reader[next[t]++] = op; });

  // An op alone with everything at home is by far the most frequent case: look it up.
  home_duration.assign(static_cast<std::size_t>(ops) * devices.size(), -1);
  Outcome ignored;
  auto graph = std::make_shared<StepGraph>();
  build_graph(*this, PlanView{}, *graph, ignored);
  alone = graph;
  const std::vector<i64> found = home_times(*this, *alone);
  const i64 width = device_count();
  for (i32 s = 0; s < alone->count; ++s)
    std::copy_n(found.begin() + s * width, width, home_duration.begin() + alone->number[s] * width);
}

bool build_graph(const Model& model, const PlanView& plan, StepGraph& graph, Outcome& outcome) {
  if (!assign_steps(model, plan, graph, outcome)) return false;
  list_members(model, graph);
  gather_accesses(model, graph);
  list_readers(model, graph);
  list_overwriters(model, graph);
  return true;
}

i32 home_step(const Model& model, const StepGraph& graph, i32 root) {
  if (graph.writer[root] >= 0 || !model.persistent(root)) return graph.writer[root];
  const i32 hard = model.tensor_group[root];
  const i32 op = hard >= 0 && hard < static_cast<i32>(model.group_op.size()) ? model.group_op[hard] : -1;
  if (op >= 0) return graph.of[op];
  const i64 first = graph.reader_rows.begin(root);
  return first < graph.reader_rows.end(root) ? graph.reader[first] : -1;
}

std::vector<i32> near_devices(const Model& model) {
  std::vector<i32> near;
  for (const DeviceModel& device : model.devices) {
    i32 first = 0;
    while (model.devices[first].home() != device.home()) ++first;
    near.push_back(first);
  }
  return near;
}

Steps::Steps(const Model& model, const PlanView& plan, const StepGraph& g)
    : graph(g),
      count(g.count),
      number(g.number),
      of(g.of),
      member(g.member),
      read(g.read),
      written(g.written),
      writer(g.writer),
      reader(g.reader),
      over(g.over),
      member_rows(g.member_rows),
      read_rows(g.read_rows),
      write_rows(g.write_rows),
      reader_rows(g.reader_rows),
      over_rows(g.over_rows),
      access(g.access),
      device(g.count),
      position(g.count, model.ops),
      op_position(model.ops),
      at_position(model.ops) {
  for (i32 s = 0; s < count; ++s) device[s] = plan.device ? plan.device[number[s]] : 0;
  for (i32 i = 0; i < model.ops; ++i) {
    at_position[i] = plan.order ? plan.order[i] : i;
    op_position[at_position[i]] = i;
  }
  for (i32 op = 0; op < model.ops; ++op)
    if (of[op] >= 0) position[of[op]] = std::min(position[of[op]], op_position[op]);
}

i32 Steps::at_or_before(i64 p) const {
  for (; p >= 0; --p)
    if (of[at_position[p]] >= 0) return of[at_position[p]];
  return -1;
}

i32 Steps::at_or_after(i64 p) const {
  for (; p < static_cast<i64>(at_position.size()); ++p)
    if (of[at_position[p]] >= 0) return of[at_position[p]];
  return count;
}

Residencies::Residencies(const Model& model, const PlanView& plan, const Steps& steps)
    : model_(model), count_(plan.residency_count) {
  if (count_ == 0) return;
  rows_.start.assign(model.tensors + 1, 0);
  before_.assign(model.tensors, 0);
  for (i64 i = 0; i < count_; ++i) ++rows_.start[model.root[plan.residencies[i * 5]]];
  windows_.resize(rows_.sum_counts());
  std::vector<i64> next(rows_.start.begin(), rows_.start.end() - 1);
  for (i64 i = 0; i < count_; ++i) {
    const i64* row = plan.residencies + i * 5;
    const i32 t = model.root[row[0]];
    if (row[3] < 0) before_[t] = 1;
    windows_[next[t]++] = {static_cast<i32>(row[1]), row[3] < 0 ? -1 : steps.op_position[row[3]],
                           steps.op_position[row[4]]};
  }
  delay_filled_windows(plan, steps);
}

// A residency that copies fill serves when the last of them is there, not before.
void Residencies::delay_filled_windows(const PlanView& plan, const Steps& steps) {
  std::vector<i64> begin(windows_.size());
  for (std::size_t i = 0; i < windows_.size(); ++i) begin[i] = windows_[i].first;
  for (i64 c = 0; c < plan.copy_count; ++c) {
    const i64* copy = plan.copies + c * 7;
    if (copy[4] >= model_.ops) continue;
    const i64 issued = copy[3] < 0 ? -1 : steps.op_position[copy[3]];
    const i64 needed = steps.op_position[copy[4]];
    const i32 step = steps.at_or_after(needed);
    const i64 from = step == steps.count ? model_.ops : steps.position[step];
    const i32 t = model_.root[copy[0]];
    for (i64 i = rows_.begin(t); i < rows_.end(t); ++i) {
      Window& window = windows_[i];
      if (window.memory == copy[2] && begin[i] >= 0 && issued >= begin[i] - 1 && needed <= window.last)
        window.first = std::max(window.first, from);
    }
  }
}

i32 Residencies::serves(i32 tensor, i64 position, i32 device, bool& resident) const {
  const auto& reach = model_.devices[device].reach;
  resident = false;
  if (count_ == 0) return reach.back();
  std::size_t best = reach.size();
  for (i64 i = rows_.begin(tensor); i < rows_.end(tensor); ++i) {
    const Window& window = windows_[i];
    if (position < window.first || position > window.last) continue;
    for (std::size_t rank = 0; rank < best; ++rank)
      if (reach[rank] == window.memory) best = rank;
  }
  resident = best < reach.size();
  return resident ? reach[best] : reach.back();
}

bool step_duration(const Model& model, const Steps& steps, const Residencies& residencies, i32 step,
                   Duration& duration, Outcome& outcome) {
  const i32 d = steps.device[step];
  const std::size_t width = model.devices.size();
  const i64 first = steps.member_rows.begin(step), last = steps.member_rows.end(step);
  bool all_named = true;
  i64 compute = 0;
  for (i64 i = first; i < last; ++i) {
    const std::size_t cell = static_cast<std::size_t>(steps.member[i]) * width + d;
    if (model.named[cell] == 2) return outcome.fail(Fault::kCannotRun, steps.member[i], d);
    all_named = all_named && model.named[cell] == 1;
    compute = plus(compute, model.compute[cell]);
  }
  const DeviceModel& device = model.devices[d];
  const std::size_t home_cell = static_cast<std::size_t>(steps.number[step]) * width + d;
  if (last - first == 1 && residencies.empty() && !model.idle_copies && model.home_duration[home_cell] > 0) {
    duration.time = model.home_duration[home_cell];
    return true;
  }
  // Memory time: the sum, or the largest of the memories' own sums. Few memories: a small array.
  i64 sum = 0;
  std::vector<i64> by_memory(model.parallel_ports ? model.memories.size() : 0, 0);
  duration.slow = 0;
  const auto count = [&](i32 memory, i64 time) {
    if (memory == device.home()) duration.slow = plus(duration.slow, time);
    if (all_named && memory == device.reach.front()) return;
    if (model.parallel_ports)
      by_memory[memory] = plus(by_memory[memory], time);
    else
      sum = plus(sum, time);
  };
  for (i64 row = steps.access.rows.begin(step); row < steps.access.rows.end(step); ++row) {
    bool resident = false;
    const i32 memory = residencies.serves(steps.access.tensor[row], steps.position[step], d, resident);
    count(memory, model.access_time(steps.access.bytes[row], steps.access.write[row] != 0, memory));
  }
  for (i64 i = first; i < last; ++i) {
    const i64 time = model.access_time(model.other_bytes[steps.member[i]], false, device.home());
    if (all_named)
      duration.slow = plus(duration.slow, time);
    else
      count(device.home(), time);
  }
  for (const i64 time : by_memory) sum = std::max(sum, time);
  duration.time =
      all_named ? named_time(compute, sum) : step_time(compute, sum, model.overlap, device.launch);
  return true;
}

std::vector<i64> home_times(const Model& model, const StepGraph& graph) {
  Steps steps(model, PlanView{}, graph);
  const Residencies none(model, PlanView{}, steps);
  std::vector<i64> found;
  Outcome ignored;
  for (i32 s = 0; s < graph.count; ++s)
    for (i32 d = 0; d < model.device_count(); ++d) {
      steps.device[s] = d;
      Duration duration;
      found.push_back(step_duration(model, steps, none, s, duration, ignored) ? duration.time : -1);
    }
  return found;
}

}  // namespace loadmaster
