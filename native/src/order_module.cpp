// Bindings of the least-peak order: graphs, simple orders, cuts and the complete search.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "arrays.hpp"
#include "checked.hpp"
#include "order/beam.hpp"
#include "order/cut.hpp"
#include "order/graph.hpp"
#include "order/reduce.hpp"
#include "order/search.hpp"
#include "order/simple.hpp"
#include "parallel.hpp"

namespace nb = nanobind;
using namespace loadmaster;

namespace {

using Order = nb::ndarray<nb::numpy, i32>;

Lists lists(const nb::dict& c, const char* start, const char* entry) {
  return {column<i64>(c, start), column<i32>(c, entry)};
}

class PyGraph {
 public:
  explicit PyGraph(const nb::dict& c) {
    auto graph = std::make_shared<OrderGraph>();
    graph->before = lists(c, "before_start", "before");
    graph->ops = graph->before.rows();
    graph->size = column<i64>(c, "size");
    graph->opener = column<i32>(c, "opener");
    graph->kept = column<i8>(c, "kept");
    graph->users = lists(c, "user_start", "user");
    check(*graph);
    graph->prepare();
    graph_ = std::move(graph);
  }
  explicit PyGraph(std::shared_ptr<const OrderGraph> graph) : graph_(std::move(graph)) {}

  const std::shared_ptr<const OrderGraph>& shared() const { return graph_; }
  i32 ops() const { return graph_->ops; }

  // [B] the peaks of orders [B, ops]; -1: it breaks a rule.
  Result peaks(const Array<i32>& orders, int threads) const {
    const i64 n = graph_->ops, count = orders.ndim() == 2 ? static_cast<i64>(orders.shape(0)) : 0;
    if (orders.ndim() != 2 || static_cast<i64>(orders.shape(1)) != n)
      throw std::invalid_argument("orders must be [B, " + std::to_string(n) + "]");
    std::vector<i64> result(count);
    {
      nb::gil_scoped_release release;
      in_blocks(count, 1, threads, [&] {
        return [&](i64 begin, i64 end) {
          for (i64 b = begin; b < end; ++b)
            result[b] = peak(*graph_, {orders.data() + b * n, static_cast<size_t>(n)});
        };
      });
    }
    return owned(std::move(result));
  }
  Result profile_of(const Array<i32>& order) const { return owned(profile(*graph_, span(order))); }

  // [B, ops] orders from keys [B, ops].
  Order by_keys_many(const Array<double>& keys, int threads) const {
    const i64 n = graph_->ops, count = keys.ndim() == 2 ? static_cast<i64>(keys.shape(0)) : 0;
    must(keys.ndim() == 2 && static_cast<i64>(keys.shape(1)) == n,
         "keys must be [B, " + std::to_string(n) + "]");
    are_keys(keys.data(), keys.size());
    std::vector<i32> result(count * n);
    {
      nb::gil_scoped_release release;
      in_blocks(count, 1, threads, [&] {
        return [&](i64 begin, i64 end) {
          for (i64 b = begin; b < end; ++b) {
            const auto order = by_keys(*graph_, {keys.data() + b * n, static_cast<size_t>(n)});
            std::copy(order.begin(), order.end(), result.begin() + b * n);
          }
        };
      });
    }
    return owned(std::move(result), {static_cast<size_t>(count), static_cast<size_t>(n)});
  }

  Order simple(const std::string& name) const {
    must(name == "greedy" || name == "depth-first" || name == "reverse-post-order",
         "there is no order '" + name + "'");
    nb::gil_scoped_release release;
    auto order = name == "greedy"        ? greedy(*graph_)
                 : name == "depth-first" ? depth_first(*graph_)
                                         : reverse_post_order(*graph_);
    nb::gil_scoped_acquire acquire;
    return owned(std::move(order));
  }

