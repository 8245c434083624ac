#include "map_decoder.hpp"

#include <algorithm>
#include <cmath>

#include "parallel.hpp"

namespace loadmaster {

namespace {

constexpr double kMostScore = 300.0;  // its exponential, times any time, is still a number

}  // namespace

struct MapDecoder::Work {
  explicit Work(const DecoderTables& t)
      : base(t.memories()),
        peak(t.memories()),
        alive(t.memories() * t.ops),
        busy(t.nodes() * t.memories()),
        memory(t.nodes()),
        now(t.nodes()),
        factor(t.entries() * (t.memories() - 1)),
        at(t.entries()),
        version(t.entries()),
        blocked(t.memories()) {}

  std::vector<i64> base, peak;             // [M] bytes always alive; most bytes of the others at one op
  std::vector<i64> alive;                  // [M * ops]
  std::vector<i64> busy;                   // [N * M] memory time of each node
  std::vector<i64> memory;                 // [N] the sum of those: what counts where ports are serial
  std::vector<i64> now;                    // [N] time of each node
  std::vector<double> factor;              // [E * (M - 1)] exp(score), where that is what ranks
  std::vector<i8> at;                      // [E]
  std::vector<i32> version;                // [E] of its moves: older ones in the heap are void
  std::vector<std::vector<Move>> blocked;  // [M] moves that did not fit
  std::vector<Move> heap;
  const double* scores = nullptr;
  bool nominal = false;
  double linear = 0;
};

MapDecoder::MapDecoder(DecoderTables tables) : tables_(std::move(tables)) {
  const i64 entries = tables_.entries(), memories = tables_.memories();
  volume_.assign(entries * memories, 0);
  for (i64 e = 0; e < entries; ++e)
    for (i64 p = tables_.pieces.begin(e); p < tables_.pieces.end(e); ++p)
      for (i64 m = 0; m < memories; ++m) {
        i64& volume = volume_[e * memories + m];
        volume = plus(volume, times(tables_.size[p * memories + m], tables_.last[p] - tables_.first[p] + 1));
      }
  for (i64& volume : volume_) volume = std::max<i64>(volume, 1);
  uses_.start.assign(entries + 1, 0);
  for (const i32 e : tables_.access_entry) ++uses_.start[e + 1];
  for (i64 e = 0; e < entries; ++e) uses_.start[e + 1] += uses_.start[e];
  use_.resize(tables_.access_entry.size());
  std::vector<i64> next(uses_.start.begin(), uses_.start.end() - 1);
  for (i32 n = 0; n < tables_.nodes(); ++n)
    for (i64 a = tables_.accesses.begin(n); a < tables_.accesses.end(n); ++a)
      use_[next[tables_.access_entry[a]]++] = {n, a};
}

void MapDecoder::decode(const double* scores, const double* linear, i64 count, bool nominal, i8* maps,
                        int threads) const {
  const i64 entries = tables_.entries(), each = entries * (tables_.memories() - 1);
  in_blocks(count, 1, threads, [&] {
    return [&, work = Work(tables_)](i64 begin, i64 end) mutable {
      for (i64 i = begin; i < end; ++i) {
        decode_one(scores + i * each, nominal, linear[i], work);
        std::copy(work.at.begin(), work.at.end(), maps + i * entries);
      }
    };
  });
}

void MapDecoder::decode_one(const double* scores, bool nominal, double linear, Work& work) const {
  const i64 entries = tables_.entries(), memories = tables_.memories(), slowest = memories - 1;
  work.scores = scores;
  work.nominal = nominal;
  work.linear = linear;
  std::fill(work.base.begin(), work.base.end(), 0);
  std::fill(work.peak.begin(), work.peak.end(), 0);
  std::fill(work.alive.begin(), work.alive.end(), 0);
  std::fill(work.busy.begin(), work.busy.end(), 0);
  std::fill(work.at.begin(), work.at.end(), static_cast<i8>(slowest));
  std::fill(work.version.begin(), work.version.end(), 0);
  for (auto& waiting : work.blocked) waiting.clear();
  work.heap.clear();
  for (i64 n = 0; n < tables_.nodes(); ++n) {
    i64& slow = work.busy[n * memories + slowest];
    slow = tables_.fixed[n];
    for (i64 a = tables_.accesses.begin(n); a < tables_.accesses.end(n); ++a)
      slow = plus(slow, tables_.access_cost[a * memories + slowest]);
    work.memory[n] = slow;
    work.now[n] = node_time(static_cast<i32>(n), slow);
  }
  if (nominal)
    for (std::size_t i = 0; i < work.factor.size(); ++i)
      work.factor[i] = std::exp(std::min(scores[i], kMostScore));
  for (i32 e = 0; e < entries; ++e)
    if (tables_.pinned[e] >= 0 && tables_.pinned[e] < slowest)
      move(e, static_cast<i8>(tables_.pinned[e]), work);
  for (i32 e = 0; e < entries; ++e) price(e, work);

  const auto later = [&](const Move& a, const Move& b) {  // whether b comes first
    if (a.key != b.key) return a.key < b.key;
    if (nominal && linear == 0) {
      const i64 av = volume_[a.entry * memories + a.memory], bv = volume_[b.entry * memories + b.memory];
      if (scores[a.entry * slowest + a.memory] == scores[b.entry * slowest + b.memory]) {
        const auto left = static_cast<__int128>(a.saved) * bv, right = static_cast<__int128>(b.saved) * av;
        if (left != right) return left < right;
      }
    }
    return a.entry != b.entry ? a.entry > b.entry : a.memory > b.memory;
  };
  std::make_heap(work.heap.begin(), work.heap.end(), later);
  std::size_t known = work.heap.size();
  const auto push_new = [&] {
    for (; known < work.heap.size(); ++known)
      std::push_heap(work.heap.begin(), work.heap.begin() + static_cast<std::ptrdiff_t>(known) + 1, later);
  };
  while (!work.heap.empty()) {
    std::pop_heap(work.heap.begin(), work.heap.end(), later);
    const Move best = work.heap.back();
    work.heap.pop_back();
    known = work.heap.size();
    if (best.version != work.version[best.entry]) continue;
    const i8 from = work.at[best.entry];
    if (!fits(best.entry, best.memory, work)) {
      work.blocked[best.memory].push_back(best);
      continue;
    }
    move(best.entry, best.memory, work);
    if (from < slowest) {
      for (const Move& waiting : work.blocked[from])
        if (waiting.version == work.version[waiting.entry]) work.heap.push_back(waiting);
      work.blocked[from].clear();
      push_new();
    }
    if (nominal) {  // what shares a node with it saves another time now
      for (i64 u = uses_.begin(best.entry); u < uses_.end(best.entry); ++u) {
        const i32 node = use_[u].node;
        for (i64 a = tables_.accesses.begin(node); a < tables_.accesses.end(node); ++a)
          if (tables_.access_entry[a] != best.entry) price(tables_.access_entry[a], work);
      }
    }
    price(best.entry, work);
    push_new();
  }
}

void MapDecoder::price(i32 entry, Work& work) const {
  if (tables_.pinned[entry] >= 0) return;
  const i64 memories = tables_.memories();
  const i8 from = work.at[entry];
  const i32 version = ++work.version[entry];
  const double* const scores = work.scores + entry * (memories - 1);
  const double* const factor = work.factor.data() + entry * (memories - 1);
  for (i8 to = 0; to < from; ++to) {
    if (!work.nominal) {
      if (scores[to] > -HUGE_VAL) work.heap.push_back({scores[to], 0, entry, version, to});
      continue;
    }
    double traffic = 0;
    const i64 saved = saving(work, entry, from, to, work.linear > 0 ? &traffic : nullptr);
    const double gain = (1 - work.linear) * static_cast<double>(saved) + work.linear * traffic;
    if (gain <= 0) continue;
    const double key = factor[to] * (gain / static_cast<double>(volume_[entry * memories + to]));
    if (key > 0) work.heap.push_back({key, saved, entry, version, to});
  }
}

i64 MapDecoder::saving(const Work& work, i32 entry, i64 from, i64 to, double* traffic) const {
  const i64 memories = tables_.memories();
  __int128 saved = 0;
  for (i64 u = uses_.begin(entry); u < uses_.end(entry); ++u) {
    const auto [node, access] = use_[u];
    const i64 left = tables_.access_cost[access * memories + from];
    const i64 added = tables_.access_cost[access * memories + to];
    i64 memory = std::max<i64>(0, plus(work.memory[node], added) - left);
    if (tables_.parallel) {  // the busiest memory counts
      const i64* const busy = work.busy.data() + node * memories;
      memory = 0;
      for (i64 m = 0; m < memories; ++m) {
        const i64 here = m == from ? std::max<i64>(0, busy[m] - left)
                         : m == to ? plus(busy[m], added)
                                   : busy[m];
        memory = std::max(memory, here);
      }
    }
    saved += work.now[node] - node_time(node, memory);
    if (traffic != nullptr)
      *traffic += static_cast<double>(left - added) * static_cast<double>(tables_.repeat[node]);
  }
  return static_cast<i64>(std::clamp<__int128>(saved, -kForever, kForever));
}

i64 MapDecoder::node_time(i32 node, i64 memory) const {
  const i64 compute = tables_.compute[node];
  const i64 both =
      tables_.overlap[node] == 0 ? 0 : scaled(std::min(compute, memory), tables_.overlap[node], 1'000'000);
  const i64 once = plus(plus(std::max(compute, memory), both), tables_.launch[node]);
  const i64 repeat = tables_.repeat[node];
  return repeat == 1 ? std::max<i64>(1, once) : times(std::max<i64>(1, once), repeat);
}

void MapDecoder::move(i32 entry, i8 memory, Work& work) const {
  const i64 memories = tables_.memories(), slowest = memories - 1;
  const i8 from = work.at[entry];
  put(entry, memory, 1, work);
  if (from < slowest) put(entry, from, -1, work);
  for (i64 u = uses_.begin(entry); u < uses_.end(entry); ++u) {
    const auto [node, access] = use_[u];
    i64* const busy = work.busy.data() + node * memories;
    busy[from] = std::max<i64>(0, busy[from] - tables_.access_cost[access * memories + from]);
    busy[memory] = plus(busy[memory], tables_.access_cost[access * memories + memory]);
    i64& whole = work.memory[node];
    whole = 0;
    for (i64 m = 0; m < memories; ++m)
      whole = tables_.parallel ? std::max(whole, busy[m]) : plus(whole, busy[m]);
    work.now[node] = node_time(node, whole);
  }
  work.at[entry] = memory;
}

bool MapDecoder::fits(i32 entry, i64 memory, Work& work) const {
  const i64 memories = tables_.memories(), capacity = tables_.capacity[memory];
  const i64 begin = tables_.pieces.begin(entry), end = tables_.pieces.end(entry);
  if (end - begin == 1) {
    const i64 size = tables_.size[begin * memories + memory], free = capacity - work.base[memory];
    if (size > free) return false;
    if (tables_.always[begin]) return work.peak[memory] <= free - size;
    const i64* const alive = work.alive.data() + memory * tables_.ops;
    return *std::max_element(alive + tables_.first[begin], alive + tables_.last[begin] + 1) <= free - size;
  }
  i64 whole = 0;  // the pieces may be alive together
  for (i64 p = begin; p < end; ++p) whole = plus(whole, tables_.size[p * memories + memory]);
  if (plus(plus(work.base[memory], work.peak[memory]), whole) <= capacity) return true;
  for (i64 p = begin; p < end; ++p)
    if (tables_.size[p * memories + memory] > capacity) return false;
  put(entry, memory, 1, work);
  const bool fine = work.base[memory] <= capacity && work.peak[memory] <= capacity - work.base[memory];
  put(entry, memory, -1, work);
  return fine;
}

void MapDecoder::put(i32 entry, i64 memory, i64 sign, Work& work) const {
  const i64 memories = tables_.memories();
  i64* const alive = work.alive.data() + memory * tables_.ops;
  bool lower = false;
  for (i64 p = tables_.pieces.begin(entry); p < tables_.pieces.end(entry); ++p) {
    const i64 size = sign * tables_.size[p * memories + memory];
    if (tables_.always[p]) {
      work.base[memory] += size;
      continue;
    }
    lower |= sign < 0;
    for (i32 op = tables_.first[p]; op <= tables_.last[p]; ++op) {
      alive[op] += size;
      work.peak[memory] = std::max(work.peak[memory], alive[op]);
    }
  }
  if (lower) work.peak[memory] = *std::max_element(alive, alive + tables_.ops);
}

}  // namespace loadmaster
