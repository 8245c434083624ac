// The plan's own order of transfers (section 4): each engine serves the listed transfers in turn.
#pragma once

#include <functional>
#include <queue>

#include "flow.hpp"

namespace loadmaster {

class TransferList {
 public:
  TransferList(const Model& model, const Flow& flow) : model_(model), flow_(flow) {}

  // False, with a fault: the list is not exactly the transfers that are needed, each once.
  bool read(const PlanView& plan, Outcome& outcome);
  bool empty() const { return entries_.empty(); }

  // A tensor for a device is there: calls book(tensor, device, produced) for every transfer that may
  // now be booked, this one or those it held back, in the order of the list.
  template <class Book>
  void produced(i32 tensor, i32 device, i64 now, Book&& book) {
    std::priority_queue<i64, std::vector<i64>, std::greater<>> open;
    open.push(find(tensor, device));
    entries_[open.top()].produced = now;
    while (!open.empty()) {
      const i64 i = open.top();
      open.pop();
      Entry& entry = entries_[i];
      if (entry.produced < 0 || entry.behind > 0 || entry.booked) continue;
      entry.booked = true;
      book(entry.tensor, entry.device, entry.produced);
      for (const i32 engine : engines_of(entry.tensor, entry.device)) {
        const std::size_t next = ++next_[engine];
        if (next == queues_[engine].size()) continue;
        --entries_[queues_[engine][next]].behind;
        open.push(queues_[engine][next]);
      }
    }
  }

 private:
  struct Entry {
    i32 tensor, device;
    i64 produced = -1;
    i32 behind = 0;  // engines at whose head it is not yet
    bool booked = false;
  };
  static u64 key(i32 tensor, i32 device) { return static_cast<u64>(tensor) << 16 | static_cast<u64>(device); }
  i64 find(i32 tensor, i32 device) const;  // its place in the list, or -1
  const std::vector<i32>& engines_of(i32 tensor, i32 device) const;
  bool needed(i32 tensor, i32 device) const;

  const Model& model_;
  const Flow& flow_;
  std::vector<Entry> entries_;
  std::vector<std::pair<u64, i64>> index_;  // sorted by key
  std::vector<std::vector<i64>> queues_;    // per engine: entries that hold it, in order
  std::vector<std::size_t> next_;           // per engine: the entry at its head
};

}  // namespace loadmaster
