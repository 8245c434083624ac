// A chain of tensors, each written over the one before it: segment by segment, from where a tensor
// is made to its first use, and from use to use.
#include "game/msa.hpp"

namespace loadmaster::game {

unsigned Msa::place_chain(const MsaGroup& group, i32 retry) {
  unsigned outcome = kDone;
  i32 parent = -1;  // the stay whose place the next tensor takes over
  for (const i32 tensor : group.tensors) {
    outcome |= place_tensor(tensor, parent, retry, parent);
    if (outcome & kUncommit) break;
  }
  return outcome;
}

// `parent` is the stay in which its producer finds what it overwrites; `served_by` becomes the stay
// that serves its last use.
unsigned Msa::place_tensor(i32 tensor, i32 parent, i32 retry, i32& served_by) {
  Walk walk{.tensor = tensor, .previous = t_.made[tensor]};
  if (m_.given[tensor]) walk.slow_since = -1;
  if (parent >= 0) {
    const i32 made = t_.made[tensor];
    walk.stay = walk.made_in = add_stay(tensor, made, made, stays_[parent].strip, made);
  } else if (m_.over[tensor] >= 0) {
    walk.slow_since = t_.made[tensor];
  }
  unsigned outcome = kDone;
  for (const MsaUse& use : t_.uses[tensor]) {
    outcome |= place_use(walk, use, retry);
    if (outcome & kUncommit) return outcome;
    walk.previous = use.step;
  }
  const i32 over = t_.overwritten[tensor];
  if (m_.output[tensor] && walk.made_in >= 0 && walk.slow_since == kNowhere) {
    const i32 deadline = over >= 0 ? t_.made[over] : m_.steps();
    if (!copy_out(walk, deadline, retry)) return outcome | kUncommit;
  }
  served_by = walk.stay;
  return outcome;
}

unsigned Msa::place_use(Walk& walk, const MsaUse& use, i32 retry) {
  if (walk.stay >= 0 && use.step <= stays_[walk.stay].last) return kDone;
  unsigned outcome = stay_until(walk, use);
  if (outcome == kDone) return kDone;
  if (walk.slow_since == kNowhere) {
    if (walk.made_in < 0)
      walk.slow_since = t_.made[walk.tensor];
    else if (!copy_out(walk, use.step, retry))
      return outcome | kUncommit;
  }
  if (walk.stay >= 0) walk.free_since = stays_[walk.stay].last;
  walk.stay = -1;
  if (pinned_[use.site]) return outcome;
  const unsigned copied = copy_in(walk, use);
  return copied == kDone ? kDone : outcome | copied;
}

unsigned Msa::stay_until(Walk& walk, const MsaUse& use) {
  const i32 tensor = walk.tensor;
  const bool is_first = walk.slow_since == kNowhere && walk.made_in < 0 && !pinned_[t_.made_site[tensor]];
  if (pinned_[use.site] || (walk.stay < 0 && !is_first)) return kRefused;
  if (!picker_.may_stay(walk.previous, use.step)) return kRefused;
  if (walk.stay >= 0) {
    MsaStay& stay = stays_[walk.stay];
    const i32 held = t_.held_until(use.step, stay.first);
    if (!strips_.extend(stay.strip, held)) return kOutOfMemory;
    stay.last = held;
    return kDone;
  }
  const i32 made = t_.made[tensor], held = t_.held_until(use.step, made);
  const i64 offset = strips_.find(made, held, m_.size[tensor], horizon(tensor, made, use.step));
  if (offset < 0) return kOutOfMemory;
  const i32 strip = strips_.open(made, held, m_.size[tensor], offset);
  walk.stay = walk.made_in = add_stay(tensor, made, held, strip, made);
  return kDone;
}

// To slow memory, from where it was made; it stays in its place until the copy is done.
bool Msa::copy_out(Walk& walk, i32 deadline, i32 retry) {
  if (m_.out[walk.tensor] == kNever) return false;
  MsaStay& stay = stays_[walk.made_in];
  const i32 made = stay.first, n = m_.steps();
  const double copy = t_.copy_out(walk.tensor);
  const i32 last = std::min(stay.last, deadline);
  i32 end = std::min(std::max(picker_.preferred_end(made, n, copy, retry), last), deadline);
  const auto ends_well = [&](i32 step) {
    return picker_.loop_of(step) == picker_.loop_of(made) && strips_.can_extend(stay.strip, step - 1);
  };
  const i32 least = std::max(last, made + 1);
  while (end >= least && !ends_well(end)) --end;
  const i64 need = retry + 1 >= o_.retries ? 0 : MsaTables::need(copy);
  if (end < least || out_.meeting(made, end, 0) >= o_.most_out || !out_.fits(made, end, 0, need))
    return false;
  strips_.extend(stay.strip, end - 1);
  stay.last = std::max(stay.last, end - 1);
  add_copy(walk.tensor, false, made, end, need);
  walk.slow_since = end;
  return true;
}

unsigned Msa::copy_in(Walk& walk, const MsaUse& use) {
  if (m_.in[walk.tensor] == kNever) return kRefused;
  const i32 range = std::max(walk.slow_since, walk.free_since);
  // What a loop reads is best fetched before the loop.
  if (const i32 loop = t_.entered(use.step, range); loop >= 0) {
    const i32 before = m_.loop_first[loop] - 1;
    if (before > range && picker_.loop_of(before) == m_.loop_parent[loop] &&
        picker_.may_stay(before, use.step) &&
        copy_in_for(walk, range, before, m_.loop_last[loop], 0.0) == kDone)
      return kDone;
  }
  return copy_in_for(walk, range, use.step, use.step, static_cast<double>(t_.saved[use.site]));
}

unsigned Msa::copy_in_for(Walk& walk, i32 range, i32 needed, i32 held, double saved) {
  if (t_.is_sliced(walk.tensor) && start_copy_in(walk, range, needed, held, saved, o_.slices) == kDone)
    return kDone;
  return start_copy_in(walk, range, needed, held, saved, 1);
}

unsigned Msa::start_copy_in(Walk& walk, i32 range, i32 needed, i32 held, double saved, i32 parts) {
  const i32 tensor = walk.tensor;
  const i64 size = m_.size[tensor];
  const i32 roomy = strips_.roomy_since(needed, size);
  if (roomy > needed) return kOutOfMemory;
  range = std::max(range, roomy - 1);
  IntervalPicker::Starts starts(picker_, range, needed, t_.copy_in(tensor), saved);
  if (starts.latest() < range) return kRefused;
  if (strips_.find(starts.latest() + 1, held, size, {}) < 0) return kOutOfMemory;
  for (i32 start = 0; starts.next(start);) {
    if (start < range || (o_.strict_order && in_.crosses(start, needed, 0))) continue;
    if (!issue(tensor, start, needed, parts)) continue;
    const i64 offset = strips_.find(start + 1, held, size, horizon(tensor, start + 1, needed));
    if (offset >= 0) {
      const i32 strip = strips_.open(start + 1, held, size, offset);
      walk.stay = add_stay(tensor, start + 1, held, strip, needed);
      return kDone;
    }
    for (i32 part = 0; part < parts; ++part) remove_copy();
    range = start + 1;  // earlier ones would hold the same bytes for longer
  }
  return kRefused;
}

// A copy in, whole or in parts that start at equal intervals; false, and nothing is issued, if the
// resource or the limit does not allow it.
bool Msa::issue(i32 tensor, i32 start, i32 needed, i32 parts) {
  const double factor = parts > 1 ? o_.slice_need / parts : 1.0;
  const i64 need = MsaTables::need(t_.copy_in(tensor) * factor);
  const double time = picker_.between(start, needed);
  for (i32 part = 0, from = start; part < parts; ++part) {
    const double until = time * part / parts;
    for (i32 later = from + 1; later < needed && picker_.between(start, later + 1) <= until; ++later)
      if (picker_.loop_of(later) == picker_.loop_of(needed)) from = later;
    if (in_.meeting(from, needed, 0) >= o_.most_in || !in_.fits(from, needed, 0, need)) {
      for (; part > 0; --part) remove_copy();
      return false;
    }
    add_copy(tensor, true, from, needed, need, parts > 1 ? part : -1);
  }
  return true;
}

// How long it would lie there for this use and for later ones that may follow without a copy.
const std::vector<i32>& Msa::horizon(i32 tensor, i32 first, i32 step) {
  horizon_.clear();
  const std::vector<i32>& steps = t_.groups[t_.group_of[tensor]].use_steps;
  i32 previous = step;
  for (auto next = std::upper_bound(steps.begin(), steps.end(), step); next != steps.end(); ++next) {
    if (*next == previous) continue;
    if (!picker_.may_stay(previous, *next)) break;
    horizon_.push_back(t_.held_until(*next, first));
    previous = *next;
  }
  return horizon_;
}

}  // namespace loadmaster::game
