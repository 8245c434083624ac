"""Solvers of the MallocGame that prove something: the linear bound's solution rounded, CP-SAT over
plans, and every game of a few moves."""

from __future__ import annotations

from typing import Any

import numpy as np

from loadmaster.arrays import Bool, Float64, Int16, Int64
from loadmaster.errors import LoadmasterError, require
from loadmaster.malloc_game.bounds import METHOD, Relaxed, game_bound, relax_game
from loadmaster.malloc_game.games import COPY, DROP, NO_COPY, Games, make_plan
from loadmaster.malloc_game.linear import NONE, GameLinear, add_turns, add_window, make_linear
from loadmaster.malloc_game.model import GameModel
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.plan.plan import Plan
from loadmaster.search.or_tools import Value, cp_program, run_cp_sat
from loadmaster.search.solver import Meter, Solution, Solver, State, Status

Row = list[int]


def round_moves(game: GameLinear, values: Float64, threshold: Float64 | float = 0.5) -> Int16:
    """[N] preferred moves: what is at or above the threshold (one for all, or of each tensor)
    counts as whole."""
    model = game.model
    limits = np.broadcast_to(np.asarray(threshold, dtype=np.float64), len(game.ties.sites))
    moves = np.full(model.sites, DROP, dtype=np.int16)
    for tensor, sites in enumerate(game.ties.sites):
        limit, nodes = limits[tensor], game.back[tensor]
        for site in sites:
            if values[game.fast[site]] < limit:
                continue
            keep = int(game.keep[site])
            moves[site] = NO_COPY if keep != NONE and values[keep] >= limit else COPY
            if model.site_write[site]:
                moves[site] = COPY if nodes and values[nodes[-1][1]] >= limit else NO_COPY
    return moves


def round_plan(problem: MallocGame, game: GameLinear, values: Float64, offset: dict[int, int]) -> Plan:
    """The plan of a whole solution with offsets of sites; sites without one are slow."""
    is_one = values > 0.5
    residencies: list[Row] = []
    copies: list[Row] = []
    for tensor, sites in enumerate(game.ties.sites):
        if sites[0] in offset:
            _add_strands(game, tensor, is_one, offset, residencies, copies)
    return make_plan(
        problem.model,
        problem.program.n_ops,
        np.array(residencies, dtype=np.int64).reshape(-1, 4),
        np.array(copies, dtype=np.int64).reshape(-1, 5),
    )


def _add_strands(
    game: GameLinear,
    tensor: int,
    is_one: Bool,
    offset: dict[int, int],
    residencies: list[Row],
    copies: list[Row],
) -> None:
    """Residencies (tensor, offset, first, last step) and copies of one tensor, as a solution has them."""
    model, sites = game.model, game.ties.sites[tensor]
    free_from = -1
    """The first step after which slow memory has the bytes."""
    for i, site in enumerate(sites):
        if not is_one[game.fast[site]] or (game.keep[site] != NONE and is_one[game.keep[site]]):
            continue
        step, last = int(model.site_step[site]), i
        while last + 1 < len(sites) and is_one[game.keep[sites[last + 1]]]:
            last += 1
        end = int(model.site_step[sites[last]])
        if model.site_write[site]:
            end += sum(bool(is_one[v]) for k, v in game.tail[tensor].items() if k > end)
            residencies.append([tensor, offset[site], step, end])
            if game.back[tensor] and is_one[game.back[tensor][-1][1]]:
                free_from = min(end + 1, _overwritten(game, tensor))
                copies.append([tensor, 0, step, free_from, 0])
        else:
            issued = step - 1 - sum(bool(is_one[v]) for v in game.lead[site].values())
            issued = min(max(issued, free_from, game.made(tensor)), step - 1)
            copies.append([tensor, 1, issued, step, 0])
            residencies.append([tensor, offset[site], issued + 1, end])


def _overwritten(game: GameLinear, tensor: int) -> int:
    """The step that writes over a tensor in place; the end if none does."""
    by = np.flatnonzero(game.model.tensors.over == tensor)
    return game.made(int(by[0])) if len(by) else game.model.steps


EQUAL = (0.5, 0.25, 0.75, 0.01, 0.99, 0.1, 0.4, 0.6, 0.9)
EVALUATIONS = 1_000
"""Where the budget counts none."""
BATCH = 32
SHARE = 0.5
"""Of the time that is left, for the linear program."""


class Rounded(Solver):
    """Games that are rounded from the solution of the linear bound; the bound is kept.

    The relaxation says how much of each use is best fast, in view of all others. Each tensor counts
    as fast where that is above a threshold: one for all tensors at first, then a random one for each,
    around those that did best.
    """

    name = "rounded"
    problem_kind = "malloc-game"
    summary = "the linear bound's solution, rounded (white box; needs: pip install 'loadmaster[exact]')"
    deterministic = True

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, MallocGame)
        require("ortools", "exact")
        if not meter.exhausted:
            left = meter.seconds_left
            relaxed = relax_game(problem, 120.0 if left is None else SHARE * left)
            meter.raise_bound(relaxed.bound, METHOD)
            _round(meter, problem, relaxed, np.random.default_rng(seed))
        return meter.solution()


