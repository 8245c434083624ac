// The game's core for Python: the model's columns in, times out.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cmath>

#include "checked.hpp"
#include "game/batch.hpp"
#include "game_tables.hpp"

namespace loadmaster {

using namespace game;

static i64 capped(i64 time) { return std::min(time, kForever); }

// Every index must exist, and what is written over has an end, before the game follows it.
static void check_game(const GameModel& m) {
  const std::size_t steps = m.compute.size(), sites = m.site_tensor.size(), tensors = m.size.size(),
                    loops = m.loop_parent.size();
  const i64 last_step = m.steps() - 1, last_tensor = m.tensors() - 1;
  must(std::max({steps, sites, tensors, loops}) < (std::size_t{1} << 30), "the game is too large");
  within(m.compute, 0, kMostAmount, "compute");
  column_within(m.base_slow, steps, 0, kMostAmount, "base_slow");
  column_within(m.launch, steps, 0, kMostAmount, "launch");
  column_within(m.overlap, steps, 0, 1'000'000, "overlap");
  column_within(m.repeat, steps, 0, kMostAmount, "repeat");
  column_within(m.beside, steps, 0, kMostAmount, "beside");
  column_within(m.loop, steps, -1, static_cast<i64>(loops) - 1, "loop");
  column_within(m.loop_first, loops, 0, m.steps(), "loop_first");
  column_within(m.loop_last, loops, -1, last_step, "loop_last");
  for (std::size_t l = 0; l < loops; ++l)
    must(m.loop_parent[l] >= -1 && m.loop_parent[l] < static_cast<i64>(l), "a loop comes before its parent");
  are_starts(m.site_start, steps, sites, "site_start");
  has_length(m.site_step, sites, "site_step");
  column_within(m.site_slow, sites, 0, kMostAmount, "site_slow");
  column_within(m.site_fast, sites, 0, kMostAmount, "site_fast");
  for (std::size_t s = 0; s < steps; ++s)
    for (i64 i = m.site_start[s]; i < m.site_start[s + 1]; ++i)
      must(m.site_step[i] == static_cast<i64>(s), "a site is in another step");
  i64 most = 0;  // were every step served by both memories, one after the other, and its copies beside
  for (std::size_t s = 0; s < steps; ++s) {
    i64 once = plus(plus(capped(m.compute[s]), capped(m.compute[s])), plus(capped(m.launch[s]), 1));
    once = plus(once, plus(capped(m.base_slow[s]), capped(m.beside[s])));
    for (i64 i = m.site_start[s]; i < m.site_start[s + 1]; ++i)
      once = plus(once, plus(capped(m.site_slow[i]), capped(m.site_fast[i])));
    most = plus(most, times(m.repeat[s], once));
  }
  must(most < kForever / 4, "times do not add up");
  within(m.site_tensor, 0, last_tensor, "site_tensor");
  has_length(m.site_write, sites, "site_write");
  within(m.size, 0, kMostAmount, "tensor_size");
  column_within(m.in, tensors, kNever, kMostAmount, "tensor_in");
  column_within(m.out, tensors, kNever, kMostAmount, "tensor_out");
  has_length(m.given, tensors, "tensor_given");
  has_length(m.output, tensors, "tensor_output");
  column_within(m.carried, tensors, -1, last_tensor, "tensor_carried");
  column_within(m.over, tensors, -1, last_tensor, "tensor_over");
  std::vector<i8> there(m.given);
  for (std::size_t i = 0; i < sites; ++i) {
    must(m.site_write[i] != 0 || there[m.site_tensor[i]] != 0, "a tensor is read before it is made");
    there[m.site_tensor[i]] = 1;
  }
  must(std::find(there.begin(), there.end(), 0) == there.end(), "a tensor is never made");
  std::vector<i8> met(tensors);  // 1: on the way, 2: has an end
  for (i32 t = 0; t < m.tensors(); ++t) {
    i32 at = t;
    for (; at >= 0 && met[at] == 0; at = m.over[at]) met[at] = 1;
    must(at < 0 || met[at] == 2, "tensors are written over one another in a circle");
    for (at = t; at >= 0 && met[at] == 1; at = m.over[at]) met[at] = 2;
  }
}

GameModel read_game(const nb::dict& c) {
  GameModel m;
  m.compute = column<i64>(c, "compute");
  m.base_slow = column<i64>(c, "base_slow");
  m.launch = column<i64>(c, "launch");
  m.overlap = column<i64>(c, "overlap");
  m.repeat = column<i64>(c, "repeat");
  m.beside = column<i64>(c, "beside");
  m.loop = column<i32>(c, "loop");
  m.loop_parent = column<i32>(c, "loop_parent");
  m.loop_first = column<i32>(c, "loop_first");
  m.loop_last = column<i32>(c, "loop_last");
  m.site_start = column<i64>(c, "site_start");
  m.site_step = column<i32>(c, "site_step");
  m.site_tensor = column<i32>(c, "site_tensor");
  m.site_write = column<i8>(c, "site_write");
  m.site_slow = column<i64>(c, "site_slow");
  m.site_fast = column<i64>(c, "site_fast");
  m.size = column<i64>(c, "tensor_size");
  m.in = column<i64>(c, "tensor_in");
  m.out = column<i64>(c, "tensor_out");
  m.given = column<i8>(c, "tensor_given");
  m.output = column<i8>(c, "tensor_output");
  m.over = column<i32>(c, "tensor_over");
  m.carried = column<i32>(c, "tensor_carried");
  const auto about = column<i64>(c, "about");
  has_length(about, 6, "about");
  must(about[0] >= 0 && about[0] <= kMostAmount && about[1] >= 1 && about[1] <= kMostAmount,
       "the fast memory's numbers are out of range");
  for (const int engine : {4, 5}) must(about[engine] >= -1 && about[engine] <= 1, "there is no such engine");
  m.capacity = about[0];
  m.alignment = about[1];
  m.parallel = about[2] != 0;
  m.idle_copies = about[3] != 0;
  m.engine_in = static_cast<i32>(about[4]);
  m.engine_out = static_cast<i32>(about[5]);
  check_game(m);
  return m;
}

namespace {

// copies: [c, 5] rows tensor, in (1) or out (0), issued after step, needed by step, work.
std::vector<GameCopy> read_copies(const GameModel& model, const Array<i64>& rows) {
  std::vector<GameCopy> copies;
  must(rows.size() % 5 == 0, "copies must be [c, 5]");
  for (std::size_t i = 0; i + 4 < rows.size(); i += 5) {
    const i64* r = rows.data() + i;
    must(r[0] >= 0 && r[0] < model.tensors() && r[2] >= -1 && r[2] < model.steps() && r[3] >= 0 &&
             r[3] <= model.steps() && r[4] >= 0 && r[4] <= kForever,
         "a copy's numbers are out of range");
    copies.push_back(
        {static_cast<i32>(r[0]), r[1] != 0, static_cast<i32>(r[2]), static_cast<i32>(r[3]), r[4]});
  }
  return copies;
}

// (total, stall) of a placement; the caller checks ranges.
nb::tuple judged(const GameTables& tables, const Array<i8>& is_fast, const Array<i64>& copies) {
  if (is_fast.size() != static_cast<std::size_t>(tables.model().sites()))
    throw std::invalid_argument("one flag per site");
  const Judged found = judge(tables.model(), copied(is_fast), read_copies(tables.model(), copies));
  return nb::make_tuple(found.total, found.stall);
}

// The index of a switch's value among its names; `names[0]` if it is not set.
int chosen(const nb::dict& switches, const char* key, std::initializer_list<const char*> names) {
  if (!switches.contains(key)) return 0;
  const auto value = nb::cast<std::string>(switches[key]);
  const auto found = std::find(names.begin(), names.end(), value);
  if (found == names.end()) throw std::invalid_argument(std::string(key) + " can't be " + value);
  return static_cast<int>(found - names.begin());
}

Switches read_switches(const nb::dict& c) {
  Switches s;
  s.supply = static_cast<Supply>(chosen(c, "supply", {"idle", "elapsed"}));
  s.ledger = static_cast<Queue>(chosen(c, "ledger", {"fifo", "latest"}));
  s.reward = static_cast<Reward>(chosen(c, "reward", {"telescoping", "static", "judged"}));
  if (c.contains("repack")) {
    s.repack = nb::cast<i32>(item(c, "repack"));
    must(s.repack >= 0 && s.repack <= 1 << 20, "repack is a number from 0 up");
  }
  s.starts = static_cast<Starts>(chosen(c, "starts", {"all", "hidden"}));
  s.backup = static_cast<Backup>(chosen(c, "backup", {"retroactive", "rewind", "none"}));
  if (c.contains("stall_term")) s.stall_term = nb::cast<bool>(item(c, "stall_term"));
  if (c.contains("max_idle_s") && !item(c, "max_idle_s").is_none()) {
    const double seconds = nb::cast<double>(item(c, "max_idle_s"));
    must(seconds >= 0, "max_idle_s is from 0 up");
    s.max_idle = std::min(kForever, static_cast<i64>(std::min(seconds * 1e12, 4e18)));
  }
  return s;
}

// A batch of games. Keeps the tables alive (see the binding), whose model it reads.
class PyGame {
 public:
  PyGame(const GameTables& tables, const nb::dict& switches)
      : board_(tables.model(), read_switches(switches)), batch_(board_) {}
  PyGame(const PyGame&) = delete;  // batch_ refers to board_

