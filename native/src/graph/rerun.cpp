#include "graph/rerun.hpp"

#include <algorithm>

namespace loadmaster::graph {

Rerun::Rerun(const Model& model) : EventLoop(model), HomeCopies(model) {}

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
  if (since > 0) {
    resume(old, since);
  } else {
    begin_history();
    begin();
  }
  run_events();
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

// Uses of every tensor on every device and what steps wait for, before anything has run.
bool Rerun::prepare() {
  rest_.assign(devices_, 0);
  for (i32 s = 0; s < built_->graph.count; ++s) {
    if (placement_->run_time[s] < 0) return false;
    i64& rest = rest_[placement_->device[s]];
    rest = plus(rest, placement_->run_time[s]);
  }
  const i64 places = static_cast<i64>(built_->place_size.size());
  if (!count_uses(built_->graph, built_->tensors, places, waits_)) return false;
  reset();
  for (const i64 rest : rest_) at_least(0, rest);
  return true;
}

void Rerun::begin_history() {
  const i32 steps = built_->graph.count;
  now_->start.assign(steps, 0);
  now_->end.assign(steps, 0);
  now_->ready.assign(steps, 0);
  now_->moves.clear();
  now_->peaks.assign(model_.memories.size(), {});
  resume_memory(0);
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
      events_.push_step_end(old.end[s], s);
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
      for (const i32 reader : readers(t))
        if (!transferred(t, near_[placement_->device[reader]])) --waits_[reader];
    }
  }
  for (const History::Move& move : old.moves) {
    if (move.booked >= since) break;
    now_->moves.push_back(move);
    const std::vector<i32>& engines = model_.links[move.link].engines;
    for (const i32 engine : engines) engine_free_[engine] = move.end;
    if (move.start < since) cell(move.tensor, move.device).open = 1;
    if (move.end >= since) {
      events_.push_move(move.link, !engines.empty(), move.start, move.end,
                        EventKey::make(EventKey::kMoveStarts, false, move.tensor, move.device),
                        move.start < since);
      continue;
    }
    --cell(move.tensor, near_[home(move.tensor)]).uses;
    --cell(move.tensor, move.device).uses;
    for (const i32 reader : readers(move.tensor))
      if (near_[placement_->device[reader]] == move.device) --waits_[reader];
  }
  resume_memory(since);
  for (i32 s = 0; s < graph.count; ++s)
    if (old.start[s] >= since && waits_[s] == 0) make_ready(s);
}

// Holds what is open. At time 0 nothing but what is given.
void Rerun::resume_memory(i64 since) {
  for (i32 t = 0; t < built_->tensors; ++t) {
    if (persistent(t)) hold(t, memory(home(t)), 0);
    for (i32 d = 0; d < devices_; ++d) {
      Cell& c = cell(t, d);
      if (input(t) && near_[d] == d && c.uses > 0) c.open = 1;
      if (!c.open) continue;
      c.open = !is_kept(t, d) && (c.uses > 0 || stays_open(t, d));
      if (c.open) hold(t, memory(d), std::max<i64>(0, since - 1));
    }
  }
}

void Rerun::holds(i32 memory, i64 bytes, i64 now) {
  auto& peaks = now_->peaks[memory];
  if (!peaks.empty() && bytes <= peaks.back().bytes) return;
  if (!peaks.empty() && peaks.back().time == now)
    peaks.back().bytes = bytes;
  else
    peaks.push_back({now, bytes});
}

}  // namespace loadmaster::graph
