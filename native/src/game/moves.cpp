// Which moves are legal, and what each would do.
#include "game/game.hpp"

namespace loadmaster::game {

const Game::Offer& Game::offer(Action action) {
  if (!known_[action]) {
    offers_[action] = find_offer(action);
    known_[action] = true;
  }
  return offers_[action];
}

Game::Offer Game::find_offer(Action action) const {
  const GameModel& model = board_.model;
  // Forced where it is legal: on another way here, only fast memory may have the tensor.
  if (action != kDrop && forced_[cursor_] && find_offer(kDrop).legal) return {};
  const i32 tensor = model.site_tensor[cursor_], step = model.site_step[cursor_];
  if (model.carried[tensor] >= 0) return group_offer(action, board_.groups[model.carried[tensor]]);
  return model.site_write[cursor_] ? write_offer(action, tensor, step) : read_offer(action, tensor, step);
}

bool Game::covers(i32 tensor, i32 step) const {
  return newest_[tensor] >= 0 && residencies_[newest_[tensor]].last >= step;
}

i32 Game::strip_end(i32 residency) const {
  i32 end = -1;
  for (; residency >= 0; residency = residencies_[residency].parent)
    end = std::max(end, residencies_[residency].last);
  return end;
}

// Best fit from `first` to `last`; -1: there is no room. XLA looks ahead for an offset that stays free
// for the most later sites. Here every offset does so equally: play is in program order, so whatever
// is held after this step is held at it too. What matters is who is in the way later: tensors that
// have more reads to come wish to stay where they are, above all those that slow memory has not got
// (a dead end would undo them), then those that are read soonest.
i64 Game::place(i32 tensor, i32 first, i32 last) const {
  wishes_.clear();
  for (const i32 other : staying_) {
    if (other == tensor) continue;  // copied in anew: where it was is as good as any place
    const Residency& kept = residencies_[newest_[other]];
    const bool only_fast = ready_[other] == kNowhere;
    wishes_.push_back({kept.offset, kept.offset + board_.model.size[other],
                       next_read_[other] - (only_fast ? board_.steps() : 0)});
  }
  return heap_.best_fit(first, last, board_.model.size[tensor], wishes_);
}

Game::Offer Game::read_offer(Action action, i32 tensor, i32 step) const {
  const bool covered = covers(tensor, step), is_ready = ready_[tensor] < step;
  if (action == kDrop) return only_if(is_ready && !covered);
  const i32 number = newest_[tensor];
  const Residency* newest = number < 0 ? nullptr : &residencies_[number];
  Offer offer;
  if (action == kNoCopy) {
    if (!newest || newest->closed) return {};
    if (!covered && board_.clock[step] - board_.clock[newest->last + 1] > board_.switches.max_idle) return {};
    offer.first = newest->first;
    offer.last = std::max(newest->last, board_.stretched(newest->first, step));
    offer.offset = newest->offset;
    offer.legal = heap_.is_free(strip_end(number) + 1, offer.last, offer.offset,
                                offer.offset + board_.model.size[tensor]);
    return offer;
  }
  const i64 work = board_.work_in[tensor];
  if (!is_ready || covered || work == kNever) return {};
  // A copy in can't start in the moment in which the write-back ends.
  const i32 lowest = std::max({ready_[tensor], back_by_[tensor], newest ? newest->last : -1});
  offer.in = {reads_.latest_issue(lowest, step, work), step};
  if (!offer.in) return {};
  offer.first = offer.in.issued + 1;
  offer.last = board_.stretched(offer.first, step);
  offer.offset = place(tensor, offer.first, offer.last);
  offer.legal = offer.offset >= 0;
  return offer;
}

Game::Offer Game::write_offer(Action action, i32 tensor, i32 step) const {
  const GameModel& model = board_.model;
  const i32 tied = board_.tied_read[cursor_];
  const bool continues = tied >= 0 && is_fast_[tied];
  if (action == kDrop) return only_if(!continues);
  if (tied >= 0 && !continues) return {};
  Offer offer;
  offer.first = offer.last = step;
  if (action == kNoCopy) {
    if (model.output[tensor]) return {};
  } else {
    const i64 work = board_.work_out[tensor];
    if (work == kNever) return {};
    offer.out = {step, writes_.earliest_need(step, board_.nests.of[step], board_.replaced[tensor], work)};
    if (offer.out.needed == Ledger::kNoStep) return {};
    offer.last = offer.out.needed - 1;
  }
  if (continues) {
    const i32 parent = newest_[model.over[tensor]];
    offer.offset = residencies_[parent].offset;
    offer.legal =
        heap_.is_free(strip_end(parent) + 1, offer.last, offer.offset, offer.offset + model.size[tensor]);
  } else {
    offer.offset = place(tensor, step, offer.last);
    offer.legal = offer.offset >= 0;
  }
  return offer;
}

// Decided once, at the first site: in fast memory for the whole life of the group, or not at all.
Game::Offer Game::group_offer(Action action, const Group& group) const {
  const GameModel& model = board_.model;
  const i32 number = model.carried[group.tensors[0]];
  if (cursor_ != group.first_site) return only_if(action == (group_fast_[number] ? kNoCopy : kDrop));
  if (action == kDrop) return only_if(true);
  const bool copies = group.given >= 0 || group.output >= 0;
  if (!group.plain || copies != (action == kCopy)) return {};
  Offer offer;
  offer.first = group.first;
  offer.last = group.last;
  if (group.given >= 0) {
    const i64 work = board_.work_in[group.given];
    if (work == kNever) return {};
    offer.in = {reads_.latest_issue(-1, group.entry, work), group.entry};
    if (!offer.in) return {};
    offer.first = offer.in.issued + 1;
  }
  if (group.output >= 0) {
    const i64 work = board_.work_out[group.output];
    if (work == kNever) return {};
    offer.out = {group.exit, writes_.earliest_need(group.exit, 0, board_.replaced[group.output], work)};
    if (offer.out.needed == Ledger::kNoStep) return {};
    offer.last = std::max(offer.last, offer.out.needed - 1);
  }
  offer.offset = place(group.tensors[0], offer.first, offer.last);
  offer.legal = offer.offset >= 0;
  return offer;
}

}  // namespace loadmaster::game
