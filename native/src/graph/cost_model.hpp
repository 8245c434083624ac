// Fusion by what it saves: the producer that gains most first, as XLA's priority fusion does.
#pragma once

#include "graph/fusion.hpp"

namespace loadmaster::graph {

// keys[ops] with which the fusion pass makes the same clusters: producers in the order in which they
// were taken, from 1 downwards; below `kNever` where fusing gains nothing.
std::vector<double> cost_model_keys(const FusionRules& rules, i32 device);

}  // namespace loadmaster::graph
