// Bindings of constructive placers: arrays in, arrays out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <stdexcept>

#include "arrays.hpp"
#include "checked.hpp"
#include "graph/placers.hpp"
#include "has_model.hpp"
#include "parallel.hpp"

namespace loadmaster {
namespace {

using graph::Placing;
using graph::PlacingColumns;

PlacingColumns read_columns(const Model& model, const nb::dict& c) {
  PlacingColumns columns{column<i32>(c, "fusion"), column<i32>(c, "group"), column<i32>(c, "component"),
                         column<i64>(c, "bytes")};
  const std::size_t ops = static_cast<std::size_t>(model.ops);
  column_within(columns.fusion, ops, -1, model.ops - 1, "fusion");
  column_within(columns.group, ops, -1, static_cast<i64>(columns.bytes.size()) - 1, "group");
  column_within(columns.component, ops, -1, kMostAmount, "component");
  within(columns.bytes, 0, kMostAmount, "bytes");
  for (i32 op = 0; op < model.ops; ++op)
    must(columns.group[op] >= 0 || model.view[op] != 0, "an op has no group");
  return columns;
}

// Keeps the simulator alive (see the binding), whose tables it reads.
class Placers {
 public:
  Placers(const HasModel& simulator, const nb::dict& columns)
      : placing_(simulator.model(), read_columns(simulator.model(), columns)), decoder_(placing_) {}
  Placers(const Placers&) = delete;

  // Room [memories] -> device [groups].
  nb::ndarray<nb::numpy, i32> heft(const Array<i64>& room, bool engines, i64 ahead) const {
    check_room(room, ahead);
    std::vector<i32> device;
    {
      nb::gil_scoped_release release;
      device = decoder_.repair({.room = room.data(), .outlook = outlook(engines, ahead)}).device;
    }
    return owned(std::move(device));
  }

  // Devices [B, groups] (-1: put again), room [B, memories], outlooks [B, 4] in thousandths (transfer, ahead,
  // load, wait), orders [B] and biases [B, groups, devices] or [0] -> devices [B, groups], [B, 2] the
  // makespan and the time of all transfers, as the decoder reckons.
  nb::tuple repair(const Array<i32>& device, const Array<i64>& room, const Array<i64>& outlooks,
                   const Array<i32>& order, const Array<double>& bias, int threads) const {
    const std::size_t count = order.size(), groups = static_cast<std::size_t>(placing_.groups),
                      devices = static_cast<std::size_t>(placing_.devices),
                      memories = static_cast<std::size_t>(placing_.model.memory_count());
    check(device.size(), count * groups);
    check(room.size(), count * memories);
    check(outlooks.size(), count * 4);
    if (bias.size() > 0) check(bias.size(), count * groups * devices);
    within(copied(device), -1, placing_.devices - 1, "device");
    within(copied(room), -kForever, kMostAmount, "room");
    within(copied(outlooks), 0, 1'000'000, "outlooks");
    within(copied(order), 0, graph::kOrders - 1, "order");
    for (std::size_t i = 0; i < bias.size(); ++i) must_be_finite(bias.data()[i], "a bias");
    std::vector<i32> found(count * groups);
    std::vector<i64> reckoned(count * 2);
    {
      nb::gil_scoped_release release;
      in_blocks(static_cast<i64>(count), 1, threads, [&] {
        return [&](i64 begin, i64 end) {
          for (std::size_t row = static_cast<std::size_t>(begin); row < static_cast<std::size_t>(end);
               ++row) {
            const i64* o = outlooks.data() + row * 4;
            const graph::Repaired repaired =
                decoder_.repair({.device = device.data() + row * groups,
                                 .room = room.data() + row * memories,
                                 .bias = bias.size() > 0 ? bias.data() + row * groups * devices : nullptr,
                                 .outlook = {o[0], o[1], o[2], o[3]},
                                 .order = static_cast<graph::Order>(order.data()[row])});
            std::copy(repaired.device.begin(), repaired.device.end(), found.data() + row * groups);
            reckoned[row * 2] = repaired.makespan, reckoned[row * 2 + 1] = repaired.transferred;
          }
        };
      });
    }
    return nb::make_tuple(owned(std::move(found), {count, groups}), owned(std::move(reckoned), {count, 2}));
  }

  // Devices [groups], room [memories], outlook [4] -> starts, ends and latest ends [steps], as the decoder
  // reckons.
  nb::tuple timeline(const Array<i32>& device, const Array<i64>& room, const Array<i64>& outlook) const {
    check(device.size(), static_cast<std::size_t>(placing_.groups));
    check(room.size(), static_cast<std::size_t>(placing_.model.memory_count()));
    check(outlook.size(), 4);
    within(copied(device), 0, placing_.devices - 1, "device");
    within(copied(outlook), 0, 1'000'000, "outlook");
    graph::Repaired repaired;
    std::vector<i64> latest;
    {
      nb::gil_scoped_release release;
      const i64* o = outlook.data();
      repaired = decoder_.repair(
          {.device = device.data(), .room = room.data(), .outlook = {o[0], o[1], o[2], o[3]}});
      latest = decoder_.latest_ends(repaired);
    }
    return nb::make_tuple(owned(std::move(repaired.start)), owned(std::move(repaired.end)),
                          owned(std::move(latest)));
  }

