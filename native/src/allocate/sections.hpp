// The offset problem made ready for search: times become sections with a constant live set, bytes
// become the largest unit that loses nothing, and every conflict is one bit in a table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "buffers.hpp"

namespace loadmaster {

// Rows of bits, all of the same width.
class BitTable {
 public:
  BitTable() = default;
  BitTable(i32 rows, i32 width)
      : words_((width + 63) / 64), bits_(static_cast<size_t>(rows) * static_cast<size_t>(words_)) {}
  i32 words() const { return words_; }
  u64* row(i32 r) { return bits_.data() + static_cast<size_t>(r) * static_cast<size_t>(words_); }
  const u64* row(i32 r) const { return bits_.data() + static_cast<size_t>(r) * static_cast<size_t>(words_); }
  void set(i32 r, i32 bit) { row(r)[bit >> 6] |= u64{1} << (bit & 63); }
  bool get(i32 r, i32 bit) const { return row(r)[bit >> 6] >> (bit & 63) & 1; }

 private:
  i32 words_ = 0;
  std::vector<u64> bits_;
};

// A piece of a buffer: the bytes [low, high) it uses in one section.
struct Piece {
  i64 low, high;
};

// Two buffers that must not share a byte although no section holds both.
struct Link {
  i32 other;
  i32 from, to;  // no cut of time in [from, to) parts them while both wait for an offset
};

struct Sections {
  // Buffers of this problem are numbered by first section; `original` says which input each is.
  // Empty ones (size 0) are left out: they never conflict.
  std::vector<i32> original;
  std::vector<i64> size, alignment, pinned;  // in units; sizes rounded up; pinned -1 if free
  std::vector<i64> exact;                    // the size in bytes, before rounding
  std::vector<i32> first, last;              // sections [first, last)
  std::vector<i32> begin;                    // begin[s]: the first buffer that starts at s or later
  std::vector<i32> reach;                    // reach[s]: the first buffer that lives in s
  std::vector<i64> load;                     // units live in a section; INT64_MAX: above every capacity
  BitTable members;                          // section x buffer
  BitTable conflicts;                        // buffer x buffer
  std::vector<std::vector<Link>> links;      // empty, or one list per buffer
  std::vector<i64> distance;                 // empty, or (b, c): c above b starts this far above it
  std::vector<std::vector<Piece>> pieces;    // empty, or per buffer its sections' pieces
  std::vector<Gap> times;                    // per section its [from, to)
  i64 unit = 1;                              // bytes
  bool padded = false;                       // some size was rounded up to the unit
  bool holes = false;                        // some buffer is absent from a section within its life
  bool interlocking = false;   // some pair may fit into each other's hollows: order is no certificate
  bool contradictory = false;  // pins that break their alignment or overlap each other

  i32 count() const { return static_cast<i32>(size.size()); }
  i32 sections() const { return static_cast<i32>(load.size()); }
  bool present(i32 s, i32 b) const { return !holes || members.get(s, b); }  // s within b's life
  i64 bytes(i32 s, i32 b) const {                                           // units that b uses in s
    if (pieces.empty()) return present(s, b) ? size[b] : 0;
    return pieces[b][s - first[b]].high - pieces[b][s - first[b]].low;
  }
  // How far above `below` a conflicting buffer starts that lies above it.
  i64 gap(i32 below, i32 above) const {
    if (distance.empty()) return size[below];
    return distance[static_cast<size_t>(below) * static_cast<size_t>(count()) + static_cast<size_t>(above)];
  }
  // The highest offset in units at which b ends within `capacity` bytes; -1 if none.
  i64 latest(i32 b, i64 capacity) const;
  // Units in a capacity: a section filled to the roof cannot use more.
  i64 roof(i64 capacity) const { return capacity / unit + (capacity % unit != 0 && padded ? 1 : 0); }
};

// Offsets of `b` that its placed neighbour `c` at `offset` forbids: open intervals (from, to).
struct Forbidden {
  i64 from, to;
};
void forbidden(const Sections& sections, i32 b, i32 c, i64 offset, std::vector<Forbidden>& out);

Sections sectioned(const Buffers& buffers);

// The same for some of the buffers only (ascending indices).
Buffers subset(const Buffers& buffers, std::span<const i32> chosen);

// Groups of buffers that share no section and no link: each is a problem of its own.
std::vector<std::vector<i32>> components(const Buffers& buffers);

}  // namespace loadmaster
