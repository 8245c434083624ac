// What other planners do, written anew from descriptions of their behaviour, to be compared with.
// Each gives a valid placement with height, bound and status; kInfeasible if pins clash, kUnknown
// without offsets if it was stopped before its first placement or offsets pass every number.
#pragma once

#include "buffers.hpp"

namespace loadmaster {

// Largest first, ties by index, each at the lowest free offset: ExecuTorch, TFLite Micro, IREE.
Placement size_first_fit(const Buffers& buffers, const Stop& stop);

// Largest first, ties by longer life and then by index, each into the smallest free range that
// holds it: XLA's global decreasing size best fit.
Placement xla_best_fit(const Buffers& buffers, const Stop& stop);

// Largest first, each on top of the highest placed buffer that it lives with; holes stay: TVM's greedy.
Placement tvm_greedy(const Buffers& buffers, const Stop& stop);

// Size first fit; then swaps two buffers among those that live with the highest one, or that live
// with one of these, and keeps the order if the height is not worse: TVM's hill climb.
Placement tvm_hill_climb(const Buffers& buffers, u64 seed, const Stop& stop, i64 tries = 500);

// First fit by (peak of live bytes over the life, longer life, earlier start); then swaps two of the
// buffers that hold up the highest one (those that live with it and those they rest on) and keeps
// the order if the height is not worse, until the bound is met: Arm Vela's hill climb.
Placement vela_hill_climb(const Buffers& buffers, u64 seed, const Stop& stop, i64 tries = 99'999);

}  // namespace loadmaster
