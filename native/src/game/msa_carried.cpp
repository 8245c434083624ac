// What loops carry: all tensors of the group in one place over its whole life, or in slow memory.
#include "game/msa.hpp"

namespace loadmaster::game {
namespace {

// What has to be known about a group before it may lie in fast memory.
struct CarriedLife {
  i32 first = 0, first_site = 0, end = 0;
  i32 given = -1, output = -1;
  i32 givens = 0, outputs = 0;
  i32 last_write = -1, last_writer = -1;
};

CarriedLife life_of(const MsaTables& t, const MsaGroup& group) {
  const GameModel& m = t.model;
  CarriedLife life{.first = m.steps(), .first_site = m.sites()};
  for (const i32 b : group.tensors) {
    if (m.given[b]) life.given = b, ++life.givens;
    if (m.output[b]) life.output = b, ++life.outputs;
    if (t.made[b] > life.last_write) life.last_write = t.made[b], life.last_writer = b;
    if (t.made_site[b] >= 0) life.first_site = std::min(life.first_site, t.made_site[b]);
    for (const MsaUse& use : t.uses[b]) life.first_site = std::min(life.first_site, use.site);
  }
  life.first = life.end = m.site_step[life.first_site];
  // What is given comes from outside all loops, even if its first reader is in one.
  const i32 since = m.site_write[life.first_site] ? life.first : -1;
  for (const i32 b : group.tensors) {
    if (t.made[b] >= 0) life.end = std::max(life.end, t.held_until(t.made[b], since));
    for (const MsaUse& use : t.uses[b]) life.end = std::max(life.end, t.held_until(use.step, since));
  }
  return life;
}

}  // namespace

unsigned Msa::place_carried(const MsaGroup& group) {
  const CarriedLife life = life_of(t_, group);
  const bool enters_given = !m_.site_write[life.first_site];
  if (life.givens != (enters_given ? 1 : 0) || life.outputs > 1) return kDone;
  if (enters_given && m_.site_tensor[life.first_site] != life.given) return kDone;
  if (life.output >= 0 && life.output != life.last_writer) return kDone;
  for (const i32 b : group.tensors)
    for (const MsaUse& use : t_.uses[b])
      if (pinned_[use.site]) return kDone;
  for (const i32 step : group.use_steps)
    if (step > life.first && !picker_.may_stay(life.first, step) && t_.entered(step, life.first) < 0)
      return kDone;  // long after the loops
  Walk walk{.tensor = group.tensors.front(), .previous = life.first};
  i32 strip = -1;
  if (enters_given) {
    walk.tensor = life.given;
    if (m_.in[life.given] == kNever) return kDone;
    const i32 loop = t_.entered(life.first, -1);
    const i32 needed = loop < 0 ? life.first : m_.loop_first[loop] - 1;
    if (needed < 0 || picker_.loop_of(needed) != -1) return kDone;
    const double saved = loop < 0 ? static_cast<double>(t_.saved[life.first_site]) : 0.0;
    const unsigned copied = copy_in_for(walk, -1, needed, life.end, saved);
    if (copied != kDone) return copied;
    strip = stays_[walk.stay].strip;
  } else {
    const i64 offset = strips_.find(life.first, life.end, m_.size[walk.tensor], {});
    if (offset < 0) return kOutOfMemory;
    strip = strips_.open(life.first, life.end, m_.size[walk.tensor], offset);
  }
  i32 end = life.end;
  if (life.output >= 0) {
    end = written_back(life.output, strip, life.end);
    if (end < 0) return kUncommit;
  }
  for (const i32 b : group.tensors)
    if (b != life.given) add_stay(b, t_.made[b], end, strip, t_.made[b]);
  if (walk.stay >= 0) stays_[walk.stay].last = end;
  return kDone;
}

// Copies an output back after the last loop that changes it; until when it must lie there, or -1.
i32 Msa::written_back(i32 output, i32 strip, i32 end) {
  if (m_.out[output] == kNever) return -1;
  const i32 loop = t_.entered(t_.made[output], -1), n = m_.steps();
  const i32 issued = loop < 0 ? t_.made[output] : m_.loop_last[loop];
  const i64 need = MsaTables::need(t_.copy_out(output));
  for (i32 needed = issued + 1; needed <= n; ++needed) {
    if (picker_.loop_of(needed) != -1 || !out_.fits(issued, needed, 0, need)) continue;
    if (out_.meeting(issued, needed, 0) >= o_.most_out || !strips_.extend(strip, needed - 1)) return -1;
    add_copy(output, false, issued, needed, need);
    return std::max(end, needed - 1);
  }
  return -1;
}

}  // namespace loadmaster::game
