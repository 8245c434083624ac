// NumPy arrays in and out.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
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

// A vector that Python owns from now on.
inline Result owned(std::vector<i64>&& values, std::vector<std::size_t> shape) {
  auto kept = std::make_unique<std::vector<i64>>(std::move(values));
  i64* data = kept->data();
  nb::capsule owner(kept.get(), [](void* p) noexcept {
    std::unique_ptr<std::vector<i64>>(static_cast<std::vector<i64>*>(p));
  });
  kept.release();
  return Result(data, shape.size(), shape.data(), owner);
}

inline Result owned(std::vector<i64>&& values) {
  const std::size_t size = values.size();
  return owned(std::move(values), {size});
}

}  // namespace loadmaster
