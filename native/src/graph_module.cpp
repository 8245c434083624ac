// Bindings of GraphOptimization: arrays in, arrays out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <stdexcept>

#include "arrays.hpp"
#include "checked.hpp"
#include "graph/batch.hpp"
#include "graph/climb.hpp"
#include "graph/cost_model.hpp"
#include "graph/forced.hpp"
#include "graph/least_time.hpp"
#include "has_model.hpp"

namespace loadmaster {
namespace {

using graph::Decisions;
using graph::FusionColumns;
using graph::FusionRules;
using graph::GraphBatch;

FusionColumns read_fusion(const Model& model, const nb::dict& c) {
  FusionColumns columns;
  columns.fusible = column<i8>(c, "fusible");
  columns.big_reduction = column<i8>(c, "big_reduction");
  columns.cheap = column<i8>(c, "cheap");
  columns.loop_size = column<i64>(c, "loop_size");
  columns.repeats = column<i8>(c, "repeats");
  columns.component = column<i32>(c, "component");
  columns.device = column<i32>(c, "device");
  columns.all_readers = nb::cast<bool>(item(c, "all_readers"));
  const std::size_t ops = static_cast<std::size_t>(model.ops);
  has_length(columns.fusible, ops, "fusible");
  has_length(columns.big_reduction, ops, "big_reduction");
  has_length(columns.cheap, ops, "cheap");
  column_within(columns.loop_size, static_cast<std::size_t>(model.tensors), -1, kMostAmount, "loop_size");
  has_length(columns.repeats, model.access.tensor.size(), "repeats");
  column_within(columns.component, ops, -1, kMostAmount, "component");
  if (!columns.device.empty()) column_within(columns.device, ops, -1, model.device_count() - 1, "device");
  return columns;
}

// Keeps the simulator alive (see the binding), whose tables it reads.
class Fusion {
 public:
  Fusion(const HasModel& simulator, const nb::dict& columns)
      : model_(simulator.model()), rules_(model_, read_fusion(model_, columns)) {}
  Fusion(const Fusion&) = delete;

  // Keys [ops] -> clusters [ops].
  nb::ndarray<nb::numpy, i32> fuse(const Array<double>& keys) const {
    if (keys.size() != static_cast<std::size_t>(model_.ops))
      throw std::invalid_argument("keys must be [ops]");
    are_keys(keys.data(), keys.size());
    std::vector<i32> fusion(model_.ops);
    {
      nb::gil_scoped_release release;
      graph::Fuser(rules_).fuse(keys.data(), fusion.data());
    }
    return owned(std::move(fusion));
  }

  // The keys [ops] with which `fuse` does what the cost model would.
  nb::ndarray<nb::numpy, double> cost_model(int device) const {
    if (device < 0 || device >= model_.device_count()) throw std::invalid_argument("there is no such device");
    std::vector<double> keys;
    {
      nb::gil_scoped_release release;
      keys = graph::cost_model_keys(rules_, device);
    }
    return owned(std::move(keys));
  }

  // Clusters [ops] -> [ops, devices] picoseconds of the step that begins with an op, everything at
  // home; -1: it can't run there, or no step begins there.
  Result durations(const Array<i32>& fusion) const {
    if (fusion.size() != static_cast<std::size_t>(model_.ops))
      throw std::invalid_argument("fusion must be [ops]");
    within(copied(fusion), -1, model_.ops - 1, "fusion");
    return owned(graph::step_times(model_, fusion.data()),
                 {static_cast<std::size_t>(model_.ops), model_.devices.size()});
  }

  // [ops] whether an op may ever be fused with another.
  nb::ndarray<nb::numpy, i8> touched() const { return owned(std::vector<i8>(rules_.touched)); }

  // What no fusion avoids: columns by op, and the edges between ops with whether they are cut.
  nb::dict forced() const {
    graph::Forced f;
    {
      nb::gil_scoped_release release;
      f = graph::find_forced(rules_);
    }
    nb::dict found;
    found["alone"] = owned(std::move(f.alone));
    found["read"] = owned(std::move(f.read));
    found["write"] = owned(std::move(f.write));
    found["reads"] = owned(std::move(f.reads));
    found["writes"] = owned(std::move(f.writes));
    found["prev_start"] = owned(std::vector<i64>(rules_.prev_rows.start));
    found["prev"] = owned(std::vector<i32>(rules_.prev));
    found["cut"] = owned(std::move(f.cut));
    return found;
  }

  const Model& model() const { return model_; }
  const FusionRules& rules() const { return rules_; }

