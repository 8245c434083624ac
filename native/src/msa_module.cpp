// XLA-style memory space assignment for Python.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <optional>

#include "checked.hpp"
#include "game/msa_feedback.hpp"
#include "game_tables.hpp"
#include "parallel.hpp"

namespace loadmaster {

using namespace game;

namespace {

// What it is given must fit the model: the core trusts it.
MsaOptions read_options(const GameModel& model, const nb::dict& o) {
  MsaOptions options;
  options.ratios = {nb::cast<double>(item(o, "min_ratio")), nb::cast<double>(item(o, "preferred_ratio")),
                    nb::cast<double>(item(o, "max_ratio")), nb::cast<double>(item(o, "loop_factor"))};
  options.capacity_copy = nb::cast<double>(item(o, "capacity_copy"));
  options.most_in = nb::cast<i32>(item(o, "most_in"));
  options.most_out = nb::cast<i32>(item(o, "most_out"));
  options.retries = nb::cast<i32>(item(o, "retries"));
  options.repacks = nb::cast<i32>(item(o, "repacks"));
  options.inefficient_ratio = nb::cast<double>(item(o, "inefficient_ratio"));
  options.cross_program = nb::cast<i32>(item(o, "cross_program"));
  options.early = column<i32>(o, "early");
  options.async_factor = nb::cast<double>(item(o, "async_factor"));
  options.slices = nb::cast<i32>(item(o, "slices"));
  options.slice_need = nb::cast<double>(item(o, "slice_need"));
  options.slice_work = column<i64>(o, "slice_work");
  options.write_back = nb::cast<bool>(item(o, "write_back"));
  options.stretch = nb::cast<bool>(item(o, "stretch"));
  options.strict_order = nb::cast<bool>(item(o, "strict_order"));
  for (const double value :
       {options.ratios.least, options.ratios.preferred, options.ratios.most, options.ratios.loop_factor,
        options.capacity_copy, options.inefficient_ratio, options.async_factor, options.slice_need})
    must(value >= 0 && value <= 1e30, "an option is out of range");
  must(options.async_factor > 0, "copies have some rate");
  must(std::min({options.most_in, options.most_out, options.retries, options.repacks, options.cross_program,
                 options.slices}) >= 0 &&
           std::max({options.retries, options.repacks, options.slices}) <= 1 << 16,
       "an option is out of range");
  options.elapsed = column<i64>(o, "elapsed");
  options.supply = column<i64>(o, "supply");
  options.site_bytes = column<i64>(o, "site_bytes");
  const auto has = [](const std::vector<i64>& values, i64 count) {
    if (static_cast<i64>(values.size()) != count) throw std::invalid_argument("a column has another length");
  };
  has(options.elapsed, model.steps());
  has(options.supply, model.steps());
  has(options.site_bytes, model.sites());
  has(options.slice_work, static_cast<i64>(model.tensors()) * std::max(1, options.slices));
  within(options.elapsed, 0, kForever, "elapsed");
  within(options.supply, 0, kForever, "supply");
  within(options.site_bytes, 0, kMostAmount, "site_bytes");
  within(options.slice_work, kNever, kForever, "slice_work");
  for (const i32 tensor : options.early)
    if (tensor < 0 || tensor >= model.tensors()) throw std::invalid_argument("there is no such tensor");
  return options;
}

// Keeps the tables alive (see the binding), which it reads.
class MsaBatch {
 public:
  MsaBatch(const GameTables& tables, const nb::dict& options)
      : tables_(tables.model(), read_options(tables.model(), options)),
        picker_(tables_.options.elapsed, tables_.model.loop, tables_.depth, tables_.options.ratios,
                tables_.options.capacity_copy) {}

  // residencies [r, 4], copies [c, 6] (the last: slice or -1), is_fast [sites], counts of what happened
  nb::tuple run(const std::optional<Array<i32>>& order) const {
    if (order) check_orders(*order, 1);
    const MsaResult found = Msa(tables_, picker_).run(order ? order->data() : nullptr);
    std::vector<i64> residencies, copies, is_fast(found.is_fast.begin(), found.is_fast.end());
    for (std::size_t i = 0; i < found.stays.size(); ++i) {
      const MsaStay& s = found.stays[i];
      residencies.insert(residencies.end(), {s.tensor, found.offsets[i], s.first, s.last});
    }
    for (std::size_t i = 0; i < found.copies.size(); ++i) {
      const GameCopy& c = found.copies[i];
      copies.insert(copies.end(), {c.tensor, c.in ? 1 : 0, c.issued, c.needed, c.work, found.slices[i]});
    }
    nb::dict info;
    info["repacks"] = found.repacks;
    info["uncommitted"] = found.uncommitted;
    info["inefficient"] = found.inefficient;
    return nb::make_tuple(owned(std::move(residencies), {found.stays.size(), 4}),
                          owned(std::move(copies), {found.copies.size(), 6}), owned(std::move(is_fast)),
                          info);
  }

