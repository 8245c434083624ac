// The offset problem: buffers with fixed lifetimes and sizes get offsets. Arrays in, arrays out.
#pragma once

#include <atomic>
#include <utility>
#include <vector>

#include "../units.hpp"

namespace loadmaster {

// During [from, to) the buffer uses only its bytes [low, high); low == high: it is absent.
struct Gap {
  i64 from, to, low, high;
};

struct Buffers {
  std::vector<i64> lower, upper;  // alive during [lower, upper)
  std::vector<i64> size;
  std::vector<i64> alignment;              // at least 1
  std::vector<i64> pinned;                 // a fixed offset, or -1
  std::vector<i64> hint;                   // an offset that is welcome, or -1
  std::vector<std::vector<Gap>> gaps;      // empty, or one list per buffer, ascending, disjoint
  std::vector<std::pair<i32, i32>> apart;  // never share a byte, whatever their lifetimes

  i32 count() const { return static_cast<i32>(size.size()); }
  bool plain() const { return gaps.empty() && apart.empty(); }
};

enum class Status : i32 { kOptimal = 0, kFeasible = 1, kInfeasible = 2, kUnknown = 3 };

struct Placement {
  Status status = Status::kUnknown;
  std::vector<i64> offset;  // empty if there is none
  i64 height = 0;           // largest offset + size
  i64 bound = 0;            // proven: no placement is lower
  i64 nodes = 0;            // search nodes visited, summed over everything that was tried
};

// Asked often: may the search go on? Set from another thread (Ctrl-C) or by the clock.
struct Stop {
  std::atomic<bool> asked{false};
  i64 deadline_ns = -1;  // steady clock; -1: none
  i64 most_nodes = -1;   // -1: no limit
};

}  // namespace loadmaster
