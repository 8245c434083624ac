#include "game/msa.hpp"

#include <algorithm>

namespace loadmaster::game {

Msa::Msa(const MsaTables& tables, const IntervalPicker& picker)
    : t_(tables),
      m_(tables.model),
      o_(tables.options),
      picker_(picker),
      strips_(tables.model.steps(), tables.model.capacity),
      in_(tables.line, Queue::kFifo),
      out_(tables.line, Queue::kFifo) {
  for (i32 step = 0; step < m_.steps(); ++step) {
    in_.supply(step, o_.supply[step]);
    out_.supply(step, o_.supply[step]);
  }
}

MsaResult Msa::run(const i32* order) {
  strips_.clear();
  in_.clear();
  out_.clear();
  stays_.clear();
  copies_.clear();
  pinned_.assign(m_.sites(), 0);
  done_.assign(t_.groups.size(), 0);
  repacks_ = uncommitted_ = inefficient_ = 0;
  commit();
  fetch_early();
  for (i32 k = 0; k < m_.tensors(); ++k) {
    const i32 group = t_.group_of[t_.sorted[order ? order[k] : k]];
    if (!done_[group]) place(group);
    done_[group] = 1;
  }
  if (o_.write_back) write_back(order);
  if (o_.stretch) {
    stretch_out();
    stretch_in();
  }
  return result();
}

MsaResult Msa::result() {
  MsaResult found{stays_, {}, {}, {}, std::vector<i8>(m_.sites(), 0), repacks_, uncommitted_, inefficient_};
  for (const MsaStay& stay : stays_) {
    found.offsets.push_back(strips_.offset(stay.strip));
    for (const i32 site : served(stay)) found.is_fast[site] = 1;
  }
  for (const i32 row : by_issue()) {
    found.copies.push_back(copies_[row].copy);
    found.slices.push_back(copies_[row].slice);
  }
  return found;
}

void Msa::place(i32 group) {
  const MsaGroup& g = t_.groups[group];
  bool repacked = false;
  for (i32 retry = 0; retry < o_.retries;) {
    const unsigned outcome = g.is_carried ? place_carried(g) : place_chain(g, retry);
    if (outcome & kUncommit) {
      undo();
      ++retry;
    } else if ((outcome & kOutOfMemory) && !repacked && repacks_ < o_.repacks) {
      undo();
      ++repacks_;
      repacked = true;
      if (!strips_.repack()) ++retry;
    } else if (o_.inefficient_ratio > 0 && pin_inefficient()) {
      undo();
      ++inefficient_;
    } else {
      return commit();
    }
  }
  undo();
  ++uncommitted_;
}

std::vector<i32> Msa::served(const MsaStay& stay) const {
  std::vector<i32> sites;
  if (t_.made[stay.tensor] == stay.first) sites.push_back(t_.made_site[stay.tensor]);
  for (const MsaUse& use : t_.uses[stay.tensor])
    if (use.step >= stay.ready && use.step <= stay.last) sites.push_back(use.site);
  return sites;
}

void Msa::undo() {
  while (copies_.size() > copies_done_) remove_copy();
  stays_.resize(stays_done_);
  strips_.close_from(strips_done_);
}

i32 Msa::add_stay(i32 tensor, i32 first, i32 last, i32 strip, i32 ready) {
  stays_.push_back({tensor, first, last, strip, ready});
  return static_cast<i32>(stays_.size()) - 1;
}

void Msa::add_copy(i32 tensor, bool in, i32 issued, i32 needed, i64 need, i32 slice) {
  (in ? in_ : out_).add(static_cast<i32>(copies_.size()), issued, needed, 0, need);
  i64 work = in ? m_.in[tensor] : m_.out[tensor];
  if (slice >= 0) work = o_.slice_work[static_cast<std::size_t>(tensor) * o_.slices + slice];
  copies_.push_back({{tensor, in, issued, needed, work}, slice});
}

void Msa::remove_copy() {
  const GameCopy copy = copies_.back().copy;
  copies_.pop_back();
  (copy.in ? in_ : out_).remove(static_cast<i32>(copies_.size()), copy.issued, 0);
}

// A place in fast memory that takes more bytes of copies than it serves is given up for good.
bool Msa::pin_inefficient() {
  bool found = false;
  for (i32 strip = strips_done_; strip < strips_.count(); ++strip) {
    double copied = 0, used = 0;
    std::vector<i32> sites;
    for (std::size_t i = stays_done_; i < stays_.size(); ++i) {
      const MsaStay& stay = stays_[i];
      if (stay.strip != strip) continue;
      for (std::size_t c = copies_done_; c < copies_.size(); ++c) {
        const GameCopy& copy = copies_[c].copy;
        const bool fills = copy.in && copy.needed == stay.ready && copy.issued + 1 >= stay.first;
        const bool leaves = !copy.in && copy.issued >= stay.first && copy.issued <= stay.last;
        const double share = copies_[c].slice < 0 ? 1.0 : 1.0 / o_.slices;
        if (copy.tensor == stay.tensor && (fills || leaves))
          copied += share * static_cast<double>(m_.size[stay.tensor]);
      }
      for (const i32 site : served(stay)) sites.push_back(site);
    }
    for (const i32 site : sites) used += static_cast<double>(o_.site_bytes[site]);
    if (o_.inefficient_ratio * copied <= used) continue;
    for (const i32 site : sites) {
      found = found || !pinned_[site];
      pin(site);
    }
  }
  return found;
}

// What is overwritten in place is read where the result is written.
void Msa::pin(i32 site) {
  pinned_[site] = 1;
  const i32 tensor = m_.site_tensor[site], step = m_.site_step[site];
  if (m_.site_write[site]) {
    if (const i32 under = m_.over[tensor]; under >= 0)
      for (const MsaUse& use : t_.uses[under])
        if (use.step == step) pinned_[use.site] = 1;
  } else if (const i32 over = t_.overwritten[tensor]; over >= 0 && t_.made[over] == step) {
    pinned_[t_.made_site[over]] = 1;
  }
}

// Fetched before the first step, in their places until their last use.
void Msa::fetch_early() {
  i32 left = o_.cross_program;
  for (const i32 b : o_.early) {
    if (left == 0) break;
    const std::vector<MsaUse>& uses = t_.uses[b];
    const bool is_alone = t_.groups[t_.group_of[b]].tensors.size() == 1 && m_.carried[b] < 0;
    if (!m_.given[b] || m_.output[b] || !is_alone || m_.in[b] == kNever || uses.empty()) continue;
    const i32 needed = uses.front().step, last = t_.held_until(uses.back().step, -1);
    const i64 offset = strips_.find(0, last, m_.size[b], {});
    if (needed == 0 || m_.loop[needed] >= 0 || offset < 0) continue;
    add_stay(b, 0, last, strips_.open(0, last, m_.size[b], offset), needed);
    add_copy(b, true, -1, needed, 0);
    done_[t_.group_of[b]] = 1;
    --left;
  }
  commit();
}

}  // namespace loadmaster::game
