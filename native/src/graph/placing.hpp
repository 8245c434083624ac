// What constructive placers share: the steps of one fusion in order, their groups, and a schedule that
// grows step by step while groups get their devices.
#pragma once

#include "steps.hpp"

namespace loadmaster::graph {

struct PlacingColumns {
  std::vector<i32> fusion;     // [ops] clusters
  std::vector<i32> group;      // [ops] placement group, -1 for views
  std::vector<i32> component;  // [ops] hard component, or -1
  std::vector<i64> bytes;      // [groups] what a group is expected to hold
};

// All transfers between a group and another, were they apart.
struct Tie {
  i32 group;
  i64 time;
};

// What counts for a list placer when it chooses a device, in thousandths.
struct Outlook {
  i64 transfer = 1000;  // of the time of transfers
  i64 ahead = 0;        // of the transfers between a group and groups that have a device
  i64 load = 0;         // of the work that a device has been given
  i64 wait = 0;         // of the time for which transfers wait for each other
};

// Steps, their groups and costs. Nothing here depends on a placement.
class Placing {
 public:
  Placing(const Model& model, PlacingColumns columns);

  const Model& model;
  const PlacingColumns columns;
  StepGraph graph;
  i32 groups = 0, devices = 0;
  std::vector<i32> order;      // steps, producers first
  std::vector<i32> group;      // [steps] whose device a step takes
  std::vector<i32> home;       // [tensors] group with which a weight lives, or -1
  std::vector<i64> time;       // [steps * devices] picoseconds with repetitions; -1: it can't run there
  std::vector<i8> able;        // [groups * devices]
  std::vector<i64> work;       // [groups * devices] picoseconds of all steps of a group
  std::vector<i32> near;       // [devices] the first device with the same home
  std::vector<i64> mean_move;  // [tensors] of a transfer, mean over links
  Rows tie_rows;
  std::vector<Tie> ties;  // [groups] -> groups with which it shares data, each once

  i64 duration(i32 step, i32 device) const { return time[static_cast<std::size_t>(step) * devices + device]; }
  bool can(i32 g, i32 device) const { return able[static_cast<std::size_t>(g) * devices + device] != 0; }
  // Time of a transfer between devices, kForever without a link; 0 where they share their home.
  i64 move(i32 tensor, i32 from, i32 to) const;
  i64 repeats(i32 tensor) const;
  // [steps] longest path to the end, own time included. `device` [groups] or null: mean times, and
  // mean transfers between groups; transfers count only if `moves`.
  std::vector<i64> levels(const i32* device, bool moves) const;

 private:
  void sort_steps();
  void find_homes();
  void find_times();
  void find_moves();
  void find_ties();
};

// A schedule that grows.
class Placed {
 public:
  Placed(const Placing& placing, const i64* room, Outlook outlook);

  std::vector<i32> device;  // [groups] -1: not yet
  std::vector<i64> end;     // [steps]

  // When everything that a step reads could be at a device, and nobody uses what it writes over.
  i64 ready(i32 step, i32 at) const { return ready(step, at, 1000); }
  // The same with so many thousandths of the time of transfers.
  i64 ready(i32 step, i32 at, i64 transfer) const;
  // Whether the group of a step, with the weights that it would draw along, has room there.
  bool fits(i32 step, i32 at);
  // What counts of the transfers between a group, put on a device, and the groups that have one.
  i64 later_moves(i32 group, i32 at) const;
  // What counts of the work on a device, with a group put there.
  i64 counted_load(i32 group, i32 at) const;
  // The time of all transfers so far.
  i64 transferred() const { return transferred_; }
  // The device with most room that can run a group.
  i32 roomiest(i32 group) const;
  // Puts a step on a device: its group is decided and draws along weights that it is first to read.
  // Calls `decided(group)` for every group that is new.
  template <class Decided>
  void put(i32 step, i32 at, i64 start, Decided&& decided) {
    decide(p_.group[step], at, decided);
    each_drawn(step, at, [&](i32 g) { decide(g, at, decided); });
    book(step, at);
    end[step] = plus(start, p_.duration(step, at));
    for (i64 i = p_.graph.over_rows.begin(step); i < p_.graph.over_rows.end(step); ++i)
      after_[p_.graph.over[i]] = std::max(after_[p_.graph.over[i]], end[step]);
  }
  template <class Decided>
  void decide(i32 g, i32 at, Decided&& decided) {
    if (device[g] >= 0) return;
    device[g] = at;
    i64& left = room_[p_.model.devices[at].home()];
    left = std::max(left - p_.columns.bytes[g], -kForever);
    load_[at] = plus(load_[at], p_.work[static_cast<std::size_t>(g) * p_.devices + at]);
    decided(g);
  }

 private:
  template <class Visit>
  void each_drawn(i32 step, i32 at, Visit&& visit) const {
    for (i64 i = p_.graph.read_rows.begin(step); i < p_.graph.read_rows.end(step); ++i) {
      const i32 g = p_.home[p_.graph.read[i]];
      if (g >= 0 && device[g] < 0 && p_.can(g, at)) visit(g);
    }
  }
  // Device of a tensor; -1: everywhere, or not known yet.
  i32 source(i32 tensor) const;
  i64 made(i32 tensor) const;
  i64 arrival(i32 tensor, i32 at, i64 transfer) const;
  void book(i32 step, i32 at);

  const Placing& p_;
  const Outlook outlook_;
  std::vector<i64> room_;         // [memories]
  std::vector<i64> after_;        // [steps] end of what it writes over, as far as that is put
  std::vector<i64> arrived_;      // [tensors * devices] of transfers that are booked, else -1
  std::vector<i64> engine_free_;  // [engines]
  std::vector<i64> load_;         // [devices] work of the groups there
  i64 transferred_ = 0;
  std::vector<i32> drawn_;
};

}  // namespace loadmaster::graph
