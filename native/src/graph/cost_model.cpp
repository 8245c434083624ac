#include "graph/cost_model.hpp"

#include <algorithm>
#include <queue>

#include "timing.hpp"

namespace loadmaster::graph {
namespace {

class CostModel {
 public:
  CostModel(const FusionRules& rules, i32 device)
      : rules_(rules),
        model_(rules.model),
        device_(device),
        clusters_(rules),
        time_(model_.ops),
        version_(model_.ops, 0),
        mark_(model_.ops, 0),
        at_(model_.tensors, -1) {
    for (i32 op = 0; op < model_.ops; ++op)
      if (!model_.view[op]) time_[op] = time({op});
  }

  std::vector<double> keys() {
    for (const i32 op : rules_.producers) rate(op);
    std::vector<i32> taken;
    while (!queue_.empty()) {
      const Rated best = queue_.top();
      queue_.pop();
      if (best.version != version_[best.producer]) continue;
      version_[best.producer] = -1;  // each producer has one turn
      taken.push_back(best.producer);
      if (clusters_.visit(best.producer)) rate_neighbours(clusters_.find(best.producer));
    }
    std::vector<double> keys(model_.ops, 0.0);
    const double step = (1.0 - kNever) / static_cast<double>(std::max<std::size_t>(1, taken.size()));
    for (std::size_t i = 0; i < taken.size(); ++i) keys[taken[i]] = 1.0 - step * static_cast<double>(i);
    return keys;
  }

 private:
  struct Rated {
    i64 gain;
    i32 producer;
    i32 version;
    bool operator<(const Rated& other) const {
      return gain != other.gain ? gain < other.gain : producer > other.producer;
    }
  };

  // Time of clusters as one step, everything at home.
  i64 time(const std::vector<i32>& roots) {
    ++stamp_;
    for (const i32 root : roots) mark_[root] = stamp_;
    const i32 home = model_.devices[device_].home();
    const std::size_t width = model_.devices.size();
    i64 compute = 0, memory = 0;
    bool named = true;
    inputs_.clear();
    for (const i32 root : roots)
      clusters_.each(root, [&](i32 op) {
        const std::size_t cell = static_cast<std::size_t>(op) * width + device_;
        if (model_.named[cell] != 2) compute = plus(compute, model_.compute[cell]);
        named = named && model_.named[cell] != 0;
        memory = plus(memory, model_.access_time(model_.other_bytes[op], false, home));
        for (i64 row = model_.access.rows.begin(op); row < model_.access.rows.end(op); ++row)
          memory = plus(memory, count(row, home));
      });
    for (const auto& [tensor, bytes] : inputs_) {
      memory = plus(memory, model_.access_time(std::min(bytes, model_.size[tensor]), false, home));
      at_[tensor] = -1;
    }
    if (named) return named_time(compute, 0);
    return step_time(compute, memory, model_.overlap, model_.devices[device_].launch);
  }

  bool is_in(i32 op) { return mark_[clusters_.find(op)] == stamp_; }

  // A write that leaves counts at once; reads from outside are gathered by tensor.
  i64 count(i64 row, i32 home) {
    const i32 t = model_.access.tensor[row];
    const i64 bytes = model_.access.bytes[row];
    if (model_.access.write[row]) {
      bool leaves = model_.output[t] || model_.tied[t];
      for (i64 i = model_.reader_rows.begin(t); i < model_.reader_rows.end(t) && !leaves; ++i)
        leaves = !is_in(model_.reader[i]);
      return leaves ? model_.access_time(bytes, true, home) : 0;
    }
    if (model_.writer[t] >= 0 && is_in(model_.writer[t])) return 0;
    if (at_[t] < 0) {
      at_[t] = static_cast<i64>(inputs_.size());
      inputs_.emplace_back(t, 0);
    }
    inputs_[at_[t]].second = plus(inputs_[at_[t]].second, bytes);
    return 0;
  }

  // What merging a producer with the readers that the rules allow would gain.
  void rate(i32 producer) {
    if (version_[producer] < 0) return;
    ++version_[producer];
    together_.assign({clusters_.find(producer)});
    i64 apart = time_[together_[0]];
    for (i64 i = rules_.edge_rows.begin(producer); i < rules_.edge_rows.end(producer); ++i) {
      const i32 root = clusters_.find(rules_.edges[i].reader);
      if (std::find(together_.begin(), together_.end(), root) != together_.end()) continue;
      together_.push_back(root);
      if (clusters_.keeps_rules(together_))
        apart = plus(apart, time_[root]);
      else
        together_.pop_back();
    }
    if (together_.size() < 2) return;
    const i64 gain = apart - time(together_);
    if (gain >= 0) queue_.push({gain, producer, version_[producer]});
  }

  void rate_neighbours(i32 root) {
    time_[root] = time({root});
    around_.clear();
    clusters_.each(root, [&](i32 op) {
      around_.push_back(op);
      for (i64 i = rules_.prev_rows.begin(op); i < rules_.prev_rows.end(op); ++i)
        around_.push_back(rules_.prev[i]);
    });
    std::sort(around_.begin(), around_.end());
    around_.erase(std::unique(around_.begin(), around_.end()), around_.end());
    for (const i32 op : around_)
      if (rules_.edge_rows.begin(op) < rules_.edge_rows.end(op)) rate(op);
  }

  const FusionRules& rules_;
  const Model& model_;
  const i32 device_;
  Clusters clusters_;
  std::vector<i64> time_;     // [ops] at roots
  std::vector<i32> version_;  // [ops] of a producer's rating; -1: it had its turn
  std::vector<i64> mark_, at_;
  i64 stamp_ = 0;
  std::vector<std::pair<i32, i64>> inputs_;
  std::vector<i32> together_, around_;
  std::priority_queue<Rated> queue_;
};

}  // namespace

std::vector<double> cost_model_keys(const FusionRules& rules, i32 device) {
  return CostModel(rules, device).keys();
}

}  // namespace loadmaster::graph
