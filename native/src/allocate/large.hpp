// Placements of many buffers: a portfolio of greedy orders, then repair, with memory in proportion to
// the input.
//
// The same input, options and seed give the same placement for any number of threads: work is cut
// into rounds of a fixed number of tasks, each with an effort counted in steps and not in seconds,
// and of equally good results the first in order wins. Only a deadline or a request to stop can cut
// the work short; the best placement so far is returned then.
#pragma once

#include <functional>
#include <vector>

#include "buffers.hpp"
#include "greedy.hpp"

namespace loadmaster {

struct LargeOptions {
  u64 seed = 0;
  int threads = 1;
  i64 effort = -1;      // steps (of Packer) to spend; -1: as many as the deadline allows, without one a few
                        // seconds' worth. Always spent, whatever this says: size first fit and the first
                        // four other recipes
  bool repair = true;   // repair windows around the buffers that stick out
  bool reorder = true;  // squeaky wheel: place earlier what found no room
};

// What an order goes by. Every key is followed by the index, so that ties are deliberate.
enum class By : i32 {
  kSize,          // largest first
  kSizeLife,      // largest, then longest lived
  kSizePressure,  // largest, then under the most pressure
  kLife,          // longest lived, then largest
  kArea,          // size x life
  kSlimArea,      // size x square root of life
  kStart,         // earliest start, then largest
  kEnd,           // latest end, then largest
  kPressure,      // peak of live bytes over its life, then largest
  kPressureLife,  // peak of live bytes over its life, then longest lived
  kNear,          // nearest to a peak, then largest
};

// First the buffers that live through a section within `slack` of the peak, then the others.
struct Recipe {
  double slack;  // 1: all buffers are in the first part
  By first;
  By others;
  Fit fit;
};

// What orders are made of, in one place.
class OrderMaker {
 public:
  OrderMaker(const Buffers& buffers, const LifeAxis& axis);
  std::vector<i32> make(const Recipe& recipe) const;

 private:
  i64 life(i32 b) const;

  const Buffers& buffers_;
  const LifeAxis& axis_;
  std::vector<i64> pressure_;
};

using OnPlacement = std::function<void(const Placement&)>;

// capacity -1: the least height. Otherwise any height within it will do; kInfeasible only if the
// bound is above it or pins clash, and kUnknown with the lowest placement found if that is too high.
// `improved` is called from the calling thread for every better placement.
Placement pack_large(const Buffers& buffers, i64 capacity, const LargeOptions& options, const Stop& stop,
                     const OnPlacement& improved = {});

}  // namespace loadmaster