 private:
  const Model& model_;
  const FusionRules rules_;
};

Decisions read_decisions(const Model& model, const nb::dict& c) {
  Decisions d;
  const auto parts = column<i64>(c, "parts");
  has_length(parts, 6, "parts");
  d.width = parts[0], d.fusion = parts[1], d.device = parts[2], d.schedule = parts[3];
  d.base_critical_path = parts[4] != 0;
  d.tie_critical_path = parts[5] != 0;
  d.node_op = column<i32>(c, "node_op");
  d.group = column<i32>(c, "group");
  d.base_fusion = column<i32>(c, "base_fusion");
  d.base_device = column<i32>(c, "base_device");
  d.pinned = column<i32>(c, "pinned");
  const std::size_t ops = static_cast<std::size_t>(model.ops), groups = d.base_device.size();
  within(d.node_op, 0, model.ops - 1, "node_op");
  column_within(d.group, ops, -1, static_cast<i64>(groups) - 1, "group");
  for (i32 op = 0; op < model.ops; ++op) must(d.group[op] >= 0 || model.view[op] != 0, "an op has no group");
  if (!d.base_fusion.empty()) column_within(d.base_fusion, ops, -1, model.ops - 1, "base_fusion");
  must(d.fusion >= 0 || d.base_fusion.size() == ops, "fusion is neither decided nor given");
  within(d.base_device, 0, model.device_count() - 1, "base_device");
  column_within(d.pinned, groups, -1, model.device_count() - 1, "pinned");
  // Parts that are decided lie one behind the other, in any order, and fill the vector.
  std::vector<std::pair<i64, std::size_t>> decided;
  for (const auto& part : {std::pair{d.fusion, d.node_op.size()}, std::pair{d.device, groups},
                           std::pair{d.schedule, d.node_op.size()}})
    if (part.first >= 0) decided.push_back(part);
  std::sort(decided.begin(), decided.end());
  i64 end = 0;
  for (const auto& [begin, count] : decided) {
    must(begin == end, "the parts do not fill the vector");
    end += static_cast<i64>(count);
  }
  must(d.width == end, "the parts do not fill the vector");
  return d;
}

class Batch {
 public:
  Batch(const Fusion& fusion, const nb::dict& columns)
      : model_(fusion.model()),
        decisions_(read_decisions(model_, columns)),
        batch_(model_, fusion.rules(), decisions_) {}

  // float64[B, V] -> totals [B], bytes over [B, memories], faults [B, 3].
  nb::tuple evaluate(const Array<double>& vectors, int threads) const {
    check(vectors, 2);
    const std::size_t count = vectors.shape(0), memories = model_.memories.size();
    std::vector<i64> total(count), over(count * memories), fault(count * 3);
    {
      nb::gil_scoped_release release;
      batch_.evaluate(vectors.data(), static_cast<i64>(count), total.data(), over.data(), fault.data(),
                      threads);
    }
    return nb::make_tuple(owned(std::move(total)), owned(std::move(over), {count, memories}),
                          owned(std::move(fault), {count, 3}));
  }

  // float64[V] -> clusters [ops], devices [ops], starts [ops], fault.
  nb::tuple decode(const Array<double>& vector) const {
    check(vector, 1);
    graph::Decoded decoded;
    {
      nb::gil_scoped_release release;
      decoded = batch_.decode(vector.data());
    }
    const Outcome& o = decoded.outcome;
    const auto fault = nb::make_tuple(static_cast<int>(o.fault), o.fault_a, o.fault_b);
    return nb::make_tuple(owned(std::move(decoded.fusion)), owned(std::move(decoded.device)),
                          owned(std::vector<i64>(o.op_start)), fault);
  }

 private:
  void check(const Array<double>& vectors, std::size_t dimensions) const {
    const std::size_t width = static_cast<std::size_t>(decisions_.width);
    if (vectors.ndim() != dimensions || vectors.shape(dimensions - 1) != width)
      throw std::invalid_argument("vectors must be [B, V]");
    are_keys(vectors.data(), vectors.size());
    if (decisions_.device < 0) return;
    const std::size_t groups = decisions_.base_device.size();
    for (std::size_t at = 0; at < vectors.size(); at += width)
      for (std::size_t g = 0; g < groups; ++g) {
        const double device = vectors.data()[at + decisions_.device + g];
        if (!(device >= 0 && device < model_.device_count()))
          throw std::invalid_argument("there is no such device");
      }
  }

  const Model& model_;
  const Decisions decisions_;
  const GraphBatch batch_;
};

// Vectors one after another, each near the one that stands; see graph/climb.hpp.
class GraphClimb {
 public:
  GraphClimb(const Fusion& fusion, const nb::dict& columns, double reference)
      : model_(fusion.model()),
        decisions_(read_decisions(model_, columns)),
        climb_(model_, fusion.rules(), decisions_, reference) {
    must_be_finite(reference, "the reference");
  }
  GraphClimb(const GraphClimb&) = delete;

