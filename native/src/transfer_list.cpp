#include "transfer_list.hpp"

#include <algorithm>

namespace loadmaster {

bool TransferList::needed(i32 tensor, i32 device) const {
  return model_.root[tensor] == tensor && !model_.input(tensor) && flow_.near(device) == device &&
         !flow_.is_near(tensor, device) && flow_.transferred(tensor, device);
}

const std::vector<i32>& TransferList::engines_of(i32 tensor, i32 device) const {
  const i32 from = model_.devices[flow_.home(tensor)].home();
  const i32 to = model_.devices[device].home();
  return model_.links[model_.link_between[from * model_.memory_count() + to]].engines;
}

i64 TransferList::find(i32 tensor, i32 device) const {
  const std::pair<u64, i64> wanted{key(tensor, device), 0};
  const auto found = std::lower_bound(index_.begin(), index_.end(), wanted);
  return found == index_.end() || found->first != wanted.first ? -1 : found->second;
}

bool TransferList::read(const PlanView& plan, Outcome& outcome) {
  if (plan.transfer_count < 0) return true;
  queues_.resize(model_.engines);
  next_.assign(model_.engines, 0);
  for (i64 i = 0; i < plan.transfer_count; ++i) {
    const i32 t = model_.root[plan.transfers[i * 2]];
    const i32 d = static_cast<i32>(plan.transfers[i * 2 + 1]);
    if (!needed(t, d)) return outcome.fail(Fault::kTransferList, t, d);
    Entry entry{t, d};
    for (const i32 engine : engines_of(t, d)) {
      if (!queues_[engine].empty()) ++entry.behind;
      queues_[engine].push_back(i);
    }
    entries_.push_back(entry);
    index_.emplace_back(key(t, d), i);
  }
  std::sort(index_.begin(), index_.end());
  for (std::size_t i = 1; i < index_.size(); ++i)
    if (index_[i].first == index_[i - 1].first) {
      const Entry& twice = entries_[index_[i].second];
      return outcome.fail(Fault::kTransferList, twice.tensor, twice.device);
    }
  if (plan.transfer_count == flow_.transfer_count()) return true;
  for (i32 t = 0; t < model_.tensors; ++t)
    for (i32 d = 0; d < model_.device_count(); ++d)
      if (needed(t, d) && find(t, d) < 0) return outcome.fail(Fault::kTransferList, t, d);
  return outcome.fail(Fault::kTransferList, -1, -1);
}

}  // namespace loadmaster