  i32 moves() const { return board_.sites(); }
  std::size_t listed() const { return static_cast<std::size_t>(board_.switches.actions()); }
  i64 all_slow() const { return board_.all_slow; }

  void reset(i64 games, int threads) {
    must(games >= 1 && games <= 1 << 20, "a batch has 1 to 2^20 games");
    nb::gil_scoped_release release;
    batch_.reset(games, threads);
  }
  std::vector<i64> cursor_values() const {
    std::vector<i64> found;
    for (i64 i = 0; i < batch_.size(); ++i) found.push_back(batch_.game(i).cursor());
    return found;
  }
  i64 cursor() const {
    const std::vector<i64> found = cursor_values();
    return found.empty() ? 0 : *std::min_element(found.begin(), found.end());
  }
  Result cursors() const { return owned(cursor_values()); }

  Result step(const Array<i16>& actions) {
    check(actions, batch_.size());
    std::vector<i64> rewards(actions.size());
    i64 bad = -1;
    {
      nb::gil_scoped_release release;
      bad = batch_.step(actions.data(), rewards.data());
    }
    if (bad >= 0) throw std::invalid_argument("the move of game " + std::to_string(bad) + " is not legal");
    return owned(std::move(rewards));
  }
  Result step_towards(const Array<i16>& preferences) {
    check(preferences, batch_.size());
    std::vector<i64> rewards(preferences.size());
    {
      nb::gil_scoped_release release;
      batch_.step_towards(preferences.data(), rewards.data());
    }
    return owned(std::move(rewards));
  }
  // (actions [B, N], rewards [B, N], legal [B, N, actions]), zero before the moves that were next.
  nb::tuple finish(const Array<i16>& preferences) {
    const std::size_t games = static_cast<std::size_t>(batch_.size()),
                      sites = static_cast<std::size_t>(moves());
    check(preferences, batch_.size() * moves());
    std::vector<i16> actions(games * sites);
    std::vector<i64> rewards(games * sites);
    std::vector<u8> legal(games * sites * listed());
    {
      nb::gil_scoped_release release;
      batch_.finish(preferences.data(), actions.data(), rewards.data(), legal.data());
    }
    return nb::make_tuple(owned(std::move(actions), {games, sites}),
                          owned(std::move(rewards), {games, sites}),
                          owned(std::move(legal), {games, sites, listed()}));
  }
  nb::ndarray<nb::numpy, u8> masks() {
    const std::size_t games = static_cast<std::size_t>(batch_.size());
    std::vector<u8> legal(games * listed());
    {
      nb::gil_scoped_release release;
      batch_.masks(legal.data());
    }
    return owned(std::move(legal), {games, listed()});
  }
  void replay(const Array<i16>& actions) {
    if (actions.ndim() != 2) throw std::invalid_argument("actions must be [games, moves]");
    const i64 count = static_cast<i64>(actions.shape(1));
    check(actions, batch_.size() * count);
    i64 bad = -1;
    {
      nb::gil_scoped_release release;
      bad = batch_.replay(actions.data(), count);
    }
    if (bad >= 0) throw std::invalid_argument("a move of game " + std::to_string(bad) + " is not legal");
  }
  void undo() {
    nb::gil_scoped_release release;
    batch_.undo();
  }

