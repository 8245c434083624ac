// Fewer ops, the same least peak: pairs that may run one right after the other become one op.
//
// Write hump(x) for the bytes above those alive before it that x reaches while it runs, and net(x) for those
// that it leaves. What x frees depends on what has run, so net(x) lies between two numbers: a value that x
// uses is surely freed if all its other users must run before x, and surely not if one must run after x.
//
//  Rule 1, u right after p. Let all that u needs be p or needed by p, net(u) <= 0 whatever has run, and
//  net(p) + hump(u) <= hump(p). Take any order and move u to right after p. That is legal. States between
//  now have u run too: net(u) <= 0, so none is higher, nor is what runs from them. While u runs the bytes
//  are at most those while p ran. So the peak is no higher, and the pair's hump is that of p.
//
//  Rule 2, p right before u. Let all that needs p be u or need u, net(p) be known and >= 0, and
//  hump(p) <= net(p) + hump(u). Take any order and move p to right before u. That is legal. States between
//  no longer have p run: none is higher. While p runs the bytes are at most those while u runs. So the peak
//  is no higher, and the pair's hump is net(p) + hump(u).
//
// Each order of the reduced graph is one of the graph with the same peak, and by the rules each order of the
// graph has one of the reduced graph that is no higher: the op that does not move is the pair's anchor, and
// groups in the order of their anchors are that one. So the least peaks are equal, and a bound of one is a
// bound of the other.
#pragma once

#include <vector>

#include "graph.hpp"

namespace loadmaster {

struct Reduced {
  OrderGraph graph;
  Lists members;            // op of the reduced graph -> ops in the order in which they run
  std::vector<i32> anchor;  // the one of them whose place in an order is that of all
};

Reduced reduced(const OrderGraph& graph);

}  // namespace loadmaster
