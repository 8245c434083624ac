// Many searches of one part at one capacity, raced in rounds; see exact.hpp for why rounds.
#pragma once

#include <memory>
#include <optional>

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

class Race {
 public:
  Race(const Sections& sections, const Switches& switches);

  // One round at one capacity, every order with `budget` nodes. `offset` is set when found.
  SearchEnd round(i64 capacity, i64 number, i64 budget, Purse& purse, const Stop& stop,
                  std::vector<i64>& offset);
  i64 first_budget() const;

 private:
  const Sections& in_;
  const Switches& on_;
};

}  // namespace loadmaster