  PyGraph part(const Array<i32>& members, const Array<i8>& done) const {
    must(static_cast<i64>(done.size()) == graph_->ops, "done must have one entry per op");
    within(copied(members), 0, graph_->ops - 1, "members");
    std::vector<i8> seen(done.size());
    for (const i32 op : copied(members)) must(seen[op]++ == 0, "a member is there twice");
    return PyGraph(std::make_shared<OrderGraph>(
        graph_->part(span(members), {done.data(), static_cast<size_t>(done.size())})));
  }

  // [ops] bytes that are there because of an op while it runs: what it uses and what it reaches.
  Result held() const {
    std::vector<i64> result = graph_->hump;
    for (i32 v = 0; v < graph_->values(); ++v)
      for (const i32 user : graph_->users[v]) result[user] += graph_->size[v];
    return owned(std::move(result));
  }

  // [ops] whether an op must run after this one.
  nb::ndarray<nb::numpy, i8> needing(i32 op) const {
    must(op >= 0 && op < graph_->ops, "there is no such op");
    std::vector<i8> met(graph_->ops, 0);
    std::vector<i32> stack{op};
    while (!stack.empty()) {
      const i32 from = stack.back();
      stack.pop_back();
      for (const i32 next : graph_->after[from])
        if (!std::exchange(met[next], 1)) stack.push_back(next);
    }
    return owned(std::move(met));
  }

  // (the reduced graph, starts of groups, their ops, their anchors)
  nb::tuple reduce() const {
    Reduced found;
    {
      nb::gil_scoped_release release;
      found = reduced(*graph_);
    }
    return nb::make_tuple(PyGraph(std::make_shared<OrderGraph>(std::move(found.graph))),
                          owned(std::move(found.members.start)), owned(std::move(found.members.entry)),
                          owned(std::move(found.anchor)));
  }

 private:
  // Every index must exist, the bytes add up, and some order keeps every rule.
  static void check(const OrderGraph& g) {
    const std::size_t ops = g.before.start.size() - 1, values = g.size.size();
    must(!g.before.start.empty() && ops < (std::size_t{1} << 30) && values < (std::size_t{1} << 30),
         "the graph is too large, or has no rows");
    are_starts(g.before.start, ops, g.before.entry.size(), "before_start");
    within(g.before.entry, 0, g.ops - 1, "before");
    i64 left = kMostAmount / 2;
    for (const i64 size : g.size)
      must(size >= 0 && (left -= std::min(size, left + 1)) >= 0, "sizes are out of range");
    column_within(g.opener, values, -1, g.ops - 1, "opener");
    has_length(g.kept, values, "kept");
    are_starts(g.users.start, values, g.users.entry.size(), "user_start");
    within(g.users.entry, 0, g.ops - 1, "user");
    const Lists after = g.before.inverse(g.ops);
    std::vector<i64> waits(ops);
    std::vector<i32> ready;
    for (i32 op = 0; op < g.ops; ++op)
      if ((waits[op] = static_cast<i64>(g.before[op].size())) == 0) ready.push_back(op);
    for (std::size_t i = 0; i < ready.size(); ++i)
      for (const i32 next : after[ready[i]])
        if (--waits[next] == 0) ready.push_back(next);
    must(ready.size() == ops, "ops wait for each other in a circle");
  }

  static std::span<const i32> span(const Array<i32>& a) { return {a.data(), a.size()}; }
  std::shared_ptr<const OrderGraph> graph_;
};

class PyCuts {
 public:
  explicit PyCuts(const PyGraph& graph) : graph_(graph.shared()), network_(*graph_) {}
  nb::tuple below(i32 op, const Array<i32>& sooner, const Array<i32>& later, i64 enough, bool largest,
                  double seconds, const CutNetwork::Flow* start) {
    check(op);
    for (const auto* others : {&sooner, &later})
      for (std::size_t i = 0; i < others->size(); ++i) check(others->data()[i]);
    must(!std::isnan(seconds), "seconds are a number");
    CutNetwork::Cut cut{};
    {
      nb::gil_scoped_release release;
      cut = network_.below(op, {sooner.data(), sooner.size()}, {later.data(), later.size()}, enough, largest,
                           seconds, start);
    }
    return nb::make_tuple(cut.bytes, cut.complete, owned(std::move(cut.sooner)));
  }
  CutNetwork::Flow flow() const { return network_.flow(); }

