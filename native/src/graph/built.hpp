// The steps of one fusion, laid out for many runs: only tensors that steps see, numbered anew in
// their old order, and the time of every step on every device.
#pragma once

#include "graph/batch.hpp"

namespace loadmaster::graph {

struct Built {
  Built(const Model& model, const Decisions& decisions, const std::vector<i32>& component,
        std::vector<i32> clusters);

  std::vector<i32> fusion;  // [ops]
  StepGraph graph;
  Rows group_rows;
  std::vector<i32> group_step;  // [groups] -> steps for which a group decides
  std::vector<i32> group;       // [steps] the group that decides
  std::vector<i64> time;        // [steps * devices] with repeats; -1: it can't run there

  i32 tensors = 0;
  std::vector<i32> read, written;  // of the graph's rows
  Rows reader_rows;
  std::vector<i32> reader;  // [tensors] -> steps
  std::span<const i32> readers(i32 tensor) const {
    const i64 first = reader_rows.begin(tensor);
    return std::span(reader).subspan(first, reader_rows.end(tensor) - first);
  }
  std::vector<i32> writer;                    // [tensors] step or -1
  std::vector<i32> home_step;                 // [tensors] its device is the home; -1: device 0
  std::vector<i64> size;                      // [tensors]
  std::vector<i64> factor;                    // [tensors] how often a transfer of it is repeated
  std::vector<i32> place;                     // [tensors] numbered from 0
  std::vector<i64> place_size;                // [places]
  std::vector<i8> persistent, input, output;  // [tensors]
  bool runs = true;                           // false: the clusters are not legal steps
};

}  // namespace loadmaster::graph
