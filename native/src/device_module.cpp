// Bindings of the allocator, and the two functions by which PyTorch calls it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <limits>
#include <memory>
#include <optional>
#include <stdexcept>

#include "arrays.hpp"
#include "checked.hpp"
#include "device/own_allocator.hpp"

namespace nb = nanobind;
using namespace loadmaster;

namespace {

// Never destroyed: PyTorch may free its last tensors after this module's own end.
OwnAllocator& on_device() {
  static auto* const allocator = std::make_unique<OwnAllocator>(device_memory()).release();
  return *allocator;
}

std::shared_ptr<Rooms> rooms_of(i64 base, const nb::dict& c) {
  auto rooms = std::make_shared<Rooms>();
  rooms->base = base;
  rooms->result_start = column<i64>(c, "result_start");
  rooms->result_bytes = column<i64>(c, "result_bytes");
  rooms->result_room = column<i64>(c, "result_room");
  rooms->result_offset = column<i64>(c, "result_offset");
  rooms->free_start = column<i64>(c, "free_start");
  rooms->free_low = column<i64>(c, "free_low");
  rooms->free_high = column<i64>(c, "free_high");
  const auto starts = [](const std::vector<i64>& start, const std::vector<i64>& a,
                         const std::vector<i64>& b) {
    return !start.empty() && start.back() == static_cast<i64>(a.size()) && a.size() == b.size();
  };
  if (rooms->result_start.size() != rooms->free_start.size() ||
      !starts(rooms->result_start, rooms->result_bytes, rooms->result_offset) ||
      rooms->result_room.size() != rooms->result_bytes.size() ||
      !starts(rooms->free_start, rooms->free_low, rooms->free_high))
    throw std::invalid_argument("columns of rooms have different lengths");
  for (const auto& [start, entries] : {std::pair{&rooms->result_start, rooms->result_bytes.size()},
                                       std::pair{&rooms->free_start, rooms->free_low.size()}})
    are_starts(*start, start->size() - 1, entries, "start");
  must(base >= 0 && base <= kMostByte, "the base is out of range");
  for (const auto* column : {&rooms->result_bytes, &rooms->result_room, &rooms->result_offset,
                             &rooms->free_low, &rooms->free_high})
    within(*column, 0, kMostByte, "rooms");
  rooms->number.assign(rooms->result_bytes.size(), -1);
  rooms->most.assign(rooms->result_start.size() - 1, 0);
  return rooms;
}

}  // namespace

#ifdef _WIN32
#define LOADMASTER_VISIBLE __declspec(dllexport)
#else
#define LOADMASTER_VISIBLE [[gnu::visibility("default")]]
#endif

extern "C" {
// PyTorch knows them by name. An exception reaches the caller of the op as a RuntimeError.
LOADMASTER_VISIBLE void* loadmaster_alloc(std::ptrdiff_t bytes, int, void*) {
  return on_device().alloc(static_cast<i64>(bytes));
}
LOADMASTER_VISIBLE void loadmaster_free(void* block, std::ptrdiff_t, int, void*) { on_device().free(block); }
}

void bind_device(nb::module_& m) {
  nb::class_<Rooms>(m, "Rooms")
      .def_prop_ro(
          "most", [](const Rooms& rooms) { return owned(std::vector<i64>(rooms.most)); }, nb::rv_policy::move)
      .def(
          "learn",
          [](Rooms& rooms, i64 result, i32 number) {
            rooms.number.at(static_cast<std::size_t>(result)) = number;
          },
          nb::arg("result"), nb::arg("number"));
  m.def("rooms", &rooms_of, nb::arg("base"), nb::arg("columns"));
  nb::class_<OwnAllocator>(m, "OwnAllocator")
      .def(
          "__init__", [](OwnAllocator* self, i64 limit) { new (self) OwnAllocator(host_memory(limit)); },
          nb::arg("limit"))
      .def(
          "alloc",
          [](OwnAllocator& self, i64 bytes) {
            must(bytes <= kMostByte, "nothing has so many bytes");
            return reinterpret_cast<i64>(self.alloc(bytes));
          },
          nb::arg("bytes"))
      .def(
          "free", [](OwnAllocator& self, i64 address) { self.free(reinterpret_cast<void*>(address)); },
          nb::arg("address"))
      .def(
          "lend",
          [](OwnAllocator& self, i64 address, i64 bytes) {
            must(address > 0 && bytes > 0 && bytes <= kMostByte, "nothing can be lent there");
            self.lend(reinterpret_cast<void*>(address), bytes);
          },
          nb::arg("address"), nb::arg("bytes"))
      .def(
          "at",
          [](OwnAllocator& self, const std::shared_ptr<Rooms>& rooms, i32 step) {
            must(rooms != nullptr && step >= -1 && step < rooms->steps(), "there is no such step");
            return self.at(rooms, step);
          },
          nb::arg("rooms"), nb::arg("step"))
      .def("number_of", &OwnAllocator::number_of, nb::arg("address"))
      .def(
          "within",
          [](OwnAllocator& self, i64 offset, i64 bytes) {
            must(offset >= 0 && offset <= kMostByte && bytes >= 0 && bytes <= kMostByte,
                 "there is no such place");
            return self.within(offset, bytes);
          },
          nb::arg("offset"), nb::arg("bytes"))
      .def("release", &OwnAllocator::release)
      .def(
          "hold_to",
          [](OwnAllocator& self, std::optional<i64> bytes) {
            must(!bytes || *bytes >= 0, "a limit can't be negative");
            self.hold_to(bytes.value_or(std::numeric_limits<i64>::max()));
          },
          nb::arg("bytes").none())
      .def("reset_most", &OwnAllocator::reset_most)
      .def_prop_ro("held", &OwnAllocator::held)
      .def_prop_ro("most", &OwnAllocator::most)
      .def_prop_ro("cached", &OwnAllocator::cached);
  m.def("device_allocator", &on_device, nb::rv_policy::reference);
}
