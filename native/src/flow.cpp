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
    : model_(model),
      plan_(plan),
      steps_(steps),
      residencies_(residencies),
      outcome_(outcome),
      devices_(model.device_count()),
      near_(near_devices(model)) {}

bool Flow::prepare() {
  const std::size_t cells = static_cast<std::size_t>(model_.tensors) * devices_;
  uses_.assign(cells, 0);
  opened_.assign(cells, 0);
  needs_.assign(devices_ > 1 ? cells : 0, 0);
  holds_.assign(static_cast<std::size_t>(model_.tensors) * model_.memories.size(), 0);
  bytes_.assign(model_.memories.size(), 0);
  outcome_.peak.assign(model_.memories.size(), 0);
  outcome_.top.assign(model_.memories.size(), 0);
  outcome_.first_over.assign(model_.memories.size(), -1);
  outcome_.link_bytes.assign(model_.links.size(), 0);
  outcome_.device_busy.assign(model_.devices.size(), 0);
  find_home_devices();
  find_residency_steps();
  return model_copies() && find_transfers();
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

template <class Visit>
void Flow::each_source_device(const CopyModel& copy, Visit&& visit) const {
  const i32 source = model_.links[copy.link].source;
  for (i32 d = 0; d < devices_; ++d) {
    if (model_.devices[d].home() != source) continue;
    visit(d);
    return;  // the first device with that home stands for the others
  }
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
      if (model_.loop[a] >= 0 && model_.loop[a] == model_.loop[b]) copy.factor = model_.repeat[b];
    }
    issue[i] = copy.issue + 1;
  }
  list_by_key(issue, steps_.count + 1, issued_rows_, issued_);
  return true;
}

bool Flow::find_transfers() {
  if (!residencies_.empty()) resident_read_.assign(steps_.read.size(), 0);
  for (i32 s = 0; s < steps_.count; ++s) {
    const i32 d = steps_.device[s];
    for (i64 i = steps_.read_rows.begin(s); i < steps_.read_rows.end(s); ++i) {
      const i32 t = steps_.read[i];
      if (!residencies_.empty()) {
        bool resident = false;
        residencies_.serves(t, steps_.position[s], d, resident);
        resident_read_[i] = resident;
        if (resident) continue;
      }
      ++uses_[cell(t, d)];
      if (devices_ == 1 || model_.input(t) || is_near(t, d) || needs_[cell(t, d)]) continue;
      needs_[cell(t, d)] = 1;
      ++transfer_count_;
      ++uses_[cell(t, d)];                // the transfer, until it ends, there …
      ++uses_[cell(t, home_device_[t])];  // … and here
      const i32 from = model_.devices[home_device_[t]].home(), to = model_.devices[d].home();
      if (model_.link_between[from * model_.memory_count() + to] < 0)
        return outcome_.fail(Fault::kNoLink, from, to);
    }
    for (i64 i = steps_.write_rows.begin(s); i < steps_.write_rows.end(s); ++i) {
      bool resident = false;
      residencies_.serves(steps_.written[i], steps_.position[s], d, resident);
      if (!resident) ++uses_[cell(steps_.written[i], d)];
    }
  }
  for (const CopyModel& copy : copies_) {
    if (opens_home(copy)) ++uses_[cell(copy.tensor, home_device_[copy.tensor])];
    each_source_device(copy, [&](i32 d) { ++uses_[cell(copy.tensor, d)]; });
  }
  return true;
}

void Flow::start_program() {
  for (i32 t = 0; t < model_.tensors; ++t) {
    if (model_.root[t] != t) continue;
    if (held_for_ever(t)) {
      hold(t, model_.devices[home_device_[t]].home(), 0);
    } else if (model_.persistent(t)) {
      if (uses_[cell(t, home_device_[t])] > 0) open(t, home_device_[t], 0);
    } else if (model_.input(t)) {
      for (i32 d = 0; d < devices_; ++d)
        if (near_[d] == d && uses_[cell(t, d)] > 0) open(t, d, 0);
    }
  }
  for (i64 i = 0; i < plan_.residency_count; ++i) {
    const i64* row = plan_.residencies + i * 5;
    if (row[3] < 0) hold(model_.root[row[0]], static_cast<i32>(row[1]), 0);
  }
}

