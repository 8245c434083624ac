// A program on one fast and one slow memory, as the game and its heuristics read it. The columns
// are those of `GameModel` in malloc_game/model.py, which says what each means.
#pragma once

#include <algorithm>
#include <vector>

#include "timing.hpp"

namespace loadmaster::game {

inline constexpr i64 kNever = -1;  // as the time of a copy: there is no link

struct GameModel {
  i64 capacity = 0;
  i64 alignment = 1;
  bool parallel = false;
  bool idle_copies = false;
  i32 engine_in = -1, engine_out = -1;  // of copies that run on links; -1: no turn to wait for

  std::vector<i64> compute, base_slow, launch, overlap, repeat, beside;  // [n]
  std::vector<i32> loop;                                                 // [n] innermost, or -1
  std::vector<i32> loop_parent, loop_first, loop_last;                   // [loops]

  std::vector<i64> site_start;              // [n + 1]
  std::vector<i32> site_step, site_tensor;  // [sites]
  std::vector<i8> site_write;               // [sites]
  std::vector<i64> site_slow, site_fast;    // [sites] times

  std::vector<i64> size;          // [tensors] bytes in fast memory, aligned
  std::vector<i64> in, out;       // [tensors] time of a copy, or kNever
  std::vector<i8> given, output;  // [tensors]
  std::vector<i32> over;          // [tensors] overwritten in place by its producer, or -1
  std::vector<i32> carried;       // [tensors] carried group, or -1

  i32 steps() const { return static_cast<i32>(compute.size()); }
  i32 sites() const { return static_cast<i32>(site_tensor.size()); }
  i32 tensors() const { return static_cast<i32>(size.size()); }

  // How long a step takes once, given how long each memory serves it.
  i64 elapsed(i32 step, i64 slow, i64 fast) const {
    const i64 memory = parallel ? std::max(slow, fast) : slow + fast;
    return step_time(compute[step], memory, overlap[step], launch[step]);
  }
  // How much of that time leaves slow memory idle.
  i64 idle(i32 step, i64 elapsed, i64 slow) const { return std::max<i64>(0, elapsed - slow - beside[step]); }
};

}  // namespace loadmaster::game
