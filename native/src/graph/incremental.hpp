// One vector after another, each a few changes away from the one before: what did not change is not
// decoded, fused or run again. The results are those of a full run.
#pragma once

#include <memory>

#include "graph/timeline.hpp"

namespace loadmaster::graph {

struct Change {
  i64 index;  // in the vector
  double value;
};

class Incremental {
 public:
  Incremental(const Model& model, const FusionRules& rules, const Decisions& decisions);

  // Evaluates a vector in full and stands there.
  const Judged& start(const double* vector);
  // Evaluates the vector that stands with some changes, later ones over earlier ones. What can't be
  // done by `limit` is cut short.
  const Judged& propose(const std::vector<Change>& changes, i64 limit = kForever);
  // Stands on what was proposed last, or goes back to what stood before.
  void accept();
  void reject();

  const std::vector<double>& vector() const { return vector_; }
  const Judged& judged() const { return stands_.judged; }
  // Of the vector that stands, where it has been run to its end; see graph/timeline.hpp.
  struct Standing {
    const Built& built;
    const Placement& placement;
    const History& history;
    Timeline timeline;
  };
  Standing standing() const;
  // Adds the same change of a schedule key for all ops of its cluster.
  void spread(const Change& change, std::vector<Change>& changes) const;
  i64 full_runs() const { return full_runs_; }
  i64 runs() const { return runs_; }

 private:
  struct Stand {
    std::shared_ptr<const Built> built;
    Placement placement;
    History history;
    Judged judged;
  };
  std::shared_ptr<const Built> fused();
  void place_all(Stand& stand) const;
  void place(Stand& stand, i32 step) const;
  double rank(const Built& built, i32 step) const;
  void find_levels(Stand& stand) const;
  i64 first_difference(const std::vector<i32>& moved, const std::vector<i32>& ranked);
  i64 first_given_difference(i32 tensor) const;
  void run(i64 since, i64 limit = kForever);

  const Model& model_;
  const FusionRules& rules_;
  const Decisions& decisions_;
  const bool ranked_, critical_path_;
  std::vector<i32> node_of_;  // [ops]
  Fuser fuser_;
  Rerun rerun_;
  std::vector<double> vector_, keys_;
  std::vector<i32> fusion_;
  std::vector<Change> undo_;
  Stand stands_, next_;
  i64 runs_ = 0, full_runs_ = 0;
};

}  // namespace loadmaster::graph