  // [K] judged totals of orders [K, tensors]
  Result run_many(const Array<i32>& orders, int threads) const {
    must(orders.ndim() == 2, "orders must be [K, tensors]");
    const std::size_t count = orders.shape(0);
    check_orders(orders, count);
    std::vector<i64> total(count);
    {
      nb::gil_scoped_release release;
      in_blocks(static_cast<i64>(count), 1, threads, [&] {
        return [&, msa = Msa(tables_, picker_)](i64 begin, i64 end) mutable {
          for (i64 i = begin; i < end; ++i) {
            const MsaResult found = msa.run(orders.data() + i * tables_.model.tensors());
            total[i] = judge(tables_.model, found.is_fast, found.copies).total;
          }
        };
      });
    }
    return owned(std::move(total));
  }

  // Without the GIL, and without a look at the orders: `run_msas` has checked them.
  const MsaTables& tables() const { return tables_; }
  const IntervalPicker& picker() const { return picker_; }
  const std::vector<i32>& sorted() const { return tables_.sorted; }
  const std::vector<double>& boundedness() const { return tables_.boundedness; }

  void check_orders(const Array<i32>& orders, std::size_t count) const {
    const std::size_t tensors = static_cast<std::size_t>(tables_.model.tensors());
    if (orders.size() != count * tensors) throw std::invalid_argument("one position per tensor");
    std::vector<i8> seen(tensors);
    for (std::size_t i = 0; i < orders.size(); ++i) {
      if (i % tensors == 0) std::fill(seen.begin(), seen.end(), 0);
      const i32 at = orders.data()[i];
      if (at < 0 || static_cast<std::size_t>(at) >= tensors || seen[at]++)
        throw std::invalid_argument("an order must be a permutation");
    }
  }

 private:
  const MsaTables tables_;
  const IntervalPicker picker_;
};

// Runs of one model, each with its own order and options, and what each says about itself: `which` [K] names
// the options, `orders` [K, tensors]. Returns totals [K]; kept, lost, blamed [K, tensors]; pressure [K,
// steps].
nb::tuple run_msas(const std::vector<const MsaBatch*>& options, const Array<i32>& which,
                   const Array<i32>& orders, int threads) {
  must(!options.empty() && orders.ndim() == 2 && which.ndim() == 1, "orders must be [K, tensors]");
  const std::size_t count = orders.shape(0);
  must(which.size() == count, "one choice of options per order");
  for (const MsaBatch* each : options)
    must(each && &each->tables().model == &options.front()->tables().model, "options of one model");
  const GameModel& model = options.front()->tables().model;
  for (std::size_t i = 0; i < count; ++i)
    must(which.data()[i] >= 0 && static_cast<std::size_t>(which.data()[i]) < options.size(),
         "there are no such options");
  options.front()->check_orders(orders, count);
  const std::size_t tensors = model.tensors(), steps = model.steps();
  std::vector<i64> total(count);
  std::vector<double> kept(count * tensors), lost(kept), blamed(kept), pressure(count * steps);
  {
    nb::gil_scoped_release release;
    in_blocks(static_cast<i64>(count), 1, threads, [&] {
      return [&, own = std::map<i32, Msa>()](i64 begin, i64 end) mutable {
        for (i64 i = begin; i < end; ++i) {
          const i32 at = which.data()[i];
          const MsaBatch& chosen = *options[at];
          Msa& msa = own.try_emplace(at, chosen.tables(), chosen.picker()).first->second;
          const MsaResult found = msa.run(orders.data() + i * tensors);
          const MsaFeedback said = feedback(chosen.tables(), found);
          total[i] = judge(model, found.is_fast, found.copies).total;
          std::copy(said.kept.begin(), said.kept.end(), kept.begin() + i * tensors);
          std::copy(said.lost.begin(), said.lost.end(), lost.begin() + i * tensors);
          std::copy(said.blamed.begin(), said.blamed.end(), blamed.begin() + i * tensors);
          std::copy(said.pressure.begin(), said.pressure.end(), pressure.begin() + i * steps);
        }
      };
    });
  }
  return nb::make_tuple(owned(std::move(total)), owned(std::move(kept), {count, tensors}),
                        owned(std::move(lost), {count, tensors}), owned(std::move(blamed), {count, tensors}),
                        owned(std::move(pressure), {count, steps}));
}

// Starts of a copy in the order of trial, for tests.
std::vector<i32> copy_starts(const std::vector<i64>& elapsed, const std::vector<i32>& loop,
                             const std::vector<i32>& depth, const std::vector<double>& ratios,
                             double capacity_copy, i32 range, i32 use, double copy) {
  const i32 steps = static_cast<i32>(elapsed.size());
  must(loop.size() == elapsed.size() && depth.size() == elapsed.size() && ratios.size() == 4,
       "columns differ in length");
  within(elapsed, 0, kForever, "elapsed");
  within(depth, 0, 1 << 16, "depth");
  for (const double ratio : ratios) must(ratio >= 0 && ratio <= 1e30, "a ratio is out of range");
  must(capacity_copy >= 0 && copy >= 0, "times are from 0 up");
  must(range >= -1 && range <= use && use <= steps, "there are no such steps");
  const IntervalPicker picker(elapsed, loop, depth, {ratios[0], ratios[1], ratios[2], ratios[3]},
                              capacity_copy);
  IntervalPicker::Starts starts(picker, range, use, copy, 0.0);
  std::vector<i32> found;
  for (i32 start = 0; starts.next(start);) found.push_back(start);
  return found;
}

// The ledger of copies in one direction, all steps in one line, for tests.
class PyLedger {
 public:
  explicit PyLedger(const std::vector<i64>& slots)
      : steps_(static_cast<i32>(slots.size())), line_(Nests::single(steps_)), ledger_(line_, Queue::kFifo) {
    within(slots, 0, kForever, "slots");
    for (i32 step = 0; step < steps_; ++step) ledger_.supply(step, slots[step]);
  }
  PyLedger(const PyLedger&) = delete;  // ledger_ refers to line_

