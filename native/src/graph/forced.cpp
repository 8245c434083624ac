#include "graph/forced.hpp"

#include <algorithm>

namespace loadmaster::graph {
namespace {

constexpr i64 kMostWork = i64{1} << 28;  // edges that one look at all pairs follows, 64 sources at a time
constexpr int kRounds = 4;               // each finds what the one before it forced
constexpr i64 kNothing = -1;             // no result leaves for sure

class Finder {
 public:
  explicit Finder(const FusionRules& rules)
      : rules_(rules),
        model_(rules.model),
        reach_(model_.ops, 0),
        through_(model_.ops, 0),
        leaves_(model_.tensors, 0),
        must_read_(model_.reader.size(), 0),
        loop_size_(model_.ops, kNothing) {
    f_.alone.resize(model_.ops);
    for (i32 op = 0; op < model_.ops; ++op) f_.alone[op] = !rules.touched[op];
    f_.cut.resize(rules.prev.size());
    const i64 edges = std::max<i64>(1, static_cast<i64>(rules.prev.size()));
    window_ = std::max<i64>(1 << 12, kMostWork * 64 / edges);
  }

  Forced find() {
    for (int round = 0; round < kRounds; ++round) {
      cut_edges();
      each_source([&](i32 op, u64 bit) { look_from(op, bit); });
      if (!note_sizes()) break;
    }
    charge();
    return std::move(f_);
  }

 private:
  bool apart(i32 op, u64 bit) const { return op <= last_ && (through_[op] & bit) != 0; }

  // Edges whose ends are in two clusters by the rules about two ops.
  void cut_edges() {
    for (i32 op = 0; op < model_.ops; ++op) {
      const i64 begin = rules_.prev_rows.begin(op), end = rules_.prev_rows.end(op);
      for (i64 i = begin; i < end; ++i) {
        const i32 from = rules_.prev[i];
        const bool sizes = loop_size_[from] >= 0 && loop_size_[op] >= 0 && loop_size_[from] != loop_size_[op];
        if (f_.alone[op] || f_.alone[from] || model_.loop[op] != model_.loop[from] || sizes) f_.cut[i] = 1;
      }
      for (i64 row = model_.access.rows.begin(op); row < model_.access.rows.end(op); ++row) {
        const i32 writer = model_.writer[model_.access.tensor[row]];
        if (model_.access.write[row] || writer < 0 || writer == op || rules_.may_read_inside(row)) continue;
        const auto at = std::lower_bound(rules_.prev.begin() + begin, rules_.prev.begin() + end, writer);
        if (at != rules_.prev.begin() + end && *at == writer) f_.cut[at - rules_.prev.begin()] = 1;
      }
    }
  }

  // Visits every op that may be fused, with a bit: `through_` of a later op has it if a path from the one to
  // the other has a cut edge. Then no cluster holds both, because it would hold all that lies between.
  template <class Visit>
  void each_source(Visit&& visit) {
    std::vector<i32> block;
    for (i32 op = 0; op < model_.ops; ++op) {
      if (!f_.alone[op]) block.push_back(op);
      if (block.size() < 64 && (op + 1 < model_.ops || block.empty())) continue;
      spread(block);
      for (std::size_t k = 0; k < block.size(); ++k) visit(block[k], u64{1} << k);
      block.clear();
    }
  }

  void spread(const std::vector<i32>& block) {
    const i32 first = block.front();
    last_ = static_cast<i32>(std::min<i64>(model_.ops - 1, block.back() + window_));
    std::size_t next = 0;
    for (i32 op = first; op <= last_; ++op) {
      u64 reach = 0, through = 0;
      for (i64 i = rules_.prev_rows.begin(op); i < rules_.prev_rows.end(op); ++i) {
        const i32 from = rules_.prev[i];
        if (from < first) continue;
        reach |= reach_[from];
        through |= f_.cut[i] ? reach_[from] : through_[from];
      }
      if (next < block.size() && block[next] == op) reach |= u64{1} << next++;
      reach_[op] = reach;
      through_[op] = through;
    }
  }

  // Who is never with `op` of those that read its results or follow it at once.
  void look_from(i32 op, u64 bit) {
    for (i64 i = rules_.next_rows.begin(op); i < rules_.next_rows.end(op); ++i) {
      const i32 to = rules_.next[i];
      if (!apart(to, bit)) continue;
      const auto begin = rules_.prev.begin() + rules_.prev_rows.begin(to);
      f_.cut[std::lower_bound(begin, rules_.prev.begin() + rules_.prev_rows.end(to), op) -
             rules_.prev.begin()] = 1;
    }
    for (i64 row = model_.access.rows.begin(op); row < model_.access.rows.end(op); ++row) {
      if (!model_.access.write[row]) continue;
      const i32 t = model_.access.tensor[row];
      leaves_[t] = leaves_[t] || model_.output[t] || model_.tied[t];
      for (i64 i = model_.reader_rows.begin(t); i < model_.reader_rows.end(t); ++i) {
        const i32 reader = model_.reader[i];
        if (reader == op || !(f_.alone[reader] || apart(reader, bit))) continue;
        leaves_[t] = 1;
        must_read_[i] = 1;
      }
    }
  }

