// One game: for each site in order, Copy, NoCopy or Drop. States are legal throughout, and what is
// left of a finished game is a placement: residencies, copies, and which sites are fast.
//
// Two rules that the tables of moves leave open. A read that a residency covers cannot be dropped:
// it is served there. A dropped read ends its tensor's residency: only a copy brings it back.
#pragma once

#include <array>
#include <limits>

#include "game/heap.hpp"
#include "game/judge.hpp"
#include "game/ledger.hpp"

namespace loadmaster::game {

struct Residency {
  i32 tensor, first, last;  // steps, both included
  i64 offset;
  i32 block;             // its id in the heap
  i32 parent;            // the residency of the tensor that it overwrites in place, or -1
  i32 born;              // the site that made it
  bool closed = false;   // a read was dropped since: it is not continued
  bool removed = false;  // by a backup
};

class Game {
 public:
  explicit Game(const Board& board);

  void reset();
  i32 cursor() const { return cursor_; }
  bool is_over() const { return cursor_ == board_.sites(); }
  bool is_legal(Action action) { return offer(action).legal; }
  // Takes a legal move; what it earns in picoseconds, backups paid.
  i64 step(Action action);
  // The preferred action if it is legal, else NoCopy, Copy or Drop.
  Action nearest(Action preferred);
  // Plays to the end, always the nearest to the preferred action of each site.
  void play(const i8* preferences);

  const std::vector<i8>& actions() const { return actions_; }  // [sites] as they were played
  const std::vector<i8>& history() const { return history_; }  // with those that were rewound
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
  };
  struct Offer {  // what a move would do
    bool legal = false;
    i32 first = 0, last = 0;
    i64 offset = -1;
    Span in, out;
  };
  struct CopyRow {
    GameCopy copy;
    i32 residency;
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
  Offer read_offer(Action action, i32 tensor, i32 step) const;
  Offer write_offer(Action action, i32 tensor, i32 step) const;
  Offer group_offer(Action action, const Group& group) const;
  bool covers(i32 tensor, i32 step) const;
  i32 strip_end(i32 residency) const;  // up to when its strip is held by itself and its parents
  i64 place(i32 tensor, i32 first, i32 last) const;

  // What moves do (game.cpp).
  void start();
  void take(Action action);
  void apply(Action action, const Offer& offer);
  void apply_group(Action action, const Offer& offer);
  void add_residency(i32 tensor, const Offer& offer, i32 parent);
  void add_copies(i32 tensor_in, i32 tensor_out, const Offer& offer);
  void stay(i32 site);
  void leave(i32 tensor);
  void set_fast(i32 site, i8 fast, i32 residency);
  void move_to(i32 site);
  void tell_supply(i32 from, i32 to);
  // What a step supplies to copies in, as far as is decided.
  i64 read_supply(i32 step) const {
    if (!board_.read_supply.empty()) return board_.read_supply[step];
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
  Heap heap_;
  Ledger reads_, writes_;
  i32 cursor_ = 0;
  i32 told_ = 0;  // steps before this one have told the ledger of reads what they supply
  std::array<Offer, kActions> offers_;
  std::array<bool, kActions> known_{};

  std::vector<Residency> residencies_;
  std::vector<CopyRow> copies_;
  std::vector<i32> newest_;       // [tensors] residency or -1
  std::vector<i32> back_by_;      // [tensors] a write-back has ended before this step; -1: there is none
  std::vector<i32> ready_;        // [tensors] slow memory has it after this step
  std::vector<i32> staying_;      // tensors in fast memory that wish to be there for their next read ...
  std::vector<i32> next_read_;    // [tensors] ... by this step
  std::vector<i8> group_fast_;    // [groups]
  std::vector<i8> is_fast_;       // [sites]
  std::vector<i32> held_by_;      // [sites] the residency that serves it, or -1
  std::vector<i64> slow_, fast_;  // [n] how long each memory serves a step
  std::vector<i64> elapsed_;      // [n]
  i64 standing_ = 0;              // what all moves so far earned
  i64 saved_ = 0;                 // T0 less the time of all steps
  i64 saved_alone_ = 0;           // sum of `gain_alone` of fast sites
  std::vector<i8> actions_, history_, forced_;
  i32 backups_ = 0;
  mutable std::vector<Wish> wishes_;  // of the place that is asked for
};

}  // namespace loadmaster::game
