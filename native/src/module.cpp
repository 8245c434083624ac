// The Python module: arrays in, arrays out, no Python objects behind this file.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "arrays.hpp"
#include "has_model.hpp"
#include "mapping.hpp"
#include "model.hpp"
#include "parallel.hpp"
#include "static_map.hpp"

namespace nb = nanobind;
using namespace loadmaster;

namespace {

template <class T>
using Optional = std::optional<Array<T>>;

void read_accesses(const nb::dict& c, Model& model) {
  model.access.rows.start = column<i64>(c, "access_start");
  model.access.tensor = column<i32>(c, "access_tensor");
  model.access.bytes = column<i64>(c, "access_bytes");
  model.access.write = column<i8>(c, "access_write");
}

void read_machine(const nb::dict& c, Model& model) {
  const auto reach = column<i32>(c, "device_reach");
  const auto reach_start = column<i64>(c, "device_reach_start");
  const auto launch = column<i64>(c, "device_launch");
  for (std::size_t d = 0; d < launch.size(); ++d)
    model.devices.push_back(
        {{reach.begin() + reach_start[d], reach.begin() + reach_start[d + 1]}, launch[d]});
  const auto memory = column<i64>(c, "memories");  // [m, 5]
  for (std::size_t m = 0; m < memory.size(); m += 5)
    model.memories.push_back({memory[m], memory[m + 1], memory[m + 2], memory[m + 3], memory[m + 4]});
  const auto link = column<i64>(c, "links");  // [l, 4]
  const auto engine = column<i32>(c, "link_engines");
  const auto engine_start = column<i64>(c, "link_engine_start");
  model.link_between.assign(model.memories.size() * model.memories.size(), -1);
  for (std::size_t l = 0; l * 4 < link.size(); ++l) {
    const i64* row = link.data() + l * 4;
    model.links.push_back({static_cast<i32>(row[0]),
                           static_cast<i32>(row[1]),
                           row[2],
                           row[3],
                           {engine.begin() + engine_start[l], engine.begin() + engine_start[l + 1]}});
    model.link_between[row[0] * model.memory_count() + row[1]] = static_cast<i32>(l);
  }
  const auto rules = column<i64>(c, "rules");
  model.engines = static_cast<i32>(rules[0]);
  model.parallel_ports = rules[1] != 0;
  model.overlap = rules[2];
  model.idle_copies = rules[3] != 0;
}

Model read_model(const nb::dict& c) {
  Model model;
  model.view = column<i8>(c, "view");
  model.view_root = column<i32>(c, "view_root");
  model.loop = column<i32>(c, "loop");
  model.repeat = column<i64>(c, "repeat");
  model.group = column<i32>(c, "group");
  model.other_bytes = column<i64>(c, "other_bytes");
  model.compute = column<i64>(c, "compute");
  model.named = column<i8>(c, "named");
  model.root = column<i32>(c, "root");
  model.size = column<i64>(c, "size");
  model.role = column<i8>(c, "role");
  model.output = column<i8>(c, "output");
  model.tied = column<i8>(c, "tied");
  model.writer = column<i32>(c, "writer");
  model.place = column<i32>(c, "place");
  model.place_size = column<i64>(c, "place_size");
  model.overwriter = column<i32>(c, "overwriter");
  model.tensor_group = column<i32>(c, "tensor_group");
  model.group_op = column<i32>(c, "group_op");
  model.ops = static_cast<i32>(model.view.size());
  model.tensors = static_cast<i32>(model.root.size());
  read_accesses(c, model);
  read_machine(c, model);
  model.prepare();
  return model;
}

// One plan's arrays, kept alive while it runs.
struct PlanArrays {
  Optional<i32> device, order, fusion;
  Optional<double> priority;
  int queue;
  bool critical_path;
  Optional<i64> residencies, copies, transfers;

