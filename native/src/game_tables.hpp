// The game's model as Python hands it over.
#pragma once

#include <stdexcept>

#include "arrays.hpp"
#include "game/judge.hpp"

namespace loadmaster {

game::GameModel read_game(const nb::dict& columns);

// Python's hold on a model; games and heuristics made from it keep it alive.
class GameTables {
 public:
  explicit GameTables(const nb::dict& columns) : model_(read_game(columns)) {}
  const game::GameModel& model() const { return model_; }

 private:
  const game::GameModel model_;
};

}  // namespace loadmaster
