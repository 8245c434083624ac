// Scores into legal maps: the decoder of the Mapping problem. Whatever the scores are, the map fits.
#pragma once

#include <vector>

#include "model.hpp"

namespace loadmaster {

// N nodes, E entries, M memories, A accesses, P pieces: `MappingModel` in Python, entry by entry.
struct DecoderTables {
  std::vector<i64> compute, launch, repeat, fixed, overlap;  // [N]
  bool parallel = false;                                     // memories serve a node side by side
  Rows accesses;                                             // of each node
  std::vector<i32> access_entry;                             // [A]
  std::vector<i64> access_cost;                              // [A * M]
  std::vector<i64> capacity;                                 // [M]
  std::vector<i32> pinned;                                   // [E] memory, or -1
  Rows pieces;                                               // of each entry
  std::vector<i32> first, last;                              // [P] ops over which a piece is alive
  std::vector<i8> always;                                    // [P]
  std::vector<i64> size;                                     // [P * M]
  i32 ops = 0;

  i64 nodes() const { return static_cast<i64>(compute.size()); }
  i64 entries() const { return static_cast<i64>(pinned.size()); }
  i64 memories() const { return static_cast<i64>(capacity.size()); }
};

// All entries begin in the slowest memory. Again and again the move (entry, faster memory) with the
// largest key is made if it fits over the entry's whole life; one that does not fit waits until
// something leaves that memory. Keys:
//   strict   the score itself; -infinity: never
//   nominal  exp(score) * time saved / (bytes * ops of life), priced again whenever a neighbour moves;
//            with scores of 0 that is greedy by density. `linear` mixes in the memory time that a move
//            takes off, whether it shows at once or only when others follow.
class MapDecoder {
 public:
  explicit MapDecoder(DecoderTables tables);

  // scores[count][E][M - 1], linear[count] -> maps[count][E]
  void decode(const double* scores, const double* linear, i64 count, bool nominal, i8* maps,
              int threads) const;

  i64 entries() const { return tables_.entries(); }
  i64 memories() const { return tables_.memories(); }

 private:
  struct Move {
    double key;
    i64 saved;  // with the entry's volume the exact key, where scores are equal
    i32 entry;
    i32 version;
    i8 memory;
  };
  struct Use {
    i32 node;
    i64 access;
  };
  struct Work;

  void decode_one(const double* scores, bool nominal, double linear, Work& work) const;
  void price(i32 entry, Work& work) const;
  void move(i32 entry, i8 memory, Work& work) const;
  bool fits(i32 entry, i64 memory, Work& work) const;
  void put(i32 entry, i64 memory, i64 sign, Work& work) const;
  i64 node_time(i32 node, i64 memory) const;
  // Time that moving an entry saves, and memory time that it takes off; both may be negative.
  i64 saving(const Work& work, i32 entry, i64 from, i64 to, double* traffic) const;

  DecoderTables tables_;
  std::vector<i64> volume_;  // [E * M] bytes times ops of life, at least 1
  Rows uses_;                // of each entry
  std::vector<Use> use_;
};

}  // namespace loadmaster
