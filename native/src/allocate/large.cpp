#include "large.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <numeric>
#include <unordered_map>

#include "../parallel.hpp"
#include "sweep.hpp"

namespace loadmaster {

namespace {

// The first is the floor that is always reached; the rest go from the most promising on, in batches
// whose limit is what the batch before them reached. Around the peak there is no byte to lose, and
// everywhere else there is room: so what lives at the peak is stacked first, without a hole, and the
// rest put around it, either outwards from the peak or by size.
constexpr Recipe kPortfolio[] = {
    {1.0, By::kSize, By::kSize, Fit::kFirst},        {0.0, By::kNear, By::kNear, Fit::kFirst},
    {0.0, By::kLife, By::kSize, Fit::kFirst},        {1.0, By::kPressureLife, By::kSize, Fit::kFirst},
    {1.0, By::kSizeLife, By::kSize, Fit::kBest},

    {0.0, By::kEnd, By::kSizeLife, Fit::kFirst},     {0.0, By::kSize, By::kStart, Fit::kFirst},
    {0.1, By::kNear, By::kSizeLife, Fit::kFirst},

    {1.0, By::kSize, By::kSize, Fit::kBest},         {1.0, By::kPressure, By::kSize, Fit::kFirst},
    {1.0, By::kArea, By::kSize, Fit::kFirst},        {1.0, By::kSlimArea, By::kSize, Fit::kFirst},

    {0.0, By::kStart, By::kSize, Fit::kFirst},       {0.01, By::kLife, By::kSize, Fit::kFirst},
    {1.0, By::kSizePressure, By::kSize, Fit::kBest}, {1.0, By::kLife, By::kSize, Fit::kBest},
};
constexpr i64 kBatch = 4;
constexpr i64 kRecipes = std::size(kPortfolio);

// A cheap generator with the same numbers everywhere, unlike the library's distributions.
class Dice {
 public:
  explicit Dice(u64 seed) : state_(seed) {}
  u64 next() {
    u64 z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  i64 below(i64 limit) { return static_cast<i64>(next() % static_cast<u64>(limit)); }
  double fraction() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  u64 state_;
};

// Moves what found no room forward by a random part of its place.
void promote(std::vector<i32>& order, const std::vector<i64>& offset, Dice& dice) {
  struct Moved {
    i64 place;
    i32 buffer;
  };
  std::vector<Moved> moved;
  std::vector<i32> kept;
  kept.reserve(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (offset[order[i]] >= 0)
      kept.push_back(order[i]);
    else
      moved.push_back({static_cast<i64>(static_cast<double>(i) * dice.fraction()), order[i]});
  }
  std::stable_sort(moved.begin(), moved.end(),
                   [](const Moved& a, const Moved& b) { return a.place < b.place; });
  std::size_t next = 0;
  order.clear();
  for (const Moved& m : moved) {
    while (next < kept.size() && static_cast<i64>(order.size()) < m.place) order.push_back(kept[next++]);
    order.push_back(m.buffer);
  }
  order.insert(order.end(), kept.begin() + static_cast<std::ptrdiff_t>(next), kept.end());
}

}  // namespace

OrderMaker::OrderMaker(const Buffers& buffers, const LifeAxis& axis) : buffers_(buffers), axis_(axis) {
  // Peak of live bytes over each life, by a tree of maxima.
  i32 leaves = 1;
  while (leaves < axis.sections) leaves *= 2;
  std::vector<i64> most(2 * static_cast<std::size_t>(leaves), 0);
  std::copy(axis.live.begin(), axis.live.end(), most.begin() + leaves);
  for (i32 node = leaves - 1; node > 0; --node) most[node] = std::max(most[2 * node], most[2 * node + 1]);
  pressure_.reserve(buffers.count());
  for (i32 b = 0; b < buffers.count(); ++b) {
    i64 peak = 0;
    i32 left = axis.first(b) + leaves, right = axis.last(b) + 1 + leaves;
    for (; left < right; left /= 2, right /= 2) {
      if (left & 1) peak = std::max(peak, most[left++]);
      if (right & 1) peak = std::max(peak, most[--right]);
    }
    pressure_.push_back(peak);
  }
}

i64 OrderMaker::life(i32 b) const {
  if (buffers_.upper[b] <= buffers_.lower[b]) return 0;
  const u64 life = static_cast<u64>(buffers_.upper[b]) - static_cast<u64>(buffers_.lower[b]);
  return static_cast<i64>(std::min<u64>(life, kForever));
}

std::vector<i32> OrderMaker::make(const Recipe& recipe) const {
  const i32 n = buffers_.count();
  const std::vector<i64>& live = axis_.live;
  const i64 peak = live.empty() ? 0 : *std::max_element(live.begin(), live.end());
  const i64 hot = peak - static_cast<i64>(static_cast<double>(peak) * recipe.slack);
  // Sections from each one to the nearest hot one.
  std::vector<i32> distance;
  if (recipe.first == By::kNear || recipe.others == By::kNear) {
    const i32 far = axis_.sections;
    distance.assign(axis_.sections, far);
    for (i32 s = 0, d = far; s < far; ++s) distance[s] = d = live[s] >= hot ? 0 : std::min(d + 1, far);
    for (i32 s = far - 1, d = far; s >= 0; --s) distance[s] = d = std::min(distance[s], d + 1);
  }
  struct Ranked {
    i64 major, minor;
    i32 part, buffer;
  };
  std::vector<Ranked> ranked;
  ranked.reserve(n);
  for (i32 b = 0; b < n; ++b) {
    const bool first = recipe.slack >= 1 || pressure_[b] >= hot;
    const i64 size = std::min(buffers_.size[b], kForever);
    Ranked r{0, 0, !first, b};
    switch (first ? recipe.first : recipe.others) {
      case By::kSize:
        r.major = -size;
        break;
      case By::kSizeLife:
        r.major = -size, r.minor = -life(b);
        break;
      case By::kSizePressure:
        r.major = -size, r.minor = -pressure_[b];
        break;
      case By::kLife:
        r.major = -life(b), r.minor = -size;
        break;
      case By::kArea:
        r.major = -times(size, life(b));
        break;
      case By::kSlimArea:
        r.major = -static_cast<i64>(
            std::min(static_cast<double>(size) * std::sqrt(static_cast<double>(life(b))), 0x1p62));
        break;
      case By::kStart:
        r.major = axis_.first(b), r.minor = -size;
        break;
      case By::kEnd:
        r.major = -axis_.last(b), r.minor = -size;
        break;
      case By::kPressure:
        r.major = -pressure_[b], r.minor = -size;
        break;
      case By::kPressureLife:
        r.major = -pressure_[b], r.minor = -life(b);
        break;
      case By::kNear:
        if (axis_.blocks_of(b) > 0 && pressure_[b] < hot)
          r.major = std::min(distance[axis_.first(b)], distance[axis_.last(b)]);
        r.minor = -size;
        break;
    }
    ranked.push_back(r);
  }
  std::sort(ranked.begin(), ranked.end(), [](const Ranked& a, const Ranked& b) {
    if (a.part != b.part) return a.part < b.part;
    if (a.major != b.major) return a.major < b.major;
    return a.minor != b.minor ? a.minor < b.minor : a.buffer < b.buffer;
  });
  std::vector<i32> order;
  order.reserve(n);
  for (const Ranked& r : ranked) order.push_back(r.buffer);
  return order;
}

namespace {

// Everything of one call; the rounds of tasks run on it.
class LargePacking {
 public:
  LargePacking(const Buffers& buffers, i64 capacity, const LargeOptions& options, const Stop& stop,
               const OnPlacement& improved)
      : buffers_(buffers),
        axis_(buffers),
        maker_(buffers, axis_),
        capacity_(capacity),
        options_(options),
        stop_(stop),
        improved_(improved) {
    goal_ = std::max(axis_.bound, capacity);
    hints_ = std::any_of(buffers.hint.begin(), buffers.hint.end(), [](i64 hint) { return hint >= 0; });
    best_.bound = axis_.bound;
    packers_.resize(std::max(1, options.threads));
  }