def _round(meter: Meter, problem: MallocGame, relaxed: Relaxed, rng: np.random.Generator) -> None:
    if relaxed.values is None:
        meter.evaluate(problem.all_slow())
        return
    game, values, tensors = relaxed.game, relaxed.values, len(relaxed.game.ties.sites)
    best, best_value = np.full(tensors, 0.5), None
    tries = np.array([[limit] * tensors for limit in EQUAL])
    end = meter.evaluations + EVALUATIONS
    while not meter.exhausted and (meter.budget.evaluations is not None or meter.evaluations < end):
        moves = np.array([round_moves(game, values, limits) for limits in tries])
        found = meter.evaluate_many(moves).value
        if best_value is None or found.min() < best_value:
            best, best_value = tries[found.argmin()], int(found.min())
        # A few tensors of the best get other thresholds.
        drawn = rng.uniform(0.02, 0.98, (BATCH, tensors))
        tries = np.where(rng.random((BATCH, tensors)) < rng.uniform(0.0, 0.3, (BATCH, 1)), drawn, best)


LINEAR_SHARE = 0.2
"""Of the time, at most, for the linear bound: CP-SAT may end without a better one."""


class CpSat(Solver):
    """The game as a CP-SAT model over plans: free starts, free offsets, whole numbers.

    The rows are those of the linear bound (`make_linear`), with every window and with the room that
    copies take from first to last, and in addition no two tensors lie at one address at one time.
    That leaves out only in which order copies move, so the objective is a lower bound of every plan,
    and the plan of a solution is timed like any other: it is the optimum if the two meet.

    `most_moves`: larger games are refused, since nothing would be proved about them. `work`: see
    `run_cp_sat`.
    """

    name = "cp-sat"
    problem_kind = "malloc-game"
    summary = (
        "OR-tools' CP-SAT over plans of small games, with a bound (needs: pip install 'loadmaster[exact]')"
    )
    deterministic = True

    def __init__(self, most_moves: int = 80, work: float | None = None) -> None:
        self.most_moves, self.work = int(most_moves), work
        self.options = {"most_moves": self.most_moves, "work": work}

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, MallocGame)
        if problem.moves > self.most_moves:
            raise LoadmasterError(
                f"'{problem.program.name}' has {problem.moves} moves, too many for cp-sat",
                object=problem.program.name,
                number=problem.moves,
                remedy=f"use another solver, or give most_moves (now {self.most_moves}) and time",
            )
        cp_model = require("ortools.sat.python.cp_model", "exact")
        if not meter.exhausted:
            meter.evaluate(problem.all_slow())
            left = meter.seconds_left
            bound = game_bound(problem, 10.0 if left is None else LINEAR_SHARE * left)
            meter.raise_bound(bound.value, bound.method)
        if not meter.exhausted:
            _solve(cp_model, meter, problem, seed, self.work)
        return meter.solution()


def _solve(cp_model: Any, meter: Meter, problem: MallocGame, seed: int, work: float | None) -> None:
    game = make_linear(problem.program, problem.model, problem.machine, lookback=problem.model.steps)
    for turn in add_turns(game):
        for last in range(problem.model.steps + 1):
            for first in range(-1, last):
                add_window(game, turn, first, last)
    linear = game.linear
    model, variables, objective = cp_program(cp_model, linear)
    offset = _add_addresses(model, variables, game)
    model.minimize(objective)

    def submit(value: Value) -> None:
        values = np.array([value(v) for v in variables], dtype=np.float64)
        _submit(meter, problem, game, values, {site: value(v) for site, v in offset.items()})

    result = run_cp_sat(model, meter, seed, found=submit, work=work)
    if result.status in (Status.OPTIMAL, Status.FEASIBLE) and result.bound is not None:
        meter.raise_bound(min(linear.constant + result.bound, problem.all_slow_ps), "CP-SAT")


def _submit(
    meter: Meter, problem: MallocGame, game: GameLinear, values: Float64, offset: dict[int, int]
) -> None:
    """The plan of a solution, and the game of its moves, which may go where the plan can't."""
    if meter.evaluations_left != 0:
        meter.evaluate(problem.decision(round_plan(problem, game, values, offset)))
    if meter.evaluations_left != 0:
        meter.evaluate(round_moves(game, values))