  PlanView view() const {
    PlanView v;
    v.device = device ? device->data() : nullptr;
    v.order = order ? order->data() : nullptr;
    v.fusion = fusion ? fusion->data() : nullptr;
    v.priority = priority ? priority->data() : nullptr;
    v.queue = queue;
    v.critical_path = critical_path;
    if (residencies)
      v.residencies = residencies->data(), v.residency_count = static_cast<i64>(residencies->shape(0));
    if (copies) v.copies = copies->data(), v.copy_count = static_cast<i64>(copies->shape(0));
    if (transfers) v.transfers = transfers->data(), v.transfer_count = static_cast<i64>(transfers->shape(0));
    return v;
  }
};

PlanArrays plan_arrays(const nb::tuple& t) {
  return {nb::cast<Optional<i32>>(t[0]),    nb::cast<Optional<i32>>(t[1]), nb::cast<Optional<i32>>(t[2]),
          nb::cast<Optional<double>>(t[3]), nb::cast<int>(t[4]),           nb::cast<bool>(t[5]),
          nb::cast<Optional<i64>>(t[6]),    nb::cast<Optional<i64>>(t[7]), nb::cast<Optional<i64>>(t[8])};
}

class Simulator : public HasModel {
 public:
  explicit Simulator(const nb::dict& columns) : model_(read_model(columns)), static_map_(model_) {}
  Simulator(const Simulator&) = delete;  // static_map_ refers to model_

  nb::dict run(const nb::tuple& plan) const {
    const PlanArrays arrays = plan_arrays(plan);
    Outcome o;
    {
      nb::gil_scoped_release release;
      o = simulate(model_, arrays.view());
    }
    nb::dict result;
    result["fault"] = nb::make_tuple(static_cast<int>(o.fault), o.fault_a, o.fault_b);
    if (o.fault != Fault::kNone) return result;
    std::vector<i64> transfers;
    for (const TransferRecord& t : o.transfers)
      transfers.insert(transfers.end(), {t.tensor, t.device, t.start, t.end});
    result["total_ps"] = o.total;
    result["op_start"] = owned(std::move(o.op_start));
    result["op_end"] = owned(std::move(o.op_end));
    result["op_stall"] = owned(std::move(o.op_stall));
    result["copy_start"] = owned(std::move(o.copy_start));
    result["copy_end"] = owned(std::move(o.copy_end));
    result["transfers"] = owned(std::move(transfers), {o.transfers.size(), 4});
    result["link_bytes"] = owned(std::move(o.link_bytes));
    result["device_busy"] = owned(std::move(o.device_busy));
    result["memory_peak"] = owned(std::move(o.peak));
    result["memory_top"] = owned(std::move(o.top));
    result["memory_over"] = owned(std::move(o.over));
    result["memory_first_over"] = owned(std::move(o.first_over));
    return result;
  }

  // Totals [B], bytes over [B, memories], faults [B, 3].
  nb::tuple run_many(const std::vector<nb::tuple>& plans, int threads) const {
    std::vector<PlanArrays> arrays;
    for (const nb::tuple& plan : plans) arrays.push_back(plan_arrays(plan));
    const std::size_t memories = model_.memories.size(), count = plans.size();
    std::vector<i64> total(count), over(count * memories), fault(count * 3);
    {
      nb::gil_scoped_release release;
      in_blocks(static_cast<i64>(count), 1, threads, [&] {
        return [&](i64 begin, i64 end) {
          for (i64 i = begin; i < end; ++i) {
            const Outcome o = simulate(model_, arrays[i].view());
            total[i] = o.total;
            if (o.fault == Fault::kNone) std::copy(o.over.begin(), o.over.end(), over.begin() + i * memories);
            fault[i * 3] = static_cast<i64>(o.fault);
            fault[i * 3 + 1] = o.fault_a;
            fault[i * 3 + 2] = o.fault_b;
          }
        };
      });
    }
    return nb::make_tuple(owned(std::move(total)), owned(std::move(over), {count, memories}),
                          owned(std::move(fault), {count, 3}));
  }

  // Totals [B] and peaks [B, memories] of whole-life mappings int8[B, tensors].
  nb::tuple run_static(const Array<i8>& memory, int threads) const {
    const std::size_t maps = memory.shape(0), memories = model_.memories.size();
    if (memory.ndim() != 2 || memory.shape(1) != static_cast<std::size_t>(model_.tensors))
      throw std::invalid_argument("memory must be [maps, tensors]");
    if (model_.devices.size() != 1) throw std::invalid_argument("a static mapping needs one device");
    for (std::size_t i = 0; i < memory.size(); ++i)
      if (memory.data()[i] >= static_cast<int>(memories))
        throw std::invalid_argument("there is no such memory");
    std::vector<i64> total(maps), peak(maps * memories);
    {
      nb::gil_scoped_release release;
      static_map_.evaluate(memory.data(), static_cast<i64>(maps), total.data(), peak.data(), threads);
    }
    return nb::make_tuple(owned(std::move(total)), owned(std::move(peak), {maps, memories}));
  }

  const Model& model() const override { return model_; }
  const StaticMap& static_map() const { return static_map_; }

