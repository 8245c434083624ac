// The Python module: arrays in, arrays out, no Python objects behind this file.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <exception>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>

#include "arrays.hpp"
#include "checked.hpp"
#include "has_model.hpp"
#include "map_decoder.hpp"
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
  const std::size_t accesses = model.access.tensor.size();
  are_starts(model.access.rows.start, static_cast<std::size_t>(model.ops), accesses, "access_start");
  within(model.access.tensor, 0, model.tensors - 1, "access_tensor");
  column_within(model.access.bytes, accesses, 0, kMostAmount, "access_bytes");
  has_length(model.access.write, accesses, "access_write");
}

void read_machine(const nb::dict& c, Model& model) {
  const auto reach = column<i32>(c, "device_reach");
  const auto reach_start = column<i64>(c, "device_reach_start");
  const auto launch = column<i64>(c, "device_launch");
  const auto memory = column<i64>(c, "memories");  // [m, 5]
  const auto link = column<i64>(c, "links");       // [l, 4]
  const auto engine = column<i32>(c, "link_engines");
  const auto engine_start = column<i64>(c, "link_engine_start");
  const auto rules = column<i64>(c, "rules");
  const i64 memories = static_cast<i64>(memory.size()) / 5;
  must(memory.size() % 5 == 0 && link.size() % 4 == 0 && rules.size() == 4 && memories <= 1 << 15,
       "tables of a machine have other shapes");
  must(!launch.empty(), "a machine has at least one device");
  within(launch, 0, kMostAmount, "device_launch");
  are_starts(reach_start, launch.size(), reach.size(), "device_reach_start");
  within(reach, 0, memories - 1, "device_reach");
  are_starts(engine_start, link.size() / 4, engine.size(), "link_engine_start");
  must(rules[0] >= 0 && rules[0] <= static_cast<i64>(engine.size()), "there are no so many engines");
  within(engine, 0, rules[0] - 1, "link_engines");
  must(rules[2] >= 0 && rules[2] <= 1'000'000, "the overlap is a share in millionths");
  for (std::size_t d = 0; d < launch.size(); ++d) {
    must(reach_start[d] < reach_start[d + 1], "a device reaches no memory");
    model.devices.push_back(
        {{reach.begin() + reach_start[d], reach.begin() + reach_start[d + 1]}, launch[d]});
  }
  for (std::size_t m = 0; m < memory.size(); m += 5) {
    const i64* row = memory.data() + m;
    must(row[0] >= 0 && row[0] <= kMostAmount && row[1] >= 1 && row[2] >= 1 && row[3] >= 0 &&
             row[3] <= kMostAmount && row[4] >= 1 && row[4] <= kMostAmount,
         "a memory's numbers are out of range");
    model.memories.push_back({row[0], row[1], row[2], row[3], row[4]});
  }
  model.link_between.assign(model.memories.size() * model.memories.size(), -1);
  for (std::size_t l = 0; l * 4 < link.size(); ++l) {
    const i64* row = link.data() + l * 4;
    must(row[0] >= 0 && row[0] < memories && row[1] >= 0 && row[1] < memories && row[2] >= 1 && row[3] >= 0 &&
             row[3] <= kMostAmount,
         "a link's numbers are out of range");
    model.links.push_back({static_cast<i32>(row[0]),
                           static_cast<i32>(row[1]),
                           row[2],
                           row[3],
                           {engine.begin() + engine_start[l], engine.begin() + engine_start[l + 1]}});
    model.link_between[row[0] * model.memory_count() + row[1]] = static_cast<i32>(l);
  }
  model.engines = static_cast<i32>(rules[0]);
  model.parallel_ports = rules[1] != 0;
  model.overlap = rules[2];
  model.idle_copies = rules[3] != 0;
}

