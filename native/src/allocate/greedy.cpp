#include "greedy.hpp"

#include <algorithm>
#include <chrono>
#include <numeric>

namespace loadmaster {

namespace {

// x rounded up to a multiple of the alignment; anything above kForever if there is none below it.
i64 align(i64 x, i64 alignment) {
  if (alignment <= 1) return x;
  const i64 rest = x % alignment;
  if (rest == 0) return x;
  return alignment - rest > kForever - x ? kForever + 1 : x + (alignment - rest);
}

// Sizes are not negative, but may be anything up to the largest number.
i64 capped(i64 size) { return std::min(size, kForever); }

// The parts of [lower, upper) that are left by the gaps, and the parts of bytes used in gaps.
template <class Emit>
void split_life(const Buffers& buffers, i32 b, Emit&& emit) {
  i64 from = buffers.lower[b];
  const i64 to = buffers.upper[b], size = capped(buffers.size[b]);
  if (size <= 0) return;
  if (!buffers.gaps.empty())
    for (const Gap& gap : buffers.gaps[b]) {
      const i64 begin = std::max(gap.from, from), end = std::min(gap.to, to);
      if (begin >= end) continue;
      if (from < begin) emit(from, begin, i64{0}, size);
      const i64 low = std::max<i64>(gap.low, 0), high = std::min(gap.high, size);
      if (low < high) emit(begin, end, low, high);
      from = end;
    }
  if (from < to) emit(from, to, i64{0}, size);
}

// All offsets are multiples of this.
i64 common_alignment(const Buffers& buffers) {
  i64 common = 0;
  for (i32 b = 0; b < buffers.count(); ++b)
    common = std::gcd(common, buffers.pinned[b] >= 0 ? buffers.pinned[b] : buffers.alignment[b]);
  return std::max<i64>(common, 1);
}

}  // namespace

LifeAxis::LifeAxis(const Buffers& buffers) {
  const i32 n = buffers.count();
  struct Event {
    i64 time;
    i64 block;  // its end if negative: ~block
  };
  std::vector<Event> events;
  events.reserve(2 * static_cast<std::size_t>(n));
  blocks.reserve(n);
  block_start.reserve(n + 1);
  block_start.push_back(0);
  for (i32 b = 0; b < n; ++b) {
    split_life(buffers, b, [&](i64 from, i64 to, i64 low, i64 high) {
      const i64 block = static_cast<i64>(blocks.size());
      events.push_back({from, block});
      events.push_back({to, ~block});
      blocks.push_back({0, -1, low, high});
    });
    block_start.push_back(static_cast<i64>(blocks.size()));
  }
  // At one time ends come first: lifetimes are half-open.
  std::sort(events.begin(), events.end(), [](const Event& a, const Event& b) {
    return a.time != b.time ? a.time < b.time : a.block < b.block;
  });

  // Two buffers never share a unit of the common alignment, so a buffer takes whole units; only the
  // highest one need not fill up its last. Not so where a block starts in the middle of its buffer.
  const i64 unit = buffers.gaps.empty() ? common_alignment(buffers) : 1;
  const auto units = [&](i64 size) { return std::min(align(size, unit), kForever); };
  i64 most_padding = 0;
  if (unit > 1)
    for (const i64 size : buffers.size)
      most_padding = std::max(most_padding, units(capped(size)) - capped(size));

  // A section ends at the first start after an end. Wider than 64 bits: the sum may pass every size.
  __extension__ unsigned __int128 now = 0;
  bool ended = true;
  for (const Event& event : events) {
    if (event.block < 0) {
      Block& block = blocks[~event.block];
      block.last = sections - 1;
      now -= units(block.high - block.low);
      ended = true;
    } else {
      Block& block = blocks[event.block];
      if (ended) {
        live.push_back(0);
        ++sections;
        ended = false;
      }
      block.first = sections - 1;
      now += units(block.high - block.low);
      live.back() = now > static_cast<u64>(kForever) ? kForever : static_cast<i64>(now);
    }
  }
  for (const i64 bytes : live) bound = std::max(bound, bytes - most_padding);
  for (i32 b = 0; b < n; ++b)
    bound = std::max(bound, plus(std::clamp<i64>(buffers.pinned[b], 0, kForever), capped(buffers.size[b])));
  for (const auto& [a, b] : buffers.apart)
    if (a != b) bound = std::max(bound, plus(capped(buffers.size[a]), capped(buffers.size[b])));

  if (buffers.apart.empty()) return;
  apart_start.assign(n + 1, 0);
  for (const auto& [a, b] : buffers.apart) ++apart_start[a + 1], ++apart_start[b + 1];
  std::partial_sum(apart_start.begin(), apart_start.end(), apart_start.begin());
  std::vector<i64> next(apart_start.begin(), apart_start.end() - 1);
  apart.resize(apart_start.back());
  for (const auto& [a, b] : buffers.apart) apart[next[a]++] = b, apart[next[b]++] = a;
}

bool halted(const Stop& stop) {
  if (stop.asked.load(std::memory_order_relaxed)) return true;
  if (stop.deadline_ns < 0) return false;
  return std::chrono::steady_clock::now().time_since_epoch() >= std::chrono::nanoseconds(stop.deadline_ns);
}

Packer::Packer(const Buffers& buffers, const LifeAxis& axis) : buffers_(buffers), axis_(axis) {
  while (leaves_ < axis.sections) leaves_ *= 2;
  choose_frames();
  width_ = leaves_ / frames_;
  some_ = std::vector<SpanList>(leaves_ + axis.sections);  // leaves beyond the last section are never touched
  full_ = std::vector<SpanList>(leaves_);
  ending_ = std::vector<SpanList>(frames_);
  starting_ = std::vector<SpanList>(frames_);
  rows_.reserve(buffers.count());
  for (i32 b = 0; b < buffers.count(); ++b) {
    const i64 begin = axis.block_start[b], end = axis.block_start[b + 1];
    const Block none{0, -1, 0, 0};
    rows_.push_back({begin < end ? axis.blocks[begin] : none, buffers.size[b], buffers.alignment[b],
                     buffers.pinned[b], begin, end});
  }
}

// As many frames as can be had while a buffer lives in few of them on average.
void Packer::choose_frames() {
  constexpr i64 kLivedPerBlock = 32;
  constexpr i32 kMostFrames = 128, kLeastSections = 4;
  i64 sections_lived = 0;
  for (const Block& block : axis_.blocks) sections_lived += block.last - block.first + 1;
  const i64 most = kLivedPerBlock * static_cast<i64>(axis_.blocks.size());
  while (frames_ < kMostFrames && leaves_ / (2 * frames_) >= kLeastSections &&
         sections_lived / (leaves_ / (2 * frames_)) <= most)
    frames_ *= 2;
}

void Packer::clear() {
  for (const i32 node : touched_) {
    some_[node].clear();
    if (node < leaves_) full_[node].clear();
  }
  for (const i32 frame : touched_frames_) {
    ending_[frame].clear();
    starting_[frame].clear();
  }
  touched_.clear();
  touched_frames_.clear();
}

// Walks the tree over the sections first..last: `part` for the nodes that make them up, `above` for
// the nodes over those, which reach beyond them.
template <class Part, class Above>
void Packer::walk(const Block& block, Part&& part, Above&& above) const {
  const i32 begin = block.first + leaves_, end = block.last + 1 + leaves_;
  for (i32 left = begin, right = end; left < right; left /= 2, right /= 2) {
    if (left & 1) part(left++);
    if (right & 1) part(--right);
  }
  for (i32 level = 1; (begin >> level) > 0; ++level) {
    const i32 left = begin >> level, right = (end - 1) >> level;
    const bool early = left << level < begin, late = (end >> level) << level != end;
    if (early) above(left);
    if (late && !(early && left == right)) above(right);
  }
}

template <class Each>
void Packer::each_block(const Row& row, Each&& each) const {
  if (row.begin == row.end) return;
  each(row.block);
  for (i64 p = row.begin + 1; p < row.end; ++p) each(axis_.blocks[p]);
}

// What is in the way of buffer b.
void Packer::gather(i32 b, const Row& row, const std::vector<i64>& offset) {
  views_.clear();
  each_block(row, [&](const Block& block) {
    const auto view = [&](const SpanList& spans) {
      if (!spans.empty()) views_.emplace_back(spans, block.low, block.high);
    };
    // The frames that it lives in from beginning to end. What lives in one beside these and in none of
    // them ends or starts there: within the frame, or with it.
    const i32 from = (block.first + width_ - 1) / width_, to = (block.last + 1) / width_;
    const i32 least = from < to ? 2 * frames_ : 1;
    walk(
        block, [&](i32 node) { view(some_[node]); },
        [&](i32 node) {
          if (node >= least) view(full_[node]);
        });
    if (from >= to) return;
    if (block.first < from * width_) view(ending_[from - 1]);
    if (block.last >= to * width_) view(starting_[to]);
  });
  std::reverse(views_.begin(), views_.end());  // the widest first
  if (axis_.apart.empty() || buffers_.size[b] <= 0) return;
  partners_.clear();
  for (i64 i = axis_.apart_start[b]; i < axis_.apart_start[b + 1]; ++i) {
    const i32 other = axis_.apart[i];
    if (other != b && offset[other] >= 0 && buffers_.size[other] > 0)
      partners_.add({offset[other], offset[other] + buffers_.size[other]}, 1);
  }
  if (!partners_.empty()) views_.emplace_back(partners_, 0, buffers_.size[b]);
}

bool Packer::free_at(i64 x) {
  for (SpanCursor& view : views_) {
    view.seek(x);
    if (view.bars(x)) return false;
  }
  return true;
}

// Lifts x to the lowest free offset that is not below it; false if that is above `highest`.
// The lists are asked in turn; one that objects lifts x to where it is content, and is asked first from
// then on: it is likely to object again. Once none has anything against x it is free, and nothing below
// it was; without patience, nothing that was looked at. Above all that is in the way it ends in any case.
bool Packer::rise(i64& x, i64 alignment, i64 highest) {
  constexpr i64 kStrides = 16384;  // of the first size, from the ground to the top
  constexpr i64 kTurn = 16;        // holes of one list in a row that cost as much as to turn to another
  i64 stride = 0, top = 0;
  const std::ptrdiff_t count = std::ssize(views_);
  for (std::ptrdiff_t i = 0; i < count;) {
    SpanCursor& view = views_[i];
    ++steps_;
    i64 cost = kTurn;
    bool lifted = false;
    for (view.seek(x); view.bars(x); view.seek(x), cost = 1, lifted = true) {
      ++steps_;
      i64 next = view.after();
      if ((patience_ -= cost) < 0) {
        if (stride == 0) top = on_top(alignment);
        stride += top / kStrides + 1;
        next = std::max(next, std::min(top, x + stride));
      }
      x = align(next, alignment);
      if (x > highest) return false;
    }
    if (lifted && i > 0) {
      std::rotate(views_.begin(), views_.begin() + i, views_.begin() + i + 1);
      i = 1;
    } else {
      ++i;
    }
  }
  return x <= highest;
}

// Goes through all free ranges: each starts where no list objects and ends at the first that does.
i64 Packer::tightest(i64 alignment, i64 highest) {
  i64 best = -1, least_over = 0;
  for (i64 x = 0; rise(x, alignment, highest);) {
    const SpanCursor* wall = nullptr;
    for (const SpanCursor& view : views_)
      if (!view.over() && (!wall || view.wall() < wall->wall())) wall = &view;
    if (!wall) return best >= 0 ? best : x;  // the open end is the last resort
    const i64 over = wall->wall() - x;
    if (best < 0 || over < least_over) best = x, least_over = over;
    if (least_over == 0 || patience_ < 0) return best;
    x = align(wall->after(), alignment);
  }
  return best;
}

i64 Packer::on_top(i64 alignment) const {
  i64 x = 0;
  for (const SpanCursor& view : views_) x = std::max(x, view.top());
  return align(x, alignment);
}

// An offset for what was gathered, or -1.
i64 Packer::choose(Fit fit, i64 alignment, i64 highest) {
  i64 x = 0;
  switch (fit) {
    case Fit::kFirst:
      return rise(x, alignment, highest) ? x : -1;
    case Fit::kBest:
      return tightest(alignment, highest);
    case Fit::kOnTop:
      x = on_top(alignment);
      return x <= highest ? x : -1;
  }
  return -1;
}

void Packer::insert(const Row& row, i64 x, i64 hole) {
  ++placed_;
  each_block(row, [&](const Block& block) {
    const Span span{x + block.low, x + block.high};
    const auto take = [&](std::vector<SpanList>& lists, i32 at, std::vector<i32>& touched) {
      ++steps_;
      if (lists[at].empty()) touched.push_back(at);
      lists[at].add(span, hole);
    };
    for (i32 level = frames_, wide = width_; level > 0; level /= 2, wide *= 2)
      for (i32 at = level + block.first / wide; at <= level + block.last / wide; ++at)
        take(some_, at, touched_);
    walk(
        block,
        [&](i32 node) {
          if (node >= 2 * frames_) take(some_, node, touched_);
          if (node < leaves_) take(full_, node, touched_);
        },
        [&](i32 node) {
          if (node >= 2 * frames_) take(some_, node, touched_);
        });
    if (block.last - block.first + 1 < width_) return;
    if ((block.last + 1) % width_ == 0) take(ending_, block.last / width_, touched_frames_);
    if (block.first % width_ == 0) take(starting_, block.first / width_, touched_frames_);
  });
}

// Copies the rows in an order, which lie anywhere, and finds the smallest block from each place on.
void Packer::sort_rows(const std::vector<i32>& order) {
  constexpr i64 kSoon = 16;
  const i64 count = std::ssize(order);
  sorted_.resize(count);
  for (i64 i = 0; i < count; ++i) {
    if (i + kSoon < count) __builtin_prefetch(&rows_[order[i + kSoon]]);
    sorted_[i] = rows_[order[i]];
  }
  smallest_.resize(count + 1);
  smallest_[count] = kForever;
  for (i64 i = count; i-- > 0;) {
    smallest_[i] = smallest_[i + 1];
    if (sorted_[i].pinned >= 0) continue;
    each_block(sorted_[i],
               [&](const Block& block) { smallest_[i] = std::min(smallest_[i], block.high - block.low); });
  }
}

// Asks for the lowest nodes of a life, which are the most, before they are needed.
void Packer::fetch_nodes(const Block& block) const {
  constexpr i32 kLevels = 6;
  i32 node = block.first + leaves_;
  for (i32 level = 0; level < kLevels && node >= frames_; ++level, node /= 2) {
    __builtin_prefetch(&some_[node]);
    if (node < leaves_) __builtin_prefetch(&full_[node]);
  }
}

Packer::Result Packer::place(const std::vector<i32>& order, const Rules& rules, const Stop& stop,
                             std::vector<i64>& offset) {
  constexpr i32 kLookEvery = 256;  // buffers placed between two looks at the clock
  constexpr i64 kSoon = 6;
  const i32 n = buffers_.count();
  const i64 limit = std::min(rules.limit, kForever);
  const i64 steps_before = steps_++;  // a pass over nothing is work too
  clear();
  patience_ = rules.patience;
  offset.assign(n, -1);
  sort_rows(order);

  bool all = true;
  for (i32 b = 0; b < n; ++b) {
    const i64 x = buffers_.pinned[b];
    if (x < 0) continue;
    if (x > limit || buffers_.size[b] > limit - x) return Result::kNoRoom;
    gather(b, rows_[b], offset);
    if (!free_at(x)) return Result::kPinsClash;
    offset[b] = x;
    insert(rows_[b], x, 1);
  }
  const i64 count = std::ssize(order);
  for (i64 i = 0; i < count; ++i) {
    if (i + kSoon < count) fetch_nodes(sorted_[i + kSoon].block);
    const i32 b = order[i];
    const Row& row = sorted_[i];
    if (i % kLookEvery == 0) {
      if (rules.deadline ? halted(stop) : stop.asked.load(std::memory_order_relaxed)) return Result::kStopped;
      if (rules.cancelled && rules.cancelled->load(std::memory_order_relaxed)) return Result::kStopped;
    }
    if (rules.most_steps >= 0 && steps_ - steps_before > rules.most_steps) return Result::kGaveUp;
    if (row.pinned >= 0) continue;
    const i64 hint = rules.hints ? buffers_.hint[b] : -1;
    i64 x = -1;
    if (row.size <= limit) {
      patience_ = std::max<i64>(patience_, 0) + rules.patience_per_buffer;
      gather(b, row, offset);
      if (hint >= 0 && hint <= limit - row.size && hint % row.alignment == 0 && free_at(hint)) {
        x = hint;
      } else {
        if (hint >= 0) gather(b, row, offset);  // the look at the hint moved the views
        x = choose(rules.fit, row.alignment, limit - row.size);
      }
    }
    if (x < 0) {
      all = false;
      if (!rules.keep_going) return Result::kNoRoom;
      continue;
    }
    offset[b] = x;
    insert(row, x, smallest_[i + 1]);
  }
  return all ? Result::kPlaced : Result::kNoRoom;
}

i64 height_of(const Buffers& buffers, const std::vector<i64>& offset) {
  i64 height = 0;
  for (i32 b = 0; b < buffers.count(); ++b)
    height = std::max(height, plus(offset[b], capped(buffers.size[b])));
  return height;
}

}  // namespace loadmaster