def _add_addresses(model: Any, variables: list[Any], game: GameLinear) -> dict[int, Any]:
    """Boxes in time and address for every strand: its sites, the gaps between them, its copies.

    Returns the offset of each site. Tensors that loops carry have no boxes: they share places over
    whole loops, and to leave them out keeps the bound a bound.
    """
    tensors, about = game.model.tensors, game.model
    offset: dict[int, Any] = {}
    times: list[Any] = []
    addresses: list[Any] = []

    def box(site: int, start: Any, size: Any, present: Any) -> None:
        end = start + size
        times.append(model.new_optional_interval_var(start, size, end, present, ""))
        length = int(tensors.size[about.site_tensor[site]])
        addresses.append(model.new_optional_fixed_size_interval_var(offset[site], length, present, ""))

    for tensor, sites in enumerate(game.ties.sites):
        if tensors.carried[tensor] >= 0:
            continue
        room = (about.capacity - int(tensors.size[tensor])) // about.alignment
        for site in sites:
            offset[site] = model.new_int_var(0, room, "") * about.alignment
    for tensor, sites in enumerate(game.ties.sites):
        if tensors.carried[tensor] >= 0:
            continue
        steps = [int(about.site_step[site]) for site in sites]
        for i, site in enumerate(sites):
            over = int(tensors.over[tensor]) if about.site_write[site] else -1
            below = [u for u in game.ties.sites[over] if about.site_step[u] == steps[i]] if over >= 0 else []
            if below:  # in place: one box for both
                model.add(offset[site] == offset[below[0]])
            else:
                box(site, steps[i], 1, variables[game.fast[site]])
            if i:
                keep = variables[game.keep[site]]
                model.add(offset[site] == offset[sites[i - 1]]).only_enforce_if(keep)
                box(site, steps[i - 1] + 1, steps[i] - steps[i - 1] - 1, keep)
            leads = [variables[v] for v in game.lead[site].values()]
            if leads:
                length = model.new_int_var(0, len(leads), "")
                model.add(length == sum(leads))
                box(site, steps[i] - length, length, variables[game.lead[site][steps[i] - 1]])
            end = steps[i + 1] if i + 1 < len(sites) else about.steps
            tails = [variables[v] for k, v in game.tail[tensor].items() if steps[i] < k < end]
            if tails:
                length = model.new_int_var(0, len(tails), "")
                model.add(length == sum(tails))
                box(site, steps[i] + 1, length, tails[0])
    model.add_no_overlap_2d(times, addresses)
    return offset


EXHAUSTIVE_BATCH = 1024


class Exhaustive(Solver):
    """Every game of a few moves: the best that the game's own rules allow.

    Depth first, a batch of unfinished games at a time. A batch is left as soon as even its best end,
    with every open site as fast as can be, is no better than the best game known. It says in
    `complete` whether no game is better; plans that no game plays may still be.
    """

    name = "exhaustive"
    problem_kind = "malloc-game"
    summary = "all games of at most 16 moves: the best of them (white box)"
    deterministic = True

    def __init__(self, most_moves: int = 16) -> None:
        self.most_moves = int(most_moves)
        self.options = {"most_moves": self.most_moves}

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, MallocGame)
        self._check(problem)
        complete = not meter.exhausted and self._search(meter, problem)
        return meter.solution(complete=complete)

    def _check(self, problem: MallocGame) -> None:
        if problem.moves > self.most_moves:
            raise LoadmasterError(
                f"'{problem.program.name}' has {problem.moves} moves, too many to try all games",
                object=problem.program.name,
                number=problem.moves,
                remedy=f"use cp-sat, or give most_moves (now {self.most_moves}) and time",
            )
        if problem.options()["backup"] == "rewind":
            raise LoadmasterError(
                "games that rewind can't be tried one after another",
                object="backup",
                remedy="use backup = 'retroactive'",
            )

    def _search(self, meter: Meter, problem: MallocGame) -> bool:
        simple = np.array([[DROP] * problem.moves, [NO_COPY] * problem.moves], dtype=np.int16)
        meter.evaluate_many(simple)
        games = Games(problem, 1, threads=1)
        open_batches = [np.empty((1, 0), dtype=np.int16)]
        while open_batches and not meter.exhausted:
            batch = open_batches.pop()
            assert meter.best_value is not None
            batch = batch[_least(problem.model, batch) < meter.best_value]
            if not len(batch):
                continue
            games.native.reset(len(batch), 1)
            games.replay(batch)
            if batch.shape[1] == problem.moves:
                meter.take_many(games.judged()[0], batch.__getitem__)
                continue
            parent, action = np.nonzero(games.masks())
            children = np.concatenate([batch[parent], action[:, None].astype(np.int16)], axis=1)
            # The last batch is taken up first: that of the smallest bounds.
            order = np.argsort(-_least(problem.model, children), kind="stable")
            starts = range(0, len(order), EXHAUSTIVE_BATCH)
            open_batches += [children[order[begin : begin + EXHAUSTIVE_BATCH]] for begin in starts]
        # A search that ends because nothing can be better is complete as well.
        return not open_batches or meter.optimal


def _least(model: GameModel, moves: Int16) -> Int64:
    """[B] no game that begins with moves [B, d] takes less: what was dropped stays slow; what is
    fast may be dropped by a later dead end; what is open may be either."""
    count, depth = moves.shape
    least = np.zeros((count, model.sites), dtype=np.int64)
    if not model.parallel:
        least[:] = np.minimum(model.site_slow, model.site_fast)
    least[:, :depth] = np.where(moves == DROP, model.site_slow[:depth], least[:, :depth])
    sums = np.concatenate([np.zeros((count, 1), dtype=np.int64), least.cumsum(axis=1)], axis=1)
    memory = model.base_slow + np.diff(sums[:, model.site_start])
    total: Int64 = (model.step_times(memory, np.zeros_like(memory)) * model.repeat).sum(axis=1)
    return total
