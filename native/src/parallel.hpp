// Independent pieces of work on several threads. Each piece writes only its own results, so the
// number of threads never changes them.
#pragma once

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "units.hpp"

namespace loadmaster {

// More would not be faster anywhere; a typing error must not start a million.
inline constexpr i64 kMostThreads = 1024;

// Calls make() once per thread for a worker, then worker(begin, end) for blocks of [0, count).
template <class Make>
void in_blocks(i64 count, i64 block, int threads, Make&& make) {
  std::atomic<i64> next{0};
  const auto run = [&] {
    auto worker = make();
    for (;;) {
      const i64 begin = next.fetch_add(block);
      if (begin >= count) return;
      worker(begin, std::min(count, begin + block));
    }
  };
  const i64 blocks = (count + block - 1) / block;
  const i64 extra = std::min({static_cast<i64>(threads), blocks, kMostThreads}) - 1;
  std::vector<std::jthread> others;
  for (i64 i = 0; i < extra; ++i) others.emplace_back(run);
  run();
}

}  // namespace loadmaster
