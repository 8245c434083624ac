#include "units.hpp"

namespace loadmaster {
namespace {
__extension__ typedef unsigned __int128 u128;
constexpr i64 kPicoseconds = 1'000'000'000'000;
}  // namespace

i64 scaled_by_bits(i64 a, i64 b, i64 c) {
  const u128 sum = static_cast<u128>(a) * static_cast<u128>(b) + static_cast<u128>(c - 1);
  const u64 divisor = static_cast<u64>(c), low = static_cast<u64>(sum);
  u64 rest = static_cast<u64>(sum >> 64), quotient = 0;
  if (rest >= divisor) return kForever;  // 2^64 times or more
  if (rest == 0) {
    quotient = low / divisor;
  } else {
    for (int bit = 63; bit >= 0; --bit) {
      rest = 2 * rest + (low >> bit & 1);  // below twice the divisor, which has 63 bits
      if (rest < divisor) continue;
      rest -= divisor;
      quotient |= u64{1} << bit;
    }
  }
  return quotient > static_cast<u64>(kForever) ? kForever : static_cast<i64>(quotient);
}

i64 scaled(i64 a, i64 b, i64 c) {
#ifdef _WIN32
  return scaled_by_bits(a, b, c);
#else
  const u128 product = static_cast<u128>(a) * static_cast<u128>(b);
  const u128 divisor = static_cast<u128>(c);
  const u128 quotient = (product + divisor - 1) / divisor;
  return quotient > static_cast<u128>(kForever) ? kForever : static_cast<i64>(quotient);
#endif
}

i64 ceil_time(i64 amount, i64 rate) { return scaled(amount, kPicoseconds, rate); }

}  // namespace loadmaster
