// What bindings in other files need of the simulator: the program on its machine.
#pragma once

#include "model.hpp"

namespace loadmaster {

class HasModel {
 public:
  virtual ~HasModel() = default;
  virtual const Model& model() const = 0;
};

}  // namespace loadmaster
