// What stays in fast memory, and when the rest is copied: repair of kept gaps, and the times of copies.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "units.hpp"

namespace loadmaster {

// Columns as in `loadmaster.problems.offload.model.OffloadModel`.
struct OffloadTables {
  std::vector<i64> size, copy_in, copy_out;     // [B]
  std::vector<i32> made, first_gap, end_gap;    // [B]
  std::vector<i8> output;                       // [B]
  std::vector<i64> use_start;                   // [B + 1]
  std::vector<i32> use_step, use_gap;           // [U]
  std::vector<i32> gap_item, gap_from, gap_to;  // [G]
  std::vector<i8> gap_kind;                     // [G]
  std::vector<i64> clock;                       // [S + 1] the start of each step if nothing waits

  i32 steps() const { return static_cast<i32>(clock.size()) - 1; }
  i32 items() const { return static_cast<i32>(size.size()); }
};

enum GapKind : i8 { kBeforeUse = 0, kBetween = 1, kToEnd = 2 };
enum Begins : i8 { kResident = 0, kMade = 1, kFetched = 2 };

struct Stay {
  i32 item, first, last;
  i8 begins;
  bool leaves;
  i32 earliest;  // its copy is not issued before this step's end
};

struct Times {
  i32 first, last, issued, out_needed;
};

// Gaps within a life in fast memory are kept; an output that left is at home at the end.
void settle(const OffloadTables& tables, std::vector<i8>& kept);

// From the first step on at which more is kept than fits, what is used again last leaves first; what is tiny
// beside the capacity, only if nothing else can.
// `room` is what others take of each step.
void repair(const OffloadTables& tables, std::vector<i8>& kept, i64 capacity, std::vector<i64> room);

// When stays (by item, then by step) begin and end with their copies, see schedule.py. `room` as above.
std::vector<Times> schedule(const OffloadTables& tables, std::span<const Stay> stays, i64 capacity, i64 lead,
                            std::vector<i64> room);

// How far a stay (by row) can be held towards a step that is wanted: the step that it reaches.
using Stretch = std::function<i32(i64 row, i32 wanted)>;

// The same where `later` and `earlier` know what there is room for: held until its copy out should be done,
// and from when its copy in is issued.
std::vector<Times> schedule_with(const OffloadTables& tables, std::span<const Stay> stays, i64 lead,
                                 const Stretch& later, const Stretch& earlier);

// Addresses that a step's kernels have for themselves.
struct Scratch {
  i32 step;
  i64 low, high;
};

// The same for stays that lie at `offset`, which may change: no two that meet in time overlap.
std::vector<Times> schedule_placed(const OffloadTables& tables, std::span<const Stay> stays, i64 capacity,
                                   i64 lead, std::span<const Scratch> scratch, std::vector<i64>& offset);

}  // namespace loadmaster
