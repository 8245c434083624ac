#include "units.hpp"

namespace loadmaster {
namespace {
__extension__ typedef unsigned __int128 u128;
constexpr i64 kPicoseconds = 1'000'000'000'000;
}  // namespace

i64 scaled(i64 a, i64 b, i64 c) {
  const u128 product = static_cast<u128>(a) * static_cast<u128>(b);
  const u128 divisor = static_cast<u128>(c);
  const u128 quotient = (product + divisor - 1) / divisor;
  return quotient > static_cast<u128>(kForever) ? kForever : static_cast<i64>(quotient);
}

i64 ceil_time(i64 amount, i64 rate) { return scaled(amount, kPicoseconds, rate); }

}  // namespace loadmaster
