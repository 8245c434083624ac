// NumPy arrays in and out.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "units.hpp"

namespace loadmaster {

namespace nb = nanobind;

template <class T>
using Array = nb::ndarray<const T, nb::c_contig, nb::device::cpu>;
using Result = nb::ndarray<nb::numpy, i64>;

template <class T>
std::vector<T> copied(const Array<T>& array) {
  return {array.data(), array.data() + array.size()};
}

// What a dictionary has under a name.
inline nb::object item(const nb::dict& values, const char* name) {
  if (!values.contains(name)) throw std::invalid_argument(std::string("there is no '") + name + "'");
  return nb::borrow(values[name]);
}

// A column of a table that Python hands over as arrays by name.
template <class T>
std::vector<T> column(const nb::dict& columns, const char* name) {
  Array<T> array;
  if (!nb::try_cast(item(columns, name), array))
    throw nb::type_error((std::string("column '") + name + "' has another type").c_str());
  return copied(array);
}

// A vector that Python owns from now on.
template <class T>
nb::ndarray<nb::numpy, T> owned(std::vector<T>&& values, std::vector<std::size_t> shape) {
  auto kept = std::make_unique<std::vector<T>>(std::move(values));
  T* data = kept->data();
  nb::capsule owner(
      kept.get(), [](void* p) noexcept { std::unique_ptr<std::vector<T>>(static_cast<std::vector<T>*>(p)); });
  kept.release();
  return nb::ndarray<nb::numpy, T>(data, shape.size(), shape.data(), owner);
}

template <class T>
nb::ndarray<nb::numpy, T> owned(std::vector<T>&& values) {
  const std::size_t size = values.size();
  return owned(std::move(values), {size});
}
inline Result owned(std::vector<i64>&& values) { return owned<i64>(std::move(values)); }

}  // namespace loadmaster
