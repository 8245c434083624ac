"""The MallocGame as a CP-SAT model over plans: free starts, free offsets, whole numbers.

The rows are those of the linear bound (`game_linear`), with every window and with the room that
copies take from first to last, and in addition no two tensors lie at one address at one time. That
leaves out only in which order copies move, so the objective is a lower bound of every plan, and
the plan of a solution is timed like any other: it is the optimum if the two meet.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.errors import LoadmasterError, require
from loadmaster.problems.malloc_game.problem import MallocGame
from loadmaster.solvers.exact.cp_solver import make_cp_solver
from loadmaster.solvers.exact.game_bound import game_bound
from loadmaster.solvers.exact.game_linear import game_linear
from loadmaster.solvers.exact.game_rounding import moves_from, placement_from
from loadmaster.solvers.exact.game_variables import GameLinear
from loadmaster.solvers.exact.game_windows import add_turns, add_window
from loadmaster.solvers.exact.mapping_engines import cp_program
from loadmaster.solvers.solver import Meter, Solution, State

Float64 = npt.NDArray[np.float64]
LINEAR_SHARE = 0.2
"""Of the time, at most, for the linear bound: CP-SAT may end without a better one."""


class CpSat:
    """`most_moves`: larger games are refused, since nothing would be proved about them. `work`: see
    `make_cp_solver`."""

    name = "cp-sat"
    problem_kind = "malloc-game"
    summary = (
        "OR-tools' CP-SAT over plans of small games, with a bound (needs: pip install 'loadmaster[exact]')"
    )
    deterministic = True

    def __init__(self, most_moves: int = 80, work: float | None = None) -> None:
        self.most_moves, self.work = int(most_moves), work

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
        return meter.solution(white_box=True)


def _solve(cp_model: Any, meter: Meter, problem: MallocGame, seed: int, work: float | None) -> None:
    game = game_linear(problem.program, problem.model, problem.machine, lookback=problem.model.steps)
    for turn in add_turns(game):
        for last in range(problem.model.steps + 1):
            for first in range(-1, last):
                add_window(game, turn, first, last)
    linear = game.linear
    model, variables, objective = cp_program(cp_model, linear)
    offset = _add_addresses(model, variables, game)
    model.minimize(objective)
    solver = make_cp_solver(cp_model, meter, seed, work)

    class Found(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]
        def on_solution_callback(self) -> None:
            values = np.array([self.value(v) for v in variables], dtype=np.float64)
            _submit(meter, problem, game, values, {site: self.value(v) for site, v in offset.items()})
            if meter.exhausted:
                self.stop_search()

    def raised(bound: float) -> None:
        value = linear.constant + math.ceil(bound - 1e-6)
        meter.raise_bound(min(value, problem.all_slow_ps), "CP-SAT")

    status = solver.solve(model, Found())
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        raised(solver.best_objective_bound)


def _submit(
    meter: Meter, problem: MallocGame, game: GameLinear, values: Float64, offset: dict[int, int]
) -> None:
    """The plan of a solution, and the game of its moves, which may go where the plan can't."""
    if meter.evaluations_left != 0:
        meter.evaluate(problem.decision(placement_from(problem, game, values, offset)))
    if meter.evaluations_left != 0:
        meter.evaluate(moves_from(game, values))


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
                stay = variables[game.stay[site]]
                model.add(offset[site] == offset[sites[i - 1]]).only_enforce_if(stay)
                box(site, steps[i - 1] + 1, steps[i] - steps[i - 1] - 1, stay)
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
