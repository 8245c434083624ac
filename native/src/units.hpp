// Exact integer arithmetic on picoseconds and bytes.
#pragma once

#include <cstdint>

namespace loadmaster {

using i8 = std::int8_t;
using i16 = std::int16_t;
using i32 = std::int32_t;
using i64 = std::int64_t;
using u8 = std::uint8_t;
using u64 = std::uint64_t;

// Every time and every sum of times stays below this: larger ones stick to it, so that hostile
// sizes give a huge time and never an overflow.
inline constexpr i64 kForever = (i64{1} << 62) - 1;

// amount / rate in picoseconds, rounded up; kForever where that is too large.
i64 ceil_time(i64 amount, i64 rate);

// ceil(a * b / c), saturating; c > 0, a and b not negative.
i64 scaled(i64 a, i64 b, i64 c);

// The same without a division of 128 bits, for which Windows has no library: bit by bit where 64 do not hold
// the product.
i64 scaled_by_bits(i64 a, i64 b, i64 c);

// a + b, saturating at kForever; both not negative and at most kForever.
inline i64 plus(i64 a, i64 b) {
  const i64 sum = a + b;
  return sum > kForever ? kForever : sum;
}

// a * b, saturating.
inline i64 times(i64 a, i64 b) { return scaled(a, b, 1); }

// Half-picoseconds reach twice as far: a time that sticks to kForever has kForever of them twice.
inline i64 halves_of(i64 time) { return 2 * time; }
inline i64 plus_halves(i64 a, i64 b) {
  const u64 sum = static_cast<u64>(a) + static_cast<u64>(b), most = 2 * static_cast<u64>(kForever);
  return static_cast<i64>(sum > most ? most : sum);
}

// size rounded up to a multiple of alignment.
inline i64 aligned(i64 size, i64 alignment) { return (size + alignment - 1) / alignment * alignment; }

}  // namespace loadmaster