// Every index must exist before the engines follow it.
void check_program(const Model& m) {
  const std::size_t ops = m.view.size(), tensors = m.root.size(), times = ops * m.devices.size();
  const i64 last_op = m.ops - 1, last_tensor = m.tensors - 1;
  const i64 last_group = static_cast<i64>(m.group_op.size()) - 1;
  must(ops < (std::size_t{1} << 30) && tensors < (std::size_t{1} << 30), "the program is too large");
  column_within(m.view_root, ops, -1, last_tensor, "view_root");
  column_within(m.loop, ops, -1, kMostAmount, "loop");
  column_within(m.repeat, ops, 0, kMostAmount, "repeat");
  column_within(m.group, ops, -1, last_group, "group");
  column_within(m.other_bytes, ops, 0, kMostAmount, "other_bytes");
  column_within(m.compute, times, 0, kMostAmount, "compute");
  column_within(m.named, times, 0, 2, "named");
  within(m.root, 0, last_tensor, "root");
  column_within(m.size, tensors, 0, kMostAmount, "size");
  column_within(m.role, tensors, 0, 4, "role");
  has_length(m.output, tensors, "output");
  has_length(m.tied, tensors, "tied");
  column_within(m.writer, tensors, -1, last_op, "writer");
  column_within(m.place, tensors, 0, last_tensor, "place");
  column_within(m.place_size, tensors, 0, kMostAmount, "place_size");
  column_within(m.overwriter, tensors, -1, last_op, "overwriter");
  column_within(m.tensor_group, tensors, -1, last_group, "tensor_group");
  within(m.group_op, -1, last_op, "group_op");
  for (std::size_t t = 0; t < tensors; ++t)
    must(m.root[m.root[t]] == m.root[t] && m.place[m.place[t]] == m.place[t], "a root has a root of its own");
  for (std::size_t op = 0; op < ops; ++op)
    if (m.view[op] != 0) {
      must(m.view_root[op] >= 0, "a view shows nothing");
      must(m.access.rows.begin(static_cast<i64>(op)) == m.access.rows.end(static_cast<i64>(op)),
           "a view reads or writes");
    }
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
  check_program(model);
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

// One row of a plan's table: least <= entry <= most, for each of its columns.
struct Range {
  i64 least, most;
};

void check_table(const Optional<i64>& table, std::initializer_list<Range> ranges, const char* name) {
  if (!table) return;
  must(table->ndim() == 2 && table->shape(1) == ranges.size(), name, " have another shape");
  const i64* value = table->data();
  for (std::size_t row = 0; row < table->shape(0); ++row)
    for (const Range& range : ranges) {
      must(*value >= range.least && *value <= range.most, name, " are out of range");
      ++value;
    }
}

void check_column(const Optional<i32>& column, i64 ops, i64 least, i64 most, const char* name) {
  if (!column) return;
  must(static_cast<i64>(column->size()) == ops, name, " must have one entry per op");
  for (i64 i = 0; i < ops; ++i)
    must(column->data()[i] >= least && column->data()[i] <= most, name, " is out of range");
}

// As simulate/simulator.py words it for people: every index exists, and tables go with a fixed order.
void check_plan(const Model& model, const PlanArrays& plan) {
  const i64 ops = model.ops, memory = model.memory_count() - 1, tensor = model.tensors - 1;
  const Range place{-1, kMostByte};
  check_column(plan.device, ops, 0, model.device_count() - 1, "device");
  check_column(plan.order, ops, 0, ops - 1, "order");
  check_column(plan.fusion, ops, -1, ops - 1, "fusion");
  if (plan.order) {
    std::vector<i8> seen(static_cast<std::size_t>(ops));
    for (i64 i = 0; i < ops; ++i) must(seen[plan.order->data()[i]]++ == 0, "the order is no permutation");
  }
  must(plan.queue >= 0 && plan.queue <= 3, "there is no such queue");
  must(plan.queue != 3 || plan.priority, "the queue 'priority' has no priorities");
  if (plan.priority) {
    must(static_cast<i64>(plan.priority->size()) == ops, "priority must have one entry per op");
    for (i64 i = 0; i < ops; ++i) must_be_finite(plan.priority->data()[i], "a priority");
  }
  const bool tables = plan.residencies || plan.copies || plan.transfers;
  must(plan.queue == 0 || !tables, "residencies, copies and transfers need an order");
  must(!model.idle_copies || (model.devices.size() == 1 && plan.queue == 0 && !plan.transfers),
       "copies in idle time need one device, an order and no transfers");
  check_table(plan.residencies, {{0, tensor}, {0, memory}, place, {-1, ops - 1}, {0, ops - 1}},
              "residencies");
  check_table(plan.copies, {{0, tensor}, {0, memory}, {0, memory}, {-1, ops - 1}, {0, ops}, place, place},
              "copies");
  check_table(plan.transfers, {{0, tensor}, {0, model.device_count() - 1}}, "transfers");
}

PlanArrays plan_arrays(const Model& model, const nb::tuple& t) {
  must(t.size() == 9, "a plan has nine parts");
  PlanArrays arrays = {
      nb::cast<Optional<i32>>(t[0]),    nb::cast<Optional<i32>>(t[1]), nb::cast<Optional<i32>>(t[2]),
      nb::cast<Optional<double>>(t[3]), nb::cast<int>(t[4]),           nb::cast<bool>(t[5]),
      nb::cast<Optional<i64>>(t[6]),    nb::cast<Optional<i64>>(t[7]), nb::cast<Optional<i64>>(t[8])};
  check_plan(model, arrays);
  return arrays;
}

class Simulator : public HasModel {
 public:
  explicit Simulator(const nb::dict& columns) : model_(read_model(columns)), static_map_(model_) {}
  Simulator(const Simulator&) = delete;  // static_map_ refers to model_

  nb::dict run(const nb::tuple& plan) const {
    const PlanArrays arrays = plan_arrays(model_, plan);
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
    for (const nb::tuple& plan : plans) arrays.push_back(plan_arrays(model_, plan));
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
    const std::size_t maps = memory.ndim() == 2 ? memory.shape(0) : 0, memories = model_.memories.size();
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
        mapper_(simulator.model(), simulator.static_map(), read_entries(simulator.model(), columns)) {}

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
  static MapEntries read_entries(const Model& model, const nb::dict& c) {
    must(model.devices.size() == 1, "a mapping needs one device");
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
    const std::size_t pieces = entries.first.size();
    within(entries.order, 0, entries.entries - 1, "order");
    std::vector<i8> seen(entries.bytes.size());
    for (const i32 entry : entries.order) must(seen[entry]++ == 0, "an entry is in the order twice");
    column_within(entries.of_tensor, static_cast<std::size_t>(model.tensors), -1, entries.entries - 1,
                  "of_tensor");
    within(entries.bytes, 0, kMostAmount, "bytes");
    are_starts(entries.pieces.start, entries.bytes.size(), pieces, "piece_start");
    within(entries.first, 0, model.ops - 1, "piece_first");
    column_within(entries.last, pieces, 0, model.ops - 1, "piece_last");
    has_length(entries.always, pieces, "piece_always");
    column_within(entries.size, pieces * model.devices[0].reach.size(), 0, kMostAmount, "piece_size");
    return entries;
  }

  std::size_t reach_, entries_;
  const Mapper mapper_;
};

// Scores float64[B, entries, memories - 1] into legal maps int8[B, entries].
class ScoreDecoder {
 public:
  explicit ScoreDecoder(const nb::dict& columns) : decoder_(read_tables(columns)) {}

  nb::ndarray<nb::numpy, i8> decode(const Array<double>& scores, const Array<double>& linear, bool nominal,
                                    int threads) const {
    const auto entries = static_cast<std::size_t>(decoder_.entries());
    const auto faster = static_cast<std::size_t>(decoder_.memories()) - 1;
    must(scores.ndim() == 3 && scores.shape(1) == entries && scores.shape(2) == faster,
         "scores must be [maps, entries, memories - 1]");
    are_keys(scores.data(), scores.size());
    const std::size_t count = scores.shape(0);
    must(linear.size() == count, "linear must be [maps]");
    for (std::size_t i = 0; i < count; ++i)
      must(linear.data()[i] >= 0 && linear.data()[i] <= 1, "linear must be between 0 and 1");
    std::vector<i8> maps(count * entries);
    {
      nb::gil_scoped_release release;
      decoder_.decode(scores.data(), linear.data(), static_cast<i64>(count), nominal, maps.data(), threads);
    }
    return owned(std::move(maps), {count, entries});
  }

 private:
  static DecoderTables read_tables(const nb::dict& c) {
    DecoderTables t;
    t.capacity = column<i64>(c, "capacity");
    t.compute = column<i64>(c, "compute");
    t.pinned = column<i32>(c, "pinned");
    const std::size_t nodes = t.compute.size(), entries = t.pinned.size(), memories = t.capacity.size();
    must(memories >= 2 && memories <= 127, "a mapping needs 2 to 127 memories");
    within(t.capacity, 0, kMostAmount, "capacity");
    within(t.compute, 0, kForever, "compute");
    within(t.pinned, -1, static_cast<i64>(memories) - 1, "pinned");
    const auto per_node = [&](std::vector<i64>& into, const char* name, i64 least, i64 most) {
      into = column<i64>(c, name);
      column_within(into, nodes, least, most, name);
    };
    per_node(t.launch, "launch", 0, kForever);
    per_node(t.repeat, "repeat", 1, kForever);
    per_node(t.fixed, "fixed", 0, kForever);
    per_node(t.overlap, "overlap", 0, 1'000'000);
    t.parallel = nb::cast<bool>(item(c, "parallel"));
    t.accesses.start = column<i64>(c, "access_start");
    t.access_entry = column<i32>(c, "access_entry");
    t.access_cost = column<i64>(c, "access_cost");
    are_starts(t.accesses.start, nodes, t.access_entry.size(), "access_start");
    within(t.access_entry, 0, static_cast<i64>(entries) - 1, "access_entry");
    column_within(t.access_cost, t.access_entry.size() * memories, 0, kForever, "access_cost");
    t.ops = nb::cast<i32>(item(c, "ops"));
    must(t.ops >= 1, "a mapping needs an op");
    t.pieces.start = column<i64>(c, "piece_start");
    t.first = column<i32>(c, "piece_first");
    t.last = column<i32>(c, "piece_last");
    t.always = column<i8>(c, "piece_always");
    t.size = column<i64>(c, "piece_size");
    const std::size_t pieces = t.first.size();
    are_starts(t.pieces.start, entries, pieces, "piece_start");
    within(t.first, 0, t.ops - 1, "piece_first");
    column_within(t.last, pieces, 0, t.ops - 1, "piece_last");
    has_length(t.always, pieces, "piece_always");
    for (std::size_t piece = 0; piece < pieces; ++piece)
      must(t.always[piece] != 0 || t.first[piece] <= t.last[piece], "a piece ends before it begins");
    column_within(t.size, pieces * memories, 0, kMostAmount, "piece_size");
    i64 whole = 0;
    for (const i64 size : t.size) whole = plus(whole, size);
    must(whole < kForever, "all pieces together are too large");
    return t;
  }

  const MapDecoder decoder_;
};

Result ceil_times(const Array<i64>& amounts, const Array<i64>& rates) {
  if (amounts.size() != rates.size()) throw std::invalid_argument("one rate per amount");
  for (std::size_t i = 0; i < rates.size(); ++i)
    must(amounts.data()[i] >= 0 && rates.data()[i] >= 1, "amounts are from 0 up and rates from 1 up");
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
  // PyTorch's caches keep some of our objects until the process ends: nobody can do anything about that.
  nb::set_leak_warnings(false);
  m.doc() = "The native core of Loadmaster: arrays in, arrays out.";
  // What is of another type, or not there, is the caller's mistake like any other.
  nb::register_exception_translator([](const std::exception_ptr& thrown, void*) {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::bad_cast&) {
      PyErr_SetString(PyExc_TypeError, "an argument has another type");
    } catch (const std::out_of_range& error) {
      PyErr_SetString(PyExc_ValueError, error.what());
    }
  });
  nb::class_<HasModel>(m, "HasModel");
  nb::class_<Simulator, HasModel>(m, "Simulator")
      .def(nb::init<const nb::dict&>(), nb::arg("columns"))
      .def("run", &Simulator::run, nb::arg("plan"))
      .def("run_many", &Simulator::run_many, nb::arg("plans"), nb::arg("threads"))
      .def("run_static", &Simulator::run_static, nb::arg("memory"), nb::arg("threads"));
  nb::class_<MapBatch>(m, "MapBatch")
      .def(nb::init<const Simulator&, const nb::dict&>(), nb::arg("simulator"), nb::arg("columns"),
           nb::keep_alive<1, 2>())
      .def("evaluate", &MapBatch::evaluate, nb::arg("maps"), nb::arg("rectified").noconvert(),
           nb::arg("threads"));
  nb::class_<ScoreDecoder>(m, "ScoreDecoder")
      .def(nb::init<const nb::dict&>(), nb::arg("columns"))
      .def("decode", &ScoreDecoder::decode, nb::arg("scores"), nb::arg("linear"), nb::arg("nominal"),
           nb::arg("threads"));
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