  // Room [memories], favourites [steps] or [0] -> device [groups].
  nb::ndarray<nb::numpy, i32> earliest_start(const Array<i64>& room, const Array<i32>& favourite,
                                             bool engines, i64 ahead) const {
    check_room(room, ahead);
    if (favourite.size() > 0) check(favourite.size(), static_cast<std::size_t>(placing_.graph.count));
    within(copied(favourite), -1, placing_.graph.count - 1, "favourite");
    std::vector<i32> device;
    {
      nb::gil_scoped_release release;
      const i32* given = favourite.size() > 0 ? favourite.data() : nullptr;
      device = graph::earliest_start(placing_, room.data(), given, outlook(engines, ahead));
    }
    return owned(std::move(device));
  }

  // Devices [groups] or [0] -> [steps] picoseconds to the end.
  Result levels(const Array<i32>& device, bool moves) const {
    if (device.size() > 0) check(device.size(), static_cast<std::size_t>(placing_.groups));
    within(copied(device), 0, placing_.devices - 1, "device");
    return owned(placing_.levels(device.size() > 0 ? device.data() : nullptr, moves));
  }

  // Step of each op [ops]; group of each step; [steps, devices] times; edges [3, E]: producer, reader and
  // mean time of the longest transfer between them, 0 within a group.
  nb::tuple table() const {
    const StepGraph& g = placing_.graph;
    std::vector<i64> edges[3];
    std::vector<std::pair<i32, i64>> before;
    for (i32 s = 0; s < g.count; ++s) {
      before.clear();
      for (i64 i = g.read_rows.begin(s); i < g.read_rows.end(s); ++i) {
        const i32 t = g.read[i], writer = g.writer[t];
        if (writer >= 0)
          before.emplace_back(writer,
                              placing_.group[writer] == placing_.group[s] ? 0 : placing_.mean_move[t]);
      }
      std::sort(before.begin(), before.end());
      for (std::size_t i = 0; i < before.size(); ++i) {
        if (i + 1 < before.size() && before[i + 1].first == before[i].first) continue;
        edges[0].push_back(before[i].first);
        edges[1].push_back(s);
        edges[2].push_back(before[i].second);
      }
    }
    const std::size_t count = edges[0].size(), steps = static_cast<std::size_t>(g.count);
    std::vector<i64> flat(edges[0]);
    flat.insert(flat.end(), edges[1].begin(), edges[1].end());
    flat.insert(flat.end(), edges[2].begin(), edges[2].end());
    return nb::make_tuple(owned(std::vector<i32>(g.of)), owned(std::vector<i32>(placing_.group)),
                          owned(std::vector<i64>(placing_.time), {steps, placing_.model.devices.size()}),
                          owned(std::move(flat), {3, count}));
  }

 private:
  // As the books have it: transfers wait for each other or not, and a percentage of later ones counts.
  static graph::Outlook outlook(bool engines, i64 ahead) {
    return {.ahead = ahead * 10, .wait = engines ? 1000 : 0};
  }
  void check_room(const Array<i64>& room, i64 ahead) const {
    check(room.size(), static_cast<std::size_t>(placing_.model.memory_count()));
    within(copied(room), -kForever, kMostAmount, "room");
    must(ahead >= 0 && ahead <= 1'000'000, "a percentage is out of range");
  }
  static void check(std::size_t size, std::size_t wanted) {
    if (size != wanted) throw std::invalid_argument("an array of another size");
  }
  const Placing placing_;
  const graph::ListDecoder decoder_;
};

}  // namespace

void bind_placers(nb::module_& m) {
  nb::class_<Placers>(m, "Placers")
      .def(nb::init<const HasModel&, const nb::dict&>(), nb::arg("simulator"), nb::arg("columns"),
           nb::keep_alive<1, 2>())
      .def("heft", &Placers::heft, nb::arg("room"), nb::arg("engines"), nb::arg("ahead"))
      .def("earliest_start", &Placers::earliest_start, nb::arg("room"), nb::arg("favourite"),
           nb::arg("engines"), nb::arg("ahead"))
      .def("repair", &Placers::repair, nb::arg("device"), nb::arg("room"), nb::arg("outlooks"),
           nb::arg("order"), nb::arg("bias"), nb::arg("threads"))
      .def("timeline", &Placers::timeline, nb::arg("device"), nb::arg("room"), nb::arg("outlook"))
      .def("levels", &Placers::levels, nb::arg("device"), nb::arg("moves"))
      .def("table", &Placers::table);
}

}  // namespace loadmaster