  // Fills arrays [games, ...] of the shapes in observe.hpp; `scale`: what an optimum can save.
  void observe(const nb::dict& arrays, i64 scale) {
    const Views views = views_of(arrays, batch_.size());
    const Observer& observer = observer_of(scale);
    nb::gil_scoped_release release;
    batch_.observe(observer, views);
  }

  // The same for arrays [rows, count, ...]: rows of actions [rows, moves] as they are after move at[i]
  // and those that follow it. The batch is left as it is.
  void observe_at(const Array<i16>& actions, const Array<i32>& at, i64 count, const nb::dict& arrays,
                  i64 scale, int threads) {
    if (actions.ndim() != 2 || at.size() != actions.shape(0) || count < 1 || count > 1 << 20)
      throw std::invalid_argument("actions must be [rows, moves] and at [rows]");
    const i64 rows = static_cast<i64>(actions.shape(0)), length = static_cast<i64>(actions.shape(1));
    check(actions, rows * length);
    for (std::size_t i = 0; i < at.size(); ++i)
      if (at.data()[i] < 0 || at.data()[i] > length) throw std::invalid_argument("there is no such move");
    const Views views = views_of(arrays, rows * count);
    const Observer& observer = observer_of(scale);
    const Positions positions{actions.data(), at.data(), rows, length, count};
    i64 bad = -1;
    {
      nb::gil_scoped_release release;
      bad = game::observe_at(board_, observer, positions, views, threads);
    }
    if (bad >= 0) throw std::invalid_argument("a move of row " + std::to_string(bad) + " is not legal");
  }

