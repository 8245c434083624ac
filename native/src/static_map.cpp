#include "static_map.hpp"

#include <algorithm>

#include "parallel.hpp"
#include "timing.hpp"

namespace loadmaster {
namespace {

void list_by_step(const std::vector<i32>& step, i64 steps, Rows& rows, std::vector<i32>& items) {
  rows.start.assign(steps + 1, 0);
  for (const i32 s : step)
    if (s >= 0) ++rows.start[s + 1];
  for (i64 s = 0; s < steps; ++s) rows.start[s + 1] += rows.start[s];
  items.resize(rows.start[steps]);
  std::vector<i64> next(rows.start.begin(), rows.start.end() - 1);
  for (std::size_t t = 0; t < step.size(); ++t)
    if (step[t] >= 0) items[next[step[t]]++] = static_cast<i32>(t);
}

}  // namespace

StaticMap::StaticMap(const Model& model) : model_(model) {
  std::vector<i32> step_of(model.ops, -1);
  std::vector<i32> first(model.tensors, -1), last(model.tensors, -1);
  const std::size_t memories = model.memories.size();
  rows_.start.push_back(0);
  for (i32 op = 0; op < model.ops; ++op) {
    if (model.view[op]) continue;
    const i32 step = static_cast<i32>(steps_.size());
    steps_.push_back(op);
    for (i64 row = model.access.rows.begin(op); row < model.access.rows.end(op); ++row) {
      const i32 t = model.access.tensor[row];
      tensor_.push_back(t);
      for (std::size_t m = 0; m < memories; ++m) cost_.push_back(model.access_time(row, static_cast<i32>(m)));
      if (!model.given(t) && model.access.write[row]) first[t] = step;
      last[t] = std::max(last[t], step);
    }
    rows_.start.push_back(static_cast<i64>(tensor_.size()));
    fixed_slow_.push_back(model.access_time(model.other_bytes[op], false, model.devices[0].home()));
  }
  i64 most_accesses = 1;
  for (std::size_t s = 0; s < steps_.size(); ++s)
    most_accesses =
        std::max(most_accesses, rows_.end(static_cast<i64>(s)) - rows_.begin(static_cast<i64>(s)));
  for (const i64 cost : cost_) careful_ = careful_ || cost > kForever / most_accesses;
  std::vector<i32> members(model.tensors, 0);
  for (i32 t = 0; t < model.tensors; ++t)
    if (model.root[t] == t) ++members[model.place[t]];
  for (i32 t = 0; t < model.tensors; ++t) {
    is_input_.push_back(model.input(t));
    shared_.push_back(members[model.place[t]] > 1);
    any_shared_ = any_shared_ || shared_.back();
    for (const MemoryModel& m : model.memories)
      aligned_.push_back(aligned(model.place_size[model.place[t]], m.alignment));
  }
  std::vector<i32> ends(model.tensors, -1);
  for (i32 t = 0; t < model.tensors; ++t) {
    if (model.root[t] != t) continue;
    if (model.persistent(t))
      given_.push_back(t);
    else if (model.input(t) && last[t] >= 0)
      inputs_.push_back(t);
    if (model.input(t) || (!model.persistent(t) && !model.output[t])) ends[t] = last[t];
  }
  list_by_step(first, static_cast<i64>(steps_.size()), begin_rows_, begins_);
  list_by_step(ends, static_cast<i64>(steps_.size()), end_rows_, ends_);
}

void StaticMap::evaluate(const i8* memory, i64 maps, i64* total, i64* peak, int threads) const {
  const i64 memories = model_.memory_count();
  in_blocks(maps, 64, threads, [&] {
    return [&, work = Work(model_)](i64 begin, i64 end) mutable {
      for (i64 i = begin; i < end; ++i) {
        resolve(memory + i * model_.tensors, work);
        total[i] = time(work);
        peaks(work, peak + i * memories);
      }
    };
  });
}

StaticMap::Work::Work(const Model& model)
    : at(model.tensors), bytes(model.memories.size()), by_memory(model.memories.size()) {}

void StaticMap::resolve(const i8* memory, Work& work) const {
  const i8 home = static_cast<i8>(model_.devices[0].home());
  for (i32 t = 0; t < model_.tensors; ++t) work.at[t] = memory[t] < 0 || is_input_[t] ? home : memory[t];
}

i64 StaticMap::time(Work& work) const {
  const std::size_t memories = model_.memories.size();
  const DeviceModel& device = model_.devices[0];
  const i32 home = device.home(), fastest = device.reach.front();
  const i64 overlap = model_.overlap, launch = device.launch;
  i64 total = 0;
  const i64 steps = static_cast<i64>(steps_.size());
  for (i64 s = 0; s < steps; ++s) {
    const i32 op = steps_[s];
    const bool named = model_.named[op] == 1;
    i64 sum = 0;
    if (!model_.parallel_ports && !named && !careful_) {  // the usual case, free of branches
      for (i64 row = rows_.begin(s); row < rows_.end(s); ++row)
        sum += cost_[row * memories + work.at[tensor_[row]]];
      sum = plus(sum, fixed_slow_[s]);
    } else {
      std::fill(work.by_memory.begin(), work.by_memory.end(), 0);
      for (i64 row = rows_.begin(s); row < rows_.end(s); ++row) {
        const i32 m = work.at[tensor_[row]];
        if (named && m == fastest) continue;
        i64& to = work.by_memory[model_.parallel_ports ? m : 0];
        to = plus(to, cost_[row * memories + m]);
      }
      if (!named) {
        i64& to = work.by_memory[model_.parallel_ports ? home : 0];
        to = plus(to, fixed_slow_[s]);
      }
      for (const i64 busy : work.by_memory) sum = std::max(sum, busy);
    }
    const i64 compute = model_.compute[op];
    const i64 duration = step_time(compute, sum, named ? 0 : overlap, named ? 0 : launch);
    total = plus(total, model_.repeat[op] == 1 ? duration : times(model_.repeat[op], duration));
  }
  return total;
}

void StaticMap::peaks(Work& work, i64* peak) const {
  const std::size_t memories = model_.memories.size();
  std::fill(work.bytes.begin(), work.bytes.end(), 0);
  std::fill(peak, peak + memories, 0);
  if (any_shared_) work.holds.assign(static_cast<std::size_t>(model_.tensors) * memories, 0);
  const auto hold = [&](i32 t) {
    const std::size_t m = work.at[t];
    const i32 place = model_.place[t];
    if (shared_[t] && work.holds[place * memories + m]++ > 0) return;
    work.bytes[m] = plus(work.bytes[m], aligned_[t * memories + m]);
    peak[m] = std::max(peak[m], work.bytes[m]);
  };
  for (const i32 t : given_) hold(t);
  for (const i32 t : inputs_) hold(t);
  const i64 steps = static_cast<i64>(steps_.size());
  for (i64 s = 0; s < steps; ++s) {
    for (i64 i = begin_rows_.begin(s); i < begin_rows_.end(s); ++i) hold(begins_[i]);
    for (i64 i = end_rows_.begin(s); i < end_rows_.end(s); ++i) {
      const i32 t = ends_[i];
      const std::size_t m = work.at[t];
      if (shared_[t] && --work.holds[model_.place[t] * memories + m] > 0) continue;
      work.bytes[m] -= aligned_[t * memories + m];
    }
  }
}

}  // namespace loadmaster
