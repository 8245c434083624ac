// Many searches of one part at one capacity, raced in rounds; see exact.hpp for why rounds.
#pragma once

#include <functional>
#include <vector>

#include "orders.hpp"
#include "search.hpp"

namespace loadmaster {

bool stopped(const Stop& stop);

// Nodes that may still be visited, and those that were.
struct Purse {
  i64 left = -1;  // -1: no limit
  i64 spent = 0;
  void pay(i64 nodes) {
    spent += nodes;
    if (left >= 0) left = nodes > left ? 0 : left - nodes;
  }
  i64 at_most(i64 nodes) const { return left < 0 || nodes < left ? nodes : left; }
  bool empty() const { return left == 0; }
};

// What short searches go on from: the order that won last, and its placement.
struct Chain {
  Preference by;
  std::vector<i64> offset;
  i64 drawn = 0;  // shuffled orders so far
};

class Race {
 public:
  Race(const Sections& sections, const Switches& switches);

  // One round at one capacity, every order with `budget` nodes. `offset` is set when found.
  SearchEnd round(i64 capacity, i64 number, i64 budget, Purse& purse, const Stop& stop,
                  std::vector<i64>& offset);

  // Many short searches, half of them near the order that won last: where there is a solution, an order
  // runs into it almost at once or hardly ever, and those that do are neighbours. Proves nothing.
  bool restart(i64 capacity, i64 count, Chain& chain, Purse& purse, const Stop& stop);
  i64 first_budget() const;

 private:
  struct Run {
    SearchEnd outcome = SearchEnd::kOutOfBudget;
    i64 nodes = 0;
    Preference by;
    std::vector<i64> offset;
  };
  // Searches in the orders draw(0) to draw(count - 1). Of those that come to an end the first wins:
  // `winner` is its number, or count.
  Run race(i64 capacity, i64 count, i64 budget, const std::function<Preference(i64)>& draw, Purse& purse,
           const Stop& stop, i64& winner);

  const Sections& in_;
  const Switches& on_;
};

}  // namespace loadmaster
