#include "cliques.hpp"

#include <algorithm>

namespace loadmaster {
namespace {

class CliqueSearch {
 public:
  CliqueSearch(const Sections& in, i64 steps) : in_(in), steps_(steps) {}

  void run(std::vector<i32> open) {
    std::stable_sort(open.begin(), open.end(), [&](i32 a, i32 b) { return in_.size[a] > in_.size[b]; });
    descend(open, 0);
  }
  std::vector<i32> best;

 private:
  // Buffers of one colour exclude each other, so each colour adds at most its heaviest member.
  // limit[i]: what the buffers up to the i-th can add. Lightest limits first.
  void colour(std::vector<i32>& open, std::vector<i64>& limit) const {
    std::vector<std::vector<i32>> colours;
    for (const i32 b : open) {
      const auto fits = std::find_if(colours.begin(), colours.end(), [&](const std::vector<i32>& colour_) {
        return std::none_of(colour_.begin(), colour_.end(), [&](i32 c) { return in_.conflicts.get(b, c); });
      });
      if (fits == colours.end())
        colours.push_back({b});
      else
        fits->push_back(b);
    }
    open.clear();
    i64 total = 0;
    for (const auto& colour_ : colours) {
      i64 heaviest = 0;
      for (const i32 b : colour_) heaviest = std::max(heaviest, in_.size[b]);
      total = plus(total, heaviest);
      for (const i32 b : colour_) {
        open.push_back(b);
        limit.push_back(total);
      }
    }
  }

  void descend(std::vector<i32> open, i64 weight) {
    if (weight > best_weight_) {
      best_weight_ = weight;
      best = chosen_;
    }
    std::vector<i64> limit;
    colour(open, limit);
    for (size_t i = open.size(); i-- > 0;) {
      if (plus(weight, limit[i]) <= best_weight_ || --steps_ < 0) return;
      std::vector<i32> next;
      for (size_t k = 0; k < i; ++k)
        if (in_.conflicts.get(open[i], open[k])) next.push_back(open[k]);
      std::stable_sort(next.begin(), next.end(), [&](i32 a, i32 b) { return in_.size[a] > in_.size[b]; });
      chosen_.push_back(open[i]);
      descend(std::move(next), plus(weight, in_.size[open[i]]));
      chosen_.pop_back();
    }
  }

  const Sections& in_;
  i64 steps_;
  std::vector<i32> chosen_;
  i64 best_weight_ = 0;
};

}  // namespace

std::vector<i32> heavy_clique(const Sections& in, i64 steps) {
  CliqueSearch search(in, steps);
  std::vector<i32> all(in.count());
  for (i32 b = 0; b < in.count(); ++b) all[b] = b;
  search.run(std::move(all));
  return search.best;
}

}  // namespace loadmaster
