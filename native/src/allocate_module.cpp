// The offset problem for Python: arrays in, arrays out, no lock held while it searches.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/function.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>

#include "allocate/baselines.hpp"
#include "allocate/exact.hpp"
#include "allocate/large.hpp"
#include "allocate/valid.hpp"
#include "arrays.hpp"
#include "checked.hpp"
#include "parallel.hpp"

namespace nb = nanobind;
using namespace loadmaster;

namespace {

// When a search is to end: by the clock, by its nodes, or because Python asks.
class PyStop {
 public:
  PyStop(double seconds, i64 nodes) {
    must(!std::isnan(seconds), "seconds are a number");
    if (seconds >= 0) {
      const auto now = std::chrono::steady_clock::now().time_since_epoch();
      const double limit = std::min(seconds, 1e9) * 1e9;
      stop.deadline_ns =
          std::chrono::duration_cast<std::chrono::nanoseconds>(now).count() + static_cast<i64>(limit);
    }
    stop.most_nodes = nodes;
  }
  void ask() { stop.asked = true; }
  Stop stop;
};

nb::tuple answer(Placement&& p) {
  return nb::make_tuple(static_cast<int>(p.status), owned(std::move(p.offset)), p.height, p.bound, p.nodes);
}

using Improved = nb::callable;

// The techniques by name, as `--off` takes them.
constexpr std::pair<const char*, bool Switches::*> kTechniques[] = {
    {"canonical", &Switches::canonical},
    {"section_inference", &Switches::section_inference},
    {"monotonic_floor", &Switches::monotonic_floor},
    {"unallocated_floor", &Switches::unallocated_floor},
    {"refused_floor", &Switches::refused_floor},
    {"forced_next", &Switches::forced_next},
    {"dominance", &Switches::dominance},
    {"hatless", &Switches::hatless},
    {"decomposition", &Switches::decomposition},
    {"identical_symmetry", &Switches::identical_symmetry},
    {"section_branching", &Switches::section_branching},
    {"static_preordering", &Switches::static_preordering},
    {"no_goods", &Switches::no_goods},
    {"first_fit", &Switches::first_fit},
    {"restarts", &Switches::restarts},
    {"repair", &Switches::repair},
    {"subset_sum_bounds", &Switches::subset_sum_bounds},
};

bool* switch_named(Switches& switches, const std::string& name) {
  for (const auto& [technique, member] : kTechniques)
    if (name == technique) return &(switches.*member);
  return nullptr;
}

Placement run_baseline(const Buffers& buffers, const std::string& name, u64 seed, const Stop& stop) {
  if (name == "first-fit") return size_first_fit(buffers, stop);
  if (name == "xla-best-fit") return xla_best_fit(buffers, stop);
  if (name == "tvm-greedy") return tvm_greedy(buffers, stop);
  if (name == "tvm-hill-climb") return tvm_hill_climb(buffers, seed, stop);
  if (name == "vela-hill-climb") return vela_hill_climb(buffers, seed, stop);
  throw std::invalid_argument("there is no baseline '" + name + "'");
}

class PyBuffers {
 public:
  PyBuffers(const Array<i64>& lower, const Array<i64>& upper, const Array<i64>& size,
            const Array<i64>& alignment, const Array<i64>& pinned, const Array<i64>& hint,
            const Array<i64>& gaps, const Array<i32>& apart) {
    buffers_.lower = copied(lower);
    buffers_.upper = copied(upper);
    buffers_.size = copied(size);
    buffers_.alignment = copied(alignment);
    buffers_.pinned = copied(pinned);
    buffers_.hint = copied(hint);
    const std::size_t n = buffers_.size.size();
    for (const auto* column :
         {&buffers_.lower, &buffers_.upper, &buffers_.alignment, &buffers_.pinned, &buffers_.hint})
      if (column->size() != n) throw std::invalid_argument("columns differ in length");
    must(gaps.size() % 5 == 0 && apart.size() % 2 == 0, "gaps must be [n, 5] and pairs [n, 2]");
    check_columns();
    if (gaps.size() > 0) buffers_.gaps.resize(n);
    for (std::size_t i = 0; i < gaps.size(); i += 5) {
      const i64* row = gaps.data() + i;
      must(row[0] >= 0 && row[0] < buffers_.count(), "there is no such buffer");
      auto& own = buffers_.gaps[row[0]];
      const i64 after = own.empty() ? buffers_.lower[row[0]] : own.back().to;
      must(after <= row[1] && row[1] < row[2] && row[2] <= buffers_.upper[row[0]] && row[3] >= 0 &&
               row[3] <= row[4] && row[4] <= buffers_.size[row[0]],
           "gaps lie inside a buffer's life and size, in order");
      own.push_back({row[1], row[2], row[3], row[4]});
    }
    for (std::size_t i = 0; i < apart.size(); ++i)
      must(apart.data()[i] >= 0 && apart.data()[i] < buffers_.count(), "there is no such buffer");
    for (std::size_t i = 0; i < apart.size(); i += 2)
      buffers_.apart.emplace_back(apart.data()[i], apart.data()[i + 1]);
  }