void Flow::start_step(i32 step, i64 now) {
  const i32 d = steps_.device[step];
  for (i64 i = begin_rows_.begin(step); i < begin_rows_.end(step); ++i) {
    if (over_[begins_[i]]) continue;  // its last step ran before its first, on another device
    over_[begins_[i]] = -1;
    const i64* row = plan_.residencies + begins_[i] * 5;
    hold(model_.root[row[0]], static_cast<i32>(row[1]), now);
  }
  for (i64 i = steps_.write_rows.begin(step); i < steps_.write_rows.end(step); ++i) {
    bool resident = false;
    residencies_.serves(steps_.written[i], steps_.position[step], d, resident);
    if (!resident) open(steps_.written[i], d, now);
  }
}

void Flow::end_step(i32 step, i64) {
  const i32 d = steps_.device[step];
  for (i64 i = steps_.read_rows.begin(step); i < steps_.read_rows.end(step); ++i)
    if (!resident_read(i)) close(steps_.read[i], d);
  for (i64 i = steps_.write_rows.begin(step); i < steps_.write_rows.end(step); ++i) {
    bool resident = false;
    residencies_.serves(steps_.written[i], steps_.position[step], d, resident);
    if (!resident) close(steps_.written[i], d);
  }
  for (i64 i = end_rows_.begin(step); i < end_rows_.end(step); ++i) {
    const i64* row = plan_.residencies + ends_[i] * 5;
    const bool begun = over_[ends_[i]] != 0;
    over_[ends_[i]] = 1;
    if (begun) release(model_.root[row[0]], static_cast<i32>(row[1]));
  }
}

void Flow::end_transfer(i32 tensor, i32 device) {
  close(tensor, home_device_[tensor]);
  close(tensor, device);
}

void Flow::start_copy(i64 copy, i64 now) {
  const CopyModel& c = copies_[copy];
  outcome_.link_bytes[c.link] = plus(outcome_.link_bytes[c.link], times(c.bytes, c.factor));
  if (opens_home(c)) open(c.tensor, home_device_[c.tensor], now);
}

void Flow::end_copy(i64 copy) {
  const CopyModel& c = copies_[copy];
  if (opens_home(c)) close(c.tensor, home_device_[c.tensor]);
  each_source_device(c, [&](i32 d) { close(c.tensor, d); });
}

void Flow::open(i32 tensor, i32 device, i64 now) {
  if (opened_[cell(tensor, device)] || (held_for_ever(tensor) && is_near(tensor, device))) return;
  opened_[cell(tensor, device)] = 1;
  hold(tensor, model_.devices[device].home(), now);
}

void Flow::close(i32 tensor, i32 device) {
  const std::size_t c = cell(tensor, device);
  if (--uses_[c] > 0 || !opened_[c]) return;
  if (model_.output[tensor] && !model_.input(tensor) && is_near(tensor, device)) return;
  opened_[c] = 0;
  release(tensor, model_.devices[device].home());
}

void Flow::hold(i32 tensor, i32 memory, i64 now) {
  const i32 place = model_.place[tensor];
  if (holds_[static_cast<std::size_t>(place) * model_.memories.size() + memory]++ > 0) return;
  i64& bytes = bytes_[memory];
  bytes = plus(bytes, aligned(model_.place_size[place], model_.memories[memory].alignment));
  outcome_.peak[memory] = std::max(outcome_.peak[memory], bytes);
  if (bytes > model_.memories[memory].capacity && outcome_.first_over[memory] < 0)
    outcome_.first_over[memory] = now;
}

void Flow::release(i32 tensor, i32 memory) {
  const i32 place = model_.place[tensor];
  if (--holds_[static_cast<std::size_t>(place) * model_.memories.size() + memory] > 0) return;
  bytes_[memory] -= aligned(model_.place_size[place], model_.memories[memory].alignment);
}

void Flow::finish() {
  outcome_.over.resize(model_.memories.size());
  for (std::size_t m = 0; m < model_.memories.size(); ++m)
    outcome_.over[m] =
        std::max<i64>(0, std::max(outcome_.peak[m], outcome_.top[m]) - model_.memories[m].capacity);
}

}  // namespace loadmaster
