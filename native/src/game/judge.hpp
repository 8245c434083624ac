// The judge: how long a placement takes, stalls for copies included. Equal to `simulate` of its plan.
#pragma once

#include "game/model.hpp"

namespace loadmaster::game {

struct GameCopy {
  i32 tensor;
  bool in;     // slow to fast; else back
  i32 issued;  // after this step; -1: before the program
  i32 needed;  // by this step; steps(): by the end
  i64 work;    // picoseconds with nothing beside it
};

struct StepTimes {
  std::vector<i64> elapsed, slow;  // [steps] its time, and that of its accesses to slow memory
};
StepTimes step_times(const GameModel& model, const std::vector<i8>& is_fast);

struct Judged {
  i64 total = 0;  // picoseconds
  i64 stall = 0;  // of it, waiting for copies
};

// `is_fast` [sites]; copies in any order: among those issued by one step, earlier ones go first.
Judged judge(const GameModel& model, const std::vector<i8>& is_fast, const std::vector<GameCopy>& copies);

}  // namespace loadmaster::game
