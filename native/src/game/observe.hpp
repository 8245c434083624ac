// What an agent sees of a game: arrays of one shape for every program. Times are shares of `scale`
// or of the all-slow time, sizes of the capacity; numbers stay within [-kMost, kMost].
#pragma once

#include "game/game.hpp"

namespace loadmaster::game {

inline constexpr int kColumns = 128, kPast = 96, kSingle = 48;  // time; the newest past ones: one step each
inline constexpr int kRows = 64, kPlanes = 4;
inline constexpr int kSeries = 8, kCurrent = 24, kTokens = 32, kToken = 16, kGlobals = 8;
inline constexpr float kMost = 16;

// Arrays of all games of a batch, one after the other.
struct Views {
  u8* grid;        // [kColumns, kRows, kPlanes] occupied, of it the tensor and its ties, Copy, NoCopy
  float* series;   // [kColumns, kSeries] supply left of reads and of writes, idle, occupied, largest gap,
                   // share of T0, share of steps that wait for memory, log repeat
  float* current;  // [kCurrent] see `describe_current`
  float* ahead;    // [kTokens, kToken] the decisions after this one
  float* back;     // [kTokens, kToken] those before, newest first
  float* globals;  // [kGlobals] played, return, capacity, occupied, backups, supplies used, T0/bound - 1
  u8* mask;        // [actions]
  int actions;     // that a mask lists

  Views at(i64 game) const;
};

// Tables that all games of a board share; `scale` is what an optimum can save.
class Observer {
 public:
  Observer(const Board& board, i64 scale);

  struct Scratch {
    std::vector<i16> column;                 // [n] of each step
    std::vector<i64> read_used, write_used;  // [n]
    std::array<i32, kColumns + 1> edge;      // first step of each column; equal ones: the column is empty
    std::array<u64, kColumns> taken;         // rows that are held at some time
    std::array<float, kColumns> occupied;
  };
  void observe(Game& game, const Views& views, Scratch& scratch) const;

 private:
  void lay_columns(i32 step, Scratch& s) const;
  void paint(const Views& views, Scratch& s, int plane, i32 first, i32 last, i64 low, i64 high) const;
  void draw(Game& game, i32 step, const Views& views, Scratch& s) const;
  void tell_series(const Game& game, const Views& views, Scratch& s) const;
  void describe_current(Game& game, const Views& views, const Scratch& s) const;
  void list_tokens(const Game& game, const Views& views) const;
  void token(const Game& game, i32 site, float* row) const;
  void tell_globals(const Game& game, i32 step, const Views& views, const Scratch& s) const;
  float share(i64 time) const { return clipped(static_cast<float>(static_cast<double>(time) / scale_)); }
  static float clipped(float value) { return std::clamp(value, -kMost, kMost); }

  const Board& board_;
  const double scale_, all_slow_, capacity_;
  float total_bytes_share_ = 0, over_bound_ = 0;
  std::vector<i32> family_;               // [tensors] equal where tensors share a place
  std::vector<i32> family_size_;          // [tensors] by family
  std::vector<i64> later_gain_;           // [sites] what all later sites of the tensor save, each alone
  std::vector<float> tokens_;             // [sites, kToken] what does not change
  std::vector<float> log_repeat_;         // [n]
  std::array<double, kSingle + 1> past_;  // share of the rest that the first columns take
  std::array<double, kColumns - kPast + 1> future_;
};

}  // namespace loadmaster::game
