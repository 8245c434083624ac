// Many proposals one after another, each accepted or not: the inner loop of annealing.
#pragma once

#include "graph/incremental.hpp"

namespace loadmaster::graph {

// Rows of changes. The new value is `value`; with a source, it is added to what stands there in the
// vector: a key stays within [0, 1], and behind the last device comes the first.
struct Proposals {
  Rows rows;
  std::vector<i64> index, source;  // source -1: none
  std::vector<double> value;
  std::vector<double> slack;  // [rows] accepted if its energy is at most so much above
  bool cut = false;           // stop a run that can't be accepted: faster, its result is not known
};

class Climb {
 public:
  Climb(const Model& model, const FusionRules& rules, const Decisions& decisions, double reference);

  const Judged& start(const double* vector);
  // One entry a row; `accepted` is 1 where the proposal was taken.
  void run(const Proposals& proposals, std::vector<Judged>& judged, std::vector<i8>& accepted);
  // The vector that row `row` of the last run proposed; -1: the one that stands.
  std::vector<double> vector(i64 row) const;
  const Incremental& incremental() const { return incremental_; }

 private:
  // Time over the reference; a plan that does not fit is above all that do, by bytes over.
  double energy(const Judged& judged) const;
  // The last time at which a plan with that energy ends.
  i64 limit(double energy) const;

  const Decisions& decisions_;
  double reference_, capacity_, devices_;
  Incremental incremental_;
  std::vector<double> from_;                // the vector before the last run
  std::vector<std::vector<Change>> tried_;  // of the last run
  std::vector<i8> taken_;
};

}  // namespace loadmaster::graph
