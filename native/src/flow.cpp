#include "flow.hpp"

#include <algorithm>

namespace loadmaster {
namespace {

// Lists i under key[i] for every key >= 0, in order of i.
void list_by_key(const std::vector<i64>& key, i64 keys, Rows& rows, std::vector<i64>& items) {
  rows.start.assign(keys + 1, 0);
  for (const i64 k : key)
    if (k >= 0) ++rows.start[k];
  items.resize(rows.sum_counts());
  std::vector<i64> next(rows.start.begin(), rows.start.end() - 1);
  for (std::size_t i = 0; i < key.size(); ++i)
    if (key[i] >= 0) items[next[key[i]]++] = static_cast<i64>(i);
}

}  // namespace

Flow::Flow(const Model& model, const PlanView& plan, const Steps& steps, const Residencies& residencies,
           Outcome& outcome)
    : HomeCopies(model), plan_(plan), steps_(steps), residencies_(residencies), outcome_(outcome) {}

bool Flow::prepare(std::vector<i32>& waits) {
  outcome_.peak.assign(model_.memories.size(), 0);
  outcome_.top.assign(model_.memories.size(), 0);
  outcome_.first_over.assign(model_.memories.size(), -1);
  outcome_.link_bytes.assign(model_.links.size(), 0);
  outcome_.device_busy.assign(model_.devices.size(), 0);
  find_home_devices();
  find_residency_steps();
  if (!model_copies()) return false;
  find_resident_accesses();
  if (!count_uses(steps_.graph, model_.tensors, model_.tensors, waits)) return false;
  for (const CopyModel& copy : copies_) {
    if (opens_home(copy)) ++cell(copy.tensor, near_home(copy.tensor)).uses;
    const i32 source = source_device(copy);
    if (source >= 0) ++cell(copy.tensor, source).uses;
  }
  return true;
}

void Flow::find_home_devices() {
  home_device_.assign(model_.tensors, 0);
  if (devices_ == 1) return;
  for (i32 t = 0; t < model_.tensors; ++t) {
    if (model_.root[t] != t) continue;
    const i32 step = home_step(model_, steps_.graph, t);
    if (step >= 0) home_device_[t] = steps_.device[step];
  }
}

void Flow::find_residency_steps() {
  if (plan_.residency_count == 0) {
    begin_rows_.start.assign(steps_.count + 1, 0);
    end_rows_.start.assign(steps_.count + 1, 0);
    return;
  }
  over_.assign(plan_.residency_count, 0);
  std::vector<i64> begin(plan_.residency_count, -1), end(plan_.residency_count, -1);
  for (i64 i = 0; i < plan_.residency_count; ++i) {
    const i64* row = plan_.residencies + i * 5;
    const MemoryModel& memory = model_.memories[row[1]];
    if (row[2] >= 0) {
      const i64 top = plus(row[2], aligned(model_.size[model_.root[row[0]]], memory.alignment));
      outcome_.top[row[1]] = std::max(outcome_.top[row[1]], top);
    }
    if (row[3] < 0) continue;
    const i32 first = steps_.at_or_after(steps_.op_position[row[3]]);
    const i32 last = steps_.at_or_before(steps_.op_position[row[4]]);
    if (first == steps_.count || last < 0 || steps_.position[first] > steps_.position[last]) continue;
    begin[i] = first;
    end[i] = last;
  }
  list_by_key(begin, steps_.count, begin_rows_, begins_);
  list_by_key(end, steps_.count, end_rows_, ends_);
}

bool Flow::opens_home(const CopyModel& copy) const {
  const i32 target = model_.links[copy.link].target;
  return !model_.input(copy.tensor) && !held_for_ever(copy.tensor) &&
         target == model_.devices[home_device_[copy.tensor]].home();
}

i32 Flow::source_device(const CopyModel& copy) const {
  for (i32 d = 0; d < devices_; ++d)
    if (memory(d) == model_.links[copy.link].source) return d;
  return -1;
}

bool Flow::model_copies() {
  const i64 n = model_.ops;
  copies_.resize(plan_.copy_count);
  std::vector<i64> issue(plan_.copy_count, 0);
  for (i64 i = 0; i < plan_.copy_count; ++i) {
    const i64* row = plan_.copies + i * 7;
    CopyModel& copy = copies_[i];
    copy.tensor = model_.root[row[0]];
    copy.link = model_.link_between[row[1] * model_.memory_count() + row[2]];
    if (copy.link < 0) return outcome_.fail(Fault::kNoLink, row[1], row[2]);
    copy.issue = row[3] < 0 ? -1 : steps_.at_or_before(steps_.op_position[row[3]]);
    copy.need = row[4] >= n ? steps_.count : steps_.at_or_after(steps_.op_position[row[4]]);
    if (copy.issue >= 0 && copy.need < steps_.count &&
        steps_.position[copy.issue] >= steps_.position[copy.need])
      return outcome_.fail(Fault::kCopyOrder, i);
    copy.bytes = row[5] < 0 ? model_.size[copy.tensor] : row[6] - row[5];
    if (copy.issue >= 0 && copy.need < steps_.count) {
      const i32 a = steps_.number[copy.issue], b = steps_.number[copy.need];
      if (in_one_loop(model_.loop[a], model_.loop[b])) copy.factor = model_.repeat[b];
    }
    issue[i] = copy.issue + 1;
  }
  list_by_key(issue, steps_.count + 1, issued_rows_, issued_);
  return true;
}

void Flow::find_resident_accesses() {
  if (residencies_.empty()) return;
  const auto find = [this](const Rows& rows, const std::vector<i32>& tensor, std::vector<i8>& found) {
    found.assign(tensor.size(), 0);
    for (i32 s = 0; s < steps_.count; ++s)
      for (i64 i = rows.begin(s); i < rows.end(s); ++i) {
        bool resident = false;
        residencies_.serves(tensor[i], steps_.position[s], steps_.device[s], resident);
        found[i] = resident;
      }
  };
  find(steps_.read_rows, steps_.read, resident_read_);
  find(steps_.write_rows, steps_.written, resident_write_);
}

void Flow::start_program() {
  for (i32 t = 0; t < model_.tensors; ++t) {
    if (model_.root[t] != t) continue;
    if (held_for_ever(t)) {
      hold(t, memory(home_device_[t]), 0);
    } else if (model_.persistent(t)) {
      if (cell(t, near_home(t)).uses > 0) open(t, near_home(t), 0);
    } else if (model_.input(t)) {
      for (i32 d = 0; d < devices_; ++d)
        if (near_[d] == d && cell(t, d).uses > 0) open(t, d, 0);
    }
  }
  for (i64 i = 0; i < plan_.residency_count; ++i) {
    const i64* row = plan_.residencies + i * 5;
    if (row[3] < 0) hold(model_.root[row[0]], static_cast<i32>(row[1]), 0);
  }
}

void Flow::start_step(i32 step, i64 now) {
  for (i64 i = begin_rows_.begin(step); i < begin_rows_.end(step); ++i) {
    if (over_[begins_[i]]) continue;  // its last step ran before its first, on another device
    over_[begins_[i]] = -1;
    const i64* row = plan_.residencies + begins_[i] * 5;
    hold(model_.root[row[0]], static_cast<i32>(row[1]), now);
  }
  open_written(steps_.graph, step, now);
}

void Flow::end_step(i32 step) {
  close_used(steps_.graph, step);
  for (i64 i = end_rows_.begin(step); i < end_rows_.end(step); ++i) {
    const i64* row = plan_.residencies + ends_[i] * 5;
    const bool begun = over_[ends_[i]] != 0;
    over_[ends_[i]] = 1;
    if (begun) release(model_.root[row[0]], static_cast<i32>(row[1]));
  }
}

void Flow::start_copy(i64 copy, i64 now) {
  const CopyModel& c = copies_[copy];
  outcome_.link_bytes[c.link] = plus(outcome_.link_bytes[c.link], times(c.bytes, c.factor));
  if (opens_home(c)) open(c.tensor, near_home(c.tensor), now);
}

void Flow::end_copy(i64 copy) {
  const CopyModel& c = copies_[copy];
  if (opens_home(c)) close(c.tensor, near_home(c.tensor));
  const i32 source = source_device(c);
  if (source >= 0) close(c.tensor, source);
}

void Flow::finish() {
  outcome_.over.resize(model_.memories.size());
  for (std::size_t m = 0; m < model_.memories.size(); ++m)
    outcome_.over[m] =
        std::max<i64>(0, std::max(outcome_.peak[m], outcome_.top[m]) - model_.memories[m].capacity);
}

}  // namespace loadmaster
