#include "game/ledger.hpp"

namespace loadmaster::game {

Ledger::Ledger(const Nests& nests, Queue order)
    : nests_(nests), order_(order), sums_(nests.steps.size() + nests.count(), 0), lines_(nests.count()) {
  if (order == Queue::kLatest) used_.assign(nests.steps.size(), 0);
}

void Ledger::clear() {
  for (auto& line : lines_) line.clear();
  std::fill(used_.begin(), used_.end(), 0);
  taken_.clear();
}

i64 Ledger::left(i32 nest, i32 place) const {
  const i64* sum = sums(nest) + place;
  return std::max<i64>(0, sum[1] - sum[0] - used_[nests_.step(nest, place)]);
}

i32 Ledger::at_or_before(i32 nest, i32 step) const {
  const i32 place = nests_.before(nest, step + 1) - 1;
  if (place >= 0) return nests_.step(nest, place);
  return nest == 0 ? -1 : kNoStep;
}

i32 Ledger::latest_issue(i32 lowest, i32 needed, i64 work) const {
  if (needed - 2 < lowest) return kNoStep;
  const i32 nest = nests_.of[needed];
  if (order_ == Queue::kFifo) return fifo_issue(nest, lowest, needed, work);
  i32 place = nests_.slot[needed];
  for (i64 found = 0; found < work; found += left(nest, place))
    if (--place < 0) return kNoStep;
  const i32 step = at_or_before(nest, std::min(needed - 2, nests_.step(nest, place) - 1));
  return step >= lowest ? step : kNoStep;
}

i32 Ledger::fifo_issue(i32 nest, i32 lowest, i32 needed, i64 work) const {
  const std::vector<Job>& line = lines_[nest];
  const i64* sum = sums(nest);
  const i64 due = sum[nests_.slot[needed]] - work, earliest = until(nest, lowest + 1);
  i32 highest = needed - 2;
  // Behind all jobs first, then before the last one, and so on.
  for (std::size_t ahead = line.size();; --ahead) {
    const i64 start_by = ahead < line.size() ? std::min(due, line[ahead].latest - work) : due;
    if (start_by < earliest) return kNoStep;  // and less and less time as we go on
    const i32 least = ahead > 0 ? std::max(lowest, line[ahead - 1].issued) : lowest;
    if (highest >= least && (ahead == 0 || line[ahead - 1].done <= start_by)) {
      const i32 most = nests_.before(nest, highest + 1);  // steps of the nest up to `highest`
      const i64* after = std::upper_bound(sum, sum + most + 1, start_by);
      const i32 place = static_cast<i32>(after - sum) - 2;
      const i32 step = place >= 0 ? nests_.step(nest, place) : nest == 0 ? -1 : kNoStep;
      if (step >= least) return step;
    }
    if (ahead == 0 || line[ahead - 1].issued <= lowest) return kNoStep;
    highest = std::min(highest, line[ahead - 1].issued - 1);
  }
}

i32 Ledger::last_issue(i32 lowest, i32 needed) const {
  if (needed - 2 < lowest) return kNoStep;
  const i32 step = at_or_before(nests_.of[needed], needed - 2);
  return step >= lowest ? step : kNoStep;
}

i32 Ledger::step_of(i32 nest, i32 place) const {
  if (place < nests_.length(nest)) return nests_.step(nest, place);
  return nest == 0 ? static_cast<i32>(nests_.steps.size()) : kNoStep;
}

i32 Ledger::first_need(i32 issued, i32 nest, i32 most) const {
  const i32 step = step_of(nest, nests_.before(nest, issued + 2));
  return step >= issued + 2 && step <= most ? step : kNoStep;
}

i32 Ledger::earliest_need(i32 issued, i32 nest, i32 most, i64 work) const {
  if (order_ == Queue::kFifo) return fifo_need(issued, nest, most, work);
  const i32 length = nests_.length(nest), first = nests_.before(nest, issued + 2);
  i64 found = 0;
  for (i32 place = nests_.before(nest, issued + 1); place <= length; ++place) {
    if (place >= first && found >= work) {
      const i32 step = step_of(nest, place);
      return step <= most && step >= issued + 2 ? step : kNoStep;
    }
    if (place < length) found += left(nest, place);
  }
  return kNoStep;
}

std::size_t Ledger::behind(const std::vector<Job>& line, i32 issued) {
  const auto later = [](i32 value, const Job& job) { return value < job.issued; };
  return static_cast<std::size_t>(std::upper_bound(line.begin(), line.end(), issued, later) - line.begin());
}

i32 Ledger::fifo_need(i32 issued, i32 nest, i32 most, i64 work) const {
  const std::vector<Job>& line = lines_[nest];
  const std::size_t ahead = behind(line, issued);
  const i64 start = std::max(until(nest, issued + 1), ahead > 0 ? line[ahead - 1].done : 0);
  const i64 done = plus(start, work);
  if (ahead < line.size() && done > line[ahead].latest) return kNoStep;
  const i64* sum = sums(nest);
  const i32 length = nests_.length(nest), first = nests_.before(nest, issued + 2);
  const i32 place = static_cast<i32>(std::lower_bound(sum + first, sum + length + 1, done) - sum);
  const i32 step = place > length ? kNoStep : step_of(nest, place);
  return step <= most && step >= issued + 2 ? step : kNoStep;
}

bool Ledger::fits(i32 issued, i32 needed, i32 nest, i64 work) const {
  const std::vector<Job>& line = lines_[nest];
  const std::size_t ahead = behind(line, issued);
  const i64 start = std::max(until(nest, issued + 1), ahead > 0 ? line[ahead - 1].done : 0);
  const i64 done = plus(start, work);
  if (work == 0) return true;
  return done <= until(nest, needed) && (ahead == line.size() || done <= line[ahead].latest);
}

void Ledger::add(i32 copy, i32 issued, i32 needed, i32 nest, i64 work) {
  if (order_ == Queue::kFifo) {
    std::vector<Job>& line = lines_[nest];
    const std::size_t place = behind(line, issued);
    line.insert(line.begin() + static_cast<std::ptrdiff_t>(place),
                {copy, issued, needed, work, until(nest, issued + 1), until(nest, needed), 0, 0});
    return settle(line, place);
  }
  const i32 first = nests_.before(nest, issued + 1);
  for (i32 place = nests_.before(nest, needed) - 1; work > 0 && place >= first; --place) {
    const i64 amount = std::min(work, left(nest, place));
    if (amount == 0) continue;
    taken_.push_back({copy, nests_.step(nest, place), amount});
    used_[taken_.back().step] += amount;
    work -= amount;
  }
}

void Ledger::remove(i32 copy, i32 issued, i32 nest) {
  if (order_ == Queue::kFifo) {
    std::vector<Job>& line = lines_[nest];
    std::size_t place = behind(line, issued) - 1;
    while (line[place].copy != copy) --place;
    line.erase(line.begin() + static_cast<std::ptrdiff_t>(place));
    return settle(line, place);
  }
  std::erase_if(taken_, [&](const Take& take) {
    if (take.copy == copy) used_[take.step] -= take.amount;
    return take.copy == copy;
  });
}

// When the jobs from one on are done, and by when each must be reached; as far as anything changes.
void Ledger::settle(std::vector<Job>& line, std::size_t from) {
  i64 done = from > 0 ? line[from - 1].done : 0;
  std::size_t end = from;
  for (; end < line.size(); ++end) {
    Job& job = line[end];
    done = std::max(done, job.from) + job.work;
    if (end > from && done == job.done) break;
    job.done = done;
  }
  i64 latest = end < line.size() ? line[end].latest : kForever;
  for (std::size_t i = end; i-- > 0;) {
    Job& job = line[i];
    // Who is late already has nothing to lose, and who asks for nothing is never late.
    const i64 due = job.done <= job.due && job.work > 0 ? job.due : kForever;
    latest = std::min(due, latest) - job.work;
    if (i < from && latest == job.latest) return;
    job.latest = latest;
  }
}

i32 Ledger::meeting(i32 issued, i32 needed, i32 nest) const {
  const std::vector<Job>& line = lines_[nest];
  return static_cast<i32>(std::count_if(line.begin(), line.end(), [&](const Job& job) {
    return job.issued <= needed && job.needed >= issued;
  }));
}

bool Ledger::crosses(i32 issued, i32 needed, i32 nest) const {
  const std::vector<Job>& line = lines_[nest];
  return std::any_of(line.begin(), line.end(), [&](const Job& job) {
    return (job.issued < issued && job.needed > needed) || (job.issued > issued && job.needed < needed);
  });
}

void Ledger::refresh() {
  for (i32 nest = 0; nest < nests_.count(); ++nest) {
    for (Job& job : lines_[nest]) {
      job.from = until(nest, job.issued + 1);
      job.due = until(nest, job.needed);
      job.done = kNoStep;  // not known
    }
    settle(lines_[nest], 0);
  }
}

void Ledger::add_used(std::vector<i64>& used) const {
  for (std::size_t i = 0; i < used_.size(); ++i) used[i] += used_[i];
  for (i32 nest = 0; nest < nests_.count(); ++nest) {
    const i64* sum = sums(nest);
    for (const Job& job : lines_[nest]) {
      const i64 start = job.done - job.work;
      const i32 end = nests_.before(nest, job.needed);  // what is late takes more than there is
      const auto begin = std::upper_bound(sum, sum + end + 1, start) - 1;
      for (i32 place = static_cast<i32>(begin - sum); place < end && sum[place] < job.done; ++place)
        used[nests_.step(nest, place)] += std::min(job.done, sum[place + 1]) - std::max(start, sum[place]);
    }
  }
}

}  // namespace loadmaster::game
