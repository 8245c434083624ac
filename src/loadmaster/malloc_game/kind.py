"""The malloc game as the planner sees it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import replace

from loadmaster.errors import MissingPackage
from loadmaster.malloc_game.bounds import game_bound
from loadmaster.malloc_game.heuristics import has_production, known_production
from loadmaster.malloc_game.msa import MSA_STEPS
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.malloc_game.search import BY_CLOCK, WHITE_BOX
from loadmaster.search.kind import Facts, Found, Known, ProblemKind, known_values, traffic_numbers
from loadmaster.search.problem import Bound, recorded_bound
from loadmaster.search.request import PlanRequest
from loadmaster.search.solver import Solver
from loadmaster.simulate import simulate
from loadmaster.units import show_bytes, show_time

KNOWN = ("all-slow", "greedy-order", "msa", "production")
BOUND_SECONDS = 20.0
BOUND_MOVES = 20_000
"""Above so many decisions the linear program is left out: at 28,000 it takes 2.5 GB, and no answer in its time."""


class MallocGameKind(ProblemKind[MallocGame]):
    """Games by the time of a pass."""

    name = "malloc-game"
    accepts = frozenset({"pins", "keep_order", "problem_class"})
    by_clock = BY_CLOCK
    white_box = WHITE_BOX
    before = ("production", "msa", "all-slow")
    """The compiler's own placement, else what its algorithm would do."""
    space = "copies in and out of one fast memory, in the program's order"
    left_out = "tiles, other orders, recomputing"

    def make(self, request: PlanRequest) -> MallocGame:
        machine = request.own_machine
        program = request.load_program(machine)
        make: Callable[..., MallocGame] = request.problem_class or MallocGame
        return make(program, machine, pins=request.resolve_pins(program, machine))

    def describe(self, problem: MallocGame, source: str) -> str:
        model, memories = problem.model, problem.machine.memories
        fast = memories[model.fast]
        return (
            f"{source} on {problem.machine.name}: {model.steps:,} steps, {problem.moves:,} decisions about "
            f"{len(model.tensors.root):,} tensors ({show_bytes(int(model.tensors.size.sum()))}), "
            f"{fast.name} {show_bytes(fast.capacity)} over {memories[model.slow].name}"
        )

    def known(self, problem: MallocGame, source: str, seconds: float = math.inf) -> list[Known]:
        """The production compiler's where it is known."""
        names = [name for name in KNOWN if name != "production" or has_production(problem)]
        if problem.model.steps > MSA_STEPS:
            names.remove("msa")
        found = known_values(problem, names, seconds)
        placed = "as the production compiler placed it"
        return [replace(each, status=placed) if each.name == "production" else each for each in found]

    def facts(self, problem: MallocGame, found: Found) -> Facts:
        """What the plan moves, where it waits, and how full the fast memory gets."""
        facts = Facts({"steps": problem.model.steps, "moves": problem.moves})
        plan, fast = found.plan, problem.model.fast
        if plan is None:
            return facts
        sizes = problem.program.storage_bytes
        copied = sum(int(sizes[row.tensor]) if row.low < 0 else row.high - row.low for row in plan.copy_rows)
        moved = traffic_numbers(problem.machine, plan, simulate(problem.program, problem.machine, plan), fast)
        moved["copied_bytes"] = copied
        facts.numbers |= moved
        facts.notes.append(
            f"{moved['residencies']:,} residencies in {problem.machine.memories[fast].name}, peak "
            f"{show_bytes(moved['fast_peak_bytes'])} of {show_bytes(moved['fast_capacity_bytes'])}; "
            f"{moved['copies']:,} copies of {show_bytes(copied)}, {show_time(moved['stall_picoseconds'])} of "
            "waiting for them"
        )
        return facts

    def check_solver(self, problem: MallocGame, solver: Solver) -> None:
        if solver.name == "production":
            known_production(problem)

    def bound(self, problem: MallocGame, seconds: float = math.inf) -> Bound:
        """The recorded one, else that of the linear relaxation, else the problem's own."""
        own = problem.bound()
        if own == recorded_bound(problem.program, problem.machine, "malloc-game"):
            return own
        if problem.moves > BOUND_MOVES:
            return own
        with contextlib.suppress(MissingPackage):
            return max(own, game_bound(problem, min(BOUND_SECONDS, seconds)), key=lambda bound: bound.value)
        return own


KIND = MallocGameKind()