  Placement run() {
    if (capacity_ >= 0 && axis_.bound > capacity_) {
      best_.status = Status::kInfeasible;
      return best_;
    }
    in_time();
    if (!done() && !straight_to_goal() && !floor()) return best_;
    if (done()) return best_;
    const i64 unlimited = stop_.deadline_ns >= 0 ? INT64_MAX : kUsualEffort;
    const i64 effort = options_.effort >= 0 ? options_.effort : unlimited;
    portfolio(effort);
    improve(effort);
    settle();
    return best_;
  }

 private:
  static constexpr i64 kUsualEffort = 400'000'000;  // some five seconds of one core
  static constexpr i64 kStraightSteps = 400;        // per buffer: give up where it is not quick
  static constexpr i64 kChains = 4;
  static constexpr i64 kWorthThreads = 20'000;  // a pass of fewer steps is over before a thread starts
  static constexpr i64 kPassesPerRound = 8;
  static constexpr i64 kBarrenWindows = 100;  // windows without progress after which a repair gives up
  static constexpr std::size_t kLargestWindow = 2000;
  static constexpr int kWindowAttempts = 8;
  static constexpr i64 kScanPerStep = 16;  // buffers looked at in a scan that cost as much as a step
  static constexpr Recipe kChainStart[] = {{0.0, By::kNear, By::kNear, Fit::kFirst},
                                           {0.0, By::kLife, By::kSize, Fit::kFirst}};

