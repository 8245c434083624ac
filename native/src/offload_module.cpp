// Bindings of offload plans: repair of kept gaps, and the times of copies.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <stdexcept>

#include "arrays.hpp"
#include "checked.hpp"
#include "offload/offload.hpp"

namespace nb = nanobind;
using namespace loadmaster;

namespace {

class PyOffload {
 public:
  explicit PyOffload(const nb::dict& c) {
    t_.size = column<i64>(c, "size");
    t_.copy_in = column<i64>(c, "copy_in");
    t_.copy_out = column<i64>(c, "copy_out");
    t_.made = column<i32>(c, "made");
    t_.first_gap = column<i32>(c, "first_gap");
    t_.end_gap = column<i32>(c, "end_gap");
    t_.output = column<i8>(c, "output");
    t_.use_start = column<i64>(c, "use_start");
    t_.use_step = column<i32>(c, "use_step");
    t_.use_gap = column<i32>(c, "use_gap");
    t_.gap_item = column<i32>(c, "gap_item");
    t_.gap_from = column<i32>(c, "gap_from");
    t_.gap_to = column<i32>(c, "gap_to");
    t_.gap_kind = column<i8>(c, "gap_kind");
    t_.clock = column<i64>(c, "clock");
    check();
  }

  nb::ndarray<nb::numpy, i8> repaired(const Array<i8>& keep, i64 capacity, const Array<i64>& extra) const {
    if (keep.size() != t_.gap_item.size() || static_cast<i32>(extra.size()) != t_.steps())
      throw std::invalid_argument("one entry per gap and one per step");
    check_room(capacity, 0);
    within(copied(extra), -kMostAmount, kMostAmount, "extra");
    auto kept = copied(keep);
    repair(t_, kept, capacity, copied(extra));
    return owned(std::move(kept));
  }

  // Rows (item, first, last, begins, leaves, earliest) -> (first, last, issued, out needed).
  nb::ndarray<nb::numpy, i32> scheduled(const Array<i32>& table, i64 capacity, i64 lead,
                                        const Array<i64>& extra) const {
    if (static_cast<i32>(extra.size()) != t_.steps()) throw std::invalid_argument("one entry per step");
    check_room(capacity, lead);
    within(copied(extra), -kMostAmount, kMostAmount, "extra");
    const auto stays = stays_of(table);
    return rows_of(schedule(t_, stays, capacity, lead, copied(extra)));
  }

  // The same at addresses: also the offsets that stays have in the end. `scratch` has rows (step, low, high).
  nb::tuple scheduled_placed(const Array<i32>& table, i64 capacity, i64 lead, const Array<i64>& scratch,
                             const Array<i64>& offset) const {
    const auto stays = stays_of(table);
    if (scratch.size() % 3 != 0 || offset.size() != stays.size())
      throw std::invalid_argument("scratch must be [n, 3], with an offset for each stay");
    check_room(capacity, lead);
    within(copied(offset), -1, kMostAmount, "offset");
    std::vector<Scratch> own;
    for (std::size_t at = 0; at < scratch.size(); at += 3) {
      const i64* row = scratch.data() + at;
      if (row[0] < 0 || row[0] >= t_.steps() || row[1] < 0 || row[1] > row[2] || row[2] > kMostAmount)
        throw std::invalid_argument("scratch outside the program");
      own.push_back({static_cast<i32>(row[0]), row[1], row[2]});
    }
    auto places = copied(offset);
    auto times = rows_of(schedule_placed(t_, stays, capacity, lead, own, places));
    return nb::make_tuple(times, owned(std::move(places)));
  }

 private:
  // Every index must exist before the schedule follows it.
  void check() const {
    const std::size_t items = t_.size.size(), uses = t_.use_step.size(), gaps = t_.gap_item.size();
    must(!t_.clock.empty(), "the clock has an end");
    const i64 last_step = t_.steps() - 1, last_item = t_.items() - 1, last_gap = static_cast<i64>(gaps) - 1;
    within(t_.size, 0, kMostAmount, "size");
    column_within(t_.copy_in, items, -1, kMostAmount, "copy_in");
    column_within(t_.copy_out, items, -1, kMostAmount, "copy_out");
    column_within(t_.made, items, -1, last_step, "made");
    column_within(t_.first_gap, items, -1, last_gap, "first_gap");
    column_within(t_.end_gap, items, -1, last_gap, "end_gap");
    has_length(t_.output, items, "output");
    are_starts(t_.use_start, items, uses, "use_start");
    within(t_.use_step, 0, last_step, "use_step");
    column_within(t_.use_gap, uses, -1, last_gap, "use_gap");
    within(t_.gap_item, 0, last_item, "gap_item");
    column_within(t_.gap_from, gaps, -1, last_step, "gap_from");
    column_within(t_.gap_to, gaps, 0, t_.steps(), "gap_to");
    for (std::size_t g = 0; g < gaps; ++g) must(t_.gap_from[g] < t_.gap_to[g], "a gap ends before it begins");
    column_within(t_.gap_kind, gaps, 0, 2, "gap_kind");
    within(t_.clock, 0, kMostAmount, "clock");
    must(std::is_sorted(t_.clock.begin(), t_.clock.end()), "the clock goes back");
    for (std::size_t i = 0; i < items; ++i)
      must(std::is_sorted(t_.use_step.begin() + t_.use_start[i], t_.use_step.begin() + t_.use_start[i + 1]),
           "an item's uses are not in order");
  }
  static void check_room(i64 capacity, i64 lead) {
    must(capacity >= -kMostAmount && capacity <= kMostAmount && lead >= 0 && lead <= kMostAmount,
         "the capacity or the lead is out of range");
  }

  static nb::ndarray<nb::numpy, i32> rows_of(const std::vector<Times>& found) {
    std::vector<i32> result;
    for (const Times& times : found)
      result.insert(result.end(), {times.first, times.last, times.issued, times.out_needed});
    return owned(std::move(result), {found.size(), 4});
  }

  std::vector<Stay> stays_of(const Array<i32>& table) const {
    if (table.ndim() != 2 || table.shape(1) != 6) throw std::invalid_argument("stays must be [R, 6]");
    std::vector<Stay> stays;
    for (std::size_t row = 0; row < table.shape(0); ++row) {
      const i32* at = table.data() + row * 6;
      const bool inside = at[0] >= 0 && at[0] < t_.items() && at[1] >= 0 && at[2] < t_.steps() &&
                          at[1] <= at[2] && at[3] >= 0 && at[3] <= 2 && at[5] >= -1 && at[5] < t_.steps();
      if (!inside) throw std::invalid_argument("a stay lies outside the program");
      stays.push_back({at[0], at[1], at[2], static_cast<i8>(at[3]), at[4] != 0, at[5]});
    }
    return stays;
  }

  OffloadTables t_;
};

}  // namespace

void bind_offload(nb::module_& m) {
  nb::class_<PyOffload>(m, "OffloadTables")
      .def(nb::init<const nb::dict&>(), nb::arg("columns"))
      .def("repaired", &PyOffload::repaired, nb::arg("keep"), nb::arg("capacity"), nb::arg("extra"))
      .def("scheduled", &PyOffload::scheduled, nb::arg("stays"), nb::arg("capacity"), nb::arg("lead"),
           nb::arg("extra"))
      .def("scheduled_placed", &PyOffload::scheduled_placed, nb::arg("stays"), nb::arg("capacity"),
           nb::arg("lead"), nb::arg("scratch"), nb::arg("offset"));
}
