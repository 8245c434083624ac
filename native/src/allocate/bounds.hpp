// Lower bounds on the height of any placement, and the heights worth asking for.
#pragma once

#include "sections.hpp"
#include "switches.hpp"

namespace loadmaster {

// In bytes; kForever where the pins contradict each other.
i64 lower_bound(const Sections& sections);

// A placement pushed down as far as it goes ends at a sum of sizes, so only these heights occur.
class Heights {
 public:
  Heights(const Sections& sections, i64 most, const Switches& switches);
  i64 at_least(i64 height) const;  // the lowest height that can occur and is not below this
  i64 at_most(i64 height) const;   // the highest one not above; -1 if none

 private:
  i64 unit_ = 1;
  std::vector<u64> sums_;  // bit k: some buffers add up to k units; empty: every multiple may occur
};

}  // namespace loadmaster
