// List placers: steps one after another, each where it starts or ends first; the first step of a group
// decides for the group.
#pragma once

#include "graph/placing.hpp"

namespace loadmaster::graph {

// Steps in which order a list placer takes them.
enum class Order : i32 { kProgram, kRank, kRankWithTransfers };
inline constexpr i32 kOrders = 3;

// One decision of the list decoder.
struct Repair {
  const i32* device = nullptr;   // [groups] where a group stays; -1: it is put again. Null: all are
  const i64* room = nullptr;     // [memories] bytes that may be filled
  const double* bias = nullptr;  // [groups * devices] picoseconds by which a device is preferred, or null
  Outlook outlook = {};
  Order order = Order::kRankWithTransfers;
};

// What came of it, as the decoder reckons.
struct Repaired {
  std::vector<i32> device;      // [groups]
  std::vector<i64> start, end;  // [steps]
  i64 makespan = 0, transferred = 0;
};

// Puts groups on devices, one step after another, each on the device where it ends first (by what the
// outlook counts), in the first gap that is long enough; the first step of a group decides for it.
class ListDecoder {
 public:
  explicit ListDecoder(const Placing& placing);
  Repaired repair(const Repair& repair) const;
  // [steps] when a step of what was repaired could end at the latest without a longer makespan, if devices
  // kept their orders and links were never busy.
  std::vector<i64> latest_ends(const Repaired& repaired) const;

 private:
  const Placing& placing_;
  std::vector<i32> order_[kOrders];  // [steps]
};

// Steps by decreasing upward rank, each on the device where it ends first. -> device [groups]
std::vector<i32> heft(const Placing& placing, const i64* room, Outlook outlook);

// Always the ready step and the device that can start first; ties by longest path to the end.
// `favourite` [steps] (or null): the step that a device would rather wait for than start another,
// as long as it would take to send it elsewhere. -> device [groups]
std::vector<i32> earliest_start(const Placing& placing, const i64* room, const i32* favourite,
                                Outlook outlook);

}  // namespace loadmaster::graph
