// Where data is and what memory it holds (sections 4 and 6): home copies, their uses, transfers between them,
// and what steps wait for. `Plan` derives from it and says what is decided:
//
//   device(step), home(tensor)           devices
//   read(i), written(i)                  tensors of the step graph's rows
//   writer(tensor)                       step or -1
//   resident_read(i), resident_write(i)  whether a residency serves that access
//   input(tensor), output(tensor), held_for_ever(tensor), place(tensor), place_size(place)
//   no_link(from, to)                    what to answer where a transfer has no link
//   holds(memory, bytes, now)            so many bytes are held there now, more than before
//
// Devices are "near" ones: the first of those that share a home memory stands for all of them.
#pragma once

#include "steps.hpp"
#include "timing.hpp"

namespace loadmaster {

template <class Plan>
class HomeCopies {
 public:
  explicit HomeCopies(const Model& model)
      : model_(model), devices_(model.device_count()), near_(near_devices(model)) {}

  i32 near(i32 device) const { return near_[device]; }
  bool is_near(i32 tensor, i32 near_device) const { return near_[plan().home(tensor)] == near_device; }
  // Whether a tensor comes to a device by transfer.
  bool transferred(i32 tensor, i32 near_device) const {
    return devices_ > 1 && cell(tensor, near_device).transferred != 0;
  }
  i64 transfer_count() const { return transfer_count_; }
  i32 link_to(i32 tensor, i32 near_device) const {
    return model_.link_between[memory(plan().home(tensor)) * model_.memory_count() + memory(near_device)];
  }

  void end_transfer(i32 tensor, i32 near_device) {
    close(tensor, near_[plan().home(tensor)]);
    close(tensor, near_device);
  }

 protected:
  struct Cell {    // a tensor at the home of a device
    i32 uses = 0;  // that are not over
    i8 open = 0, transferred = 0;
  };
  Cell& cell(i32 tensor, i32 near_device) {
    return cells_[static_cast<std::size_t>(tensor) * devices_ + near_device];
  }
  const Cell& cell(i32 tensor, i32 near_device) const {
    return cells_[static_cast<std::size_t>(tensor) * devices_ + near_device];
  }
  i32 memory(i32 device) const { return model_.devices[device].home(); }

  // Nothing has run: counts uses and transfers, and for how many things each step waits. False: no link.
  bool count_uses(const StepGraph& graph, i32 tensors, i64 places, std::vector<i32>& waits) {
    cells_.assign(static_cast<std::size_t>(tensors) * devices_, Cell{});
    holds_.assign(static_cast<std::size_t>(places) * model_.memories.size(), 0);
    bytes_.assign(model_.memories.size(), 0);
    waits.assign(graph.count, 0);
    transfer_count_ = 0;
    for (i32 s = 0; s < graph.count; ++s) {
      const i32 here = near_[plan().device(s)];
      for (i64 i = graph.read_rows.begin(s); i < graph.read_rows.end(s); ++i) {
        const i32 t = plan().read(i);
        bool comes = plan().writer(t) >= 0;
        if (!plan().resident_read(i)) {
          Cell& there = cell(t, here);
          ++there.uses;
          if (devices_ > 1 && !there.transferred && !plan().input(t) && !is_near(t, here)) {
            if (link_to(t, here) < 0) return plan().no_link(memory(plan().home(t)), memory(here));
            there.transferred = 1;
            ++transfer_count_;
            ++there.uses;                           // the transfer, until it ends, there …
            ++cell(t, near_[plan().home(t)]).uses;  // … and at home
          }
          comes = comes || there.transferred;
        }
        waits[s] += comes;
      }
      for (i64 i = graph.write_rows.begin(s); i < graph.write_rows.end(s); ++i)
        if (!plan().resident_write(i)) ++cell(plan().written(i), here).uses;
    }
    for (const i32 s : graph.over) ++waits[s];
    return true;
  }

  void open_written(const StepGraph& graph, i32 step, i64 now) {
    const i32 here = near_[plan().device(step)];
    for (i64 i = graph.write_rows.begin(step); i < graph.write_rows.end(step); ++i)
      if (!plan().resident_write(i)) open(plan().written(i), here, now);
  }

  void close_used(const StepGraph& graph, i32 step) {
    const i32 here = near_[plan().device(step)];
    for (i64 i = graph.read_rows.begin(step); i < graph.read_rows.end(step); ++i)
      if (!plan().resident_read(i)) close(plan().read(i), here);
    for (i64 i = graph.write_rows.begin(step); i < graph.write_rows.end(step); ++i)
      if (!plan().resident_write(i)) close(plan().written(i), here);
  }

  // A weight that lies at its home for ever has no copy there that comes and goes.
  bool is_kept(i32 tensor, i32 near_device) const {
    return plan().held_for_ever(tensor) && is_near(tensor, near_device);
  }
  // The home copy of an output is never over; an input's is the caller's.
  bool stays_open(i32 tensor, i32 near_device) const {
    return plan().output(tensor) && !plan().input(tensor) && is_near(tensor, near_device);
  }

  void open(i32 tensor, i32 near_device, i64 now) {
    Cell& copy = cell(tensor, near_device);
    if (copy.open || is_kept(tensor, near_device)) return;
    copy.open = 1;
    hold(tensor, memory(near_device), now);
  }

  void close(i32 tensor, i32 near_device) {
    Cell& copy = cell(tensor, near_device);
    if (--copy.uses > 0 || !copy.open || stays_open(tensor, near_device)) return;
    copy.open = 0;
    release(tensor, memory(near_device));
  }

  // A place counts once in a memory, however often it is held there.
  void hold(i32 tensor, i32 at, i64 now) {
    const i32 place = plan().place(tensor);
    if (holds_[static_cast<std::size_t>(place) * model_.memories.size() + at]++ > 0) return;
    bytes_[at] = plus(bytes_[at], aligned(plan().place_size(place), model_.memories[at].alignment));
    plan().holds(at, bytes_[at], now);
  }

  void release(i32 tensor, i32 at) {
    const i32 place = plan().place(tensor);
    if (--holds_[static_cast<std::size_t>(place) * model_.memories.size() + at] > 0) return;
    bytes_[at] -= aligned(plan().place_size(place), model_.memories[at].alignment);
  }

  const Model& model_;
  const i32 devices_;
  const std::vector<i32> near_;  // [devices] the first device with the same home

 private:
  Plan& plan() { return static_cast<Plan&>(*this); }
  const Plan& plan() const { return static_cast<const Plan&>(*this); }

  i64 transfer_count_ = 0;
  std::vector<Cell> cells_;  // [tensors * devices]
  std::vector<i32> holds_;   // [places * memories]
  std::vector<i64> bytes_;   // [memories] held now
};

}  // namespace loadmaster
