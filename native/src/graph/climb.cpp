#include "graph/climb.hpp"

#include <algorithm>
#include <cmath>

namespace loadmaster::graph {
namespace {

constexpr double kUnfit = 1e6;  // the energy of a byte over capacity, or more
constexpr double kFaulty = 1e300;

}  // namespace

Climb::Climb(const Model& model, const FusionRules& rules, const Decisions& decisions, double reference)
    : decisions_(decisions),
      reference_(reference),
      capacity_(1.0),
      devices_(model.device_count()),
      incremental_(model, rules, decisions) {
  for (const MemoryModel& memory : model.memories) capacity_ += static_cast<double>(memory.capacity);
}

const Judged& Climb::start(const double* vector) {
  const Judged& judged = incremental_.start(vector);
  from_ = incremental_.vector();
  tried_.clear();
  taken_.clear();
  return judged;
}

double Climb::energy(const Judged& judged) const {
  if (judged.faulty || judged.cut) return kFaulty;
  double over = 0.0;
  for (const i64 bytes : judged.over) over += static_cast<double>(bytes);
  const double time = static_cast<double>(judged.total) / reference_;
  return over > 0.0 ? kUnfit * (1.0 + over / capacity_) + time : time;
}

i64 Climb::limit(double energy) const {
  const double time = energy * reference_;  // two more: it is rounded
  return energy < kUnfit && time < static_cast<double>(kForever - 2)
             ? static_cast<i64>(std::max(0.0, time)) + 2
             : kForever;
}

void Climb::run(const Proposals& proposals, std::vector<Judged>& judged, std::vector<i8>& accepted) {
  const i64 count = static_cast<i64>(proposals.slack.size());
  from_ = incremental_.vector();
  tried_.assign(count, {});
  judged.resize(count);
  accepted.assign(count, 0);
  double standing = energy(incremental_.judged());
  for (i64 row = 0; row < count; ++row) {
    std::vector<Change>& changes = tried_[row];
    for (i64 i = proposals.rows.begin(row); i < proposals.rows.end(row); ++i) {
      const i64 source = proposals.source[i];
      double value = proposals.value[i];
      if (source >= 0) {
        value += incremental_.vector()[source];
        if (decisions_.device >= 0 && proposals.index[i] >= decisions_.device &&
            proposals.index[i] < decisions_.device + static_cast<i64>(decisions_.base_device.size()))
          value = std::fmod(value, devices_);
        else if (proposals.value[i] != 0.0)
          value = std::clamp(value, 0.0, 1.0);
      }
      incremental_.spread({proposals.index[i], value}, changes);
    }
    const double most = standing + proposals.slack[row];
    judged[row] = incremental_.propose(changes, proposals.cut ? limit(most) : kForever);
    const double proposed = energy(judged[row]);
    accepted[row] = proposed < kFaulty && proposed <= most;
    if (accepted[row]) {
      incremental_.accept();
      standing = proposed;
    } else {
      incremental_.reject();
    }
  }
  taken_ = accepted;
}

std::vector<double> Climb::vector(i64 row) const {
  std::vector<double> found = from_;
  const auto apply = [&](i64 i) {
    for (const Change& change : tried_[i]) found[change.index] = change.value;
  };
  const i64 count = static_cast<i64>(tried_.size());
  for (i64 i = 0; i < (row < 0 ? count : std::min(row, count)); ++i)
    if (taken_[i]) apply(i);
  if (row >= 0 && row < count) apply(row);
  return found;
}

}  // namespace loadmaster::graph
