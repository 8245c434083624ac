// Bindings of constructive placers: arrays in, arrays out.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <stdexcept>

#include "arrays.hpp"
#include "checked.hpp"
#include "graph/placers.hpp"
#include "has_model.hpp"

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
      : placing_(simulator.model(), read_columns(simulator.model(), columns)) {}
  Placers(const Placers&) = delete;

  // Room [memories] -> device [groups].
  nb::ndarray<nb::numpy, i32> heft(const Array<i64>& room, bool engines, i64 ahead) const {
    check_room(room, ahead);
    std::vector<i32> device;
    {
      nb::gil_scoped_release release;
      device = graph::heft(placing_, room.data(), {engines, ahead});
    }
    return owned(std::move(device));
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
      device = graph::earliest_start(placing_, room.data(), given, {engines, ahead});
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
  void check_room(const Array<i64>& room, i64 ahead) const {
    check(room.size(), static_cast<std::size_t>(placing_.model.memory_count()));
    within(copied(room), -kForever, kMostAmount, "room");
    must(ahead >= 0 && ahead <= 1'000'000, "a percentage is out of range");
  }
  static void check(std::size_t size, std::size_t wanted) {
    if (size != wanted) throw std::invalid_argument("an array of another size");
  }
  const Placing placing_;
};

}  // namespace

void bind_placers(nb::module_& m) {
  nb::class_<Placers>(m, "Placers")
      .def(nb::init<const HasModel&, const nb::dict&>(), nb::arg("simulator"), nb::arg("columns"),
           nb::keep_alive<1, 2>())
      .def("heft", &Placers::heft, nb::arg("room"), nb::arg("engines"), nb::arg("ahead"))
      .def("earliest_start", &Placers::earliest_start, nb::arg("room"), nb::arg("favourite"),
           nb::arg("engines"), nb::arg("ahead"))
      .def("levels", &Placers::levels, nb::arg("device"), nb::arg("moves"))
      .def("table", &Placers::table);
}

}  // namespace loadmaster
