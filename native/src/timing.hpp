// Rules of docs/simulation.md that more than one timing loop needs, each written once.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "units.hpp"

namespace loadmaster {

// Section 3: how long a step takes once. `overlap`: millionths of the shorter part that is not hidden.
inline i64 step_time(i64 compute, i64 memory, i64 overlap, i64 launch) {
  const i64 longer = std::max(compute, memory);
  // Not std::min: of both together GCC makes a branch, which costs StaticMap a tenth of its speed.
  const i64 shorter = compute + memory - longer;
  const i64 body = overlap > 0 ? plus(longer, scaled(shorter, overlap, 1'000'000)) : longer;
  return std::max<i64>(1, plus(launch, body));
}

// Section 3: the same where the cost table names every op. `away`: accesses beyond the first memory.
inline i64 named_time(i64 compute, i64 away) { return std::max<i64>(1, std::max(compute, away)); }

// Sections 4 and 5: how long bytes are on their way.
inline i64 move_time(i64 latency, i64 bandwidth, i64 bytes) {
  return std::max<i64>(1, plus(latency, ceil_time(bytes, bandwidth)));
}

// Section 4: a copy whose two ends are in the same loop is made in every iteration.
inline bool in_one_loop(i32 loop_a, i32 loop_b) { return loop_a >= 0 && loop_a == loop_b; }

// Section 4: a transfer or copy starts when all its engines are free, and holds them until it ends.
struct Booking {
  i64 start, end;
};
inline Booking book(std::span<const i32> engines, std::span<i64> engine_free, i64 now, i64 duration) {
  i64 start = now;
  for (const i32 engine : engines) start = std::max(start, engine_free[engine]);
  const i64 end = plus(start, duration);
  for (const i32 engine : engines) engine_free[engine] = end;
  return {start, end};
}

}  // namespace loadmaster
