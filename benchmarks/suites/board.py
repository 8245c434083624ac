"""The player on the board beside its rivals: 16 programs, four sizes of fast memory, equal evaluations.

Seconds are those of the processor, of one thread. Every row is of weights that have seen neither the program nor its relatives (`cases.FOLDS`); the held-out
programs' are those that ship. `GAP` are the cells in which evolution at 1,000 evaluations stays more than 0.1 %
above the bound that was on record before the player was built.
"""

from __future__ import annotations

import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.suites import Row
from benchmarks.suites.malloc_cells import HELD_OUT, PROGRAMS
from benchmarks.suites.mapping_run import Improvements
from loadmaster.clock import reading
from loadmaster.machine import load_machine
from loadmaster.malloc_game.msa import MsaOrder, submit
from loadmaster.malloc_game.muzero.board import FIRST, Board, board_settings
from loadmaster.malloc_game.muzero.cases import FOLDS
from loadmaster.malloc_game.muzero.scores import CHANGES, SHIPPED, UNTRAINED
from loadmaster.malloc_game.muzero.search import MuZero
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.planner import solve_checked
from loadmaster.program.models import load_model
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, Meter, Solution, Solver, State

POLICIES = Path(__file__).parents[1] / "policies" / "muzero"
MACHINES = ("tpu-v4i-16m", "tpu-v4i-32m", "tpu-v4i-64m", "tpu-v4i")
CLOSED = {
    "tpu-v4i-16m": ("resnet50-inf",),
    "tpu-v4i-32m": ("resnet50-inf",),
    "tpu-v4i-64m": ("resnet50-inf", "alphatensor-net"),
    "tpu-v4i": (
        "alexnet-inf",
        "resnet50-inf",
        "bert-base",
        "gpt-prefill",
        "alphatensor-net",
        "inception-v3",
        "vit-b16",
        "mixer-b16",
        "diffusion-unet",
    ),
}
"""Cells without a gap."""
CELLS = [(name, machine) for machine in MACHINES for name in PROGRAMS]
GAP = [(name, machine) for name, machine in CELLS if name not in CLOSED[machine]]
FEW, MANY = 150, 4_000
PASSES = {"write_back": True, "stretch": True}
"""The two passes of memory space assignment that all settings of the player but the first have."""
PLAYERS: dict[str, dict[str, Any]] = {
    "untrained": {"init": UNTRAINED},
    "bare policy": {"lift": 0.0, "score": 0.0, "cross": 0.0, "setting": 0.0, "openings": 12},
    "muzero": {},
}
"""Rows of the player and what is switched off in them."""
WAYS: dict[str, int] = {
    "msa-refined": 5,
    "msa-refined, passes": 5,
    "msa-order": MANY,
    "msa-order, passes": MANY,
    "options + evolution": FEW,
    **dict.fromkeys(PLAYERS, FEW),
    "muzero": MANY,
}
"""Row -> evaluations. Whoever has 4,000 is looked at after 150, too: nobody plans his end."""


def fold_of(program: str) -> str:
    """Whose weights have not seen it."""
    return next((fold for fold, names in FOLDS.items() if program in names), "final")


def policy_of(program: str) -> str:
    """The file of weights that a row of a program is played with; held out: the shipped one."""
    return SHIPPED if program in HELD_OUT else str(POLICIES / f"{fold_of(program)}.npz")


class OptionsEvolution(Solver):
    """What is left without learning: the settings of an untrained player in their own order, then evolution of
    the order in the best of them."""

    name = "options + evolution"
    problem_kind = "malloc-game"
    deterministic = True
    summary = "settings of memory space assignment, then evolution of the order in the best"

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, MallocGame)
        assigner, _ = submit(meter, problem, FIRST)
        if meter.exhausted:
            return meter.solution()
        board = Board(assigner, board_settings(CHANGES[1:]))
        own = np.repeat(board.own[None], len(CHANGES), axis=0)
        total = board.place(own, np.arange(len(CHANGES))).total
        meter.take_many(total[1:], lambda row: problem.decision(board.plan(board.own, row + 1)))
        best, order, rng = (
            board.assigner(int(total.argmin())),
            MsaOrder(threads=1),
            np.random.default_rng(seed),
        )
        keys = order._first(rng, board.tensors)
        values = order._scored(meter, best, keys)
        while not meter.exhausted and board.tensors > 1:
            ranked = np.argsort(values, kind="stable")
            keys, values = keys[ranked], values[ranked]
            elite = round(0.2 * order.population)
            keys[elite:] = order._next(rng, keys, elite)
            values[elite:] = order._scored(meter, best, keys[elite:])
        return meter.solution()


def make_way(way: str, program: str) -> Solver:
    """The solver of a row."""
    passes = PASSES if way.endswith("passes") else {}
    if way.startswith("msa-refined"):
        return make_labelled("malloc-game", "msa", {"style": "refined", **passes})
    if way.startswith("msa-order"):
        return MsaOrder(threads=1, **passes)
    if way == "options + evolution":
        return OptionsEvolution()
    return MuZero(threads=1, **{"init": policy_of(program), **PLAYERS[way]})


@lru_cache(maxsize=4)
def load_cell(program: str, machine: str) -> MallocGame:
    return MallocGame(load_model(program), load_machine(machine).with_reach("all"))


def run_cell(program: str, machine: str, way: str, seed: int, budget: int | None = None) -> Row:
    """One row; the checker has passed its plan."""
    problem, observer = load_cell(program, machine), Improvements()
    limit = budget or WAYS[way]
    with reading(time.process_time):  # whatever else the computer does
        found = solve_checked(problem, make_way(way, program), Budget(limit), seed, observer=observer)
    assert not found.violations and found.solution.value is not None
    value, bound = found.solution.value, problem.bound()
    return Row(
        f"{program}/{machine}",
        float(value),
        "ps",
        found.status,
        machine=machine,
        solver=way,
        seed=seed,
        evaluations=found.solution.evaluations,
        seconds=found.seconds,
        bound=float(bound.value),
        gap=value / bound.value - 1,
        extra={
            "budget": limit,
            "curve": observer.curve,
            "clock": [(round(seconds, 4), best) for seconds, best in observer.clock],
            "bound_by": bound.method,
            "fold": fold_of(program),
        },
    )
