// When everything of a plan that was run happens, and how late it could.
#pragma once

#include "graph/rerun.hpp"

namespace loadmaster::graph {

struct Timeline {
  std::vector<i64> latest;       // [steps] the last end with which the plan ends as early, all orders kept
  std::vector<i64> move_latest;  // [moves] the same of transfers
  std::vector<i32> reader;       // [moves] the step that needs it first
};

// Nothing overtakes: steps follow each other on their devices and transfers on their engines as they did.
Timeline find_timeline(const Model& model, const Built& built, const Placement& placement,
                       const History& history, const Rerun& rerun);

}  // namespace loadmaster::graph
