// Native tests without Python, so that they run under the sanitizers: exact arithmetic, the static
// path against the engine, and random plans of every kind (no crash, no overflow, sane results).
// What the numbers must be is tested from Python against the slow reference.
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <random>

#include "model.hpp"
#include "parallel.hpp"
#include "random_model.hpp"
#include "static_map.hpp"
#include "testing.hpp"

using namespace loadmaster;

namespace {

void exact_arithmetic() {
  CHECK(ceil_time(0, 7) == 0);
  CHECK(ceil_time(1, 3) == 333'333'333'334);
  CHECK(ceil_time(kForever, 1) == kForever);
  CHECK(scaled(kForever, kForever, kForever) == kForever);
  CHECK(plus(kForever, kForever) == kForever);
  CHECK(aligned(65, 64) == 128 && aligned(0, 64) == 0);
}

// The division for systems that have none of 128 bits, against the one that is built in.
void division_by_bits() {
  Random rng(7);
  for (int i = 0; i < 200'000; ++i) {
    const auto number = [&] { return rng.below(i64{1} << (1 + rng.below(61))); };
    const i64 a = number(), b = number(), c = 1 + number();
    CHECK(scaled_by_bits(a, b, c) == scaled(a, b, c));
  }
  for (const i64 c : {i64{1}, i64{2}, kForever - 1, kForever})
    for (const i64 a : {i64{0}, i64{1}, kForever - 1, kForever})
      CHECK(scaled_by_bits(a, kForever, c) == scaled(a, kForever, c));
}

// A whole-life mapping gives the same time and peaks in the static path and in the engine, and the
// number of threads changes nothing.
void static_equals_engine() {
  for (unsigned seed = 0; seed < 300; ++seed) {
    Random rng(seed);
    const Model m = random_model(rng, 1, false);
    const StaticMap map(m);
    constexpr i64 kMaps = 70;
    std::vector<i8> memory(kMaps * m.tensors);
    for (i8& where : memory) where = static_cast<i8>(rng.below(3) - 1);
    std::vector<i64> total(kMaps), peak(kMaps * 2), total4(kMaps), peak4(kMaps * 2);
    map.evaluate(memory.data(), kMaps, total.data(), peak.data(), 1);
    map.evaluate(memory.data(), kMaps, total4.data(), peak4.data(), 4);
    CHECK(total == total4 && peak == peak4);
    std::vector<i64> residencies;
    for (i32 t = 0; t < m.tensors; ++t) {
      if (memory[t] < 0 || m.input(t)) continue;
      i64 last = m.persistent(t) || m.output[t] ? m.ops - 1 : t;
      for (i64 i = m.reader_rows.begin(t); i < m.reader_rows.end(t); ++i)
        last = std::max<i64>(last, m.reader[i]);
      residencies.insert(residencies.end(), {t, memory[t], -1, m.persistent(t) ? -1 : t, last});
    }
    PlanView plan;
    plan.residencies = residencies.data();
    plan.residency_count = static_cast<i64>(residencies.size() / 5);
    const Outcome outcome = simulate(m, plan);
    CHECK(outcome.fault == Fault::kNone);
    CHECK(outcome.total == total[0]);
    CHECK(outcome.peak[0] == peak[0] && outcome.peak[1] == peak[1]);
  }
}

// Random plans of every kind run to an end or to a fault, and what they report hangs together.
void random_plans() {
  for (unsigned seed = 0; seed < 2'000; ++seed) {
    Random rng(10'000 + seed);
    const int devices = static_cast<int>(1 + rng.below(3));
    const bool idle = devices == 1 && rng.chance(0.4);
    const Model m = random_model(rng, devices, idle);
    std::vector<i32> device(m.ops), fusion(m.ops), order(m.ops);
    std::vector<double> priority(m.ops);
    std::vector<i64> residencies, copies;
    std::iota(order.begin(), order.end(), 0);
    if (rng.chance(0.1)) rng.shuffle(order);
    for (i32 op = 0; op < m.ops; ++op) {
      device[op] = static_cast<i32>(rng.below(devices));
      fusion[op] = rng.chance(0.4) ? static_cast<i32>(rng.below(m.ops)) : -1;
      priority[op] = static_cast<double>(rng.below(3));
    }
    PlanView plan;
    if (rng.chance(0.8)) plan.device = device.data();
    if (rng.chance(0.5)) plan.fusion = fusion.data();
    plan.order = order.data();
    plan.priority = priority.data();
    plan.queue = idle ? 0 : static_cast<i32>(rng.below(4));
    plan.critical_path = rng.chance(0.5);
    if (plan.queue == 0) {
      for (i64 i = rng.below(6); i > 0; --i)
        residencies.insert(residencies.end(),
                           {rng.below(m.tensors), rng.below(m.memory_count()), rng.below(300) - 1,
                            rng.below(m.ops + 1) - 1, rng.below(m.ops)});
      for (i64 i = rng.below(5); i > 0; --i) {
        const i64 source = rng.below(m.memory_count()), issued = rng.below(m.ops + 1) - 1;
        const i64 target = (source + 1 + rng.below(m.memory_count() - 1)) % m.memory_count();
        copies.insert(copies.end(), {rng.below(m.tensors), source, target, issued,
                                     issued + 1 + rng.below(m.ops - issued), -1, -1});
      }
      plan.residencies = residencies.data();
      plan.residency_count = static_cast<i64>(residencies.size() / 5);
      plan.copies = copies.data();
      plan.copy_count = static_cast<i64>(copies.size() / 7);
    }
    const Outcome first = simulate(m, plan), again = simulate(m, plan);
    CHECK(first.fault == again.fault && first.total == again.total && first.op_start == again.op_start);
    if (first.fault != Fault::kNone || first.total == kForever) continue;  // hostile sizes stick there
    for (i32 op = 0; op < m.ops; ++op) {
      CHECK(first.op_start[op] >= 0 && first.op_end[op] > first.op_start[op]);
      CHECK(first.op_end[op] <= first.total);
    }
    for (std::size_t i = 0; i < first.copy_end.size(); ++i) CHECK(first.copy_end[i] >= first.copy_start[i]);
    for (i32 memory = 0; memory < m.memory_count(); ++memory)
      CHECK((first.first_over[memory] >= 0) == (first.peak[memory] > m.memories[memory].capacity));
    // The order in which things started is a plan of its own that gives the same times.
    if (plan.queue == 0 || idle) continue;
    std::vector<i32> replay(m.ops);
    std::iota(replay.begin(), replay.end(), 0);
    std::stable_sort(replay.begin(), replay.end(),
                     [&](i32 a, i32 b) { return first.op_start[a] < first.op_start[b]; });
    PlanView fixed = plan;
    fixed.order = replay.data();
    fixed.queue = 0;
    const Outcome replayed = simulate(m, fixed);
    CHECK(replayed.fault == Fault::kNone && replayed.total == first.total &&
          replayed.op_start == first.op_start);
    CHECK(replayed.peak == first.peak);
  }
}

}  // namespace

int main() {
  exact_arithmetic();
  division_by_bits();
  static_equals_engine();
  random_plans();
  std::printf("%d passed, 0 failed\n", checks);
  return 0;
}