  // Results that leave one cluster have one loop size. Whether anything new is known.
  bool note_sizes() {
    bool news = false;
    for (i32 op = 0; op < model_.ops; ++op) {
      if (f_.alone[op]) continue;
      for (i64 row = model_.access.rows.begin(op); row < model_.access.rows.end(op); ++row) {
        const i32 t = model_.access.tensor[row];
        if (!model_.access.write[row] || !leaves_[t]) continue;
        const i64 size = rules_.columns.loop_size[t];
        news = news || loop_size_[op] != size;
        if (loop_size_[op] >= 0 && loop_size_[op] != size) f_.alone[op] = 1;
        loop_size_[op] = size;
      }
    }
    return news;
  }

  void charge() {
    f_.read.assign(model_.ops, 0), f_.write.assign(model_.ops, 0);
    f_.reads.assign(model_.ops, 0), f_.writes.assign(model_.ops, 0);
    for (i32 op = 0; op < model_.ops; ++op) {
      if (f_.alone[op]) continue;
      for (i64 row = model_.access.rows.begin(op); row < model_.access.rows.end(op); ++row) {
        if (!model_.access.write[row] || !leaves_[model_.access.tensor[row]]) continue;
        f_.write[op] = plus(f_.write[op], model_.access.bytes[row]);
        f_.writes[op] += model_.access.bytes[row] > 0;
      }
    }
    std::vector<i32> charged(model_.tensors, -1);  // the last reader that pays for a tensor
    for (i32 t = 0; t < model_.tensors; ++t) charge_reads(t, charged);
    each_source([&](i32 op, u64 bit) {
      for (i64 row = model_.access.rows.begin(op); row < model_.access.rows.end(op); ++row) {
        const i32 t = model_.access.tensor[row];
        if (charged[t] != op || model_.access.write[row]) continue;
        for (i64 i = model_.reader_rows.begin(t); i < model_.reader_rows.end(t); ++i) {
          const i32 reader = model_.reader[i];
          if (reader <= op || f_.alone[reader] || !pays(t, i) || !apart(reader, bit)) continue;
          charge_reader(t, reader);
          charged[t] = reader;
          break;
        }
      }
    });
  }

  // Whether the cluster of a reader reads the tensor from memory.
  bool pays(i32 t, i64 i) const {
    const i32 writer = model_.writer[t];
    return writer < 0 || (writer != model_.reader[i] && (f_.alone[writer] || must_read_[i]));
  }

  i64 bytes_read(i32 t, i32 op) const {
    i64 bytes = 0;
    for (i64 row = model_.access.rows.begin(op); row < model_.access.rows.end(op); ++row)
      if (model_.access.tensor[row] == t && !model_.access.write[row])
        bytes = plus(bytes, model_.access.bytes[row]);
    return std::min(bytes, model_.size[t]);
  }

  void charge_reader(i32 t, i32 op) {
    const i64 bytes = bytes_read(t, op);
    f_.read[op] = plus(f_.read[op], bytes);
    f_.reads[op] += bytes > 0;
  }

  // A cluster reads a tensor once, at most as a whole. Parts that make less than the whole are all paid
  // for; else the first reader pays, and later those that are never with the last one that did.
  void charge_reads(i32 t, std::vector<i32>& charged) {
    i64 sum = 0;
    i32 first = -1;
    for (i64 i = model_.reader_rows.begin(t); i < model_.reader_rows.end(t); ++i) {
      const i32 reader = model_.reader[i];
      if (f_.alone[reader] || !pays(t, i)) continue;
      sum = plus(sum, bytes_read(t, reader));
      if (first < 0) first = reader;
    }
    if (first < 0) return;
    if (sum > model_.size[t]) {
      charge_reader(t, first);
      charged[t] = first;
      return;
    }
    for (i64 i = model_.reader_rows.begin(t); i < model_.reader_rows.end(t); ++i) {
      const i32 reader = model_.reader[i];
      if (f_.alone[reader] || !pays(t, i)) continue;
      f_.read[reader] = plus(f_.read[reader], bytes_read(t, reader));
      f_.reads[reader] += reader == first && bytes_read(t, reader) > 0;
    }
  }

  const FusionRules& rules_;
  const Model& model_;
  std::vector<u64> reach_, through_;  // [ops]
  std::vector<i8> leaves_;            // [tensors] in every plan
  std::vector<i8> must_read_;         // [readers]
  std::vector<i64> loop_size_;        // [ops] of its results that leave
  i64 window_ = 0;
  i32 last_ = -1;
  Forced f_;
};

}  // namespace

Forced find_forced(const FusionRules& rules) { return Finder(rules).find(); }

}  // namespace loadmaster::graph