  // float64[V] -> total, bytes over [memories], fault, of a full run.
  nb::tuple start(const Array<double>& vector) {
    if (vector.size() != static_cast<std::size_t>(decisions_.width))
      throw std::invalid_argument("the vector must be [V]");
    for (std::size_t i = 0; i < vector.size(); ++i) check(static_cast<i64>(i), vector.data()[i]);
    std::vector<graph::Judged> judged(1);
    {
      nb::gil_scoped_release release;
      judged[0] = climb_.start(vector.data());
    }
    started_ = true;
    rows_ = 0;
    return results(judged);
  }

  // Rows [R + 1] of changes (index, source or -1, value) and slack [R] -> totals [R], bytes over [R,
  // memories], faults [R, 3], accepted [R]. `cut`: what can't be accepted is a fault, and faster.
  nb::tuple run(const Array<i64>& rows, const Array<i64>& index, const Array<i64>& source,
                const Array<double>& value, const Array<double>& slack, bool cut) {
    graph::Proposals proposals{{copied(rows)}, copied(index), copied(source),
                               copied(value),  copied(slack), cut};
    const auto& start = proposals.rows.start;
    if (start.size() != slack.size() + 1 || start.front() != 0 ||
        start.back() != static_cast<i64>(index.size()) || index.size() != source.size() ||
        index.size() != value.size() || !std::is_sorted(start.begin(), start.end()))
      throw std::invalid_argument("rows, changes and slack do not agree");
    for (std::size_t i = 0; i < index.size(); ++i) {
      const i64 from = proposals.source[i];
      if (from >= decisions_.width || (from >= 0 && is_device(from) != is_device(proposals.index[i])))
        throw std::invalid_argument("there is no such source");
      check(proposals.index[i], proposals.value[i]);
    }
    must(started_, "nothing was started");
    are_keys(slack.data(), slack.size());
    std::vector<graph::Judged> judged;
    std::vector<i8> accepted;
    {
      nb::gil_scoped_release release;
      climb_.run(proposals, judged, accepted);
    }
    rows_ = static_cast<i64>(slack.size());
    return nb::make_tuple(results(judged), owned(std::move(accepted)));
  }

  // What row `row` of the last run proposed; -1: what stands.
  nb::ndarray<nb::numpy, double> vector(i64 row) const {
    must(started_ && row >= -1 && row < rows_, "there is no such row");
    return owned(climb_.vector(row));
  }
  // Of what stands: step [nodes]; of steps [S] the group, device, start, end, latest end and the time at
  // which all that they read was there; of transfers [M] the step that made it (-1: none), the step that
  // needs it first, the device, start, end and latest end.
  nb::dict timeline() const {
    must(started_ && !climb_.incremental().judged().faulty, "nothing stands");
    const auto s = climb_.incremental().standing();
    const std::size_t moves = s.history.moves.size();
    std::vector<i32> step(decisions_.node_op.size()), from(moves), device(moves);
    for (std::size_t i = 0; i < step.size(); ++i) step[i] = s.built.graph.of[decisions_.node_op[i]];
    std::vector<i64> start(moves), end(moves);
    for (std::size_t i = 0; i < moves; ++i) {
      const graph::History::Move& move = s.history.moves[i];
      from[i] = s.built.writer[move.tensor], device[i] = move.device;
      start[i] = move.start, end[i] = move.end;
    }
    nb::dict found;
    found["step"] = owned(std::move(step));
    found["group"] = owned(std::vector<i32>(s.built.group));
    found["device"] = owned(std::vector<i32>(s.placement.device));
    found["start"] = owned(std::vector<i64>(s.history.start));
    found["end"] = owned(std::vector<i64>(s.history.end));
    found["ready"] = owned(std::vector<i64>(s.history.ready));
    found["latest"] = owned(std::vector<i64>(s.timeline.latest));
    found["move_from"] = owned(std::move(from));
    found["move_reader"] = owned(std::vector<i32>(s.timeline.reader));
    found["move_device"] = owned(std::move(device));
    found["move_start"] = owned(std::move(start));
    found["move_end"] = owned(std::move(end));
    found["move_latest"] = owned(std::vector<i64>(s.timeline.move_latest));
    return found;
  }
  // Runs so far, and those of them that began at time 0.
  nb::tuple counts() const {
    return nb::make_tuple(climb_.incremental().runs(), climb_.incremental().full_runs());
  }

