// Many games of one board side by side. No number of threads changes a result.
#pragma once

#include "game/observe.hpp"

namespace loadmaster::game {

struct Played {
  explicit Played(std::size_t games, std::size_t sites)
      : actions(games * sites), total(games), stall(games), backups(games) {}
  std::vector<Action> actions;  // [games, sites]
  std::vector<i64> total, stall;
  std::vector<i32> backups;
};

// Complete games that prefer the given actions [games, sites] and offsets (null: any; see Game::play).
Played play_all(const Board& board, const Action* preferences, const i64* offsets, i64 games, int threads);

// Complete games [games, sites] of legal actions: at each site in [first, last) every legal action is tried,
// and the rest is played as near to the row as is legal. Total times [games, last - first, actions]; -1 where
// an action is not legal, and everywhere at a site that has no choice. The number of the first row with a
// move before one of these sites that is not legal; -1: none.
struct Tries {
  const Action* actions;
  i64 games, first, last;
};
i64 try_all(const Board& board, const Tries& tries, i64* totals, int threads);

// Rows [games, moves] of legal actions: row i is played up to move at[i] and observed there and after
// each of the next moves, `count` times in all; a game that is over is observed as such. `views` has
// [games, count] places. The number of the first row with a move that is not legal; -1: none.
struct Positions {
  const Action* actions;
  const i32* at;
  i64 games, moves, count;
};
i64 observe_at(const Board& board, const Observer& observer, const Positions& positions, const Views& views,
               int threads);

class Batch {
 public:
  explicit Batch(const Board& board) : board_(board) {}

  void reset(i64 games, int threads);
  i64 size() const { return static_cast<i64>(games_.size()); }
  const Game& game(i64 number) const { return games_[number]; }
  // One move each; rewards [games]. A game that is over takes none. The number of the first game
  // whose move is not legal, and then nothing was done; -1: all are.
  i64 step(const Action* actions, i64* rewards);
  void step_towards(const Action* preferences, i64* rewards);  // the nearest legal moves
  // To the end, always the nearest legal moves: from each game's next move on, what was played
  // [games, sites], what it earned, and what was legal [games, sites, actions].
  void finish(const Action* preferences, Action* actions, i64* rewards, u8* legal);
  void masks(u8* legal);  // [games, actions]
  // From the start, `moves` moves each [games, moves], all legal; else as `step`, and at the start.
  i64 replay(const Action* actions, i64 moves);
  void undo();
  void observe(const Observer& observer, const Views& views);

 private:
  template <class Work>
  void each(Work&& work);  // work(game, its number) for all

  const Board& board_;
  std::vector<Game> games_;
  int threads_ = 1;
};

}  // namespace loadmaster::game
