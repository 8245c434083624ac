// What an agent sees of the decision, of those around it, and of the game as a whole.
#include <cmath>
#include <numeric>

#include "game/observe.hpp"

namespace loadmaster::game {

void Observer::describe_current(Game& game, const Views& views, const Scratch& s) const {
  float* out = views.current;
  std::fill_n(out, kCurrent, 0.0F);
  if (game.is_over()) return;
  const GameModel& model = board_.model;
  const i32 site = game.cursor(), tensor = model.site_tensor[site], step = model.site_step[site];
  const bool write = model.site_write[site] != 0;
  const float* known = tokens_.data() + static_cast<std::ptrdiff_t>(site) * kToken;
  const i64 fast_now =
      model.elapsed(step, game.slow_[step] - model.site_slow[site], game.fast_[step] + model.site_fast[site]);
  i64 supply = 0;  // left in the columns of one step each, or of those to come
  for (i32 j = write ? step + 1 : s.edge[kSingle]; j < (write ? board_.steps() : step); ++j)
    if (board_.nests.of[j] == board_.nests.of[step])
      supply += std::max<i64>(
          0, write ? board_.write_supply[j] - s.write_used[j] : game.read_supply(j) - s.read_used[j]);
  const i64 work = std::max<i64>(0, write ? model.out[tensor] : model.in[tensor]);
  const i64 own = board_.own_start[tensor] + board_.own_place[site];
  out[0] = known[0];
  out[1] = known[1];
  out[2] = work == 0
               ? 0
               : clipped(static_cast<float>(static_cast<double>(work) / static_cast<double>(supply + 1)));
  out[3] = known[7];
  out[4] = share((game.elapsed_[step] - fast_now) * model.repeat[step]);
  out[5] = known[6];
  out[6] = share(later_gain_[site]);
  out[7] = clipped(std::log1p(static_cast<float>(board_.own_start[tensor + 1] - own - 1)));
  // Steps and time since the use before and to the use after; 1: there is none.
  const auto apart = [&](i32 from, i32 to, float* pair) {
    pair[0] = static_cast<float>(to - from) / static_cast<float>(board_.steps());
    pair[1] = static_cast<float>(static_cast<double>(board_.clock[to] - board_.clock[from]) / all_slow_);
  };
  out[8] = out[9] = out[10] = out[11] = 1;
  if (own > board_.own_start[tensor]) apart(model.site_step[board_.own_sites[own - 1]], step, out + 8);
  if (own + 1 < board_.own_start[tensor + 1])
    apart(step, model.site_step[board_.own_sites[own + 1]], out + 10);
  const bool flags[] = {!write,
                        write,
                        model.given[tensor] != 0,
                        model.output[tensor] != 0,
                        known[10] != 0,
                        game.in_fast(tensor),
                        game.ready_[tensor]<step, game.back_by_[tensor]> step,
                        views.mask[0] != 0,
                        views.mask[1] != 0,
                        views.mask[2] != 0};
  std::copy(std::begin(flags), std::end(flags), out + 12);
  out[23] = log_repeat_[step];
}

void Observer::token(const Game& game, i32 site, float* row) const {
  const GameModel& model = board_.model;
  const i32 tensor = model.site_tensor[site], current = std::min(game.cursor(), board_.sites() - 1);
  const i32 now = model.site_tensor[current], step = model.site_step[current];
  std::copy_n(tokens_.data() + static_cast<std::ptrdiff_t>(site) * kToken, kToken, row);
  row[3] = tensor == now;
  row[4] = family_[tensor] == family_[now];
  row[5] = static_cast<float>(std::abs(model.site_step[site] - step)) / static_cast<float>(board_.steps());
  row[11] = game.in_fast(tensor);
  row[12] = game.ready_[tensor] < step;
}

void Observer::list_tokens(const Game& game, const Views& views) const {
  std::fill_n(views.ahead, kTokens * kToken, 0.0F);
  std::fill_n(views.back, kTokens * kToken, 0.0F);
  const i32 cursor = game.cursor();
  for (i32 i = 0; i < kTokens && cursor + 1 + i < board_.sites(); ++i)
    token(game, cursor + 1 + i, views.ahead + i * kToken);
  for (i32 i = 0; i < kTokens && i < cursor; ++i) {
    const i32 site = cursor - 1 - i;
    token(game, site, views.back + i * kToken);
    // A backup makes a Drop of any move.
    const Action action = game.is_fast_[site] ? game.actions_[site] : kDrop;
    views.back[i * kToken + 13 + (is_copy(action) ? kCopy : action)] = 1;
  }
}

void Observer::tell_globals(const Game& game, i32 step, const Views& views, const Scratch& s) const {
  const auto used = [&](const std::vector<i64>& amounts, auto supply) {
    i64 taken = 0, all = 0;
    for (i32 j = 0; j < board_.steps(); ++j) {
      taken += amounts[j];
      all += supply(j);
    }
    return clipped(
        static_cast<float>(static_cast<double>(taken) / static_cast<double>(std::max<i64>(1, all))));
  };
  const auto sites = static_cast<float>(std::max(1, board_.sites()));
  float* out = views.globals;
  out[0] = static_cast<float>(game.cursor()) / sites;
  out[1] = share(game.standing_);
  out[2] = total_bytes_share_;
  out[3] = board_.steps() > 0 ? s.occupied[s.column[step]] : 0;
  out[4] = clipped(static_cast<float>(game.backups()) / sites);
  out[5] = used(s.read_used, [&](i32 j) { return game.read_supply(j); });
  out[6] = used(s.write_used, [&](i32 j) { return board_.write_supply[j]; });
  out[7] = over_bound_;
}

}  // namespace loadmaster::game
