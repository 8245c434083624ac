// Memory space assignment in the style of XLA: tensor by tensor in order of benefit, each use is
// served from fast memory if it can stay there or be copied in under cover of other steps.
#pragma once

#include "game/judge.hpp"
#include "game/ledger.hpp"
#include "game/msa_tables.hpp"
#include "game/strips.hpp"

namespace loadmaster::game {

struct MsaStay {
  i32 tensor, first, last, strip;
  i32 ready;  // it serves from this step on: when the copy that fills it is there
};

struct MsaCopy {
  GameCopy copy;
  i32 slice;  // which part of the tensor it brings, or -1: all of it
};

struct MsaResult {
  std::vector<MsaStay> stays;
  std::vector<i64> offsets;  // [stays]
  std::vector<GameCopy> copies;
  std::vector<i32> slices;  // [copies]
  std::vector<i8> is_fast;  // [sites]
  i32 repacks = 0, uncommitted = 0, inefficient = 0;
};

// One assignment at a time; the tables are shared and never change.
class Msa {
 public:
  explicit Msa(const MsaTables& tables, const IntervalPicker& picker);

  // `order` permutes the sorted list: the k-th to be placed is sorted[order[k]]; null: as sorted.
  MsaResult run(const i32* order);

 private:
  enum Outcome : unsigned { kDone = 0, kRefused = 1, kOutOfMemory = 2, kUncommit = 4 };
  static constexpr i32 kNowhere = -2;

  // How far one tensor has come.
  struct Walk {
    i32 tensor;
    i32 stay = -1;              // the one that holds it now, or -1: slow memory serves it
    i32 free_since = -1;        // its last stay ends here
    i32 slow_since = kNowhere;  // slow memory has it for copies issued after this step
    i32 made_in = -1;           // the stay in which it was made, or -1
    i32 previous;               // step of its last use, or where it was made
  };

  // msa.cpp
  void place(i32 group);
  MsaResult result();
  void undo();
  void commit() {
    stays_done_ = stays_.size(), copies_done_ = copies_.size(), strips_done_ = strips_.count();
  }
  bool pin_inefficient();
  void pin(i32 site);
  void fetch_early();
  std::vector<i32> served(const MsaStay& stay) const;  // sites
  i32 add_stay(i32 tensor, i32 first, i32 last, i32 strip, i32 ready);
  void add_copy(i32 tensor, bool in, i32 issued, i32 needed, i64 need, i32 slice = -1);
  void remove_copy();  // the newest

  // msa_segments.cpp
  unsigned place_chain(const MsaGroup& group, i32 retry);
  unsigned place_tensor(i32 tensor, i32 parent, i32 retry, i32& served_by);
  unsigned place_use(Walk& walk, const MsaUse& use, i32 retry);
  unsigned stay_until(Walk& walk, const MsaUse& use);
  bool copy_out(Walk& walk, i32 deadline, i32 retry);
  unsigned copy_in(Walk& walk, const MsaUse& use);
  unsigned copy_in_for(Walk& walk, i32 range, i32 needed, i32 held, double saved);
  unsigned start_copy_in(Walk& walk, i32 range, i32 needed, i32 held, double saved, i32 parts);
  bool issue(i32 tensor, i32 start, i32 needed, i32 parts);
  const std::vector<i32>& horizon(i32 tensor, i32 first, i32 step);

  // msa_leftover.cpp
  void write_back(const i32* order);
  std::vector<i32> done_by() const;
  std::vector<i32> by_issue() const;  // rows of copies
  void stretch_out();
  void stretch_in();

  // msa_carried.cpp
  unsigned place_carried(const MsaGroup& group);
  i32 written_back(i32 output, i32 strip, i32 end);

  const MsaTables& t_;
  const GameModel& m_;
  const MsaOptions& o_;
  const IntervalPicker& picker_;
  Strips strips_;
  Ledger in_, out_;
  std::vector<MsaStay> stays_;
  std::vector<MsaCopy> copies_;
  std::size_t stays_done_ = 0, copies_done_ = 0;  // committed
  i32 strips_done_ = 0;
  std::vector<i8> pinned_;  // [sites] to slow memory
  std::vector<i8> done_;    // [groups]
  std::vector<i32> horizon_;
  i32 repacks_ = 0, uncommitted_ = 0, inefficient_ = 0;
};

}  // namespace loadmaster::game
