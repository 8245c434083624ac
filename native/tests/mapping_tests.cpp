// The Mapping problem's native part without Python, so that it runs under the sanitizers: the
// rectifier against a slow one that counts bytes op by op, times against the static path; and the
// decoder, whose maps must fit op by op, whatever the scores are.
#include <cmath>

#include "map_decoder.hpp"
#include "mapping.hpp"
#include "random_model.hpp"

using namespace loadmaster;

namespace {

// Three memories, of which the middle one has the last number.
Model three_memories(Random& rng) {
  Model m = random_model(rng, 1, false);
  m.memories.push_back(
      {rng.below(600), 1 + rng.below(30), 1 + rng.below(30), rng.below(3), 1 + rng.below(8)});
  m.devices[0].reach = {0, 2, 1};
  m.links.clear();
  m.link_between.assign(9, -1);
  m.prepare();
  return m;
}

// Each tensor that is no input goes to an entry; several may share one, and some have none.
MapEntries random_entries(const Model& m, Random& rng) {
  MapEntries e;
  e.entries = m.tensors;
  e.of_tensor.assign(m.tensors, -1);
  e.bytes.assign(m.tensors, 0);
  for (i32 t = 0; t < m.tensors; ++t)
    if (!m.input(t) && rng.chance(0.9)) e.of_tensor[t] = static_cast<i32>(rng.below(m.tensors));
  e.pieces.start.push_back(0);
  for (i32 entry = 0; entry < m.tensors; ++entry) {
    for (i32 t = 0; t < m.tensors; ++t) {
      if (e.of_tensor[t] != entry) continue;
      i32 last = m.persistent(t) || m.output[t] ? m.ops - 1 : t;
      for (i64 i = m.reader_rows.begin(t); i < m.reader_rows.end(t); ++i) last = std::max(last, m.reader[i]);
      e.first.push_back(m.persistent(t) ? 0 : t);
      e.last.push_back(last);
      e.always.push_back(m.persistent(t));
      for (const i32 memory : m.devices[0].reach)
        e.size.push_back(aligned(m.size[t], m.memories[memory].alignment));
      e.bytes[entry] = plus(e.bytes[entry], e.size.back());
    }
    e.pieces.start.push_back(static_cast<i64>(e.first.size()));
    if (e.pieces.end(entry) > e.pieces.begin(entry)) e.order.push_back(entry);
  }
  rng.shuffle(e.order);
  return e;
}

// Whether the pieces of some entries fit in a memory together, op by op.
bool fits(const Model& m, const MapEntries& e, const std::vector<i32>& held, std::size_t memory) {
  for (i32 op = 0; op < m.ops; ++op) {
    i64 bytes = 0;
    for (const i32 entry : held)
      for (i64 piece = e.pieces.begin(entry); piece < e.pieces.end(entry); ++piece)
        if (e.first[piece] <= op && op <= e.last[piece]) bytes = plus(bytes, e.size[piece * 3 + memory]);
    if (bytes > m.memories[m.devices[0].reach[memory]].capacity) return false;
  }
  return true;
}

// The definition, slowly: an entry that does not fit goes to the next slower memory.
i64 rectify_slowly(const Model& m, const MapEntries& e, const i8* map, std::vector<i8>& result) {
  std::vector<i32> held[3];
  i64 moved = 0;
  result.assign(e.entries, 2);
  for (const i32 entry : e.order) {
    std::size_t memory = map[entry];
    for (; memory < 2; ++memory) {
      held[memory].push_back(entry);
      if (fits(m, e, held[memory], memory)) break;
      held[memory].pop_back();
    }
    result[entry] = static_cast<i8>(memory);
    if (result[entry] != map[entry]) moved = plus(moved, e.bytes[entry]);
  }
  return moved;
}

void rectifier_and_times() {
  constexpr i64 kMaps = 70;
  i64 moves = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    Random rng(seed);
    const Model m = three_memories(rng);
    const MapEntries e = random_entries(m, rng);
    const StaticMap times(m);
    const Mapper mapper(m, times, e);
    std::vector<i8> maps(kMaps * e.entries), rectified(maps.size()), again(maps.size());
    for (i8& memory : maps) memory = static_cast<i8>(rng.below(3));
    std::vector<i64> total(kMaps), moved(kMaps), total4(kMaps), moved4(kMaps);
    mapper.evaluate(maps.data(), kMaps, total4.data(), moved4.data(), rectified.data(), 4);
    mapper.evaluate(maps.data(), kMaps, total.data(), moved.data(), rectified.data(), 1);
    CHECK(total == total4 && moved == moved4);

    std::vector<i8> slow, memory(kMaps * m.tensors, -1);
    for (i64 i = 0; i < kMaps; ++i) {
      const i8* const result = rectified.data() + i * e.entries;
      CHECK(rectify_slowly(m, e, maps.data() + i * e.entries, slow) == moved[i]);
      CHECK(std::equal(slow.begin(), slow.end(), result));
      moves += moved[i] > 0;
      for (i32 t = 0; t < m.tensors; ++t)
        if (e.of_tensor[t] >= 0)
          memory[i * m.tensors + t] = static_cast<i8>(m.devices[0].reach[result[e.of_tensor[t]]]);
    }
    std::vector<i64> expected(kMaps), peak(kMaps * 3);
    times.evaluate(memory.data(), kMaps, expected.data(), peak.data(), 1);
    CHECK(total == expected);

    mapper.evaluate(rectified.data(), kMaps, total4.data(), moved4.data(), again.data(), 2);
    CHECK(again == rectified && total4 == total);
    CHECK(std::all_of(moved4.begin(), moved4.end(), [](i64 bytes) { return bytes == 0; }));
  }
  CHECK(moves > 1'000);  // otherwise nothing was tested
}

// The pieces of the entries of a model, with costs drawn at random.
DecoderTables random_tables(const Model& m, const MapEntries& e, Random& rng) {
  DecoderTables t;
  t.ops = m.ops;
  t.parallel = rng.chance(0.3);
  for (const i32 memory : m.devices[0].reach) t.capacity.push_back(m.memories[memory].capacity);
  t.accesses.start.push_back(0);
  for (i32 op = 0; op < m.ops; ++op) {
    t.compute.push_back(rng.below(100));
    t.launch.push_back(rng.below(5));
    t.repeat.push_back(1 + rng.below(3));
    t.fixed.push_back(rng.below(50));
    t.overlap.push_back(rng.chance(0.5) ? 0 : rng.below(1'000'000));
    for (i32 entry = 0; entry < e.entries; ++entry) {
      if (!rng.chance(0.2)) continue;
      t.access_entry.push_back(entry);
      i64 cost = rng.below(20);
      for (int memory = 0; memory < 3; ++memory) t.access_cost.push_back(cost += rng.below(60));
    }
    t.accesses.start.push_back(static_cast<i64>(t.access_entry.size()));
  }
  t.pinned.assign(e.entries, -1);
  t.pieces = e.pieces;
  t.first = e.first;
  t.last = e.last;
  t.always = e.always;
  t.size = e.size;
  return t;
}

void decoded_maps_fit() {
  constexpr i64 kMaps = 24;
  i64 faster = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    Random rng(seed);
    const Model m = three_memories(rng);
    const MapEntries e = random_entries(m, rng);
    const MapDecoder decoder(random_tables(m, e, rng));
    std::vector<double> scores(kMaps * e.entries * 2), linear(kMaps);
    for (double& score : scores)
      score = rng.chance(0.05) ? -HUGE_VAL : static_cast<double>(rng.below(4000) - 2000) / 300;
    for (double& share : linear) share = rng.chance(0.5) ? 0 : static_cast<double>(rng.below(1001)) / 1000;
    for (const bool nominal : {false, true}) {
      std::vector<i8> maps(kMaps * e.entries), again(maps.size());
      decoder.decode(scores.data(), linear.data(), kMaps, nominal, maps.data(), 1);
      decoder.decode(scores.data(), linear.data(), kMaps, nominal, again.data(), 3);
      CHECK(maps == again);
      for (i64 i = 0; i < kMaps; ++i)
        for (i8 memory = 0; memory < 2; ++memory) {
          std::vector<i32> held;
          for (i32 entry = 0; entry < e.entries; ++entry)
            if (maps[i * e.entries + entry] == memory) held.push_back(entry);
          faster += static_cast<i64>(held.size());
          CHECK(fits(m, e, held, static_cast<std::size_t>(memory)));
        }
    }
  }
  CHECK(faster > 10'000);  // otherwise nothing was tested
}

}  // namespace

int main() {
  rectifier_and_times();
  decoded_maps_fit();
  std::printf("%d passed, 0 failed\n", checks);
  return 0;
}
