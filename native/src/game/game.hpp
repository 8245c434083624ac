// One game: for each site in order, Copy (of some kind), NoCopy or Drop. States are legal throughout, and
// what is left of a finished game is a placement: residencies, copies, and which sites are fast.
//
// Two rules that the tables of moves leave open. A read that a residency covers cannot be dropped:
// it is served there. A dropped read ends its tensor's residency: only a copy brings it back.
#pragma once

#include <array>
#include <limits>

#include "game/judge.hpp"
#include "game/ledger.hpp"
#include "game/strips.hpp"

namespace loadmaster::game {

struct Residency {
  i32 tensor, first, last;  // steps, both included
  i32 strip;                // the one that it shares with its parent
  i32 parent;               // the residency of the tensor that it overwrites in place, or -1
  i32 born;                 // the site that made it
  bool closed = false;      // a read was dropped since: it is not continued
  bool removed = false;     // by a backup
};

class Game {
 public:
  explicit Game(const Board& board);

  void reset();
  i32 cursor() const { return cursor_; }
  bool is_over() const { return cursor_ == board_.sites(); }
  bool is_legal(Action action) { return board_.switches.knows(action) && offer(action).legal; }
  // Takes a legal move; what it earns in picoseconds, backups paid.
  i64 step(Action action);
  // The preferred action if it is legal, else NoCopy, Copy, Drop, or what else is.
  Action nearest(Action preferred);
  // Plays to the end, always the nearest to the preferred action of each site. `offsets` [sites], if not
  // null: where what a site brings to fast memory is put if that is free; -1: anywhere.
  void play(const Action* preferences, const i64* offsets = nullptr);

  const std::vector<Action>& actions() const { return actions_; }  // [sites] as they were played
  const std::vector<Action>& history() const { return history_; }  // with those that were rewound
  const std::vector<i8>& is_fast() const { return is_fast_; }
  i32 backups() const { return backups_; }
  Judged judged() const { return judge(board_.model, is_fast_, live_copies()); }
  std::vector<GameCopy> live_copies() const;
  std::vector<std::array<i64, 4>> live_residencies() const;  // tensor, offset, first, last

 private:
  friend class Observer;
  static constexpr i32 kNowhere = std::numeric_limits<i32>::max();
  struct Span {  // a copy
    i32 issued = Ledger::kNoStep, needed = 0;
    explicit operator bool() const { return issued != Ledger::kNoStep; }
    bool operator==(const Span&) const = default;
  };
  struct Offer {  // what a move would do
    bool legal = false;
    i32 first = 0, last = 0;
    i64 offset = -1;
    std::vector<Strips::Place> moved;  // where all strips lie then, if any of them have to move
    Span in, out;
  };
  struct CopyRow {
    GameCopy copy;
    i32 residency, nest;
    bool removed = false;
  };

  // Which moves are legal (moves.cpp).
  static Offer only_if(bool legal) {
    Offer offer;
    offer.legal = legal;
    return offer;
  }
  const Offer& offer(Action action);
  Offer find_offer(Action action) const;
  bool repeats(Action action, const Offer& offer);  // an earlier kind of copy is the same
  Offer read_offer(Action action, i32 tensor, i32 step) const;
  Offer write_offer(Action action, i32 tensor, i32 step) const;
  Offer group_offer(Action action, const Group& group) const;
  bool covers(i32 tensor, i32 step) const;
  Span copy_in(Action action, i32 lowest, i32 step, i64 work) const;
  Span copy_out(Action action, i32 step, i32 nest, i32 most, i64 work) const;
  void place(Offer& offer, i32 tensor, i32 strip) const;  // in a strip that is there, or (-1) in a new one

  // What moves do (game.cpp).
  void start();
  void take(Action action);
  void apply(Action action, const Offer& offer);
  void apply_group(Action action, const Offer& offer);
  void add_residency(i32 tensor, const Offer& offer, i32 parent);
  void add_copies(i32 tensor_in, i32 tensor_out, const Offer& offer);
  void set_fast(i32 site, i8 fast, i32 residency);
  void forget_offers() { known_.fill(false), exact_action_ = 0; }
  void move_to(i32 site);
  void tell_supply(i32 from, i32 to);
  // What a step supplies to copies in, as far as is decided.
  i64 read_supply(i32 step) const {
    if (board_.switches.supply == Supply::kElapsed) return board_.elapsed[step];
    return board_.model.idle_copies ? board_.model.idle(step, elapsed_[step], slow_[step]) : elapsed_[step];
  }
  bool in_fast(i32 tensor) const { return newest_[tensor] >= 0 && !residencies_[newest_[tensor]].closed; }
  i64 standing() const;

  // Dead ends (backup.cpp).
  void back_up();
  i32 dead_end();
  void drop_chain(i32 residency);
  void rewind(i32 residency);
  void lose();

  const Board& board_;
  Strips strips_;
  Ledger reads_, writes_;
  i32 cursor_ = 0;
  i32 told_ = 0;  // steps before this one have told the ledger of reads what they supply
  std::array<Offer, kMostActions> offers_;
  std::array<bool, kMostActions> known_{};
  Offer exact_;              // of a copy with a given lead ...
  Action exact_action_ = 0;  // ... which is this one, if it is known

  std::vector<Residency> residencies_;
  std::vector<CopyRow> copies_;
  std::vector<i32> newest_;       // [tensors] residency or -1
  std::vector<i32> back_by_;      // [tensors] a write-back has ended before this step; -1: there is none
  std::vector<i32> ready_;        // [tensors] slow memory has it after this step
  std::vector<i8> group_fast_;    // [groups]
  std::vector<i8> is_fast_;       // [sites]
  std::vector<i32> held_by_;      // [sites] the residency that serves it, or -1
  std::vector<i64> slow_, fast_;  // [n] how long each memory serves a step
  std::vector<i64> elapsed_;      // [n]
  i64 standing_ = 0;              // what all moves so far earned
  i64 saved_ = 0;                 // T0 less the time of all steps
  i64 saved_alone_ = 0;           // sum of `gain_alone` of fast sites
  std::vector<Action> actions_, history_;
  std::vector<i8> forced_;
  i32 backups_ = 0;
  const i64* wanted_ = nullptr;  // [sites] offsets, while it is played to the end
};

}  // namespace loadmaster::game
