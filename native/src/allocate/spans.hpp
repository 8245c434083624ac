// Byte ranges that are taken, of any number: ascending, disjoint, not touching.
//
// Few of them lie in one array; many in chunks, so that taking one in moves few others. Whoever reads
// goes upwards only, with a `SpanCursor`.
#pragma once

#include <algorithm>
#include <cstddef>
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
  bool empty() const { return !many_ && few_.empty(); }
  i64 top() const { return many_ ? many_->tops.back() : few_.back().to; }  // of a list that is not empty

  void clear() {
    few_.clear();
    many_.reset();
  }

  // Takes the span in. Holes smaller than `hole` are of no use to anyone any more and count as taken.
  void add(Span span, i64 hole) {
    if (span.from < hole) span.from = 0;
    if (many_) {
      many_->add(span, hole);
      return;
    }
    add_to(few_, span, hole);
    if (few_.size() > kMostInChunk) many_ = std::make_unique<Many>(few_);
  }

 private:
  friend class SpanCursor;
  using Spans = std::vector<Span>;
  static constexpr std::size_t kMostInChunk = 256;

  static void add_to(Spans& spans, Span span, i64 hole) {
    const auto first = std::partition_point(spans.begin(), spans.end(),
                                            [&](const Span& s) { return s.to + hole <= span.from; });
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

  struct Many {
    std::vector<Spans> chunks;  // none is empty
    std::vector<i64> tops;      // of each chunk, where its last span ends

    explicit Many(Spans& few) {
      chunks.emplace_back().swap(few);
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

    void split(i64 chunk) {
      const i64 half = std::ssize(chunks[chunk]) / 2;
      Spans upper(chunks[chunk].begin() + half, chunks[chunk].end());
      chunks[chunk].resize(half);
      tops[chunk] = chunks[chunk].back().to;
      tops.insert(tops.begin() + chunk + 1, upper.back().to);
      chunks.insert(chunks.begin() + chunk + 1, std::move(upper));
    }
  };

  Spans few_;
  std::unique_ptr<Many> many_;  // instead of few
};

// Goes up through one list. Offset x of bytes [low, high) is not free where a span has from < x + high
// and to > x + low.
class SpanCursor {
 public:
  SpanCursor(const SpanList& list, i64 low, i64 high) : list_(&list), low_(low), high_(high) {
    enter(list.many_ ? list.many_->chunks.front() : list.few_);
  }

  // To the first span that reaches beyond x; x never falls. In steps that double.
  void seek(i64 x) {
    if (at_ == end_ || at_->to - low_ > x) return;
    if (list_->many_ && list_->many_->tops[chunk_] - low_ <= x && !skip_chunks(x)) return;
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
