// One greedy placement for one order of the buffers, without a conflict graph.
//
// Time is cut into sections, and a segment tree over the sections keeps for every node which byte
// ranges are taken there. A buffer asks the few dozen nodes that make up its lifetime for the lowest
// (or the tightest) free offset. Byte ranges that touch, and holes too small for anything that is
// still to come, melt together, so that the lists stay short: time is near-linear in the number of
// buffers and memory in proportion to it.
//
// Far down in the tree what lies across a node is kept in that node alone. Two such lists may mesh like
// the teeth of two combs, none of them full and together without a hole, and a buffer that asks both goes
// up from tooth to tooth. So from the root down to the frames, the nodes of one level, a list tells all
// that is taken at some time in the node, by whatever life: a long life finds the holes of its widest
// nodes there, which are few, and asks the others about these alone. Where that does not help either, a
// pass has patience for some thousands of holes per buffer that are of no use, after which one looks
// upwards in steps that grow.
#pragma once

#include <vector>

#include "buffers.hpp"
#include "spans.hpp"

namespace loadmaster {

// Bytes [low, high) of a buffer are in use during the sections first..last.
struct Block {
  i32 first, last;
  i64 low, high;
};

// A buffer's life on the axis of sections. Two blocks are alive together if and only if they share a
// section; a section is a largest set of blocks alive together, so the peak is at one of them.
struct LifeAxis {
  i32 sections = 0;
  std::vector<i64> block_start;  // of buffer b: blocks [block_start[b], block_start[b + 1])
  std::vector<Block> blocks;
  std::vector<i64> live;         // bytes in use per section, at most kForever
  std::vector<i64> apart_start;  // of buffer b: apart[apart_start[b]..), empty if there are no pairs
  std::vector<i32> apart;
  i64 bound = 0;  // no placement is lower

  explicit LifeAxis(const Buffers& buffers);

  // The whole life of a buffer, holes included; first > last: it never lives.
  i32 first(i32 b) const { return blocks_of(b) ? blocks[block_start[b]].first : 0; }
  i32 last(i32 b) const { return blocks_of(b) ? blocks[block_start[b + 1] - 1].last : -1; }
  i64 blocks_of(i32 b) const { return block_start[b + 1] - block_start[b]; }
};

enum class Fit : i32 {
  kFirst = 0,  // the lowest free offset
  kBest = 1,   // the free range that leaves least over; of equal ones the lowest
  kOnTop = 2,  // above all that is in the way; holes stay
};

// Is the work to end, by request or by the clock?
bool halted(const Stop& stop);

class Packer {
 public:
  // Keeps references to both.
  Packer(const Buffers& buffers, const LifeAxis& axis);

  struct Rules {
    Fit fit = Fit::kFirst;
    i64 limit = kForever;              // a buffer that would end above has no place
    i64 patience = 300'000'000;        // useless holes to look at in all (a second), before steps grow,
    i64 patience_per_buffer = 20'000;  // and for each buffer beside
    i64 most_steps = -1;               // give up after this much work; -1: never
    bool hints = false;                // a free hint within the limit goes before the fit
    bool deadline = true;              // false: only a request stops it, not the clock
    const std::atomic<bool>* cancelled = nullptr;  // looked at like Stop
    bool keep_going = false;  // on a buffer without a place: leave it out (offset -1) and go on
  };
  enum class Result { kPlaced, kNoRoom, kPinsClash, kGaveUp, kStopped };

  // Places the pinned buffers and then the others of `order` (pinned ones in it are skipped; all
  // others must be in it once) and fills `offset`. Without a place for some buffer: kNoRoom.
  Result place(const std::vector<i32>& order, const Rules& rules, const Stop& stop, std::vector<i64>& offset);

  i64 placed() const { return placed_; }  // buffers placed so far in the life of this object
  i64 steps() const { return steps_; }    // a measure of the work done, the same on every machine

 private:
  // What is known of a buffer, in one place: in an order by size they are anywhere.
  struct Row {
    Block block;  // its first
    i64 size, alignment, pinned;
    i64 begin, end;  // of its blocks
  };

  template <class Part, class Above>
  void walk(const Block& block, Part&& part, Above&& above) const;
  void choose_frames();
  void clear();
  void sort_rows(const std::vector<i32>& order);
  void fetch_nodes(const Block& block) const;
  template <class Each>
  void each_block(const Row& row, Each&& each) const;
  void gather(i32 b, const Row& row, const std::vector<i64>& offset);
  bool free_at(i64 x);
  i64 choose(Fit fit, i64 alignment, i64 highest);
  bool rise(i64& x, i64 alignment, i64 highest);
  i64 on_top(i64 alignment) const;
  i64 tightest(i64 alignment, i64 highest);
  void insert(const Row& row, i64 x, i64 hole);

  const Buffers& buffers_;
  const LifeAxis& axis_;
  std::vector<Row> rows_;    // per buffer
  std::vector<Row> sorted_;  // in the order of a pass
  i32 leaves_ = 1;           // a power of two, like the next
  i32 frames_ = 1;           // nodes [frames_, 2 * frames_) are the frames
  i32 width_ = 1;            // sections of a frame
  // Per node: taken at some time in its range, from the root down to the frames by whatever lives then,
  // further down by what is kept in or below it.
  std::vector<SpanList> some_;
  std::vector<SpanList> full_;  // per inner node: taken all the time, by what is kept in it
  // Per frame: taken by what lies across it and ends with it, or starts with it.
  std::vector<SpanList> ending_, starting_;
  std::vector<i32> touched_, touched_frames_;
  std::vector<SpanCursor> views_;
  SpanList partners_;
  std::vector<i64> smallest_;
  i64 patience_ = 0;  // holes that may still prove useless in this pass before steps grow
  i64 placed_ = 0;
  i64 steps_ = 0;
};

// Largest offset + size, at most kForever; every buffer must have an offset.
i64 height_of(const Buffers& buffers, const std::vector<i64>& offset);

}  // namespace loadmaster
