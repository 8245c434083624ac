// List placers: steps one after another, each where it starts or ends first; the first step of a group
// decides for the group.
#pragma once

#include "graph/placing.hpp"

namespace loadmaster::graph {

// Steps by decreasing upward rank, each on the device where it ends first, in the first gap that is
// long enough. -> device [groups]
std::vector<i32> heft(const Placing& placing, const i64* room, Outlook outlook);

// Always the ready step and the device that can start first; ties by longest path to the end.
// `favourite` [steps] (or null): the step that a device would rather wait for than start another,
// as long as it would take to send it elsewhere. -> device [groups]
std::vector<i32> earliest_start(const Placing& placing, const i64* room, const i32* favourite,
                                Outlook outlook);

}  // namespace loadmaster::graph
