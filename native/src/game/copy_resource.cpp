#include "game/copy_resource.hpp"

#include <algorithm>

namespace loadmaster::game {

bool CopyResource::serve(const Job& job, Spot& spot) const {
  if (job.start + 1 > spot.step) spot = {job.start + 1, 0};
  for (i64 need = job.need; need > 0;) {
    if (spot.step >= job.end) return false;
    const i64 taken = std::min(need, slots_[spot.step] - spot.used);
    need -= taken;
    spot.used += taken;
    if (need > 0) spot = {spot.step + 1, 0};
  }
  return true;
}

std::size_t CopyResource::place_of(i32 start) const {
  const auto later = [](i32 value, const Job& job) { return value < job.start; };
  return std::upper_bound(jobs_.begin(), jobs_.end(), start, later) - jobs_.begin();
}

bool CopyResource::fits(i32 start, i32 end, i64 need) const {
  std::size_t index = place_of(start);
  Spot spot = before(index);
  if (!serve({start, end, need}, spot)) return false;
  for (; index < jobs_.size(); ++index) {
    if (!serve(jobs_[index], spot)) return false;
    if (spot == after_[index]) return true;  // from here on nothing changes
  }
  return true;
}

void CopyResource::add(i32 start, i32 end, i64 need) {
  const std::size_t index = place_of(start);
  jobs_.insert(jobs_.begin() + index, {start, end, need});
  after_.insert(after_.begin() + index, Spot{});
  refresh(index);
}

void CopyResource::remove(i32 start, i32 end, i64 need) {
  for (std::size_t index = place_of(start); index-- > 0;)
    if (jobs_[index].start == start && jobs_[index].end == end && jobs_[index].need == need) {
      jobs_.erase(jobs_.begin() + index);
      after_.erase(after_.begin() + index);
      return refresh(index);
    }
}

void CopyResource::refresh(std::size_t from) {
  Spot spot = before(from);
  for (std::size_t index = from; index < jobs_.size(); ++index) {
    serve(jobs_[index], spot);
    after_[index] = spot;
  }
}

i32 CopyResource::meeting(i32 start, i32 end) const {
  return static_cast<i32>(std::count_if(
      jobs_.begin(), jobs_.end(), [&](const Job& job) { return job.start <= end && job.end >= start; }));
}

bool CopyResource::crosses(i32 start, i32 end) const {
  return std::any_of(jobs_.begin(), jobs_.end(), [&](const Job& job) {
    return (job.start < start && job.end > end) || (job.start > start && job.end < end);
  });
}

std::vector<i64> CopyResource::left() const {
  std::vector<i64> result = slots_;
  Spot spot;
  for (const Job& job : jobs_) {
    const Spot from = job.start + 1 > spot.step ? Spot{job.start + 1, 0} : spot;
    serve(job, spot);
    for (i32 step = from.step; step <= std::min<i32>(spot.step, static_cast<i32>(slots_.size()) - 1);
         ++step) {
      const i64 low = step == from.step ? from.used : 0;
      result[step] -= (step == spot.step ? spot.used : slots_[step]) - low;
    }
  }
  return result;
}

}  // namespace loadmaster::game