  struct Task {
    std::vector<i64> offset;
    i64 height = -1;  // -1: no placement
    i64 placed = 0, steps = 0;
    std::atomic<bool> cancelled{false};
  };

  // A line of search that goes on from round to round.
  struct Chain {
    bool repairs;
    double ambition;  // 0: just below the best height, 1: at the bound
    Dice dice;
    std::vector<i32> order;  // of a chain that reorders
  };

  bool done() const { return found_ && best_.height <= goal_; }

  bool over() const {
    return done() || halted(stop_) || (stop_.most_nodes >= 0 && best_.nodes >= stop_.most_nodes);
  }

  void settle() {
    if (!found_) return;
    if (best_.height == best_.bound)
      best_.status = Status::kOptimal;
    else
      best_.status = capacity_ < 0 || best_.height <= capacity_ ? Status::kFeasible : Status::kUnknown;
  }

  void adopt(std::vector<i64>& offset, i64 height) {
    if (found_ && height >= best_.height) return;
    found_ = true;
    best_.offset.swap(offset);
    best_.height = height;
    settle();
    if (improved_) improved_(best_);
  }

  // The cheapest first: what an allocator would do, in less time than any order takes to be tried.
  void in_time() {
    std::vector<i64> offset;
    if (hints_ || stop_.asked.load(std::memory_order_relaxed) || !place_in_time(buffers_, offset)) return;
    best_.nodes = buffers_.count();
    adopt(offset, height_of(buffers_, offset));
  }

  // Nested lives, as training has them, stack at the peak without leaving a hole at any other time if
  // the longest go to the ground. Where that meets the goal nothing else is needed, and it is by far
  // the quickest order: with others each of many buffers would look through many holes.
  bool straight_to_goal() {
    std::vector<i64> offset;
    Packer& packer = this->packer(0);
    const i64 placed = packer.placed();
    if (hints_) return false;
    const std::vector<i32> order = maker_.make({0.0, By::kLife, By::kSize, Fit::kFirst});
    const i64 limit = found_ ? best_.height - 1 : kForever;
    const Packer::Rules rules{.limit = limit, .most_steps = kStraightSteps * buffers_.count()};
    if (packer.place(order, rules, stop_, offset) == Packer::Result::kPlaced)
      adopt(offset, height_of(buffers_, offset));
    best_.nodes += packer.placed() - placed;
    steps_ = packer.steps();
    pass_ = std::max<i64>(1, steps_);
    return done();
  }

