// What the native tests share: a check that counts, and a random generator that every platform
// agrees on.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "units.hpp"

namespace loadmaster {

inline int checks = 0;

#define CHECK(condition)                                                  \
  do {                                                                    \
    ++checks;                                                             \
    if (!(condition)) {                                                   \
      std::printf("%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
      std::exit(1);                                                       \
    }                                                                     \
  } while (false)

class Random {
 public:
  explicit Random(u64 seed) : engine_(seed) {}
  i64 below(i64 limit) { return static_cast<i64>(engine_() % static_cast<u64>(limit)); }
  bool chance(double p) { return static_cast<double>(engine_() >> 11) * 0x1p-53 < p; }
  template <class T>
  void shuffle(std::vector<T>& values) {
    for (i64 i = static_cast<i64>(values.size()) - 1; i > 0; --i) std::swap(values[i], values[below(i + 1)]);
  }

 private:
  std::mt19937_64 engine_;
};

}  // namespace loadmaster
