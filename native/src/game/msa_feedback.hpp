// What a plan of memory space assignment says about itself: what each tensor saves where it lies, what it
// could save where it does not, and who lies in its way.
#pragma once

#include "game/msa.hpp"

namespace loadmaster::game {

// Picoseconds of the whole program. tests/reference/msa_feedback.py is the slow twin.
struct MsaFeedback {
  std::vector<double> kept;      // [tensors] lost if its fast uses became slow, one at a time
  std::vector<double> lost;      // [tensors] its share of what steps would save with all in fast memory
  std::vector<double> blamed;    // [tensors] of what others lose, its share by bytes and steps in their way
  std::vector<double> pressure;  // [steps] bytes in fast memory, as a share of its capacity
};

MsaFeedback feedback(const MsaTables& tables, const MsaResult& plan);

}  // namespace loadmaster::game
