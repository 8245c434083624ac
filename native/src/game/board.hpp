// What does not change while a game is played: worked out once, shared by all games of a model.
#pragma once

#include "game/model.hpp"
#include "game/switches.hpp"

namespace loadmaster::game {

// Steps by nest. Nest 0 is outside all loops, nest k + 1 is directly inside loop k.
struct Nests {
  std::vector<i32> start;  // [nests + 1] into `steps`
  std::vector<i32> steps;  // in order
  std::vector<i32> of;     // [n] the nest of a step
  std::vector<i32> slot;   // [n] its place in its nest

  static Nests single(i32 steps);  // all steps in one nest, whatever loops there are

  i32 count() const { return static_cast<i32>(start.size()) - 1; }
  i32 length(i32 nest) const { return start[nest + 1] - start[nest]; }
  i32 step(i32 nest, i32 place) const { return steps[start[nest] + place]; }
  i32 of_step(i32 step) const { return step < 0 ? 0 : of[step]; }
  // How many steps of a nest come before a step; n: all.
  i32 before(i32 nest, i32 step) const;
};

// Tensors that loops carry in one place: one decision for all of them.
struct Group {
  i32 first_site = -1;
  i32 first = 0, last = 0;  // steps of its life
  std::vector<i32> tensors;
  bool plain = false;  // fits the pattern that may be fast
  i32 given = -1;      // the tensor that is there from the start; then it is copied in ...
  i32 entry = -1;      // ... and needed by this step
  i32 output = -1;     // the tensor that slow memory must have at the end; it is written ...
  i32 exit = -1;       // ... for the last time by this step, loops around it included
};

struct Board {
  Board(const GameModel& columns, const Switches& chosen);

  const GameModel& model;
  Switches switches;
  Nests nests;
  std::vector<i64> slow, elapsed;  // [n] with every site slow
  std::vector<i64> write_supply;   // [n] for write-backs
  std::vector<i64> clock;          // [n + 1] when each step starts, every site slow
  i64 all_slow = 0;                // T0
  std::vector<i64> gain_alone;     // [sites] what the site saves if it alone of its step is fast
  std::vector<i64> own_start;      // [tensors + 1] into `own_sites`
  std::vector<i32> own_sites;      // sites of each tensor, in order
  std::vector<i32> own_place;      // [sites] where the site is among its tensor's
  std::vector<i32> written;        // [tensors] step that writes it; -1: given
  std::vector<i32> replaced;       // [tensors] step that overwrites it in place; n: none
  std::vector<i32> tied_read;      // [sites] of a write in place: the read of what it overwrites; else -1
  std::vector<Group> groups;

  i32 steps() const { return model.steps(); }
  i32 sites() const { return model.sites(); }
  bool inside(i32 loop, i32 step) const {
    return loop < 0 || (model.loop_first[loop] <= step && step <= model.loop_last[loop]);
  }
  // The outermost loop around a step that is not around another one; -1: none.
  i32 entered(i32 step, i32 from) const;
  // What `step` becomes as the last step of a residency: loops that it enters are covered whole.
  i32 stretched(i32 first, i32 step) const;

 private:
  void find_nests();
  void find_times();
  void find_sites();
  void find_groups();
  void describe(Group& group) const;
};

}  // namespace loadmaster::game