  bool fits(i32 start, i32 end, i64 need) const {
    check(start, end, need);
    return ledger_.fits(start, end, 0, need);
  }
  void add(i32 copy, i32 start, i32 end, i64 need) {
    check(start, end, need);
    must(!starts_.contains(copy), "there is such a copy already");
    ledger_.add(copy, start, end, 0, need);
    starts_[copy] = start;
  }
  void remove(i32 copy) {
    must(starts_.contains(copy), "there is no such copy");
    ledger_.remove(copy, starts_[copy], 0);
    starts_.erase(copy);
  }
  std::vector<i64> left() const {
    std::vector<i64> found(static_cast<std::size_t>(steps_), 0);
    ledger_.add_used(found);
    for (i32 step = 0; step < steps_; ++step) found[step] = ledger_.supplied(step) - found[step];
    return found;
  }

 private:
  void check(i32 start, i32 end, i64 need) const {
    must(start >= -1 && start <= end && start < steps_ && end <= steps_ && need >= 0 && need <= kForever,
         "there is no room for such a copy");
  }
  const i32 steps_;
  const Nests line_;
  Ledger ledger_;
  std::map<i32, i32> starts_;  // by copy
};

}  // namespace

void bind_msa(nb::module_& m) {
  nb::class_<MsaBatch>(m, "Msa")
      .def(nb::init<const GameTables&, const nb::dict&>(), nb::arg("tables"), nb::arg("options"),
           nb::keep_alive<1, 2>())
      .def("run", &MsaBatch::run, nb::arg("order") = nb::none())
      .def("run_many", &MsaBatch::run_many, nb::arg("orders"), nb::arg("threads"))
      .def_prop_ro("sorted", &MsaBatch::sorted)
      .def_prop_ro("boundedness", &MsaBatch::boundedness);
  m.def("run_msas", &run_msas, nb::arg("options"), nb::arg("which"), nb::arg("orders"), nb::arg("threads"));
  nb::class_<PyLedger>(m, "Ledger")
      .def(nb::init<const std::vector<i64>&>(), nb::arg("slots"))
      .def("fits", &PyLedger::fits, nb::arg("start"), nb::arg("end"), nb::arg("need"))
      .def("add", &PyLedger::add, nb::arg("copy"), nb::arg("start"), nb::arg("end"), nb::arg("need"))
      .def("remove", &PyLedger::remove, nb::arg("copy"))
      .def("left", &PyLedger::left);
  m.def("copy_starts", &copy_starts, nb::arg("elapsed"), nb::arg("loop"), nb::arg("depth"), nb::arg("ratios"),
        nb::arg("capacity_copy"), nb::arg("range"), nb::arg("use"), nb::arg("copy"));
}

}  // namespace loadmaster