 private:
  void check(i32 op) const { must(op >= 0 && op < graph_->ops, "there is no such op"); }
  std::shared_ptr<const OrderGraph> graph_;
  CutNetwork network_;
};

class PySearch {
 public:
  PySearch(const PyGraph& graph, i64 budget) : graph_(graph.shared()), search_(*graph_, budget) {}
  // True: found; False: there is none; None: goes on.
  std::optional<bool> advance(i64 sets) {
    nb::gil_scoped_release release;
    const auto end = search_.advance(sets);
    if (end == PeakSearch::End::kGoesOn) return std::nullopt;
    return end == PeakSearch::End::kFound;
  }
  i64 sets() const { return search_.sets(); }
  Order order() const { return owned(std::vector<i32>(search_.order())); }

 private:
  std::shared_ptr<const OrderGraph> graph_;
  PeakSearch search_;
};

class PyBeam {
 public:
  PyBeam(const PyGraph& graph, i32 width) : graph_(graph.shared()), beam_(*graph_, width) {}
  bool advance(i32 levels) {
    nb::gil_scoped_release release;
    return beam_.advance(levels);
  }
  Order order() const { return owned(beam_.order()); }

 private:
  std::shared_ptr<const OrderGraph> graph_;
  PeakBeam beam_;
};

}  // namespace

void bind_order(nb::module_& m) {
  nb::class_<PyGraph>(m, "OrderGraph")
      .def(nb::init<const nb::dict&>(), nb::arg("columns"))
      .def_prop_ro("ops", &PyGraph::ops)
      .def("peaks", &PyGraph::peaks, nb::arg("orders"), nb::arg("threads"))
      .def("profile", &PyGraph::profile_of, nb::arg("order"))
      .def("by_keys", &PyGraph::by_keys_many, nb::arg("keys"), nb::arg("threads"))
      .def("simple", &PyGraph::simple, nb::arg("name"))
      .def("held", &PyGraph::held)
      .def("needing", &PyGraph::needing, nb::arg("op"))
      .def("reduced", &PyGraph::reduce)
      .def("part", &PyGraph::part, nb::arg("members"), nb::arg("done"));
  nb::class_<CutNetwork::Flow>(m, "OrderFlow")
      .def_prop_ro("bytes", [](const CutNetwork::Flow& flow) { return flow.bytes; })
      .def_prop_ro("memory", [](const CutNetwork::Flow& flow) { return flow.pushed.size() * sizeof(i64); });
  nb::class_<PyCuts>(m, "OrderCuts")
      .def(nb::init<const PyGraph&>(), nb::arg("graph"))
      .def("below", &PyCuts::below, nb::arg("op"), nb::arg("sooner"), nb::arg("later"), nb::arg("enough"),
           nb::arg("largest"), nb::arg("seconds"), nb::arg("start").none() = nb::none())
      .def("flow", &PyCuts::flow);
  nb::class_<PySearch>(m, "PeakSearch")
      .def(nb::init<const PyGraph&, i64>(), nb::arg("graph"), nb::arg("budget"))
      .def("advance", &PySearch::advance, nb::arg("sets"))
      .def_prop_ro("sets", &PySearch::sets)
      .def("order", &PySearch::order);
  nb::class_<PyBeam>(m, "PeakBeam")
      .def(nb::init<const PyGraph&, i32>(), nb::arg("graph"), nb::arg("width"))
      .def("advance", &PyBeam::advance, nb::arg("levels"))
      .def("order", &PyBeam::order);
}