  // (residencies [r, 4], copies [c, 5], is_fast [N])
  nb::tuple placement(i64 number) const {
    if (number < 0 || number >= batch_.size()) throw std::out_of_range("there is no such game");
    const Game& game = batch_.game(number);
    std::vector<i64> stays, copies;
    for (const auto& row : game.live_residencies()) stays.insert(stays.end(), row.begin(), row.end());
    for (const GameCopy& c : game.live_copies())
      copies.insert(copies.end(), {c.tensor, c.in ? 1 : 0, c.issued, c.needed, c.work});
    const std::size_t rows = stays.size() / 4, copy_rows = copies.size() / 5;
    return nb::make_tuple(owned(std::move(stays), {rows, 4}), owned(std::move(copies), {copy_rows, 5}),
                          owned(std::vector<i8>(game.is_fast())));
  }
  nb::tuple judged() const {
    std::vector<i64> total, stall;
    for (i64 i = 0; i < batch_.size(); ++i) {
      const Judged found = batch_.game(i).judged();
      total.push_back(found.total);
      stall.push_back(found.stall);
    }
    return nb::make_tuple(owned(std::move(total)), owned(std::move(stall)));
  }
  nb::ndarray<nb::numpy, i32> backups() const {
    std::vector<i32> found;
    for (i64 i = 0; i < batch_.size(); ++i) found.push_back(batch_.game(i).backups());
    return owned(std::move(found));
  }

  // Total times [B, last - first, actions] of complete games if another action were taken at one of these
  // sites.
  Result try_all(const Array<i16>& actions, i64 first, i64 last, int threads) const {
    if (actions.ndim() != 2) throw std::invalid_argument("actions must be [games, moves]");
    const i64 games = static_cast<i64>(actions.shape(0));
    check(actions, games * moves());
    if (first < 0 || last < first || last > moves()) throw std::invalid_argument("there are no such sites");
    const std::size_t width = static_cast<std::size_t>(last - first);
    std::vector<i64> totals(actions.shape(0) * width * listed());
    i64 bad = -1;
    {
      nb::gil_scoped_release release;
      bad = game::try_all(board_, {actions.data(), games, first, last}, totals.data(), threads);
    }
    if (bad >= 0) throw std::invalid_argument("a move of row " + std::to_string(bad) + " is not legal");
    return owned(std::move(totals), {actions.shape(0), width, listed()});
  }

  // Complete games: (actions [B, N], total [B], stall [B], backups [B]).
  nb::tuple play(const Array<i16>& preferences, int threads, const std::optional<Array<i64>>& offsets) const {
    if (preferences.ndim() != 2) throw std::invalid_argument("preferences must be [games, moves]");
    const i64 games = static_cast<i64>(preferences.shape(0));
    check(preferences, games * moves());
    must(!offsets || offsets->size() == preferences.size(), "one offset per game and move");
    for (std::size_t i = 0; offsets && i < offsets->size(); ++i)
      must(offsets->data()[i] >= -1 && offsets->data()[i] <= kMostAmount &&
               offsets->data()[i] % board_.model.alignment <= 0,
           "an offset is aligned, or -1");
    Played played(0, 0);
    {
      nb::gil_scoped_release release;
      played = play_all(board_, preferences.data(), offsets ? offsets->data() : nullptr, games, threads);
    }
    const std::vector<std::size_t> shape{preferences.shape(0), static_cast<std::size_t>(moves())};
    return nb::make_tuple(owned(std::move(played.actions), shape), owned(std::move(played.total)),
                          owned(std::move(played.stall)), owned(std::move(played.backups)));
  }

