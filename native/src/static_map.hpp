// Many whole-life mappings of one program, timed at once: the inner loop of the Mapping problem.
#pragma once

#include "model.hpp"

namespace loadmaster {

// One device; a tensor stays in one memory for its whole life; no copies, no fusion. Gives what
// `simulate` gives for the plan with those residencies, faster.
class StaticMap {
 public:
  explicit StaticMap(const Model& model);

  // memory[maps][tensors]: the memory of each root, -1 for its home. Entries of inputs, views and
  // unused tensors are ignored. total[maps], peak[maps][memories].
  void evaluate(const i8* memory, i64 maps, i64* total, i64* peak, int threads) const;

  struct Work {  // what one thread needs
    explicit Work(const Model& model);
    std::vector<i8> at;  // [tensors] the memory of each
    std::vector<i64> bytes, by_memory;
    std::vector<i32> holds;
  };
  // The time of the map in work.at, which names a memory for every tensor.
  i64 time(Work& work) const;

 private:
  void resolve(const i8* memory, Work& work) const;
  void peaks(Work& work, i64* peak) const;

  const Model& model_;
  std::vector<i32> steps_;             // ops that are no views
  Rows rows_;                          // accesses of each step
  std::vector<i32> tensor_;            // of each access
  std::vector<i64> cost_;              // [access * memories]
  bool careful_ = false;               // sums of costs may overflow: add them with care
  std::vector<i64> aligned_;           // [tensors * memories] size of the tensor's place there
  std::vector<i8> is_input_, shared_;  // [tensors]; shared: several roots in one place
  bool any_shared_ = false;
  std::vector<i64> fixed_slow_;  // [steps] other bytes, in the home
  Rows begin_rows_, end_rows_;   // roots that become live and die with a step
  std::vector<i32> begins_, ends_;
  std::vector<i32> given_;   // persistent roots: held for ever
  std::vector<i32> inputs_;  // inputs with readers: held from the start
};

}  // namespace loadmaster
