// What Python hands over is checked here, once, before the core follows it: the core trusts its tables.
#pragma once

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <vector>

#include "units.hpp"

namespace loadmaster {

// The largest size, time or rate that a program or a machine can state.
inline constexpr i64 kMostAmount = i64{1} << 62;
// The largest offset: with a size behind it, it is still a number.
inline constexpr i64 kMostByte = (i64{1} << 61) - 1;

// The parts of the message are joined where it is needed alone: a million entries are checked one by one.
template <class... Parts>
void must(bool holds, const Parts&... what) {
  if (!holds) throw std::invalid_argument((std::string() + ... + what));
}

template <class T>
void has_length(const std::vector<T>& column, std::size_t count, const char* name) {
  must(column.size() == count, "column '", name, "' has another length");
}

// least <= every entry <= most
template <class T>
void within(const std::vector<T>& column, i64 least, i64 most, const char* name) {
  for (const T value : column) must(value >= least && value <= most, "column '", name, "' is out of range");
}

// A column of that length with entries in a range.
template <class T>
void column_within(const std::vector<T>& column, std::size_t count, i64 least, i64 most, const char* name) {
  has_length(column, count, name);
  within(column, least, most, name);
}

// Starts of rows: from 0, never falling, up to the number of entries.
inline void are_starts(const std::vector<i64>& start, std::size_t rows, std::size_t entries,
                       const char* name) {
  has_length(start, rows + 1, name);
  must(start.front() == 0 && start.back() == static_cast<i64>(entries) &&
           std::is_sorted(start.begin(), start.end()),
       "column '", name, "' does not cut rows");
}

// Keys order things: what is not a number has no place.
inline void are_keys(const double* keys, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) must(!std::isnan(keys[i]), "a key is not a number");
}

inline void must_be_finite(double value, const char* name) {
  must(std::isfinite(value), name, " must be finite");
}

}  // namespace loadmaster
