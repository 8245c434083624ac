// What room is left when all is placed is used for what no tensor asked for in its turn.
#include <algorithm>
#include <numeric>

#include "game/msa.hpp"
#include "idle_rule.hpp"

namespace loadmaster::game {
namespace {

constexpr i32 kWriteBackTries = 3;  // each with more time

}  // namespace

// What slow memory serves later may still be made in fast memory and written back under cover of other steps.
void Msa::write_back(const i32* order) {
  std::vector<i8> is_fast(m_.tensors(), 0);          // where it is made
  std::vector<i32> until(m_.tensors(), m_.steps());  // slow memory must have it by then
  for (const MsaStay& stay : stays_)
    if (stay.first == t_.made[stay.tensor]) is_fast[stay.tensor] = 1;
  for (const MsaCopy& each : copies_)
    if (each.copy.in) until[each.copy.tensor] = std::min(until[each.copy.tensor], each.copy.issued);
  for (i32 k = 0; k < m_.tensors(); ++k) {
    const i32 tensor = t_.sorted[order ? order[k] : k], made = t_.made[tensor];
    const std::vector<MsaUse>& uses = t_.uses[tensor];
    if (made < 0 || is_fast[tensor] || (uses.empty() && !m_.output[tensor])) continue;
    if (m_.over[tensor] >= 0 || m_.carried[tensor] >= 0 || m_.out[tensor] == kNever) continue;
    if (const i32 site = t_.made_site[tensor]; pinned_[site] || t_.saved[site] <= 0) continue;
    i32 deadline = until[tensor];
    if (!uses.empty()) deadline = std::min(deadline, uses.front().step);
    if (const i32 over = t_.overwritten[tensor]; over >= 0) deadline = std::min(deadline, t_.made[over]);
    const double copy = t_.copy_out(tensor);
    const i64 need = MsaTables::need(copy);
    for (i32 retry = 0; retry < kWriteBackTries; ++retry) {
      i32 end = std::min(picker_.preferred_end(made, m_.steps(), copy, retry), deadline);
      while (end > made + 1 && picker_.loop_of(end) != picker_.loop_of(made)) --end;
      if (end <= made + 1) break;
      if (out_.meeting(made, end, 0) >= o_.most_out || !out_.fits(made, end, 0, need)) continue;
      const i64 offset = strips_.find(made, end - 1, m_.size[tensor], {});
      if (offset < 0) break;
      add_stay(tensor, made, end - 1, strips_.open(made, end - 1, m_.size[tensor], offset), made);
      add_copy(tensor, false, made, end, need);
      break;
    }
  }
}

// [copies] The step by which each is done if nobody waits for it.
std::vector<i32> Msa::done_by() const {
  std::vector<i8> is_fast(m_.sites(), 0);
  for (const MsaStay& stay : stays_)
    for (const i32 site : served(stay)) is_fast[site] = 1;
  const StepTimes t = step_times(m_, is_fast);
  const std::vector<i32> rows = by_issue();
  std::vector<i32> found(copies_.size(), m_.steps());
  IdleQueues queues(copies_.size());
  std::size_t next = 0;
  for (i32 step = 0; step < m_.steps(); ++step) {
    for (; next < rows.size() && copies_[rows[next]].copy.issued < step; ++next)
      queues.push(rows[next], copies_[rows[next]].copy.in, copies_[rows[next]].copy.work);
    const i64 idle = m_.idle_copies ? m_.idle(step, t.elapsed[step], t.slow[step]) : t.elapsed[step];
    queues.drain(idle, [&](i64 row) { found[row] = step + 1; });
  }
  return found;
}

std::vector<i32> Msa::by_issue() const {
  std::vector<i32> rows(copies_.size());
  std::iota(rows.begin(), rows.end(), 0);
  std::stable_sort(rows.begin(), rows.end(), [&](i32 a, i32 b) {
    const GameCopy &one = copies_[a].copy, &other = copies_[b].copy;
    return std::pair(one.issued, one.needed) < std::pair(other.issued, other.needed);
  });
  return rows;
}

// A copy waits behind those issued before it, however small it is: what is late may end later. Small tensors
// first, which leave room for the others.
void Msa::stretch_out() {
  const std::vector<i32> done = done_by();
  std::vector<i32> rows;
  for (std::size_t row = 0; row < copies_.size(); ++row) {
    const GameCopy& copy = copies_[row].copy;
    if (!copy.in && done[row] > copy.needed && m_.carried[copy.tensor] < 0)
      rows.push_back(static_cast<i32>(row));
  }
  std::stable_sort(rows.begin(), rows.end(), [&](i32 a, i32 b) {
    return m_.size[copies_[a].copy.tensor] < m_.size[copies_[b].copy.tensor];
  });
  for (const i32 row : rows) {
    GameCopy& copy = copies_[row].copy;
    const auto holds = [&](const MsaStay& stay) {
      return stay.tensor == copy.tensor && stay.first <= copy.issued && stay.last >= copy.issued;
    };
    MsaStay& stay = *std::find_if(stays_.begin(), stays_.end(), holds);
    i32 end = done[row];
    if (const i32 over = t_.overwritten[copy.tensor]; over >= 0) end = std::min(end, t_.made[over]);
    for (const MsaUse& use : t_.uses[copy.tensor])
      if (use.step > stay.last) end = std::min(end, std::max(use.step, copy.needed));
    for (const MsaCopy& other : copies_)
      if (other.copy.in && other.copy.tensor == copy.tensor && other.copy.issued >= copy.needed)
        end = std::min(end, other.copy.issued);
    i32 low = copy.needed;  // it can be held until then
    for (i32 high = end, middle = end; low < high; middle = low + (high - low + 1) / 2) {
      if (strips_.stretch(stay.strip, stay.first, middle - 1))
        low = middle;
      else
        high = middle - 1;
    }
    while (low > copy.needed && picker_.loop_of(low) != picker_.loop_of(copy.issued)) --low;
    stay.last = std::max(stay.last, low - 1);
    copy.needed = low;
  }
}

// What would be late starts as early as it can without getting in before another.
void Msa::stretch_in() {
  const std::vector<i32> done = done_by();
  i32 previous = -1;
  for (const i32 row : by_issue()) {
    GameCopy& copy = copies_[row].copy;
    if (!copy.in) continue;
    const auto filled = [&](const MsaStay& stay) {
      return stay.tensor == copy.tensor && stay.ready == copy.needed && stay.first == copy.issued + 1;
    };
    if (done[row] > copy.needed && copies_[row].slice < 0 && m_.carried[copy.tensor] < 0) {
      MsaStay& stay = *std::find_if(stays_.begin(), stays_.end(), filled);
      i32 low = std::max(previous, t_.made[copy.tensor]);
      for (const MsaStay& other : stays_)
        if (other.tensor == copy.tensor && other.last < stay.first) low = std::max(low, other.last);
      for (const MsaCopy& other : copies_)
        if (!other.copy.in && other.copy.tensor == copy.tensor && other.copy.needed <= copy.issued)
          low = std::max(low, other.copy.needed);
      i32 high = copy.issued;  // it can start then
      for (i32 middle = low; low < high; middle = low + (high - low) / 2) {
        if (strips_.stretch(stay.strip, middle + 1, stay.last))
          high = middle;
        else
          low = middle + 1;
      }
      while (high < copy.issued && picker_.loop_of(high) != picker_.loop_of(copy.needed)) ++high;
      stay.first = high + 1;
      copy.issued = high;
    }
    previous = std::max(previous, copy.issued);
  }
}

}  // namespace loadmaster::game
