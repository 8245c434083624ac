#include "game/observe.hpp"

#include <cmath>
#include <numeric>

namespace loadmaster::game {
namespace {

constexpr double kWider = 1.1;  // each column is this much wider than the one before it

template <std::size_t N>
std::array<double, N> widening() {
  std::array<double, N> share{};
  for (std::size_t i = 0; i < N; ++i)
    share[i] =
        (std::pow(kWider, static_cast<double>(i)) - 1) / (std::pow(kWider, static_cast<double>(N - 1)) - 1);
  return share;
}

// How many of `steps` the first `columns` of `count` cover: one each, and what is left by shares.
i32 covered(i32 steps, i32 columns, i32 count, double share) {
  return steps <= count ? std::min(steps, columns)
                        : columns + static_cast<i32>(share * static_cast<double>(steps - count));
}

// The most ones in a row: runs of at least 1, 2, 4 ... begin at the bits of `runs`.
int longest_run(u64 bits) {
  std::array<u64, 6> runs{bits};
  for (std::size_t i = 1; i < runs.size(); ++i) runs[i] = runs[i - 1] & (runs[i - 1] >> (1 << (i - 1)));
  if (bits == ~u64{0}) return kRows;
  int length = 0;
  u64 found = ~u64{0};
  for (std::size_t i = runs.size(); i-- > 0;)
    if (const u64 longer = found & (runs[i] >> length)) {
      found = longer;
      length += 1 << i;
    }
  return length;
}

}  // namespace

Views Views::at(i64 game) const {
  return {grid + game * kColumns * kRows * kPlanes,
          series + game * kColumns * kSeries,
          current + game * kCurrent,
          ahead + game * kTokens * kToken,
          back + game * kTokens * kToken,
          globals + game * kGlobals,
          mask + game * actions,
          actions};
}

Observer::Observer(const Board& board, i64 scale)
    : board_(board),
      scale_(static_cast<double>(std::max<i64>(1, scale))),
      all_slow_(static_cast<double>(std::max<i64>(1, board.all_slow))),
      capacity_(static_cast<double>(std::max<i64>(1, board.model.capacity))),
      past_(widening<kSingle + 1>()),
      future_(widening<kColumns - kPast + 1>()) {
  const GameModel& model = board.model;
  family_.resize(model.tensors());
  std::iota(family_.begin(), family_.end(), 0);
  std::vector<i32> of_group(board.groups.size(), -1);
  for (i32 site = 0; site < board.sites(); ++site) {  // what is overwritten comes before what overwrites it
    const i32 tensor = model.site_tensor[site], group = model.carried[tensor];
    if (group >= 0)
      family_[tensor] = of_group[group] < 0 ? of_group[group] = tensor : of_group[group];
    else if (model.site_write[site] && model.over[tensor] >= 0)
      family_[tensor] = family_[model.over[tensor]];
  }
  family_size_.assign(model.tensors(), 0);
  for (const i32 family : family_) ++family_size_[family];
  double bytes = 0;
  for (const i64 size : model.size) bytes += static_cast<double>(size);
  total_bytes_share_ = clipped(static_cast<float>(capacity_ / std::max(1.0, bytes)));
  over_bound_ = clipped(static_cast<float>(all_slow_ / std::max(1.0, all_slow_ - scale_) - 1));
  for (const i64 repeat : model.repeat) log_repeat_.push_back(clipped(std::log(static_cast<float>(repeat))));
  later_gain_.assign(board.sites(), 0);
  for (i32 tensor = 0; tensor < model.tensors(); ++tensor)
    for (i64 i = board.own_start[tensor + 1] - 2; i >= board.own_start[tensor]; --i)
      later_gain_[board.own_sites[i]] =
          later_gain_[board.own_sites[i + 1]] + board.gain_alone[board.own_sites[i + 1]];
  for (i32 site = 0; site < board.sites(); ++site) {
    const i32 tensor = model.site_tensor[site];
    const bool write = model.site_write[site] != 0;
    const auto size = static_cast<float>(model.size[tensor]);
    const float row[kToken] = {std::log2(1 + size) / 40,
                               size / static_cast<float>(capacity_),
                               write ? 0.0F : 1.0F,
                               0,
                               0,
                               0,
                               share(board.gain_alone[site]),
                               share(std::max<i64>(0, write ? model.out[tensor] : model.in[tensor])),
                               model.given[tensor] ? 1.0F : 0.0F,
                               model.output[tensor] ? 1.0F : 0.0F,
                               family_size_[family_[tensor]] > 1 ? 1.0F : 0.0F};
    tokens_.insert(tokens_.end(), row, row + kToken);
  }
}

void Observer::observe(Game& game, const Views& views, Scratch& scratch) const {
  const i32 last = std::max(0, board_.steps() - 1);
  const i32 step = game.is_over() ? last : board_.model.site_step[game.cursor()];
  for (Action action = 0; action < views.actions; ++action)
    views.mask[action] = !game.is_over() && game.is_legal(action);
  lay_columns(step, scratch);
  draw(game, step, views, scratch);
  tell_series(game, views, scratch);
  describe_current(game, views, scratch);
  list_tokens(game, views);
  tell_globals(game, step, views, scratch);
}

void Observer::lay_columns(i32 step, Scratch& s) const {
  const i32 n = board_.steps(), older = std::max(0, step + 1 - kSingle), later = std::max(0, n - step - 1);
  for (int i = 0; i <= kSingle; ++i) {
    s.edge[kPast - i] = std::min(n, std::max(0, step + 1 - i));
    s.edge[kSingle - i] = older - covered(older, i, kSingle, past_[i]);
  }
  for (int i = 0; i <= kColumns - kPast; ++i)
    s.edge[kPast + i] = std::min(n, step + 1 + covered(later, i, kColumns - kPast, future_[i]));
  s.column.resize(n);
  for (int column = 0; column < kColumns; ++column)
    std::fill(s.column.begin() + s.edge[column], s.column.begin() + s.edge[column + 1],
              static_cast<i16>(column));
}

// Adds the share of each cell that a block covers.
void Observer::paint(const Views& views, Scratch& s, int plane, i32 first, i32 last, i64 low,
                     i64 high) const {
  const double begin = static_cast<double>(low) * kRows / capacity_;
  const double end = static_cast<double>(high) * kRows / capacity_;
  const int from = static_cast<int>(begin), to = std::min(kRows, static_cast<int>(std::ceil(end)));
  std::array<float, kRows> height;
  u64 rows = 0;
  for (int row = from; row < to; ++row) {
    height[row] = static_cast<float>(255 * (std::min(end, row + 1.0) - std::max(begin, double{1} * row)));
    rows |= u64{1} << row;
  }
  for (int column = s.column[first]; column <= s.column[last]; ++column) {
    const i32 left = s.edge[column], right = s.edge[column + 1];
    if (left == right) continue;
    const float part = static_cast<float>(std::min(last + 1, right) - std::max(first, left)) /
                       static_cast<float>(right - left);
    u8* cell = views.grid + (column * kRows + from) * kPlanes + plane;
    for (int row = from; row < to; ++row, cell += kPlanes)
      *cell = static_cast<u8>(std::min(255, *cell + static_cast<int>(part * height[row] + 0.5F)));
    if (plane != 0) continue;
    s.occupied[column] += part * static_cast<float>((end - begin) / kRows);
    s.taken[column] |= rows;
  }
}

void Observer::draw(Game& game, i32 step, const Views& views, Scratch& s) const {
  std::fill_n(views.grid, kColumns * kRows * kPlanes, u8{0});
  s.taken.fill(0);
  s.occupied.fill(0);
  const i32 tensor = game.is_over() ? -1 : board_.model.site_tensor[game.cursor()];
  for (const Residency& r : game.residencies_) {
    if (r.removed) continue;
    const i64 low = game.strips_.offset(r.strip), high = low + board_.model.size[r.tensor];
    i32 first = r.first;  // the strip that it takes over from its parents is counted once
    for (i32 parent = r.parent; parent >= 0; parent = game.residencies_[parent].parent)
      first = std::max(first, game.residencies_[parent].last + 1);
    if (first > r.last) continue;
    paint(views, s, 0, first, r.last, low, high);
    if (tensor >= 0 && family_[r.tensor] == family_[tensor]) paint(views, s, 1, first, r.last, low, high);
  }
  if (tensor < 0) return;
  for (const Action action : {kCopy, kNoCopy}) {
    const Game::Offer& offer = game.offer(action);
    if (!offer.legal || offer.offset < 0) continue;
    paint(views, s, action == kCopy ? 2 : 3, std::min(offer.first, step), std::max(step, offer.last),
          offer.offset, offer.offset + board_.model.size[tensor]);
  }
}

void Observer::tell_series(const Game& game, const Views& views, Scratch& s) const {
  const i32 n = board_.steps();
  s.read_used.assign(n, 0);
  s.write_used.assign(n, 0);
  game.reads_.add_used(s.read_used);
  game.writes_.add_used(s.write_used);
  std::fill_n(views.series, kColumns * kSeries, 0.0F);
  for (int column = 0; column < kColumns; ++column) {
    const i32 from = s.edge[column], to = s.edge[column + 1];
    if (from == to) continue;
    i64 whole = 0, read = 0, write = 0, idle = 0, waits = 0;
    float repeat = 0;
    for (i32 step = from; step < to; ++step) {
      whole += board_.elapsed[step];
      read += std::max<i64>(0, game.read_supply(step) - s.read_used[step]);
      write += std::max<i64>(0, board_.write_supply[step] - s.write_used[step]);
      idle += board_.model.idle(step, game.elapsed_[step], game.slow_[step]);
      waits += game.slow_[step] + game.fast_[step] > board_.model.compute[step];
      repeat = std::max(repeat, log_repeat_[step]);
    }
    const auto part = [&](i64 time) { return clipped(static_cast<float>(time) / static_cast<float>(whole)); };
    float* row = views.series + column * kSeries;
    row[0] = part(read);
    row[1] = part(write);
    row[2] = part(idle);
    row[3] = s.occupied[column];
    row[4] = static_cast<float>(longest_run(~s.taken[column])) / kRows;
    row[5] = static_cast<float>(static_cast<double>(board_.clock[to] - board_.clock[from]) / all_slow_);
    row[6] = static_cast<float>(waits) / static_cast<float>(to - from);
    row[7] = repeat;
  }
}

}  // namespace loadmaster::game
