// Every technique of the exact solver by name, so that each can be turned off and measured.
#pragma once

#include <string>
#include <vector>

#include "../units.hpp"

namespace loadmaster {

struct Switches {
  // Pruning inside the search; each is sound alone.
  bool canonical = true;           // each layout is reached in one way: a refused offset stays refused
  bool section_inference = true;   // floor + bytes that wait must fit in every section
  bool monotonic_floor = true;     // no floor lies below the offset being decided
  bool unallocated_floor = true;   // a section's floor is the lowest start among its waiting buffers
  bool refused_floor = true;       // a refused buffer must rest on one still waiting: raises its start
  bool forced_next = true;         // a section with one possible next buffer lifts what cannot go below it
  bool dominance = true;           // never leave a hole that a waiting buffer fits into
  bool hatless = true;             // a refused buffer that nothing can lift ends the node
  bool decomposition = true;       // parts of time that share no waiting buffer are solved apart
  bool identical_symmetry = true;  // equal buffers are placed in index order
  bool section_branching = true;   // decide the section with the least choice first
  bool static_preordering = true;  // ties by a static order; else by index
  bool no_goods = true;            // failed states are remembered and shared between orders
  // Around the search.
  bool first_fit = true;            // fit() asks greedy before it searches (minimize always does)
  bool restarts = true;             // many short searches in shuffled orders beside the long ones
  bool repair = true;               // improve greedy answers by blame where the first round fails
  bool subset_sum_bounds = true;    // capacities that no stack of live sizes can use are skipped
  std::vector<std::string> orders;  // empty: the fixed dozen
  i64 first_budget = 0;             // nodes per order in the first round; 0: chosen from the size
  int threads = 1;
  u64 seed = 0;
};

}  // namespace loadmaster
