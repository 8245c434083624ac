// Byte ranges that are taken, of any number: ascending, disjoint, not touching.
//
// One of them lies in the list itself (most lists never have more), a few in one array, many in chunks,
// so that taking one in moves few others. Whoever reads goes upwards only, with a `SpanCursor`.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <vector>

#include "../units.hpp"

namespace loadmaster {

struct Span {
  i64 from, to;
};

class SpanList {
 public:
  SpanList() : one_{0, 0} {}
  ~SpanList() { clear(); }
  SpanList(const SpanList&) = delete;
  SpanList& operator=(const SpanList&) = delete;

  bool empty() const { return count_ == 0; }
  i64 top() const { return room_ == kMany ? many_->tops.back() : begin()[count_ - 1].to; }  // if not empty

  void clear() {
    if (room_ == kMany)
      delete many_;
    else if (room_ > 1)
      delete[] few_;
    one_ = {0, 0};
    count_ = 0;
    room_ = 1;
  }

  // Takes the span in. Holes smaller than `hole` are of no use to anyone any more and count as taken.
  void add(Span span, i64 hole) {
    if (span.from < hole) span.from = 0;
    if (room_ == kMany) {
      many_->add(span, hole);
      return;
    }
    Span* const first = reach(begin(), begin() + count_, span, hole);
    Span* const end = begin() + count_;
    Span* last = first;
    while (last != end && last->from < span.to + hole) ++last;
    if (first != last) {
      first->from = std::min(first->from, span.from);
      first->to = std::max(std::prev(last)->to, span.to);
      count_ -= static_cast<std::uint32_t>(last - first - 1);
      std::copy(last, end, first + 1);
    } else {
      insert(static_cast<std::uint32_t>(first - begin()), span);
    }
  }

 private:
  friend class SpanCursor;
  using Spans = std::vector<Span>;
  static constexpr std::uint32_t kMostInChunk = 256, kMany = 0;

  // The first span that the new one meets, or that lies above it.
  template <class At>
  static At reach(At begin, At end, const Span& span, i64 hole) {
    return std::partition_point(begin, end, [&](const Span& s) { return s.to + hole <= span.from; });
  }

  struct Many {
    std::vector<Spans> chunks;  // none is empty
    std::vector<i64> tops;      // of each chunk, where its last span ends

    Many(const Span* begin, const Span* end) {
      chunks.emplace_back(begin, end);
      tops.push_back(chunks.front().back().to);
      split(0);
    }

    void add(Span span, i64 hole) {
      const auto at =
          std::partition_point(tops.begin(), tops.end(), [&](i64 top) { return top + hole <= span.from; });
      const i64 chunk = std::min<i64>(at - tops.begin(), std::ssize(tops) - 1);
      // What it meets in the chunks that follow goes into it.
      i64 next = chunk + 1;
      for (; next < std::ssize(chunks) && chunks[next].front().from < span.to + hole; ++next) {
        Spans& following = chunks[next];
        const auto apart = std::partition_point(following.begin(), following.end(),
                                                [&](const Span& s) { return s.from < span.to + hole; });
        span.to = std::max(span.to, std::prev(apart)->to);
        following.erase(following.begin(), apart);
        if (!following.empty()) break;
      }
      chunks.erase(chunks.begin() + chunk + 1, chunks.begin() + next);
      tops.erase(tops.begin() + chunk + 1, tops.begin() + next);
      add_to(chunks[chunk], span, hole);
      tops[chunk] = chunks[chunk].back().to;
      if (chunks[chunk].size() > kMostInChunk) split(chunk);
    }

    static void add_to(Spans& spans, Span span, i64 hole) {
      const auto first = reach(spans.begin(), spans.end(), span, hole);
      auto last = first;
      while (last != spans.end() && last->from < span.to + hole) ++last;
      if (first == last) {
        spans.insert(first, span);
        return;
      }
      first->from = std::min(first->from, span.from);
      first->to = std::max(std::prev(last)->to, span.to);
      spans.erase(std::next(first), last);
    }

