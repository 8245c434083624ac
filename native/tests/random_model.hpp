// Random small models, for the native tests.
#pragma once

#include <numeric>

#include "model.hpp"
#include "testing.hpp"

namespace loadmaster {

struct Shape {
  i64 most_ops = 12, most_weights = 3;
  double density = 0.3;  // of reads
};

// A random chain-like program: op i writes tensor i and reads earlier ones, weights and an input.
inline Model random_model(Random& rng, int devices, bool idle, const Shape& shape = {}) {
  Model m;
  m.ops = static_cast<i32>(1 + rng.below(shape.most_ops));
  const i32 weights = static_cast<i32>(rng.below(shape.most_weights + 1));
  m.tensors = m.ops + weights + 1;
  m.access.rows.start.push_back(0);
  const auto access = [&](i32 tensor, bool write) {
    m.access.tensor.push_back(tensor);
    m.access.bytes.push_back(rng.below(200));
    m.access.write.push_back(write);
  };
  for (i32 op = 0; op < m.ops; ++op) {
    for (i32 t = 0; t < m.tensors; ++t)
      if ((t < op || t >= m.ops) && rng.chance(shape.density)) access(t, false);
    access(op, true);
    m.access.rows.start.push_back(static_cast<i64>(m.access.tensor.size()));
  }
  m.view.assign(m.ops, 0);
  m.view_root.assign(m.ops, -1);
  m.loop.assign(m.ops, -1);
  m.repeat.assign(m.ops, 1);
  m.group.assign(m.ops, -1);
  m.root.resize(m.tensors);
  std::iota(m.root.begin(), m.root.end(), 0);
  m.place = m.root;
  for (i32 op = 0; op < m.ops; ++op) m.other_bytes.push_back(rng.chance(0.2) ? rng.below(50) : 0);
  for (i32 t = 0; t < m.tensors; ++t) {
    const Role role = t < m.ops ? (rng.chance(0.2) ? Role::kOutput : Role::kActivation)
                                : (t == m.tensors - 1 ? Role::kInput : Role::kWeight);
    m.size.push_back(rng.chance(0.02) ? kForever / 64 : rng.below(200));
    m.role.push_back(static_cast<i8>(role));
    m.output.push_back(role == Role::kOutput);
    m.writer.push_back(t < m.ops ? t : -1);
  }
  m.place_size = m.size;
  m.tied.assign(m.tensors, 0);
  m.tensor_group.assign(m.tensors, -1);
  for (int d = 0; d < devices; ++d) {
    m.memories.push_back(
        {rng.below(400), 1 + rng.below(50), 1 + rng.below(50), rng.below(3), 1 + rng.below(16)});
    m.memories.push_back({1000, 1 + rng.below(10), 1 + rng.below(10), 0, 1});
    m.devices.push_back({{2 * d, 2 * d + 1}, rng.below(100)});
  }
  const i32 memories = m.memory_count();
  m.link_between.assign(memories * memories, -1);
  for (i32 a = 0; a < memories; ++a)
    for (i32 b = 0; b < memories; ++b) {
      if (a == b) continue;
      m.link_between[a * memories + b] = static_cast<i32>(m.links.size());
      m.links.push_back({a, b, 1 + rng.below(20), rng.below(5), {a, memories + b}});
    }
  m.engines = 2 * memories;
  m.parallel_ports = rng.chance(0.5);
  m.overlap = rng.chance(0.5) ? 50'000 : 0;
  m.idle_copies = idle;
  m.compute.resize(static_cast<std::size_t>(m.ops) * devices);
  for (i64& time : m.compute) time = rng.below(1'000'000);
  m.named.assign(m.compute.size(), 0);
  for (i8& named : m.named) named = rng.chance(0.1);
  m.prepare();
  return m;
}

}  // namespace loadmaster
