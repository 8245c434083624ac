// What memory space assignment knows before it begins: uses, groups, benefits, the order.
#pragma once

#include <cmath>
#include <vector>

#include "game/board.hpp"
#include "game/interval_picker.hpp"

namespace loadmaster::game {

struct MsaOptions {
  PickerRatios ratios;
  double capacity_copy = 0;         // time of a copy as large as the fast memory
  i32 most_in = 40, most_out = 40;  // copies under way at once
  i32 retries = 2, repacks = 4;
  double inefficient_ratio = 0;      // of bytes used to bytes copied, below which it is not worth it
  i32 cross_program = 0;             // so many tensors are fetched before the first step
  std::vector<i32> early;            // [..] the tensors that may be, in order of preference
  double async_factor = 1;           // of the rate of copies
  bool strict_order = false;         // a copy that starts earlier must not end later
  bool write_back = false;           // what slow memory serves is made in fast memory where room is left
  bool stretch = false;              // then copies that would be late end later or start earlier
  i32 slices = 1;                    // a large copy in goes in so many parts, issued one after the other
  double slice_need = 1.8;           // a sliced copy asks for so many times its own time
  std::vector<i64> slice_work;       // [tensors * slices] time of each part; kNever: it goes whole
  std::vector<i64> elapsed, supply;  // [steps] how long each is taken to last, and to let copies run
  std::vector<i64> site_bytes;       // [sites]
};

struct MsaUse {
  i32 step, site;
};

// Tensors that share one place: a chain of in-place results, or what loops carry.
struct MsaGroup {
  std::vector<i32> tensors;    // a chain: in order
  std::vector<i32> use_steps;  // of all of them, ascending
  bool is_carried = false;
};

struct MsaTables {
  MsaTables(const GameModel& model, const MsaOptions& options);

  const GameModel& model;
  const MsaOptions options;
  const Nests line;                       // of copies: one line for all steps
  std::vector<i32> depth;                 // [steps] loops around it
  std::vector<double> benefit;            // [sites] what fast memory saves, for the order
  std::vector<i64> saved;                 // [sites] how much faster its step gets
  std::vector<std::vector<MsaUse>> uses;  // [tensors] reads, by step
  std::vector<i32> made, made_site;       // [tensors] the step and the site that write it; -1: given
  std::vector<i32> overwritten;           // [tensors] by which tensor, or -1
  std::vector<i32> group_of;              // [tensors]
  std::vector<MsaGroup> groups;
  std::vector<double> boundedness;  // [tensors]
  std::vector<i32> sorted;          // tensors, in the order in which they are placed

  bool is_in(i32 step, i32 loop) const {
    return step >= model.loop_first[loop] && step <= model.loop_last[loop];
  }
  // The outermost loop around `step` that does not contain `from`, or -1.
  i32 entered(i32 step, i32 from) const;
  // How far something that lies in fast memory from `first` on must stay for its use at `step`.
  i32 held_until(i32 step, i32 first) const;
  bool is_sliced(i32 tensor) const {
    return options.slices > 1 &&
           options.slice_work[static_cast<std::size_t>(tensor) * options.slices] != kNever;
  }
  // What a copy takes of its resource.
  static i64 need(double time) {
    return static_cast<i64>(std::ceil(std::min(time, static_cast<double>(kForever))));
  }
  double copy_in(i32 tensor) const { return static_cast<double>(model.in[tensor]) / options.async_factor; }
  double copy_out(i32 tensor) const { return static_cast<double>(model.out[tensor]) / options.async_factor; }

 private:
  void find_sites();
  void find_groups();
  void weigh();
  void sort();
};

}  // namespace loadmaster::game
