// Which moves are legal, and what each would do.
#include "game/game.hpp"

namespace loadmaster::game {
namespace {

// Of a copy's work, what a kind of Copy wants to be hidden by steps.
i64 asked(Action action, i64 work) {
  return action == kCopyEarly ? plus(work, work) : action == kCopyHalf ? work / 2 : work;
}

i32 lead(Action action) { return action - kLead + 1; }

}  // namespace

const Game::Offer& Game::offer(Action action) {
  if (action >= kLead) {
    if (exact_action_ != action) exact_ = find_offer(action);
    exact_action_ = action;
    return exact_;
  }
  if (!known_[action]) {
    offers_[action] = find_offer(action);
    if (repeats(action, offers_[action])) offers_[action] = {};
    known_[action] = true;
  }
  return offers_[action];
}

bool Game::repeats(Action action, const Offer& found) {
  if (action <= kDrop || !found.legal) return false;
  for (const Action other : {kCopy, kCopyEarly, kCopyHalf}) {
    if (other == action) break;
    const Offer& before = offer(other);
    if (before.legal && before.in == found.in && before.out == found.out) return true;
  }
  return false;
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

// Best fit from the first to the last step, unless somewhere is wanted. XLA looks ahead for an offset that
// stays free for the most later sites; here every offset does so equally: play is in program order, so
// whatever is held after this step is held at it too. If there is no room as things lie, they may be laid out
// anew.
void Game::place(Offer& offer, i32 tensor, i32 strip) const {
  const i64 size = board_.model.size[tensor], wanted = wanted_ && strip < 0 ? wanted_[cursor_] : -1;
  if (wanted >= 0 && strips_.is_free(offer.first, offer.last, size, wanted))
    offer.offset = wanted;
  else
    offer.offset = strip < 0 ? strips_.find(offer.first, offer.last, size, {}) : strips_.offset(strip);
  offer.legal = strip < 0 ? offer.offset >= 0 : strips_.can_extend(strip, offer.last);
  if (offer.legal || board_.switches.repack == 0) return;
  offer.moved = strips_.make_room({strip, offer.first, offer.last, size}, board_.switches.repack);
  if (offer.moved.empty()) return;
  offer.legal = true;
  offer.offset = strip < 0 ? offer.moved.back().offset : offer.moved[strip].offset;
}

// When a copy that `needed` waits for is issued, after `lowest` at the earliest. Where no step lies between,
// a tight one runs beside none.
Game::Span Game::copy_in(Action action, i32 lowest, i32 needed, i64 work) const {
  i32 issued = Ledger::kNoStep;
  if (action == kCopyTight)
    issued = reads_.last_issue(lowest, needed);
  else if (action < kLead)
    return {reads_.latest_issue(lowest, needed, asked(action, work)), needed};
  if (issued == Ledger::kNoStep) {
    const i32 at = needed - (action == kCopyTight ? 1 : lead(action));
    if (at >= lowest && board_.nests.of_step(at) == board_.nests.of[needed]) issued = at;
  }
  return {issued, needed};
}

// By when a copy of what `step` leaves is done, by `most` at the latest.
Game::Span Game::copy_out(Action action, i32 step, i32 nest, i32 most, i64 work) const {
  i32 needed = Ledger::kNoStep;
  if (action == kCopyTight)
    needed = writes_.first_need(step, nest, most);
  else if (action < kLead)
    needed = writes_.earliest_need(step, nest, most, asked(action, work));
  if (needed == Ledger::kNoStep && action >= kCopyTight) {
    const i32 at = step + (action == kCopyTight ? 1 : lead(action)), n = board_.steps();
    if (at <= most && (at == n ? 0 : board_.nests.of[at]) == nest) needed = at;
  }
  return {needed == Ledger::kNoStep ? Ledger::kNoStep : step, needed};
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
    place(offer, tensor, newest->strip);
    return offer;
  }
  const i64 work = board_.model.in[tensor];
  if (!is_ready || covered || work == kNever) return {};
  // A copy in can't start in the moment in which the write-back ends.
  offer.in =
      copy_in(action, std::max({ready_[tensor], back_by_[tensor], newest ? newest->last : -1}), step, work);
  if (!offer.in) return {};
  offer.first = offer.in.issued + 1;
  offer.last = board_.stretched(offer.first, step);
  place(offer, tensor, -1);
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
    const i64 work = model.out[tensor];
    if (work == kNever) return {};
    offer.out = copy_out(action, step, board_.nests.of[step], board_.replaced[tensor], work);
    if (!offer.out) return {};
    offer.last = offer.out.needed - 1;
  }
  place(offer, tensor, continues ? residencies_[newest_[model.over[tensor]]].strip : -1);
  return offer;
}

// Decided once, at the first site: in fast memory for the whole life of the group, or not at all.
Game::Offer Game::group_offer(Action action, const Group& group) const {
  const GameModel& model = board_.model;
  const i32 number = model.carried[group.tensors[0]];
  if (cursor_ != group.first_site) return only_if(action == (group_fast_[number] ? kNoCopy : kDrop));
  if (action == kDrop) return only_if(true);
  const bool copies = group.given >= 0 || group.output >= 0;
  if (!group.plain || copies != is_copy(action)) return {};
  Offer offer;
  offer.first = group.first;
  offer.last = group.last;
  if (group.given >= 0) {
    const i64 work = model.in[group.given];
    if (work == kNever) return {};
    offer.in = copy_in(action, -1, group.entry, work);
    if (!offer.in) return {};
    offer.first = offer.in.issued + 1;
  }
  if (group.output >= 0) {
    const i64 work = model.out[group.output];
    if (work == kNever) return {};
    // A lead is that of the copy in, where there is one.
    const Action kind = action >= kLead && group.given >= 0 ? kCopy : action;
    offer.out = copy_out(kind, group.exit, 0, board_.replaced[group.output], work);
    if (!offer.out) return {};
    offer.last = std::max(offer.last, offer.out.needed - 1);
  }
  place(offer, group.tensors[0], -1);
  return offer;
}

}  // namespace loadmaster::game