  // Size first fit: what everybody has. A deadline does not stop it as long as there is no answer.
  bool floor() {
    std::vector<i64> offset;
    Packer& packer = this->packer(0);
    const i64 placed = packer.placed();
    // With hints a placement that follows them comes first, so that it wins among equals.
    const std::vector<i32> order = maker_.make(kPortfolio[0]);
    for (const bool follow : {true, false}) {
      if (follow && !hints_) continue;
      const Packer::Result result = packer.place(order, {.hints = follow, .deadline = found_}, stop_, offset);
      if (result == Packer::Result::kPinsClash) best_.status = Status::kInfeasible;
      if (result == Packer::Result::kPlaced) adopt(offset, height_of(buffers_, offset));
      if (done()) break;
    }
    best_.nodes += packer.placed() - placed;
    steps_ = packer.steps();
    pass_ = std::max<i64>(1, steps_);
    return found_;
  }

  Packer& packer(int slot) {
    if (!packers_[slot]) packers_[slot] = std::make_unique<Packer>(buffers_, axis_);
    return *packers_[slot];
  }

  // Runs work(index, task, packer) for every task and keeps the best result. A result at the goal
  // makes the tasks after it pointless, so they are not counted, whether they ran or not.
  template <class Work>
  void round(std::vector<Task>& tasks, Work&& work) {
    const i64 count = static_cast<i64>(tasks.size());
    std::atomic<int> slots{0};
    const int threads = pass_ < kWorthThreads ? 1 : options_.threads;
    in_blocks(count, 1, threads, [&] {
      Packer& own = packer(slots.fetch_add(1));
      return [&](i64 begin, i64) {
        Task& task = tasks[begin];
        if (task.cancelled.load()) return;
        const i64 placed = own.placed(), steps = own.steps();
        work(begin, task, own);
        task.placed += own.placed() - placed;
        task.steps += own.steps() - steps;
        if (task.height >= 0 && task.height <= goal_)
          for (i64 later = begin + 1; later < count; ++later) tasks[later].cancelled = true;
      };
    });
    i64 winner = -1;
    for (i64 i = 0; i < count; ++i) {
      best_.nodes += tasks[i].placed;
      steps_ += tasks[i].steps;
      if (tasks[i].height < 0) continue;
      if (winner < 0 || tasks[i].height < tasks[winner].height) winner = i;
      if (tasks[i].height <= goal_) break;
    }
    if (winner >= 0) adopt(tasks[winner].offset, tasks[winner].height);
  }

  void portfolio(i64 effort) {
    for (i64 from = 1; from < kRecipes && !over(); from += kBatch) {
      // The usual best fit is in the first batch: it is a floor as well.
      if (from > 1 && plus(steps_, kBatch * pass_) > effort) return;
      std::vector<Task> tasks(std::min(kBatch, kRecipes - from));
      const i64 limit = best_.height - 1;
      round(tasks, [&](i64 i, Task& task, Packer& packer) {
        const Recipe& recipe = kPortfolio[from + i];
        const Packer::Rules rules{.fit = recipe.fit, .limit = limit, .cancelled = &task.cancelled};
        if (packer.place(maker_.make(recipe), rules, stop_, task.offset) == Packer::Result::kPlaced)
          task.height = height_of(buffers_, task.offset);
      });
    }
  }

  void improve(i64 effort) {
    if (over() || steps_ >= effort) return;
    std::vector<Chain> chains;
    for (i64 c = 0; c < kChains; ++c) {
      const bool repairs = options_.repair && (c % 2 == 1 || !options_.reorder);
      if (!repairs && !options_.reorder) return;
      chains.push_back({repairs, c < 2 ? 0.0 : 0.5, Dice(options_.seed * 1000003 + static_cast<u64>(c)), {}});
      if (!repairs) chains.back().order = maker_.make(kChainStart[c / 2]);
    }
    while (!over() && steps_ < effort) {
      std::vector<Task> tasks(kChains);
      const i64 share = std::max<i64>(1, std::min(kPassesPerRound * pass_, (effort - steps_) / kChains));
      round(tasks, [&](i64 i, Task& task, Packer& packer) {
        Chain& chain = chains[i];
        const double room = static_cast<double>(best_.height - 1 - goal_) * chain.ambition;
        const i64 limit = std::max(goal_, best_.height - 1 - static_cast<i64>(room));
        if (chain.repairs)
          repair(chain, limit, share, task);
        else
          reorder(chain, limit, share, task, packer);
      });
    }
  }

