// A device's memory as a plan says: results at their offsets in one arena, kernels' temporaries between them.
#pragma once

#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

#include "units.hpp"

namespace loadmaster {

// Where blocks come from.
class Memory {
 public:
  virtual ~Memory() = default;
  virtual void* take(i64 bytes) = 0;  // nullptr: there is no more
  virtual void give(void* block) = 0;
  virtual void wait() = 0;  // until nothing runs that could use a block
};

std::unique_ptr<Memory> device_memory();         // the CUDA driver's, found when first needed
std::unique_ptr<Memory> host_memory(i64 limit);  // for tests

struct Range {
  i64 low, high;
};

// What each step makes and where, and what nobody has then. Offsets from `base`, in bytes.
struct Rooms {
  i64 base = 0;
  std::vector<i64> result_start, result_bytes, result_room, result_offset;  // by step; room: with padding
  std::vector<i64> free_start, free_low, free_high;                         // by step, ascending
  // Of each result: which of its step's allocations it is; -1: not known, the first of its size.
  std::vector<i32> number;
  std::vector<i64> most;  // [steps] bytes of temporaries at once

  i32 steps() const { return static_cast<i32>(result_start.size()) - 1; }
};

// Between plans' steps a cache of blocks; while a step runs, the rooms that its plan leaves.
// Everything is used in the order of one stream, so what is freed can be given again at once.
class OwnAllocator {
 public:
  explicit OwnAllocator(std::unique_ptr<Memory> memory);
  ~OwnAllocator();
  OwnAllocator(const OwnAllocator&) = delete;
  OwnAllocator& operator=(const OwnAllocator&) = delete;

  void* alloc(i64 bytes);  // throws std::runtime_error where there is no room
  void free(void* block);
  // The next block of so many bytes that this thread asks for between plans begins there, inside of one that
  // is in use: freed, it is that one's again. If that one is freed first, it goes back when the last lent one
  // does.
  void lend(void* place, i64 bytes);

  // The next step of a plan begins, or with -1 its steps are over. Returns the bytes of temporaries that
  // the last step has left behind: there must be none.
  i64 at(const std::shared_ptr<Rooms>& rooms, i32 step);
  // Which of the step's allocations begins at an address; -1: none that still lives.
  i32 number_of(i64 address) const;
  // The allocations of the step that still live somewhere in [offset, offset + bytes).
  std::vector<i32> within(i64 offset, i64 bytes) const;

  void release();  // cached blocks go back
  // Ordinary blocks, cached ones included, take no more from now on: what is cached goes back before that.
  void hold_to(i64 bytes);
  void reset_most();
  i64 held() const;  // bytes of ordinary blocks
  i64 most() const;  // the same at the most
  i64 cached() const;

 private:
  struct Piece {
    i64 low, high;
    i32 number, result;  // result: -1 is a temporary
  };

  struct Lending {
    void* place = nullptr;
    i64 bytes = 0;
    std::thread::id taker;
  };

  void* ordinary(i64 bytes);
  void* lent(i64 bytes);
  bool lends_from(void* block, i64 bytes) const;
  void put_back(void* block, i64 bytes);
  void* planned(i64 bytes);
  i32 wanted(i64 bytes, i32 number) const;
  bool taken(i64 low, i64 high) const;
  Range gap(i64 bytes, bool borrowed) const;
  i64 claimed();
  void give_back();

  mutable std::mutex mutex_;
  std::unique_ptr<Memory> memory_;
  std::unordered_map<void*, i64> blocks_;  // in use
  std::multimap<i64, void*> free_;
  std::map<void*, i64> lent_;     // places inside of blocks
  std::map<void*, i64> leaving_;  // freed blocks of which something is lent
  Lending lending_;
  i64 held_ = 0, most_ = 0, cached_ = 0, limit_ = std::numeric_limits<i64>::max();
  std::shared_ptr<Rooms> rooms_;
  i32 step_ = -1, count_ = 0;
  std::vector<Piece> pieces_;  // of this step, that live
  i64 temporary_ = 0;
};

}  // namespace loadmaster
