// Orders that need no search.
#pragma once

#include <span>
#include <vector>

#include "graph.hpp"

namespace loadmaster {

// Always the ready op with the largest key; among equal keys the one with the smallest number.
std::vector<i32> by_keys(const OrderGraph& graph, std::span<const double> keys);
// Always the ready op that leaves the fewest bytes alive; among equals the one that needs the fewest
// while it runs, then the one that has become ready last.
std::vector<i32> greedy(const OrderGraph& graph);
// Always the op that has become ready last.
std::vector<i32> depth_first(const OrderGraph& graph);
// From the results back to what they need: an op comes directly after the last thing it waited for.
std::vector<i32> reverse_post_order(const OrderGraph& graph);

}  // namespace loadmaster
