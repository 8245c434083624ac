// The same search, level by level, with the best few sets of each size: quick, and proves nothing.
#pragma once

#include <vector>

#include "graph.hpp"

namespace loadmaster {

class PeakBeam {
 public:
  PeakBeam(const OrderGraph& graph, i32 width);
  bool advance(i32 levels);  // whether it is at its end
  std::vector<i32> order() const;

 private:
  struct Step {
    i32 parent, op;
  };
  struct Kept {
    OrderState state;
    i64 peak;
    u64 hash;
  };
  void level();

  const OrderGraph* graph_;
  size_t width_;
  std::vector<Kept> kept_;
  std::vector<std::vector<Step>> steps_;  // of each level
};

}  // namespace loadmaster
