#include "game/game.hpp"

#include <algorithm>

namespace loadmaster::game {

Game::Game(const Board& board)
    : board_(board),
      strips_(board.steps(), board.model.capacity / board.model.alignment * board.model.alignment),
      reads_(board.nests, board.switches.ledger),
      writes_(board.nests, board.switches.ledger) {
  for (i32 step = 0; step < board.steps(); ++step) {
    writes_.supply(step, board.write_supply[step]);
    if (board.switches.supply == Supply::kElapsed) reads_.supply(step, board.elapsed[step]);
  }
  reset();
}

void Game::reset() {
  forced_.assign(board_.sites(), 0);
  actions_.assign(board_.sites(), kDrop);
  history_.clear();
  standing_ = 0;
  backups_ = 0;
  start();
}

// The state before the first move.
void Game::start() {
  strips_.clear();
  reads_.clear();
  writes_.clear();
  residencies_.clear();
  copies_.clear();
  newest_.assign(board_.model.tensors(), -1);
  back_by_.assign(board_.model.tensors(), -1);
  ready_.resize(board_.model.tensors());
  for (i32 tensor = 0; tensor < board_.model.tensors(); ++tensor)
    ready_[tensor] = board_.model.given[tensor] ? -1 : kNowhere;
  group_fast_.assign(board_.groups.size(), 0);
  is_fast_.assign(board_.sites(), 0);
  held_by_.assign(board_.sites(), -1);
  slow_ = board_.slow;
  fast_.assign(board_.steps(), 0);
  elapsed_ = board_.elapsed;
  saved_ = saved_alone_ = 0;
  told_ = 0;
  move_to(0);
}

void Game::move_to(i32 site) {
  cursor_ = site;
  forget_offers();
  if (is_over()) return;
  const i32 step = board_.model.site_step[site];
  tell_supply(told_, step);
  told_ = std::max(told_, step);
}

void Game::tell_supply(i32 from, i32 to) {
  if (board_.switches.supply == Supply::kElapsed) return;
  for (i32 step = from; step < to; ++step) reads_.supply(step, read_supply(step));
}

i64 Game::step(Action action) {
  const i64 before = standing_;
  history_.push_back(action);
  take(action);
  if (!is_over()) back_up();
  standing_ = standing();
  return standing_ - before;
}

i64 Game::standing() const {
  switch (board_.switches.reward) {
    case Reward::kStatic:
      return saved_alone_;
    case Reward::kJudged:
      return board_.all_slow - judged().total;
    case Reward::kGain:
      break;
  }
  return saved_ - (is_over() && board_.switches.stall_term ? judged().stall : 0);
}

Action Game::nearest(Action preferred) {
  for (const Action action : {preferred, kNoCopy, kCopy, kDrop, kCopyHalf, kCopyTight})
    if (is_legal(action)) return action;
  return kCopyEarly;
}

void Game::play(const Action* preferences, const i64* offsets) {
  wanted_ = offsets;
  reset();
  while (!is_over()) {
    take(nearest(preferences[cursor_]));
    if (!is_over()) back_up();
  }
  wanted_ = nullptr;
}

void Game::take(Action action) {
  actions_[cursor_] = action;
  const Offer taken = offer(action);
  if (!taken.moved.empty()) strips_.move(taken.moved);
  apply(action, taken);
  if (!taken.moved.empty()) strips_.reserve_all();
  move_to(cursor_ + 1);
}

void Game::apply(Action action, const Offer& offer) {
  const GameModel& model = board_.model;
  const i32 tensor = model.site_tensor[cursor_], step = model.site_step[cursor_];
  const bool write = model.site_write[cursor_] != 0;
  if (model.carried[tensor] >= 0) return apply_group(action, offer);
  if (action == kDrop) {
    if (write) ready_[tensor] = step;
    if (newest_[tensor] >= 0) residencies_[newest_[tensor]].closed = true;
    return;
  }
  if (action == kNoCopy && !write) {
    Residency& kept = residencies_[newest_[tensor]];
    kept.last = offer.last;
    strips_.extend(kept.strip, kept.last);
  } else {
    const i32 under = write ? model.over[tensor] : -1;
    add_residency(tensor, offer, under < 0 ? -1 : newest_[under]);
    add_copies(tensor, tensor, offer);
    if (offer.out) {
      back_by_[tensor] = offer.out.needed;
      ready_[tensor] = offer.out.needed - 1;
    }
  }
  set_fast(cursor_, 1, newest_[tensor]);
  if (board_.switches.repack == 0) return;
  // Only fast memory has it: it has to be there for its next read.
  const i64 next = board_.own_start[tensor] + board_.own_place[cursor_] + 1;
  if (ready_[tensor] == kNowhere && next < board_.own_start[tensor + 1])
    strips_.reserve(residencies_[newest_[tensor]].strip, model.site_step[board_.own_sites[next]]);
}

// One strip for the group: the first residency holds it, one row per tensor comes with the plan.
void Game::apply_group(Action action, const Offer& offer) {
  const GameModel& model = board_.model;
  const i32 tensor = model.site_tensor[cursor_], number = model.carried[tensor];
  const Group& group = board_.groups[number];
  if (action == kDrop) return;
  if (cursor_ == group.first_site) {
    group_fast_[number] = 1;
    add_residency(tensor, offer, -1);
    add_copies(group.given, group.output, offer);
    for (const i32 member : group.tensors) newest_[member] = newest_[tensor];
  }
  set_fast(cursor_, 1, newest_[tensor]);
}

void Game::add_residency(i32 tensor, const Offer& offer, i32 parent) {
  i32 strip;
  if (parent < 0) {
    strip = strips_.open(offer.first, offer.last, board_.model.size[tensor], offer.offset);
  } else {
    strip = residencies_[parent].strip;
    strips_.extend(strip, offer.last);
  }
  newest_[tensor] = static_cast<i32>(residencies_.size());
  residencies_.push_back({tensor, offer.first, offer.last, strip, parent, cursor_});
}

void Game::add_copies(i32 tensor_in, i32 tensor_out, const Offer& offer) {
  const i32 owner = static_cast<i32>(residencies_.size()) - 1;
  const auto add = [&](Ledger& ledger, i32 tensor, bool in, const Span& span, i32 nest) {
    const i32 number = static_cast<i32>(copies_.size());
    const i64 work = in ? board_.model.in[tensor] : board_.model.out[tensor];
    ledger.add(number, span.issued, span.needed, nest, work);
    copies_.push_back({{tensor, in, span.issued, span.needed, work}, owner, nest});
  };
  if (offer.in) add(reads_, tensor_in, true, offer.in, board_.nests.of[offer.in.needed]);
  if (offer.out) {
    // A group's copy leaves outside all loops, whatever loop its issuing step ends.
    const bool carried = board_.model.carried[tensor_out] >= 0;
    add(writes_, tensor_out, false, offer.out, carried ? 0 : board_.nests.of[offer.out.issued]);
  }
}

void Game::set_fast(i32 site, i8 fast, i32 residency) {
  const GameModel& model = board_.model;
  const i32 step = model.site_step[site];
  const i64 sign = fast - is_fast_[site];
  is_fast_[site] = fast;
  held_by_[site] = residency;
  slow_[step] -= sign * model.site_slow[site];
  fast_[step] += sign * model.site_fast[site];
  saved_alone_ += sign * board_.gain_alone[site];
  const i64 before = elapsed_[step];
  elapsed_[step] = model.elapsed(step, slow_[step], fast_[step]);
  saved_ += (before - elapsed_[step]) * model.repeat[step];
}

std::vector<GameCopy> Game::live_copies() const {
  std::vector<GameCopy> rows;
  for (const CopyRow& row : copies_)
    if (!row.removed) rows.push_back(row.copy);
  std::stable_sort(rows.begin(), rows.end(), [](const GameCopy& a, const GameCopy& b) {
    return std::pair(a.issued, a.needed) < std::pair(b.issued, b.needed);
  });
  return rows;
}

std::vector<std::array<i64, 4>> Game::live_residencies() const {
  std::vector<std::array<i64, 4>> rows;
  for (const Residency& r : residencies_) {
    if (r.removed) continue;
    const i32 number = board_.model.carried[r.tensor];
    if (number < 0) {
      rows.push_back({r.tensor, strips_.offset(r.strip), r.first, r.last});
      continue;
    }
    for (const i32 member : board_.groups[number].tensors)
      rows.push_back({member, strips_.offset(r.strip),
                      board_.model.given[member] ? r.first : board_.written[member], r.last});
  }
  return rows;
}

}  // namespace loadmaster::game