  // Squeaky wheel: what finds no room goes earlier next time.
  void reorder(Chain& chain, i64 limit, i64 share, Task& task, Packer& packer) {
    const i64 before = packer.steps();
    const Packer::Rules rules{.limit = limit, .cancelled = &task.cancelled, .keep_going = true};
    while (packer.steps() - before < share) {
      const Packer::Result result = packer.place(chain.order, rules, stop_, task.offset);
      if (result == Packer::Result::kPlaced) {
        task.height = height_of(buffers_, task.offset);
        return;
      }
      if (result != Packer::Result::kNoRoom) return;
      promote(chain.order, task.offset, chain.dice);
    }
  }

  // Takes out of the best placement what sticks out above the limit, and brings it in again by
  // placing anew the buffers of a window of time around one of them, all others fixed, as long as
  // less or no more stays out than before.
  void repair(Chain& chain, i64 limit, i64 share, Task& task) {
    std::vector<i64> offset = best_.offset;
    std::vector<i32> out;
    for (i32 b = 0; b < buffers_.count(); ++b)
      if (offset[b] + buffers_.size[b] > limit) {
        if (buffers_.pinned[b] >= 0) return;
        offset[b] = -1;
        out.push_back(b);
      }
    for (i64 barren = 0; !out.empty() && task.steps < share && barren < kBarrenWindows; ++barren) {
      if (task.cancelled.load() || halted(stop_)) return;
      const i32 b = out[chain.dice.below(static_cast<i64>(out.size()))];
      const i64 life = 1 + axis_.last(b) - axis_.first(b);
      const i64 reach = 1 + chain.dice.below(2 * life + 64);
      const i64 from = axis_.first(b) - chain.dice.below(reach);
      const i64 to = axis_.last(b) + chain.dice.below(reach);
      if (window(from, to, limit, chain.dice, offset, out, task)) barren = 0;
    }
    if (!out.empty()) return;
    task.height = height_of(buffers_, offset);
    task.offset.swap(offset);
  }

  // Places anew what lives within the sections from..to. True if fewer bytes stay out than before.
  bool window(i64 from, i64 to, i64 limit, Dice& dice, std::vector<i64>& offset, std::vector<i32>& out,
              Task& task) {
    const auto inside = [&](i32 b) {
      return axis_.first(b) >= from && axis_.last(b) <= to && buffers_.pinned[b] < 0 &&
             axis_.blocks_of(b) > 0;
    };
    std::vector<i32> chosen;
    i64 out_before = 0;
    task.steps += buffers_.count() / kScanPerStep + 1;
    for (i32 b = 0; b < buffers_.count(); ++b) {
      if (!inside(b)) continue;
      chosen.push_back(b);
      if (offset[b] < 0) out_before = plus(out_before, buffers_.size[b]);
      if (chosen.size() > kLargestWindow) return false;
    }
    const i32 loose = static_cast<i32>(chosen.size());  // what follows them stays where it is
    const Buffers part = cut_out(chosen, offset, inside);

    std::vector<i32> order(loose);  // what is out goes first, then the largest
    std::iota(order.begin(), order.end(), 0);
    std::sort(order.begin(), order.end(), [&](i32 a, i32 b) {
      const bool a_out = offset[chosen[a]] < 0, b_out = offset[chosen[b]] < 0;
      if (a_out != b_out) return a_out;
      return part.size[a] != part.size[b] ? part.size[a] > part.size[b] : a < b;
    });
    const LifeAxis part_timeline(part);
    Packer packer(part, part_timeline);
    std::vector<i64> found;
    bool better = false;
    for (int attempt = 1; attempt <= kWindowAttempts && !better; ++attempt) {
      const Packer::Result result = packer.place(order, {.limit = limit, .keep_going = true}, stop_, found);
      if (result != Packer::Result::kPlaced && result != Packer::Result::kNoRoom) break;
      i64 out_after = 0;
      for (i32 i = 0; i < loose; ++i)
        if (found[i] < 0) out_after = plus(out_after, part.size[i]);
      better = out_after < out_before;
      // No better but no worse is a new place to start from, if nothing else comes of it.
      if (better || (out_after == out_before && attempt == kWindowAttempts)) {
        std::erase_if(out, inside);
        for (i32 i = 0; i < loose; ++i) {
          offset[chosen[i]] = found[i];
          if (found[i] < 0) out.push_back(chosen[i]);
        }
      }
      promote(order, found, dice);
    }
    task.steps += packer.steps();
    task.placed += packer.placed();
    return better;
  }

