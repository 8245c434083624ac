// Strips of fast memory that groups of tensors hold over intervals of steps.
#pragma once

#include <vector>

#include "game/heap.hpp"

namespace loadmaster::game {

class Strips {
 public:
  Strips(i32 steps, i64 capacity);
  void clear();

  // Where `size` bytes are free over [first, last], if possible over a longer time: `horizon` has
  // ends in ascending order, of which the last one that leaves a gap decides. -1: nowhere.
  i64 find(i32 first, i32 last, i64 size, const std::vector<i32>& horizon) const;
  bool is_free(i32 first, i32 last, i64 size, i64 offset) const {
    return offset + size <= capacity_ && heap_.is_free(first, last, offset, offset + size);
  }
  i32 open(i32 first, i32 last, i64 size, i64 offset);  // its number
  bool extend(i32 strip, i32 last);                     // false: something is in the way
  bool can_extend(i32 strip, i32 last) const;
  // Hold it over these steps as well, there or elsewhere; false, and nothing moves: there is no room.
  bool stretch(i32 strip, i32 first, i32 last);
  // Others are put elsewhere, as long as there is room for them, than where this strip would be until `last`.
  void reserve(i32 strip, i32 last);
  void reserve_all();          // again, what gave way
  void close(i32 strip);       // its number is not given again
  void close_from(i32 strip);  // this one and all that were opened after it
  i64 offset(i32 strip) const { return strips_[strip].offset; }
  i32 last(i32 strip) const { return strips_[strip].last; }
  i32 count() const { return static_cast<i32>(strips_.size()); }

  // The first step down to which there are `size` bytes left, not looking at addresses; above
  // `from`: not even there.
  i32 roomy_since(i32 from, i64 size) const;

  // Place all anew by best fit, longest first; false, and nothing moves, if that does not fit.
  bool repack();

  // Where all strips could lie, so that `strip` can be held until `last`, or (-1) one more strip opened:
  // its place is the last one then. Empty: no room was found, though there may be some; `effort` is how many
  // strips may be pushed out one after the other.
  struct Claim {
    i32 strip, first, last;
    i64 size;
  };
  struct Place {
    i64 offset;
    i32 until;
  };
  std::vector<Place> make_room(const Claim& claim, i64 effort) const;
  void move(const std::vector<Place>& places);

 private:
  struct Strip {
    i32 first, last;
    i64 size, offset;
    i32 id;           // in the heap; -1: it is closed
    i32 wish, until;  // how long it would be held, and for how long that is reserved
  };
  i64 fit(i32 first, i32 last, i64 size) const;
  static std::vector<i32> longest_first(const std::vector<Strip>& strips);  // those that are not closed
  static std::vector<Place> places_of(const std::vector<Strip>& strips);
  // Gives strips their offsets, one after the other by best fit; the place in the order of the first one
  // that does not fit, or where the order ends.
  std::size_t lay_out(std::vector<Strip>& strips, const std::vector<i32>& order) const;
  // The same, and what does not fit comes first the next time, so that the others go around it.
  bool reorder(std::vector<Strip>& strips, i64 most) const;
  // Puts a strip that has no offset where it costs least, those in its way elsewhere, and so on.
  bool insert(std::vector<Strip>& strips, i32 strip, i64 most) const;
  void load(i32 first, i32 last, i64 size);
  i32 end() const { return static_cast<i32>(loaded_.size()) - 1; }

  i64 capacity_;
  Heap heap_;
  std::vector<Strip> strips_;
  std::vector<i64> loaded_;  // [steps] bytes held
};

}  // namespace loadmaster::game
