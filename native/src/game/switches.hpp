// What can be chosen about the game's rules.
#pragma once

#include "units.hpp"

namespace loadmaster::game {

enum class Supply { kIdle, kElapsed };               // what copies may use of each step
enum class Queue { kFifo, kLatest };                 // who is served first
enum class Reward { kGain, kStatic, kJudged };       // what a move earns
enum class Offsets { kConsiderate, kBestFit };       // where a tensor is put
enum class Backup { kRetroactive, kRewind, kNone };  // how a dead end is left
enum Action : i8 { kCopy = 0, kNoCopy = 1, kDrop = 2 };
inline constexpr int kActions = 3;

struct Switches {
  Supply supply = Supply::kIdle;
  Queue ledger = Queue::kFifo;
  Reward reward = Reward::kGain;
  Backup backup = Backup::kRetroactive;
  Offsets offsets = Offsets::kConsiderate;
  bool stall_term = true;       // the last move pays for the stalls; only with Reward::kGain
  i64 min_overlap = 1'000'000;  // millionths of a copy's work that steps must hide
  i64 max_idle = kForever;      // picoseconds that a residency may wait for its next use
};

}  // namespace loadmaster::game
