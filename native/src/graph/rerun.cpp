#include "graph/rerun.hpp"

#include <algorithm>
#include <functional>

namespace loadmaster::graph {
namespace {

// The order within an instant is that of engine.cpp.
enum Phase : u64 { kStepEnds = 0, kMoveEnds = 1, kMoveStarts = 2 };
constexpr u64 key_of(Phase phase, i32 what, i32 device) {
  return phase << 61 | static_cast<u64>(what) << 16 | static_cast<u64>(device);
}

}  // namespace

bool Rerun::Ready::operator>(const Ready& other) const {
  if (rank != other.rank) return rank > other.rank;
  if (level != other.level) return level > other.level;
  if (time != other.time) return time > other.time;
  return step > other.step;
}

Rerun::Rerun(const Model& model)
    : model_(model), devices_(model.device_count()), near_(near_devices(model)) {}

Judged Rerun::run(const Built& built, const Placement& placement, const History& old, i64 since, History& now,
                  i64 limit) {
  limit_ = limit;
  cut_ = false;
  built_ = &built;
  placement_ = &placement;
  now_ = &now;
  Judged judged;
  judged.over.assign(model_.memories.size(), 0);
  if (!prepare()) {
    judged.faulty = true;
    return judged;
  }
  if (since > 0)
    resume(old, since);
  else
    begin();
  while (!events_.empty() && !cut_) {
    const i64 time = events_.front().time;
    while (!events_.empty() && events_.front().time == time) {
      std::pop_heap(events_.begin(), events_.end(), std::greater<>());
      const Event event = events_.back();
      events_.pop_back();
      if (event.link >= 0) queue_next_move(event);
      const auto phase = static_cast<Phase>(event.key >> 61);
      const i32 what = static_cast<i32>(event.key >> 16 & 0xffffffff);
      const i32 device = static_cast<i32>(event.key & 0xffff);
      if (phase == kStepEnds)
        end_step(what, time);
      else if (phase == kMoveEnds)
        end_move(what, device, time);
      else
        open(what, device, time);
    }
    start_steps(time);
  }
  if (cut_) {
    judged.cut = true;
    return judged;
  }
  judged.faulty = done_ < built.graph.count;
  for (const i64 end : now.end) judged.total = std::max(judged.total, end);
  for (std::size_t m = 0; m < judged.over.size(); ++m)
    if (!now.peaks[m].empty())
      judged.over[m] = std::max<i64>(0, now.peaks[m].back().bytes - model_.memories[m].capacity);
  return judged;
}

i32 Rerun::link_to(i32 tensor, i32 device) const {
  return model_.link_between[memory(home(tensor)) * model_.memory_count() + memory(device)];
}

// Uses of every tensor on every device and what steps wait for, before anything has run.
bool Rerun::prepare() {
  const StepGraph& graph = built_->graph;
  cells_.assign(static_cast<std::size_t>(built_->tensors) * devices_, Cell{});
  waits_.assign(graph.count, 0);
  rest_.assign(devices_, 0);
  for (i32 s = 0; s < graph.count; ++s) {
    if (placement_->run_time[s] < 0) return false;
    const i32 here = near_[placement_->device[s]];
    i64& rest = rest_[placement_->device[s]];
    rest = plus(rest, placement_->run_time[s]);
    for (i64 i = graph.read_rows.begin(s); i < graph.read_rows.end(s); ++i) {
      const i32 t = built_->read[i];
      Cell& c = cell(t, here);
      ++c.uses;
      if (!built_->input[t] && !c.needed) {
        const i32 there = near_[home(t)];
        if (there != here) {
          if (link_to(t, here) < 0) return false;
          c.needed = 1;
          ++c.uses;
          ++cell(t, there).uses;
        }
      }
      if (built_->writer[t] >= 0 || c.needed) ++waits_[s];
    }
    for (i64 i = graph.write_rows.begin(s); i < graph.write_rows.end(s); ++i)
      ++cell(built_->written[i], here).uses;
  }
  for (const i32 s : graph.over) ++waits_[s];
  holds_.assign(built_->place_size.size() * model_.memories.size(), 0);
  bytes_.assign(model_.memories.size(), 0);
  running_.assign(devices_, -1);
  is_dirty_.assign(devices_, 0);
  dirty_.clear();
  engine_free_.assign(model_.engines, 0);
  events_.clear();
  waiting_.resize(devices_);
  for (auto& heap : waiting_) heap.clear();
  lanes_.resize(model_.links.size());
  for (Lane& lane : lanes_) {
    lane.moves.clear();
    lane.next_start = lane.next_end = 0;
  }
  done_ = 0;
  for (const i64 rest : rest_) at_least(0, rest);
  return true;
}

void Rerun::begin() {
  const i32 steps = built_->graph.count;
  now_->start.assign(steps, 0);
  now_->end.assign(steps, 0);
  now_->ready.assign(steps, 0);
  now_->moves.clear();
  now_->peaks.assign(model_.memories.size(), {});
  resume_memory(0);
  for (i32 t = 0; t < built_->tensors; ++t)
    if (built_->persistent[t])
      for (i32 d = 0; d < devices_; ++d)
        if (near_[d] == d && cell(t, d).needed) book(t, d, 0);
  for (i32 s = 0; s < steps; ++s)
    if (waits_[s] == 0) make_ready(s);
  start_steps(0);
}

// The state behind the last instant before `since`, from what happened until then.
void Rerun::resume(const History& old, i64 since) {
  const StepGraph& graph = built_->graph;
  now_->start = old.start;
  now_->end = old.end;
  now_->ready = old.ready;
  now_->moves.clear();
  now_->peaks.resize(old.peaks.size());
  for (std::size_t m = 0; m < old.peaks.size(); ++m) {
    const auto& peaks = old.peaks[m];
    const auto last = std::partition_point(peaks.begin(), peaks.end(),
                                           [since](const History::Peak& p) { return p.time < since; });
    now_->peaks[m].assign(peaks.begin(), last);
  }
  for (i32 s = 0; s < graph.count; ++s) {
    const i32 here = near_[placement_->device[s]];
    if (old.start[s] >= since) continue;
    rest_[placement_->device[s]] -= placement_->run_time[s];
    if (old.end[s] >= since) {
      running_[placement_->device[s]] = s;
      push({old.end[s], key_of(kStepEnds, s, 0), -1});
    } else {
      ++done_;
      for (i64 i = graph.read_rows.begin(s); i < graph.read_rows.end(s); ++i)
        --cell(built_->read[i], here).uses;
      for (i64 i = graph.over_rows.begin(s); i < graph.over_rows.end(s); ++i) --waits_[graph.over[i]];
    }
    for (i64 i = graph.write_rows.begin(s); i < graph.write_rows.end(s); ++i) {
      const i32 t = built_->written[i];
      cell(t, here).open = 1;
      if (old.end[s] >= since) continue;
      --cell(t, here).uses;
      for (i64 r = built_->reader_rows.begin(t); r < built_->reader_rows.end(t); ++r)
        if (!cell(t, near_[placement_->device[built_->reader[r]]]).needed) --waits_[built_->reader[r]];
    }
  }
  for (const History::Move& move : old.moves) {
    if (move.booked >= since) break;
    now_->moves.push_back(move);
    for (const i32 engine : model_.links[move.link].engines) engine_free_[engine] = move.end;
    if (move.start < since) cell(move.tensor, move.device).open = 1;
    if (move.end >= since) {
      queue_move(move, move.start < since);
      continue;
    }
    --cell(move.tensor, near_[home(move.tensor)]).uses;
    --cell(move.tensor, move.device).uses;
    for (i64 r = built_->reader_rows.begin(move.tensor); r < built_->reader_rows.end(move.tensor); ++r)
      if (near_[placement_->device[built_->reader[r]]] == move.device) --waits_[built_->reader[r]];
  }
  resume_memory(since);
  for (i32 s = 0; s < graph.count; ++s)
    if (old.start[s] >= since && waits_[s] == 0) make_ready(s);
}

// Holds what is open. At time 0 nothing but what is given.
void Rerun::resume_memory(i64 since) {
  for (i32 t = 0; t < built_->tensors; ++t) {
    if (built_->persistent[t]) hold(t, memory(home(t)), 0);
    for (i32 d = 0; d < devices_; ++d) {
      Cell& c = cell(t, d);
      if (built_->input[t] && near_[d] == d && c.uses > 0) c.open = 1;
      if (!c.open) continue;
      const bool kept = built_->persistent[t] && near_[home(t)] == d;
      c.open = !kept && (c.uses > 0 || stays(t, d));
      if (c.open) hold(t, memory(d), std::max<i64>(0, since - 1));
    }
  }
}

void Rerun::make_ready(i32 step) {
  const i32 d = placement_->device[step];
  at_least(now_->ready[step], placement_->tail[step]);
  waiting_[d].push_back({placement_->rank[step], placement_->level[step], now_->ready[step], step});
  std::push_heap(waiting_[d].begin(), waiting_[d].end(), std::greater<>());
  if (is_dirty_[d]) return;
  is_dirty_[d] = 1;
  dirty_.push_back(d);
}

void Rerun::satisfy(i32 step, i64 now) {
  now_->ready[step] = now;
  if (--waits_[step] == 0) make_ready(step);
}

void Rerun::start_steps(i64 now) {
  for (const i32 device : dirty_) {
    is_dirty_[device] = 0;
    auto& heap = waiting_[device];
    if (running_[device] >= 0 || heap.empty()) continue;
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const i32 step = heap.back().step;
    heap.pop_back();
    at_least(now, rest_[device]);
    at_least(now, placement_->tail[step]);
    rest_[device] -= placement_->run_time[step];
    running_[device] = step;
    now_->start[step] = now;
    now_->end[step] = plus(now, placement_->run_time[step]);
    const StepGraph& graph = built_->graph;
    for (i64 i = graph.write_rows.begin(step); i < graph.write_rows.end(step); ++i)
      open(built_->written[i], near_[device], now);
    push({now_->end[step], key_of(kStepEnds, step, 0), -1});
  }
  dirty_.clear();
}

void Rerun::end_step(i32 step, i64 now) {
  const StepGraph& graph = built_->graph;
  const i32 device = placement_->device[step], here = near_[device];
  running_[device] = -1;
  ++done_;
  if (!is_dirty_[device]) {
    is_dirty_[device] = 1;
    dirty_.push_back(device);
  }
  for (i64 i = graph.read_rows.begin(step); i < graph.read_rows.end(step); ++i) close(built_->read[i], here);
  for (i64 i = graph.write_rows.begin(step); i < graph.write_rows.end(step); ++i)
    close(built_->written[i], here);
  for (i64 i = graph.write_rows.begin(step); i < graph.write_rows.end(step); ++i) {
    const i32 t = built_->written[i];
    destinations_.clear();
    for (i64 r = built_->reader_rows.begin(t); r < built_->reader_rows.end(t); ++r) {
      const i32 reader = built_->reader[r], there = near_[placement_->device[reader]];
      if (!cell(t, there).needed)
        satisfy(reader, now);
      else if (std::find(destinations_.begin(), destinations_.end(), there) == destinations_.end())
        destinations_.push_back(there);
    }
    std::sort(destinations_.begin(), destinations_.end());
    for (const i32 there : destinations_) book(t, there, now);
  }
  for (i64 i = graph.over_rows.begin(step); i < graph.over_rows.end(step); ++i) satisfy(graph.over[i], now);
}

void Rerun::book(i32 tensor, i32 device, i64 now) {
  const i32 number = link_to(tensor, device);
  const LinkModel& link = model_.links[number];
  const i64 once = std::max<i64>(1, plus(link.latency, ceil_time(built_->size[tensor], link.bandwidth)));
  i64 start = now;
  for (const i32 engine : link.engines) start = std::max(start, engine_free_[engine]);
  const i64 end = plus(start, times(once, built_->factor[tensor]));
  for (const i32 engine : link.engines) engine_free_[engine] = end;
  now_->moves.push_back({tensor, device, number, now, start, end});
  queue_move(now_->moves.back(), false);
}

void Rerun::push(const Event& event) {
  events_.push_back(event);
  std::push_heap(events_.begin(), events_.end(), std::greater<>());
}

// Starts and ends ascend on a link with engines: only the next of each is among the events.
void Rerun::queue_move(const History::Move& move, bool started) {
  const u64 starts = key_of(kMoveStarts, move.tensor, move.device);
  const u64 ends = key_of(kMoveEnds, move.tensor, move.device);
  if (model_.links[move.link].engines.empty()) {
    if (!started) push({move.start, starts, -1});
    push({move.end, ends, -1});
    return;
  }
  Lane& lane = lanes_[move.link];
  lane.moves.push_back(move);
  if (started)
    lane.next_start = lane.moves.size();
  else if (lane.next_start + 1 == lane.moves.size())
    push({move.start, starts, move.link});
  if (lane.next_end + 1 == lane.moves.size()) push({move.end, ends, move.link});
}

void Rerun::queue_next_move(const Event& event) {
  Lane& lane = lanes_[event.link];
  const bool starts = static_cast<Phase>(event.key >> 61) == kMoveStarts;
  const std::size_t next = starts ? ++lane.next_start : ++lane.next_end;
  if (next == lane.moves.size()) return;
  const History::Move& move = lane.moves[next];
  push({starts ? move.start : move.end, key_of(starts ? kMoveStarts : kMoveEnds, move.tensor, move.device),
        event.link});
}

void Rerun::end_move(i32 tensor, i32 device, i64 now) {
  close(tensor, near_[home(tensor)]);
  close(tensor, device);
  for (i64 r = built_->reader_rows.begin(tensor); r < built_->reader_rows.end(tensor); ++r)
    if (near_[placement_->device[built_->reader[r]]] == device) satisfy(built_->reader[r], now);
}

void Rerun::open(i32 tensor, i32 near_device, i64 now) {
  Cell& c = cell(tensor, near_device);
  if (c.open || (built_->persistent[tensor] && near_[home(tensor)] == near_device)) return;
  c.open = 1;
  hold(tensor, memory(near_device), now);
}

void Rerun::close(i32 tensor, i32 near_device) {
  Cell& c = cell(tensor, near_device);
  if (--c.uses > 0 || !c.open || stays(tensor, near_device)) return;
  c.open = 0;
  const i32 at = memory(near_device), place = built_->place[tensor];
  if (--holds_[static_cast<std::size_t>(place) * model_.memories.size() + at] > 0) return;
  bytes_[at] -= aligned(built_->place_size[place], model_.memories[at].alignment);
}

void Rerun::hold(i32 tensor, i32 at, i64 now) {
  const i32 place = built_->place[tensor];
  if (holds_[static_cast<std::size_t>(place) * model_.memories.size() + at]++ > 0) return;
  bytes_[at] = plus(bytes_[at], aligned(built_->place_size[place], model_.memories[at].alignment));
  auto& peaks = now_->peaks[at];
  if (!peaks.empty() && bytes_[at] <= peaks.back().bytes) return;
  if (!peaks.empty() && peaks.back().time == now)
    peaks.back().bytes = bytes_[at];
  else
    peaks.push_back({now, bytes_[at]});
}

}  // namespace loadmaster::graph