  i64 height(const Array<i64>& offsets) const {
    if (offsets.size() != buffers_.size.size()) throw std::invalid_argument("one offset per buffer");
    nb::gil_scoped_release release;
    return legal_height(buffers_, offsets.data());
  }

  // Offsets of a greedy placement in an order; empty if pins leave no room.
  Result place(const Array<i32>& order) {
    std::vector<i64> offset;
    std::vector<i32> given = copied(order);
    std::vector<i8> seen(buffers_.size.size(), 0);
    for (const i32 b : given)
      if (b < 0 || b >= buffers_.count() || seen[b]++)
        throw std::invalid_argument("not an order of the buffers");
    if (given.size() != seen.size()) throw std::invalid_argument("not an order of the buffers");
    {
      nb::gil_scoped_release release;
      if (!axis_) axis_ = std::make_unique<LifeAxis>(buffers_);
      Packer packer(buffers_, *axis_);
      if (packer.place(given, {}, never_, offset) != Packer::Result::kPlaced) offset.clear();
    }
    return owned(std::move(offset));
  }

  nb::tuple fit(i64 capacity, const nb::dict& switches, PyStop& stop) const {
    const Switches s = read(switches);
    Placement placement;
    {
      nb::gil_scoped_release release;
      placement = loadmaster::fit(buffers_, room(capacity), s, stop.stop);
    }
    return answer(std::move(placement));
  }

  nb::tuple minimize(const nb::dict& switches, PyStop& stop, const Improved& improved) const {
    const Switches s = read(switches);
    Placement placement;
    {
      nb::gil_scoped_release release;
      placement = loadmaster::minimize(buffers_, s, stop.stop, reporter(improved));
    }
    return answer(std::move(placement));
  }

  nb::tuple large(i64 capacity, u64 seed, int threads, i64 effort, PyStop& stop,
                  const Improved& improved) const {
    LargeOptions options;
    options.seed = seed;
    must(threads >= 0 && threads <= kMostThreads && effort >= -1, "threads or effort are out of range");
    options.threads = threads;
    options.effort = effort;
    Placement placement;
    {
      nb::gil_scoped_release release;
      placement = pack_large(buffers_, room(capacity), options, stop.stop, reporter(improved));
    }
    return answer(std::move(placement));
  }

  nb::tuple baseline(const std::string& name, u64 seed, PyStop& stop) const {
    Placement placement;
    {
      nb::gil_scoped_release release;
      placement = run_baseline(buffers_, name, seed, stop.stop);
    }
    return answer(std::move(placement));
  }

  Result infeasible_subset(i64 capacity, const nb::dict& switches, PyStop& stop) const {
    const Switches s = read(switches);
    std::vector<i32> subset;
    {
      nb::gil_scoped_release release;
      subset = irreducible_infeasible_subset(buffers_, room(capacity), s, stop.stop);
    }
    return owned(std::vector<i64>(subset.begin(), subset.end()));
  }