    void split(i64 chunk) {
      const i64 half = std::ssize(chunks[chunk]) / 2;
      Spans upper(chunks[chunk].begin() + half, chunks[chunk].end());
      chunks[chunk].resize(half);
      tops[chunk] = chunks[chunk].back().to;
      tops.insert(tops.begin() + chunk + 1, upper.back().to);
      chunks.insert(chunks.begin() + chunk + 1, std::move(upper));
    }
  };

  Span* begin() { return room_ == 1 ? &one_ : few_; }
  const Span* begin() const { return room_ == 1 ? &one_ : few_; }

  void insert(std::uint32_t at, const Span& span) {
    if (count_ == room_) {
      const std::uint32_t room = room_ == 1 ? 4 : 2 * room_;
      Span* const wider = new Span[room];
      std::copy(begin(), begin() + count_, wider);
      if (room_ > 1) delete[] few_;
      few_ = wider;
      room_ = room;
    }
    Span* const spans = begin();
    std::copy_backward(spans + at, spans + count_, spans + count_ + 1);
    spans[at] = span;
    if (++count_ <= kMostInChunk) return;
    Many* const many = new Many(spans, spans + count_);
    delete[] few_;
    many_ = many;
    room_ = kMany;
  }

  union {
    Span one_;    // room_ is 1
    Span* few_;   // of room_ spans
    Many* many_;  // room_ is kMany
  };
  std::uint32_t count_ = 0;  // of one or a few; of many: not 0
  std::uint32_t room_ = 1;
};

// Goes up through one list. Offset x of bytes [low, high) is not free where a span has from < x + high
// and to > x + low.
class SpanCursor {
 public:
  SpanCursor(const SpanList& list, i64 low, i64 high) : list_(&list), low_(low), high_(high) {
    if (list.room_ == SpanList::kMany)
      enter(list.many_->chunks.front());
    else
      at_ = list.begin(), end_ = at_ + list.count_;
  }

  // To the first span that reaches beyond x; x never falls. In steps that double.
  void seek(i64 x) {
    if (at_ == end_ || at_->to - low_ > x) return;
    if (list_->room_ == SpanList::kMany && list_->many_->tops[chunk_] - low_ <= x && !skip_chunks(x)) return;
    if (at_->to - low_ > x) return;
    std::ptrdiff_t step = 1;
    while (step < end_ - at_ && at_[step].to - low_ <= x) at_ += step, step *= 2;
    const Span* const stop = std::min(at_ + step, end_);
    at_ = std::partition_point(at_ + 1, stop, [&](const Span& s) { return s.to - low_ <= x; });
  }

  bool over() const { return at_ == end_; }                     // nothing is above x
  i64 wall() const { return at_->from - high_; }                // offsets above it are barred,
  i64 after() const { return at_->to - low_; }                  // up to this one
  bool bars(i64 x) const { return at_ != end_ && wall() < x; }  // where x was sought
  i64 top() const { return list_->top() - low_; }

 private:
  // To the chunk of the first span that reaches beyond x; false: there is none.
  bool skip_chunks(i64 x) {
    const std::vector<i64>& tops = list_->many_->tops;
    const auto found =
        std::partition_point(tops.begin() + chunk_ + 1, tops.end(), [&](i64 top) { return top - low_ <= x; });
    chunk_ = found - tops.begin();
    if (found == tops.end())
      at_ = end_;
    else
      enter(list_->many_->chunks[chunk_]);
    return at_ != end_;
  }

  void enter(const std::vector<Span>& spans) {
    at_ = spans.data();
    end_ = at_ + spans.size();
  }

  const SpanList* list_;
  const Span* at_ = nullptr;
  const Span* end_ = nullptr;
  i64 chunk_ = 0;
  i64 low_, high_;
};

}  // namespace loadmaster
