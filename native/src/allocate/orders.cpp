#include "orders.hpp"

#include <algorithm>
#include <bit>
#include <numeric>

namespace loadmaster {
namespace {

double key(const Sections& in, i32 b, char letter) {
  const auto sections = static_cast<double>(in.last[b] - in.first[b]);
  const double life =
      static_cast<double>(in.times[in.last[b] - 1].to) - static_cast<double>(in.times[in.first[b]].from);
  switch (letter | 32) {
    case 'a':
      return life * static_cast<double>(in.size[b]);
    case 'c':
      return sections;
    case 'l':
      return in.first[b];
    case 'o': {
      i64 count = 0;
      for (i32 w = 0; w < in.conflicts.words(); ++w) count += std::popcount(in.conflicts.row(b)[w]);
      return static_cast<double>(count);
    }
    case 't':
      return static_cast<double>(
          *std::max_element(in.load.begin() + in.first[b], in.load.begin() + in.last[b]));
    case 'u':
      return in.last[b];
    case 'w':
      return life;
    default:
      return static_cast<double>(in.size[b]);
  }
}

// A small generator whose numbers are the same everywhere (the standard's distributions are not).
u64 next_random(u64& state) {
  u64 x = state += 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

}  // namespace

std::vector<i32> ranked(const Sections& in, const std::string& letters) {
  const i32 n = in.count();
  std::vector<i32> order(n), rank(n);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](i32 a, i32 b) { return in.original[a] < in.original[b]; });
  for (size_t i = letters.size(); i-- > 0;) {
    std::vector<double> keys(n);
    for (i32 b = 0; b < n; ++b) keys[b] = key(in, b, letters[i]) * (letters[i] & 32 ? 1 : -1);
    std::stable_sort(order.begin(), order.end(), [&](i32 a, i32 b) { return keys[a] < keys[b]; });
  }
  for (i32 i = 0; i < n; ++i) rank[order[i]] = i;
  return rank;
}

const std::vector<std::string>& usual_orders() {
  static const std::vector<std::string> orders = {"WAT", "TWA", "TAW", "CLO", "UCA", "TlZ",
                                                  "TWC", "CAT", "TOA", "WZT", "ATW", "TZW"};
  return orders;
}

std::vector<i32> drawn_order(const Sections& in, u64 seed, i64 index) {
  u64 state = seed * 0x2545f4914f6cdd1d + static_cast<u64>(index);
  static constexpr char kLetters[] = "ACLOTUWZ";
  std::string letters;
  while (letters.size() < 3) {
    char letter = kLetters[next_random(state) % 8];
    if (letters.find(letter) != std::string::npos) continue;
    if (letter == 'L' && next_random(state) % 2) letter = 'l';
    letters += letter;
  }
  return ranked(in, letters);
}

Preference shuffled(const Sections& in, const Preference& around, int styles, u64 seed, i64 index) {
  u64 state = ~seed * 0x2545f4914f6cdd1d + static_cast<u64>(index);
  const i32 n = in.count();
  const auto below = [&](i64 limit) {
    return static_cast<i64>(next_random(state) % static_cast<u64>(limit));
  };
  Preference out;
  i64 reach;  // how many ranks a buffer may move
  if (index % 2 == 0 || around.rank.empty()) {
    out = {drawn_order(in, next_random(state), 0), static_cast<int>(below(styles))};
    reach = n * (i64{1} << below(4)) / 10;
  } else {
    out = around;
    if (below(4) == 0) out.style = static_cast<int>(below(styles));
    reach = n * (i64{1} << 2 * below(3)) / 100;
  }
  std::vector<i64> moved(n);
  for (i32 b = 0; b < n; ++b) moved[b] = out.rank[b] + below(reach + 2);
  std::vector<i32> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](i32 a, i32 b) { return moved[a] < moved[b]; });
  for (i32 i = 0; i < n; ++i) out.rank[order[i]] = i;
  return out;
}

}  // namespace loadmaster
