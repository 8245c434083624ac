// First answers: first fit in several orders, and repair of an order by blame.
#pragma once

#include <functional>
#include <span>

#include "sections.hpp"
#include "switches.hpp"

namespace loadmaster {

struct Packing {
  std::vector<i64> offset;  // in units, per buffer of the sections; empty if there is none
  i64 height = INT64_MAX;   // in bytes
};

// Each buffer in turn at the lowest (or, if `best`, the tightest) offset that is free.
Packing first_fit(const Sections& sections, std::span<const i32> order, bool best = false);

// The best of the usual greedy orders; stops early at `good_enough`.
Packing greedy_packing(const Sections& sections, i64 good_enough);

// Moves the buffers that stand too high, and what they rest on, forward in the order, `tries` times.
Packing repaired(const Sections& sections, const Packing& from, i64 good_enough, i64 tries, u64 seed,
                 const std::function<bool()>& stop);

}  // namespace loadmaster