 private:
  bool is_device(i64 index) const {
    const i64 groups = static_cast<i64>(decisions_.base_device.size());
    return decisions_.device >= 0 && index >= decisions_.device && index < decisions_.device + groups;
  }
  void check(i64 index, double value) const {
    if (index < 0 || index >= decisions_.width) throw std::invalid_argument("there is no such place");
    must(!std::isnan(value), "a key is not a number");
    if (is_device(index) && !(value >= 0 && value < model_.device_count()))
      throw std::invalid_argument("there is no such device");
  }
  nb::tuple results(const std::vector<graph::Judged>& judged) const {
    const std::size_t count = judged.size(), memories = model_.memories.size();
    std::vector<i64> total(count), over(count * memories), fault(count * 3, 0);
    for (std::size_t i = 0; i < count; ++i) {
      total[i] = judged[i].total;
      fault[i * 3] = judged[i].faulty || judged[i].cut;
      std::copy(judged[i].over.begin(), judged[i].over.end(), over.begin() + static_cast<i64>(i * memories));
    }
    return nb::make_tuple(owned(std::move(total)), owned(std::move(over), {count, memories}),
                          owned(std::move(fault), {count, 3}));
  }

  const Model& model_;
  const Decisions decisions_;
  graph::Climb climb_;
  bool started_ = false;
  i64 rows_ = 0;  // of the last run
};

// (longest path, with the work between steps of a chain, the chain); columns as in graph/least_time.hpp.
nb::tuple least_time(const nb::dict& c) {
  graph::TimedGraph g;
  g.prev_rows.start = column<i64>(c, "prev_start");
  g.prev = column<i32>(c, "prev");
  g.cut = column<i8>(c, "cut");
  g.move = column<i64>(c, "move");
  g.single = column<i8>(c, "single");
  g.compute = column<i64>(c, "compute");
  g.memory = column<i64>(c, "memory");
  g.launch = column<i64>(c, "launch");
  g.group = column<i32>(c, "group");
  g.devices = nb::cast<i64>(item(c, "devices"));
  g.most_members = graph::kMostOps;
  const std::size_t nodes = g.single.size();
  are_starts(g.prev_rows.start, nodes, g.prev.size(), "prev_start");
  for (std::size_t v = 0; v < nodes; ++v)
    for (i64 i = g.prev_rows.begin(static_cast<i64>(v)); i < g.prev_rows.end(static_cast<i64>(v)); ++i)
      must(g.prev[i] >= 0 && g.prev[i] < static_cast<i32>(v), "a node comes before what it waits for");
  has_length(g.cut, g.prev.size(), "cut");
  for (const auto& [times, name] :
       {std::pair{&g.compute, "compute"}, std::pair{&g.memory, "memory"}, std::pair{&g.launch, "launch"}})
    column_within(*times, nodes, 0, kForever, name);
  column_within(g.move, g.prev.size(), 0, kForever, "move");
  column_within(g.group, nodes, -1, (i64{1} << 30) - 1, "group");
  for (const i32 group : g.group) g.groups = std::max(g.groups, group + 1);
  must(g.devices >= 1, "there is at least one device");
  graph::LeastTime found;
  {
    nb::gil_scoped_release release;
    found = graph::least_time(g);
  }
  return nb::make_tuple(found.path, found.work, owned(std::move(found.chain)));
}

}  // namespace

void bind_graph(nb::module_& m) {
  nb::class_<Fusion>(m, "Fusion")
      .def(nb::init<const HasModel&, const nb::dict&>(), nb::arg("simulator"), nb::arg("columns"),
           nb::keep_alive<1, 2>())
      .def("fuse", &Fusion::fuse, nb::arg("keys"))
      .def("cost_model", &Fusion::cost_model, nb::arg("device"))
      .def("durations", &Fusion::durations, nb::arg("fusion"))
      .def("touched", &Fusion::touched)
      .def("forced", &Fusion::forced);
  m.def("least_time", &least_time, nb::arg("columns"));
  nb::class_<Batch>(m, "GraphBatch")
      .def(nb::init<const Fusion&, const nb::dict&>(), nb::arg("fusion"), nb::arg("columns"),
           nb::keep_alive<1, 2>())
      .def("evaluate", &Batch::evaluate, nb::arg("vectors"), nb::arg("threads"))
      .def("decode", &Batch::decode, nb::arg("vector"));
  nb::class_<GraphClimb>(m, "GraphClimb")
      .def(nb::init<const Fusion&, const nb::dict&, double>(), nb::arg("fusion"), nb::arg("columns"),
           nb::arg("reference"), nb::keep_alive<1, 2>())
      .def("start", &GraphClimb::start, nb::arg("vector"))
      .def("run", &GraphClimb::run, nb::arg("rows"), nb::arg("index"), nb::arg("source"), nb::arg("value"),
           nb::arg("slack"), nb::arg("cut") = false)
      .def("vector", &GraphClimb::vector, nb::arg("row") = -1)
      .def("timeline", &GraphClimb::timeline)
      .def("counts", &GraphClimb::counts);
}

}  // namespace loadmaster
