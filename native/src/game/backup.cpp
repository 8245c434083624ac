// Dead ends: a decision that would have no legal move is never shown.
#include "game/game.hpp"

namespace loadmaster::game {

void Game::back_up() {
  const i32 blocked = dead_end();
  if (blocked < 0) return;
  ++backups_;
  switch (board_.switches.backup) {
    case Backup::kRetroactive:
      return drop_chain(blocked);
    case Backup::kRewind:
      return rewind(blocked);
    case Backup::kNone:
      return lose();
  }
}

// The residency that can't go on; -1: there is a legal move.
i32 Game::dead_end() {
  const GameModel& model = board_.model;
  const i32 tensor = model.site_tensor[cursor_];
  if (model.carried[tensor] >= 0) return -1;
  if (!model.site_write[cursor_]) {  // only fast memory has it, and its strip is taken?
    const bool stuck = ready_[tensor] >= model.site_step[cursor_] && !is_legal(kNoCopy);
    return stuck ? newest_[tensor] : -1;
  }
  // An output, in place over what is in fast memory, that does not get out in time?
  const i32 tied = board_.tied_read[cursor_];
  bool stuck = tied >= 0 && is_fast_[tied];
  for (Action action = 0; stuck && action < board_.switches.actions(); ++action) stuck = !is_legal(action);
  return stuck ? newest_[model.over[tensor]] : -1;
}

// All that the residency and its parents served is slow after all. It only frees space.
void Game::drop_chain(i32 residency) {
  const GameModel& model = board_.model;
  i32 changed = board_.steps();
  for (i32 number = residency; number >= 0; number = residencies_[number].parent) {
    Residency& gone = residencies_[number];
    gone.removed = true;
    strips_.close(gone.strip);
    newest_[gone.tensor] = -1;
    for (std::size_t row = 0; row < copies_.size(); ++row) {
      if (copies_[row].residency != number || copies_[row].removed) continue;
      copies_[row].removed = true;
      (copies_[row].copy.in ? reads_ : writes_)
          .remove(static_cast<i32>(row), copies_[row].copy.issued, copies_[row].nest);
    }
    for (i64 i = board_.own_start[gone.tensor]; i < board_.own_start[gone.tensor + 1]; ++i) {
      const i32 site = board_.own_sites[i];
      if (held_by_[site] != number) continue;
      set_fast(site, 0, -1);
      changed = std::min(changed, model.site_step[site]);
      if (!model.site_write[site]) continue;
      ready_[gone.tensor] = model.site_step[site];
      back_by_[gone.tensor] = -1;
    }
  }
  tell_supply(changed, told_);
  reads_.refresh();
  forget_offers();
}

// The game is lost: everything is slow, and so is all that is still to be decided.
void Game::lose() {
  const i32 at = cursor_;
  const std::vector<Action> played = actions_;
  forced_.assign(board_.sites(), 1);
  start();
  while (cursor_ < at) take(kDrop);
  actions_ = played;  // as they were, so that the same moves lead here again
}

// Back to the decision that began the chain; it is Drop for the rest of the game, and what was played since
// is played again as far as it is legal. Where Drop is not legal there any more, the chain is dropped after
// the fact.
void Game::rewind(i32 residency) {
  const i32 blocked = residency, at = cursor_;
  while (residencies_[residency].parent >= 0) residency = residencies_[residency].parent;
  const i32 site = residencies_[residency].born;
  if (forced_[site]) return drop_chain(blocked);
  forced_[site] = 1;
  const std::vector<Action> played = actions_;
  start();
  while (cursor_ < at) {
    take(nearest(played[cursor_]));
    if (cursor_ <= at) back_up();
  }
  actions_ = played;  // as they were, so that the same moves lead here again
}

}  // namespace loadmaster::game
