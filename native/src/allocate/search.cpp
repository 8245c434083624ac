#include "search.hpp"

#include <algorithm>
#include <bit>

namespace loadmaster {
namespace {

// Orders by the first number, then by the second.
i64 scaled_key(i64 first, i64 second) {
  return first * (i64{1} << 40) + std::min(second, (i64{1} << 40) - 1);
}

}  // namespace

Search::Search(const Sections& sections, i64 capacity, const Switches& switches)
    : in_(sections),
      on_(switches),
      roof_(sections.roof(capacity)),
      n_(sections.count()),
      m_(sections.sections()) {
  for (i32 b = 0; b < n_; ++b) latest_.push_back(in_.latest(b, capacity));
  twin_.assign(n_, -1);
  if (on_.identical_symmetry && in_.links.empty() && in_.pieces.empty())
    for (i32 b = 0; b < n_; ++b)
      for (i32 c = b - 1; c >= 0 && in_.first[c] == in_.first[b] && twin_[b] < 0; --c)
        if (in_.last[c] == in_.last[b] && in_.size[c] == in_.size[b] &&
            in_.alignment[c] == in_.alignment[b] && in_.exact[c] == in_.exact[b] && in_.pinned[c] < 0 &&
            in_.pinned[b] < 0)
          twin_[b] = c;
  choices_.assign(m_ + 1, 0);
  if (on_.no_goods)
    no_goods_.assign(std::bit_ceil(static_cast<size_t>(std::clamp(n_ * 128, 1 << 10, 1 << 16))), 0);
}

template <class Visit>
void Search::each_waiting(const u64* row, i32 from, i32 to, Visit&& visit) const {
  if (from >= to) return;
  const i32 begin = from >> 6, end = (to + 63) >> 6;
  for (i32 w = begin; w < end; ++w) {
    u64 bits = waiting_[w] & (row ? row[w] : ~u64{0});
    if (w == begin) bits &= ~u64{0} << (from & 63);
    if (w == end - 1 && (to & 63)) bits &= ~u64{0} >> (64 - (to & 63));
    for (; bits; bits &= bits - 1) visit((w << 6) + std::countr_zero(bits));
  }
}

// Counts b in (step 1) or out (-1) of what waits. b itself is not marked as waiting meanwhile.
void Search::wait_for(i32 b, i32 step) {
  for (i32 s = in_.first[b]; s < in_.last[b]; ++s) {
    waiting_load_[s] += step * in_.bytes(s, b);
    waiting_count_[s] += in_.present(s, b) ? step : 0;
  }
  for (i32 k = in_.first[b] + 1; k < in_.last[b]; ++k) crossings_[k] += step;
  if (in_.links.empty()) return;
  for (const Link& link : in_.links[b])
    if (waits(link.other))
      for (i32 k = link.from; k < link.to; ++k) crossings_[k] += step;
}

void Search::start(std::span<const i32> rank) {
  rank_.assign(rank.begin(), rank.end());
  log_.clear();
  stack_.clear();
  nodes_ = 0;
  ++epoch_;
  waiting_.assign((n_ + 63) / 64, 0);
  crossings_.assign(m_ + 1, 0);
  waiting_load_.assign(m_, 0);
  waiting_count_.assign(m_, 0);
  rest_.assign(n_, 0);
  // Loads too large to add up are too large to fit.
  dead_ = in_.contradictory ||
          std::any_of(in_.load.begin(), in_.load.end(), [&](i64 load) { return load > roof_; });
  for (i32 b = 0; b < n_ && !dead_; ++b) {
    wait_for(b, 1);
    waiting_[b >> 6] |= u64{1} << (b & 63);
    rest_[b] = std::max<i64>(in_.pinned[b], 0);
    if (latest_[b] < rest_[b]) dead_ = true;
  }
  start_ = rest_;
  floor_.assign(m_, -1);
  second_.assign(m_, -1);
  next_.assign(m_, {-1, -1});
  if (dead_) return;
  stack_.push_back({0, m_, -1, 0, 0, 0, 0, 0, 0});
  if (!settle(stack_.back())) dead_ = true;
}

// Puts b at its rest; false if some buffer or section can no longer fit.
bool Search::place(i32 b, const Frame& frame) {
  waiting_[b >> 6] &= ~(u64{1} << (b & 63));
  log_.push_back({~b, 0});
  wait_for(b, -1);
  if (!on_.canonical)  // forget what was refused, as if every order of placing had to be tried
    each_waiting(nullptr, in_.begin[frame.from], in_.begin[frame.to], [&](i32 c) {
      if (start_[c] > rest_[c]) set(start_, n_, c, rest_[c]);
    });
  const i64 at = rest_[b];
  bool fits = true;
  each_waiting(in_.conflicts.row(b), in_.begin[frame.from], in_.begin[frame.to], [&](i32 c) {
    const i64 top = lifted(c, at + in_.gap(b, c));
    if (top <= rest_[c]) return;
    if (top > latest_[c] || in_.pinned[c] >= 0) fits = false;
    set(rest_, 0, c, top);
    if (start_[c] < top) set(start_, n_, c, top);
  });
  return fits;
}

// b does not lie at its rest: whatever lifts it is still waiting.
bool Search::refuse(i32 b, const Frame& frame) {
  if (in_.pinned[b] >= 0) return false;
  i64 lowest = kForever;
  each_waiting(in_.conflicts.row(b), in_.begin[frame.from], in_.begin[frame.to],
               [&](i32 c) { lowest = std::min(lowest, std::max(start_[c], frame.level) + in_.gap(c, b)); });
  if (lowest > roof_ && (lowest < kForever || on_.hatless)) return false;
  lowest = lifted(b, on_.refused_floor && lowest < kForever ? lowest : frame.level + 1);
  if (lowest > latest_[b]) return false;
  set(start_, n_, b, std::max(lowest, rest_[b] + 1));
  return true;
}

// Brings a part up to date after a change; false if it has no solution.
bool Search::settle(const Frame& frame) {
  if (!on_.unallocated_floor) return true;
  i32 forced = -1;  // neighbouring sections often force the same buffer: once is enough
  i64 forced_limit = 0;
  for (i32 s = frame.from; s < frame.to; ++s) {
    if (waiting_count_[s] == 0) continue;
    const i64 limit = roof_ - waiting_load_[s];  // what comes next here starts no higher
    const Next& next = next_[s];
    const bool lowest_holds = waits(next.lowest) && start_[next.lowest] == floor_[s];
    const bool other_holds =
        second_[s] == kForever ||
        (waits(next.other) && (start_[next.other] == second_[s] || start_[next.other] <= limit));
    if (!lowest_holds || !other_holds) look(s);
    if (floor_[s] > limit && on_.section_inference) return false;
    const bool only = second_[s] == kForever || start_[next.other] > limit;
    if (!on_.forced_next || !only || (next.lowest == forced && limit >= forced_limit)) continue;
    forced = next.lowest;
    forced_limit = limit;
    if (!force(forced, limit, frame)) return false;
  }
  return true;
}

// Finds the two waiting buffers of a section with the lowest starts.
void Search::look(i32 s) {
  i64 lowest = kForever, second = kForever;
  Next next{-1, -1};
  each_waiting(in_.members.row(s), in_.reach[s], in_.begin[s + 1], [&](i32 b) {
    if (start_[b] < lowest) {
      second = lowest;
      next.other = next.lowest;
      lowest = start_[b];
      next.lowest = b;
    } else if (start_[b] < second) {
      second = start_[b];
      next.other = b;
    }
  });
  next_[s] = next;
  if (lowest != floor_[s]) set(floor_, 2 * n_, s, lowest);
  if (second != second_[s]) set(second_, 2 * n_ + m_, s, second);
}

// Only b can come next in some section, at `limit` or lower: what does not fit below b lies above.
bool Search::force(i32 b, i64 limit, const Frame& frame) {
  bool fits = true;
  const i64 at = start_[b];
  each_waiting(in_.conflicts.row(b), in_.begin[frame.from], in_.begin[frame.to], [&](i32 c) {
    if (start_[c] + in_.gap(c, b) <= limit) return;
    const i64 above = lifted(c, at + in_.gap(b, c));
    if (above <= start_[c]) return;
    if (above > latest_[c] || in_.pinned[c] >= 0) fits = false;
    set(start_, n_, c, above);
  });
  return fits;
}

void Search::undo(size_t mark) {
  while (log_.size() > mark) {
    const Change change = log_.back();
    log_.pop_back();
    if (change.what < 0) {
      const i32 b = ~change.what;
      wait_for(b, 1);
      waiting_[b >> 6] |= u64{1} << (b & 63);
    } else if (change.what < n_) {
      rest_[change.what] = change.before;
    } else if (change.what < 2 * n_) {
      start_[change.what - n_] = change.before;
    } else if (change.what < 2 * n_ + m_) {
      floor_[change.what - 2 * n_] = change.before;
    } else {
      second_[change.what - 2 * n_ - m_] = change.before;
    }
  }
}

// The next part of a frame in which something waits.
bool Search::next_part(const Frame& frame, i32& from, i32& to) const {
  for (from = frame.next; from < frame.to && waiting_count_[from] == 0; ++from) {
  }
  if (from >= frame.to) return false;
  if (!on_.decomposition) {
    from = frame.from;
    to = frame.to;
    return true;
  }
  for (to = from + 1; to < frame.to && crossings_[to] > 0; ++to) {
  }
  return true;
}

// The buffer to decide on next, or -1 if this part has no solution.
i32 Search::choose(Frame& frame) {
  i64 level = kForever, hole = kForever;
  i32 best = -1;
  const i32 from = in_.begin[frame.from], to = in_.begin[frame.to];
  each_waiting(nullptr, from, to, [&](i32 b) {
    hole = std::min(hole, rest_[b] + in_.size[b]);
    if (rest_[b] > level || (rest_[b] == level && rank_[b] > rank_[best]) || !ready(b, rest_[b])) return;
    level = rest_[b];
    best = b;
  });
  if (best < 0 || (on_.dominance && level >= hole)) return -1;
  frame.level = level;
  if (on_.monotonic_floor && on_.canonical && on_.section_inference)
    for (i32 s = frame.from; s < frame.to; ++s)
      if (waiting_count_[s] > 0 && level + waiting_load_[s] > roof_) return -1;
  if (style_ == kLowest) return best;

  // The section with the fewest ways to go on from this level.
  std::fill(choices_.begin() + frame.from, choices_.begin() + frame.to, 0);
  each_waiting(nullptr, from, to, [&](i32 b) {
    if (!ready(b, level)) return;
    for (i32 s = in_.first[b]; s < in_.last[b]; ++s) choices_[s] += in_.present(s, b);
  });
  i32 where = -1;
  i64 fewest = kForever;
  for (i32 s = frame.from; s < frame.to; ++s) {
    if (choices_[s] == 0) continue;
    const i64 slack = roof_ - level - waiting_load_[s];
    const i64 key = style_ == kFewestTight     ? scaled_key(choices_[s], slack)
                    : style_ == kFewestCrowded ? scaled_key(choices_[s], n_ - waiting_count_[s])
                                               : choices_[s] + (slack > 0 ? i64{n_} : 0);
    if (key < fewest) {
      fewest = key;
      where = s;
    }
  }
  best = -1;
  each_waiting(in_.members.row(where), from, to, [&](i32 b) {
    if (!ready(b, level)) return;
    if (best < 0 || rank_[b] < rank_[best]) best = b;
  });
  return best;
}

// Whether this state is known to have no solution: which buffers wait, where each would rest, and
// which are refused there. What follows depends on nothing else.
bool Search::known_bad(Frame& frame) {
  u64 slot = 0, sign = 0;
  each_waiting(nullptr, in_.begin[frame.from], in_.begin[frame.to], [&](i32 b) {
    __extension__ typedef unsigned __int128 u128;
    const u64 key = static_cast<u64>(rest_[b]) * 2 + (start_[b] > rest_[b]);
    const u64 mixed =
        (key + 0x9e3779b97f4a7c15) * 0xd6e8feb86659fd93 ^ (static_cast<u64>(b) + 1) * 0xa0761d6478bd642f;
    const u128 product = static_cast<u128>(mixed) * (mixed ^ 0xe7037ed1a0b428db);
    slot += static_cast<u64>(product >> 64);
    sign += static_cast<u64>(product) ^ mixed;
  });
  frame.slot = (slot ^ slot >> 29) & (no_goods_.size() - 1);
  frame.sign = sign + epoch_ * 0x8ebc6af09c88c6e3;
  return no_goods_[frame.slot] == frame.sign;
}

void Search::fail(Frame& frame) {
  undo(frame.entry);
  if (on_.no_goods) no_goods_[frame.slot] = frame.sign;
}

SearchEnd Search::advance(i64 pause) {
  if (dead_) return SearchEnd::kNone;
  // What the frame on top was told: descend into a part, or a part was solved, or it failed.
  enum { kEnter, kSolved, kFailed } told = stack_.back().chosen < 0 ? kEnter : kFailed;
  for (;;) {
    Frame& frame = stack_.back();
    if (told == kSolved) {
      Frame part = frame;
      if (!next_part(frame, part.from, part.to)) {
        if (stack_.size() == 1) return SearchEnd::kFound;
        const i32 end = frame.to;
        stack_.pop_back();
        stack_.back().next = end;
        continue;
      }
      frame.next = part.from;
      stack_.push_back({part.from, part.to, -1, part.from, log_.size(), log_.size(), frame.level, 0, 0});
      told = kEnter;
      if (on_.no_goods && known_bad(stack_.back())) {
        stack_.pop_back();
        told = kFailed;
      }
      continue;
    }
    if (told == kFailed) {
      undo(frame.trial);
      if (!refuse(frame.chosen, frame) || !settle(frame)) {
        fail(frame);
        if (stack_.size() == 1) return SearchEnd::kNone;
        stack_.pop_back();
        continue;  // the failure is the parent's
      }
    }
    if (nodes_ >= pause) {
      frame.chosen = -1;
      return SearchEnd::kOutOfBudget;
    }
    const i32 b = choose(frame);
    if (b < 0) {
      fail(frame);
      if (stack_.size() == 1) return SearchEnd::kNone;
      stack_.pop_back();
      told = kFailed;
      continue;
    }
    ++nodes_;
    frame.chosen = b;
    frame.trial = log_.size();
    frame.next = frame.from;
    told = place(b, frame) && settle(frame) ? kSolved : kFailed;
  }
}

}  // namespace loadmaster
