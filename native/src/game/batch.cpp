#include "game/batch.hpp"

#include "parallel.hpp"

namespace loadmaster::game {
namespace {

constexpr i64 kBlock = 4;  // games that a thread takes at a time

// Legal moves.
int choices(Game& game, int actions) {
  int count = 0;
  for (Action action = 0; action < actions; ++action) count += game.is_legal(action);
  return count;
}

// The time of a game that goes on with `action` and then as near to `wanted` as is legal.
i64 total_after(Game game, Action action, const Action* wanted) {
  game.step(action);
  while (!game.is_over()) game.step(game.nearest(wanted[game.cursor()]));
  return game.judged().total;
}

}  // namespace

Played play_all(const Board& board, const Action* preferences, const i64* offsets, i64 games, int threads) {
  const std::size_t sites = static_cast<std::size_t>(board.sites());
  Played played(static_cast<std::size_t>(games), sites);
  in_blocks(games, kBlock, threads, [&] {
    return [&, game = Game(board)](i64 begin, i64 end) mutable {
      for (i64 i = begin; i < end; ++i) {
        game.play(preferences + i * board.sites(), offsets ? offsets + i * board.sites() : nullptr);
        std::copy(game.actions().begin(), game.actions().end(), played.actions.begin() + i * board.sites());
        const Judged judged = game.judged();
        played.total[i] = judged.total;
        played.stall[i] = judged.stall;
        played.backups[i] = game.backups();
      }
    };
  });
  return played;
}

i64 try_all(const Board& board, const Tries& tries, i64* totals, int threads) {
  const i64 sites = board.sites(), width = tries.last - tries.first;
  const int actions = board.switches.actions();
  std::vector<i8> refused(static_cast<std::size_t>(tries.games), 0);
  // A thread takes some sites of one row at a time: late ones take less than early ones.
  in_blocks(tries.games * width, kBlock, threads, [&] {
    return [&, game = Game(board), row = i64{-1}, own = i64{0}](i64 begin, i64 end) mutable {
      for (i64 place = begin; place < end; ++place) {
        const Action* wanted = tries.actions + place / width * sites;
        const i64 site = tries.first + place % width;
        if (row != place / width) {
          row = place / width;
          game.play(wanted);
          own = game.judged().total;
        }
        if (game.cursor() > site) game.reset();
        while (game.cursor() < site && !refused[row]) {
          const auto action = wanted[game.cursor()];
          if (!game.is_legal(action)) refused[row] = 1;
          if (!refused[row]) game.step(action);
        }
        i64* total = totals + place * actions;
        std::fill_n(total, actions, -1);
        if (refused[row] || choices(game, actions) < 2) continue;
        for (Action action = 0; action < actions; ++action) {
          if (!game.is_legal(action)) continue;
          total[action] = action == wanted[site] ? own : total_after(game, action, wanted);
        }
      }
    };
  });
  const auto bad = std::find(refused.begin(), refused.end(), 1);
  return bad == refused.end() ? -1 : bad - refused.begin();
}

i64 observe_at(const Board& board, const Observer& observer, const Positions& positions, const Views& views,
               int threads) {
  std::vector<i8> refused(static_cast<std::size_t>(positions.games), 0);
  in_blocks(positions.games, kBlock, threads, [&] {
    return [&, game = Game(board), scratch = Observer::Scratch()](i64 begin, i64 end) mutable {
      for (i64 i = begin; i < end; ++i) {
        const Action* actions = positions.actions + i * positions.moves;
        const auto play = [&](i64 move) {
          const auto action = actions[move];
          refused[i] = refused[i] || !game.is_legal(action);
          if (!refused[i]) game.step(action);
        };
        game.reset();
        for (i64 move = 0; move < positions.at[i] && !game.is_over() && !refused[i]; ++move) play(move);
        for (i64 seen = 0; seen < positions.count && !refused[i]; ++seen) {
          const i64 move = positions.at[i] + seen - 1;
          if (seen > 0 && move < positions.moves && !game.is_over()) play(move);
          observer.observe(game, views.at(i * positions.count + seen), scratch);
        }
      }
    };
  });
  const auto bad = std::find(refused.begin(), refused.end(), 1);
  return bad == refused.end() ? -1 : bad - refused.begin();
}

template <class Work>
void Batch::each(Work&& work) {
  in_blocks(size(), kBlock, threads_, [&] {
    return [&](i64 begin, i64 end) {
      for (i64 i = begin; i < end; ++i) work(games_[i], i);
    };
  });
}

void Batch::reset(i64 games, int threads) {
  threads_ = threads;
  if (games != size()) {
    games_.clear();
    games_.reserve(static_cast<std::size_t>(games));
    while (size() < games) games_.emplace_back(board_);
  }
  each([](Game& game, i64) { game.reset(); });
}

i64 Batch::step(const Action* actions, i64* rewards) {
  std::vector<i8> refused(games_.size(), 0);
  each([&](Game& game, i64 i) { refused[i] = !game.is_over() && !game.is_legal(actions[i]); });
  const auto bad = std::find(refused.begin(), refused.end(), 1);
  if (bad != refused.end()) return bad - refused.begin();
  each([&](Game& game, i64 i) { rewards[i] = game.is_over() ? 0 : game.step(actions[i]); });
  return -1;
}

void Batch::step_towards(const Action* preferences, i64* rewards) {
  each([&](Game& game, i64 i) { rewards[i] = game.is_over() ? 0 : game.step(game.nearest(preferences[i])); });
}

void Batch::finish(const Action* preferences, Action* actions, i64* rewards, u8* legal) {
  const int count = board_.switches.actions();
  each([&](Game& game, i64 i) {
    while (!game.is_over()) {
      const i64 at = i * board_.sites() + game.cursor();
      for (Action action = 0; action < count; ++action) legal[at * count + action] = game.is_legal(action);
      const Action action = game.nearest(preferences[at]);
      actions[at] = action;
      rewards[at] = game.step(action);
    }
  });
}

void Batch::masks(u8* legal) {
  const int count = board_.switches.actions();
  each([&](Game& game, i64 i) {
    for (Action action = 0; action < count; ++action)
      legal[i * count + action] = !game.is_over() && game.is_legal(action);
  });
}

i64 Batch::replay(const Action* actions, i64 moves) {
  std::vector<i8> refused(games_.size(), 0);
  each([&](Game& game, i64 i) {
    game.reset();
    for (i64 move = 0; move < moves && !refused[i]; ++move) {
      const auto action = actions[i * moves + move];
      refused[i] = game.is_over() || !game.is_legal(action);
      if (!refused[i]) game.step(action);
    }
  });
  const auto bad = std::find(refused.begin(), refused.end(), 1);
  if (bad == refused.end()) return -1;
  each([](Game& game, i64) { game.reset(); });
  return bad - refused.begin();
}

void Batch::observe(const Observer& observer, const Views& views) {
  in_blocks(size(), kBlock, threads_, [&] {
    return [&, scratch = Observer::Scratch()](i64 begin, i64 end) mutable {
      for (i64 i = begin; i < end; ++i) observer.observe(games_[i], views.at(i), scratch);
    };
  });
}

void Batch::undo() {
  each([](Game& game, i64) {
    const std::vector<Action> moves = game.history();
    game.reset();
    for (std::size_t i = 0; i + 1 < moves.size(); ++i) game.step(moves[i]);
  });
}

}  // namespace loadmaster::game
