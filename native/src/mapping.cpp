#include "mapping.hpp"

#include <algorithm>

#include "parallel.hpp"

namespace loadmaster {

Mapper::Mapper(const Model& model, const StaticMap& times, MapEntries entries)
    : model_(model), times_(times), entries_(std::move(entries)) {}

Mapper::Work::Work(const Model& model, std::size_t memories)
    : times(model), base(memories), peak(memories), alive(memories * model.ops) {}

void Mapper::evaluate(const i8* maps, i64 count, i64* total, i64* moved, i8* rectified, int threads) const {
  const std::vector<i32>& reach = model_.devices[0].reach;
  const i8 home = static_cast<i8>(model_.devices[0].home());
  in_blocks(count, 16, threads, [&] {
    return [&, work = Work(model_, reach.size())](i64 begin, i64 end) mutable {
      for (i64 i = begin; i < end; ++i) {
        i8* const result = rectified + i * entries_.entries;
        moved[i] = rectify(maps + i * entries_.entries, result, work);
        for (i32 t = 0; t < model_.tensors; ++t) {
          const i32 entry = entries_.of_tensor[t];
          work.times.at[t] = entry < 0 ? home : static_cast<i8>(reach[result[entry]]);
        }
        total[i] = times_.time(work.times);
      }
    };
  });
}

i64 Mapper::rectify(const i8* map, i8* rectified, Work& work) const {
  const std::size_t slowest = model_.devices[0].reach.size() - 1;
  std::fill(work.base.begin(), work.base.end(), 0);
  std::fill(work.peak.begin(), work.peak.end(), 0);
  std::fill(work.alive.begin(), work.alive.end(), 0);
  std::fill(rectified, rectified + entries_.entries, static_cast<i8>(slowest));  // dead entries
  i64 moved = 0;
  for (const i32 entry : entries_.order) {
    std::size_t memory = static_cast<std::size_t>(map[entry]);
    while (memory < slowest && !place(entry, memory, work)) ++memory;
    rectified[entry] = static_cast<i8>(memory);
    if (memory != static_cast<std::size_t>(map[entry])) moved = plus(moved, entries_.bytes[entry]);
  }
  return moved;
}

bool Mapper::place(i32 entry, std::size_t memory, Work& work) const {
  const i64 begin = entries_.pieces.begin(entry), end = entries_.pieces.end(entry);
  for (i64 piece = begin; piece < end; ++piece) {
    if (place_piece(piece, memory, work)) continue;
    while (--piece >= begin) remove_piece(piece, memory, work);
    return false;
  }
  return true;
}

bool Mapper::place_piece(i64 piece, std::size_t memory, Work& work) const {
  const std::vector<i32>& reach = model_.devices[0].reach;
  const i64 size = entries_.size[piece * reach.size() + memory];
  const i64 free = model_.memories[reach[memory]].capacity - work.base[memory];
  if (size > free) return false;
  if (entries_.always[piece]) {
    if (work.peak[memory] > free - size) return false;
    work.base[memory] += size;
    return true;
  }
  i64* const alive = work.alive.data() + memory * model_.ops;
  i64 most = 0;
  for (i32 op = entries_.first[piece]; op <= entries_.last[piece]; ++op) most = std::max(most, alive[op]);
  if (most > free - size) return false;
  for (i32 op = entries_.first[piece]; op <= entries_.last[piece]; ++op) alive[op] += size;
  work.peak[memory] = std::max(work.peak[memory], most + size);
  return true;
}

// Only for entries of several pieces of which a later one does not fit.
void Mapper::remove_piece(i64 piece, std::size_t memory, Work& work) const {
  const i64 size = entries_.size[piece * model_.devices[0].reach.size() + memory];
  if (entries_.always[piece]) {
    work.base[memory] -= size;
    return;
  }
  i64* const alive = work.alive.data() + memory * model_.ops;
  for (i32 op = entries_.first[piece]; op <= entries_.last[piece]; ++op) alive[op] -= size;
  work.peak[memory] = *std::max_element(alive, alive + model_.ops);
}

}  // namespace loadmaster