 private:
  void check(const Array<i16>& actions, i64 count) const {
    if (static_cast<i64>(actions.size()) != count)
      throw std::invalid_argument("one action per game and move");
    for (std::size_t i = 0; i < actions.size(); ++i)
      if (!board_.switches.knows(actions.data()[i])) throw std::invalid_argument("there is no such action");
  }

  Views views_of(const nb::dict& arrays, i64 places) const {
    const auto filled = [&]<class T>(const char* name, std::size_t each, T*& data) {
      // Without conversion: what is written must reach the caller's own array.
      auto array = nb::cast<nb::ndarray<T, nb::c_contig, nb::device::cpu>>(item(arrays, name), false);
      if (array.size() != each * static_cast<std::size_t>(places))
        throw std::invalid_argument(std::string(name) + " has another shape");
      data = array.data();
    };
    Views views{};
    filled("grid", kColumns * kRows * kPlanes, views.grid);
    filled("series", kColumns * kSeries, views.series);
    filled("current", kCurrent, views.current);
    filled("ahead", kTokens * kToken, views.ahead);
    filled("back", kTokens * kToken, views.back);
    filled("globals", kGlobals, views.globals);
    filled("mask", listed(), views.mask);
    views.actions = board_.switches.actions();
    return views;
  }
  const Observer& observer_of(i64 scale) {
    must(scale >= 0 && scale <= kMostAmount, "the scale is from 0 up");
    if (!observer_ || scale != observer_scale_) {
      observer_ = std::make_unique<Observer>(board_, scale);
      observer_scale_ = scale;
    }
    return *observer_;
  }

  const Board board_;
  Batch batch_;
  std::unique_ptr<Observer> observer_;
  i64 observer_scale_ = 0;
};

}  // namespace

void bind_game(nb::module_& m) {
  nb::class_<GameTables>(m, "GameTables")
      .def(nb::init<const nb::dict&>(), nb::arg("columns"))
      .def("judge", &judged, nb::arg("is_fast"), nb::arg("copies"));
  nb::class_<PyGame>(m, "Game")
      .def(nb::init<const GameTables&, const nb::dict&>(), nb::arg("tables"), nb::arg("switches"),
           nb::keep_alive<1, 2>())
      .def_prop_ro("moves", &PyGame::moves)
      .def_prop_ro("actions", &PyGame::listed)
      .def_prop_ro("all_slow_ps", &PyGame::all_slow)
      .def_prop_ro("cursor", &PyGame::cursor)
      .def("cursors", &PyGame::cursors)
      .def("reset", &PyGame::reset, nb::arg("games"), nb::arg("threads"))
      .def("step", &PyGame::step, nb::arg("actions"))
      .def("step_towards", &PyGame::step_towards, nb::arg("preferences"))
      .def("finish", &PyGame::finish, nb::arg("preferences"))
      .def("masks", &PyGame::masks)
      .def("observe", &PyGame::observe, nb::arg("arrays"), nb::arg("scale_ps"))
      .def("observe_at", &PyGame::observe_at, nb::arg("actions"), nb::arg("at"), nb::arg("count"),
           nb::arg("arrays"), nb::arg("scale_ps"), nb::arg("threads"))
      .def("replay", &PyGame::replay, nb::arg("actions"))
      .def("undo", &PyGame::undo)
      .def("placement", &PyGame::placement, nb::arg("game"))
      .def("judged", &PyGame::judged)
      .def("backups", &PyGame::backups)
      .def("try_all", &PyGame::try_all, nb::arg("actions"), nb::arg("first"), nb::arg("last"),
           nb::arg("threads"))
      .def("play", &PyGame::play, nb::arg("preferences"), nb::arg("threads"),
           nb::arg("offsets") = nb::none());
}

}  // namespace loadmaster