  // The chosen buffers, and pinned to their offsets all others that they live with or must keep
  // apart from, cut to the time of the chosen ones. Puts these others behind the chosen.
  template <class Inside>
  Buffers cut_out(std::vector<i32>& chosen, const std::vector<i64>& offset, Inside&& inside) const {
    i64 begin = INT64_MAX, end = INT64_MIN;
    for (const i32 b : chosen) {
      begin = std::min(begin, buffers_.lower[b]);
      end = std::max(end, buffers_.upper[b]);
    }
    const i32 loose = static_cast<i32>(chosen.size());
    std::unordered_map<i32, i32> index;  // in the part; only where there are pairs to keep apart
    if (!axis_.apart.empty()) {
      for (i32 i = 0; i < loose; ++i) index.emplace(chosen[i], i);
      for (i32 i = 0; i < loose; ++i)
        for (i64 p = axis_.apart_start[chosen[i]]; p < axis_.apart_start[chosen[i] + 1]; ++p) {
          const i32 other = axis_.apart[p];
          if (offset[other] >= 0 && index.emplace(other, static_cast<i32>(chosen.size())).second)
            chosen.push_back(other);
        }
    }
    for (i32 b = 0; b < buffers_.count(); ++b)
      if (offset[b] >= 0 && buffers_.lower[b] < end && buffers_.upper[b] > begin && !inside(b) &&
          !index.contains(b))
        chosen.push_back(b);

    Buffers part;
    for (i32 i = 0; i < static_cast<i32>(chosen.size()); ++i) {
      const i32 b = chosen[i];
      part.lower.push_back(std::max(buffers_.lower[b], begin));
      part.upper.push_back(std::min(buffers_.upper[b], end));
      part.size.push_back(buffers_.size[b]);
      part.alignment.push_back(buffers_.alignment[b]);
      part.pinned.push_back(i < loose ? -1 : offset[b]);
      part.hint.push_back(-1);
      if (!buffers_.gaps.empty()) part.gaps.push_back(buffers_.gaps[b]);
    }
    for (const auto& [b, i] : index) {
      if (i >= loose) continue;
      for (i64 p = axis_.apart_start[b]; p < axis_.apart_start[b + 1]; ++p) {
        const auto other = index.find(axis_.apart[p]);
        if (other != index.end()) part.apart.emplace_back(i, other->second);
      }
    }
    return part;
  }

  const Buffers& buffers_;
  const LifeAxis axis_;
  const OrderMaker maker_;
  const i64 capacity_;
  const LargeOptions& options_;
  const Stop& stop_;
  const OnPlacement& improved_;
  std::vector<std::unique_ptr<Packer>> packers_;
  Placement best_;
  bool found_ = false;
  bool hints_ = false;  // whether any offset is welcome
  i64 goal_ = 0;
  i64 steps_ = 0, pass_ = 1;
};

}  // namespace

Placement pack_large(const Buffers& buffers, i64 capacity, const LargeOptions& options, const Stop& stop,
                     const OnPlacement& improved) {
  return LargePacking(buffers, capacity, options, stop, improved).run();
}

}  // namespace loadmaster