 private:
  // As allocation/buffers.py words it for people: lives, sizes and offsets that add up.
  void check_columns() const {
    const Buffers& b = buffers_;
    const i64 most = kMostAmount / std::max<i64>(1, b.count());
    must(b.size.size() < (std::size_t{1} << 30), "there are too many buffers");
    within(b.size, 0, most, "size");
    within(b.alignment, 1, i64{1} << 40, "alignment");
    within(b.pinned, -1, kMostAmount / 2, "pinned");
    within(b.hint, -1, kMostAmount / 2, "hint");
    within(b.lower, -(i64{1} << 61), i64{1} << 61, "lower");
    within(b.upper, -(i64{1} << 61), i64{1} << 61, "upper");
    for (i32 i = 0; i < b.count(); ++i) {
      must(b.lower[i] < b.upper[i], "a buffer ends before it begins");
      must(b.pinned[i] <= 0 || b.pinned[i] % b.alignment[i] == 0, "a pin is off its alignment");
      must(b.hint[i] <= 0 || b.hint[i] % b.alignment[i] == 0, "a hint is off its alignment");
    }
  }
  static i64 room(i64 capacity) { return std::clamp<i64>(capacity, -1, kMostAmount); }

  static Switches read(const nb::dict& given) {
    Switches s;
    for (const auto [key, value] : given) {
      const std::string name = nb::cast<std::string>(key);
      if (name == "threads")
        must((s.threads = nb::cast<int>(value)) >= 0 && s.threads <= kMostThreads,
             "threads are out of range");
      else if (name == "seed")
        s.seed = nb::cast<u64>(value);
      else if (name == "orders")
        s.orders = nb::cast<std::vector<std::string>>(value);
      else if (name == "first_budget")
        s.first_budget = nb::cast<i64>(value);
      else if (bool* technique = switch_named(s, name))
        *technique = nb::cast<bool>(value);
      else
        throw std::invalid_argument("there is no switch '" + name + "'");
    }
    return s;
  }

  static std::function<void(const Placement&)> reporter(const Improved& improved) {
    return [&improved](const Placement& placement) {
      nb::gil_scoped_acquire acquire;
      improved(owned(std::vector<i64>(placement.offset)));
    };
  }

  Buffers buffers_;
  std::unique_ptr<LifeAxis> axis_;
  Stop never_;
};

}  // namespace

void bind_allocate(nb::module_& m) {
  std::vector<std::string> techniques;
  for (const auto& technique : kTechniques) techniques.emplace_back(technique.first);
  m.attr("TECHNIQUES") = nb::cast(techniques);
  nb::class_<PyStop>(m, "Stop")
      .def(nb::init<double, i64>(), nb::arg("seconds"), nb::arg("nodes"))
      .def("ask", &PyStop::ask);
  nb::class_<PyBuffers>(m, "Buffers")
      .def(nb::init<const Array<i64>&, const Array<i64>&, const Array<i64>&, const Array<i64>&,
                    const Array<i64>&, const Array<i64>&, const Array<i64>&, const Array<i32>&>())
      .def("height", &PyBuffers::height, nb::arg("offsets"))
      .def("place", &PyBuffers::place, nb::arg("order"))
      .def("fit", &PyBuffers::fit, nb::arg("capacity"), nb::arg("switches"), nb::arg("stop"))
      .def("minimize", &PyBuffers::minimize, nb::arg("switches"), nb::arg("stop"), nb::arg("improved"))
      .def("large", &PyBuffers::large, nb::arg("capacity"), nb::arg("seed"), nb::arg("threads"),
           nb::arg("effort"), nb::arg("stop"), nb::arg("improved"))
      .def("baseline", &PyBuffers::baseline, nb::arg("name"), nb::arg("seed"), nb::arg("stop"))
      .def("infeasible_subset", &PyBuffers::infeasible_subset, nb::arg("capacity"), nb::arg("switches"),
           nb::arg("stop"));
}
