// The complete solver: fits a capacity or proves that nothing does, and finds the least capacity.
//
// The same input, seed and node limit give the same placement for any number of threads: orders are
// raced in rounds of fixed node budgets, and of those that come to an end in a round the one with
// the smallest number wins. Only a deadline or a request to stop makes a result depend on time.
#pragma once

#include <functional>
#include <vector>

#include "buffers.hpp"
#include "switches.hpp"

namespace loadmaster {

// A placement of height at most `capacity`: kFeasible (kOptimal if it meets the lower bound),
// kInfeasible if proven that there is none, kUnknown if stopped before.
Placement fit(const Buffers& buffers, i64 capacity, const Switches& switches, Stop& stop);

// The lowest placement: kOptimal, kFeasible (bound < height), kInfeasible (the pins contradict) or
// kUnknown (stopped before a first answer). `improved` hears of every better placement.
Placement minimize(const Buffers& buffers, const Switches& switches, Stop& stop,
                   const std::function<void(const Placement&)>& improved = {});

// Buffers that have no placement within `capacity` together, but have one without any one of them.
// Empty if there is a placement or nothing was proven. If stopped early the set is still infeasible,
// but some member may be dispensable.
std::vector<i32> irreducible_infeasible_subset(const Buffers& buffers, i64 capacity, const Switches& switches,
                                               Stop& stop);

// More buffers that hang together are kUnknown: the tables of the search grow with the square.
inline constexpr i32 kMostExactBuffers = 20'000;

}  // namespace loadmaster