 private:
  const Model model_;
  const StaticMap static_map_;
};

// Keeps the simulator alive (see the binding), whose tables it reads.
class MapBatch {
 public:
  MapBatch(const Simulator& simulator, const nb::dict& columns)
      : reach_(simulator.model().devices[0].reach.size()),
        entries_(column<i64>(columns, "bytes").size()),
        mapper_(simulator.model(), simulator.static_map(), read_entries(columns)) {
    if (simulator.model().devices.size() != 1) throw std::invalid_argument("a mapping needs one device");
  }

  // int8[B, entries] -> totals [B], moved bytes [B]; writes the rectified maps into `rectified`.
  nb::tuple evaluate(const Array<i8>& maps, nb::ndarray<i8, nb::c_contig, nb::device::cpu> rectified,
                     int threads) const {
    if (maps.ndim() != 2 || maps.shape(1) != entries_ || rectified.size() != maps.size())
      throw std::invalid_argument("maps must be [maps, entries]");
    for (std::size_t i = 0; i < maps.size(); ++i)
      if (maps.data()[i] < 0 || maps.data()[i] >= static_cast<int>(reach_))
        throw std::invalid_argument("there is no such memory");
    std::vector<i64> total(maps.shape(0)), moved(maps.shape(0));
    {
      nb::gil_scoped_release release;
      mapper_.evaluate(maps.data(), static_cast<i64>(maps.shape(0)), total.data(), moved.data(),
                       rectified.data(), threads);
    }
    return nb::make_tuple(owned(std::move(total)), owned(std::move(moved)));
  }

 private:
  static MapEntries read_entries(const nb::dict& c) {
    MapEntries entries;
    entries.order = column<i32>(c, "order");
    entries.of_tensor = column<i32>(c, "of_tensor");
    entries.bytes = column<i64>(c, "bytes");
    entries.entries = static_cast<i64>(entries.bytes.size());
    entries.pieces.start = column<i64>(c, "piece_start");
    entries.first = column<i32>(c, "piece_first");
    entries.last = column<i32>(c, "piece_last");
    entries.always = column<i8>(c, "piece_always");
    entries.size = column<i64>(c, "piece_size");
    return entries;
  }

  std::size_t reach_, entries_;
  const Mapper mapper_;
};

Result ceil_times(const Array<i64>& amounts, const Array<i64>& rates) {
  if (amounts.size() != rates.size()) throw std::invalid_argument("one rate per amount");
  std::vector<i64> out(amounts.size());
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = ceil_time(amounts.data()[i], rates.data()[i]);
  return owned(std::move(out));
}

}  // namespace

void bind_allocate(nb::module_& m);  // allocate_module.cpp
void bind_offload(nb::module_& m);   // offload_module.cpp
void bind_device(nb::module_& m);    // device_module.cpp
void bind_order(nb::module_& m);     // order_module.cpp
namespace loadmaster {
void bind_game(nb::module_& m);     // game_module.cpp
void bind_msa(nb::module_& m);      // msa_module.cpp
void bind_graph(nb::module_& m);    // graph_module.cpp
void bind_placers(nb::module_& m);  // placers_module.cpp
}  // namespace loadmaster

NB_MODULE(_core, m) {
  m.doc() = "The native core of Loadmaster: arrays in, arrays out.";
  nb::class_<HasModel>(m, "HasModel");
  nb::class_<Simulator, HasModel>(m, "Simulator")
      .def(nb::init<const nb::dict&>(), nb::arg("columns"))
      .def("run", &Simulator::run, nb::arg("plan"))
      .def("run_many", &Simulator::run_many, nb::arg("plans"), nb::arg("threads"))
      .def("run_static", &Simulator::run_static, nb::arg("memory"), nb::arg("threads"));
  nb::class_<MapBatch>(m, "MapBatch")
      .def(nb::init<const Simulator&, const nb::dict&>(), nb::arg("simulator"), nb::arg("columns"),
           nb::keep_alive<1, 2>())
      .def("evaluate", &MapBatch::evaluate, nb::arg("maps"), nb::arg("rectified"), nb::arg("threads"));
  m.def("ceil_times", &ceil_times, nb::arg("amounts"), nb::arg("rates"),
        "amount / rate in picoseconds, rounded up, element by element");
  bind_allocate(m);
  bind_offload(m);
  bind_device(m);
  bind_order(m);
  bind_game(m);
  bind_msa(m);
  bind_graph(m);
  bind_placers(m);
}
