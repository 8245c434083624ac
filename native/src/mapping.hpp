// The Mapping problem's inner loop: many maps, each rectified and timed.
#pragma once

#include "static_map.hpp"

namespace loadmaster {

// What is decided. An entry is a set of tensors that share one memory for their whole lives; its
// pieces are the places those tensors occupy.
struct MapEntries {
  i64 entries = 0;
  std::vector<i32> order;        // live entries, in the order in which they are fitted
  std::vector<i32> of_tensor;    // [tensors] entry, or -1: not decided, at home
  std::vector<i64> bytes;        // [entries] what moving it counts
  Rows pieces;                   // of each entry
  std::vector<i32> first, last;  // [pieces] ops over which it is alive
  std::vector<i8> always;        // [pieces] alive from before the program to its end
  std::vector<i64> size;         // [pieces * reach] aligned, by position in the device's reach
};

// Maps are int8[entries]: a position in the reach of the one device, 0 the fastest. A map that
// does not fit is rectified: in order, an entry that does not fit over its whole life, given what
// was placed before it, goes to the next slower memory; the slowest takes everything.
class Mapper {
 public:
  Mapper(const Model& model, const StaticMap& times, MapEntries entries);

  // maps[count][entries] -> total[count] of the rectified map, moved[count] bytes,
  // rectified[count][entries].
  void evaluate(const i8* maps, i64 count, i64* total, i64* moved, i8* rectified, int threads) const;

 private:
  struct Work {
    Work(const Model& model, std::size_t memories);
    StaticMap::Work times;
    std::vector<i64> base, peak;  // [memories] bytes always alive; most bytes of the others at one op
    std::vector<i64> alive;       // [memories * ops]
  };
  bool place(i32 entry, std::size_t memory, Work& work) const;
  bool place_piece(i64 piece, std::size_t memory, Work& work) const;
  void remove_piece(i64 piece, std::size_t memory, Work& work) const;
  i64 rectify(const i8* map, i8* rectified, Work& work) const;

  const Model& model_;
  const StaticMap& times_;
  const MapEntries entries_;
};

}  // namespace loadmaster
