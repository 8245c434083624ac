// What can be chosen about the game's rules.
#pragma once

#include "units.hpp"

namespace loadmaster::game {

enum class Supply { kIdle, kElapsed };               // what copies may use of each step
enum class Queue { kFifo, kLatest };                 // who is served first
enum class Reward { kGain, kStatic, kJudged };       // what a move earns
enum class Starts { kAll, kHidden };                 // which copies there are
enum class Backup { kRetroactive, kRewind, kNone };  // how a dead end is left

// A move. `kCopy`, or one of its kinds: they differ in how much time lies between issue and need. From
// `kLead` on: a copy with exactly `action - kLead + 1` steps from the one that issues it to the one that
// needs it, so that every plan can be played.
using Action = i16;
inline constexpr Action kCopy = 0, kNoCopy = 1, kDrop = 2, kCopyEarly = 3, kCopyHalf = 4, kCopyTight = 5,
                        kLead = 6;
inline constexpr int kMostActions = kLead;  // that are listed in a mask
inline constexpr bool is_copy(Action action) { return action == kCopy || action > kDrop; }

struct Switches {
  // How many moves a mask lists: with hidden copies alone, Copy, NoCopy and Drop.
  int actions() const { return starts == Starts::kAll ? kMostActions : 3; }
  bool knows(Action action) const { return action >= 0 && (starts == Starts::kAll || action < actions()); }

  Supply supply = Supply::kIdle;
  Queue ledger = Queue::kFifo;
  Reward reward = Reward::kGain;
  Backup backup = Backup::kRetroactive;
  Starts starts = Starts::kAll;
  i32 repack = 4;           // strips that may be pushed out to make room for one; 0: offsets are final
  bool stall_term = true;   // the last move pays for the stalls; only with Reward::kGain
  i64 max_idle = kForever;  // picoseconds that a residency may wait for its next use
};

}  // namespace loadmaster::game
