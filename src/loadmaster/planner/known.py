"""What stands beside a solver's plan: known methods' plans, bounds that are quick to have, the optimum, and the
best plans measured again."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from loadmaster.allocation.problem import Allocation
from loadmaster.errors import LoadmasterError, MissingPackage
from loadmaster.graph import GraphOptimization
from loadmaster.graph.base import expert_placement
from loadmaster.malloc_game.heuristics import has_production
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.mapping.auto import can_prove
from loadmaster.mapping.measured import MeasuredMapping
from loadmaster.mapping.model import weights_bound
from loadmaster.mapping.problem import Mapping
from loadmaster.offload.measured import MeasuredOffload
from loadmaster.offload.problem import Offload
from loadmaster.order.problem import PeakOrder
from loadmaster.planner.result import Row
from loadmaster.search.champion import Champion, Leaders, remeasure
from loadmaster.search.problem import Bound, Decision, Problem, recorded_bound, recorded_row
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, Meter, Solution, Solver, State, Status, solve
from loadmaster.units import show_bytes, show_time

MAPS = ("all-slowest", "compiler", "density")
FIRMWARE = ("one-arena", "greedy-by-size")
"""What runtimes on microcontrollers do: for models of theirs."""
GAMES = ("all-slow", "greedy-order", "msa", "production")
OFFLOADS = ("all-resident", "layerwise", "prefetch", "msa")
OFFSETS = ("first-fit", "xla-best-fit")
ORDERS = ("program-order", "peak-greedy", "depth-first", "reverse-post-order")
BOUND_SECONDS = 20.0
AT_ONCE = 4
"""Measurements of an offload plan in a row: going over to another one takes long."""


@dataclass(frozen=True, eq=False)
class Known:
    """A known method's answer. It costs no evaluations of the solver's budget."""

    name: str
    decision: Decision | None
    """None: the method found nothing."""
    value: int | None
    status: str = ""
    evaluations: int = 0
    seconds: float = 0.0
    legal: bool = True
    """Else it only says what it would need."""


def known_maps(problem: Mapping, source: str) -> list[Known]:
    """Maps of known methods; `source` says whether the model is one for microcontrollers."""
    more = FIRMWARE if source.lower().endswith(".tflite") else ()
    found = _successes("mapping", (*MAPS, *more), problem)
    problem.leaders = Leaders()  # what was measured here is not the solver's
    return found


def known_games(problem: MallocGame, source: str) -> list[Known]:
    """Answers of the malloc game's baselines, the production compiler's where it is known."""
    names = [name for name in GAMES if name != "production" or has_production(problem)]
    found = _successes("malloc-game", names, problem)
    placed = "as the production compiler placed it"
    return [replace(each, status=placed) if each.name == "production" else each for each in found]


def known_offloads(problem: Offload, source: str) -> list[Known]:
    """Answers of the offload baselines that can be followed here."""
    found = []
    for name in OFFLOADS:
        with contextlib.suppress(LoadmasterError):  # a rule that can't be followed here is no baseline
            found += _successes("offload", [name], problem)
    if isinstance(problem, MeasuredOffload):
        problem.leaders = Leaders()  # what was measured here is not the solver's
    return found


def known_offsets(problem: Allocation, source: str) -> list[Known]:
    """Without a capacity, so that a baseline that does not fit says what it would need."""
    found = _answers("allocation", OFFSETS, Allocation(problem.buffers, None, problem.name))
    return [
        replace(each, legal=each.decision is not None and problem.evaluate(each.decision) is not None)
        for each in found
    ]


def known_orders(problem: PeakOrder, source: str) -> list[Known]:
    """Answers of the orders that others use."""
    return _answers("order", ORDERS, problem)


def known_byte_maps(problem: Mapping, source: str) -> list[Known]:
    """Answers of the mapping baselines, counted in bytes moved."""
    return _answers("mapping", MAPS, problem)


def _answers(kind: str, names: Sequence[str], problem: Problem) -> list[Known]:
    """What each method finds, and what it says of its own answer."""
    found = {name: solve(make_labelled(kind, name), problem, Budget()) for name in names}
    return [
        Known(name, each.decision, each.value, str(each.status), each.evaluations, each.seconds)
        for name, each in found.items()
    ]


def _successes(kind: str, names: Sequence[str], problem: Problem) -> list[Known]:
    """Those that find something, as values to compare with alone."""
    found = _answers(kind, names, problem)
    return [replace(each, status="", evaluations=0) for each in found if each.decision is not None]


def known_graphs(problem: GraphOptimization, source: str) -> list[Known]:
    """The base plan first, the expert's placement in it, and the base plan by critical path."""
    vectors: dict[str, Any] = {"base": problem.vector()}
    made = {
        "base": base_text(problem),
        "expert": "base with whole layers on neighbours",
        "critical-path": "base, the longest way to the end first",
    }
    if "placement" in problem.tasks and problem.base.placement != "expert":
        group = np.full(problem.program.n_ops, -1, dtype=np.int32)
        group[problem.node_op] = problem.node_group
        expert = expert_placement(problem.program, group, problem.groups, problem.devices)
        if expert is not None:
            vectors["expert"] = problem.vector(device=expert)
    if "schedule" in problem.tasks and problem.base.schedule != "critical_path":
        vectors["critical-path"] = problem.vector(schedule=np.zeros(problem.nodes))
    time, over, fault = problem.measure(np.stack(list(vectors.values())))
    found = []
    for row, (name, vector) in enumerate(vectors.items()):
        value, too_many, status = int(time[row]), int(over[row].sum()), made[name]
        if fault[row, 0]:
            status = "can't run on these devices"
        elif too_many:
            status = f"does not fit: {show_bytes(too_many)} too many"
        found.append(Known(name, vector, None if fault[row, 0] else value, status, legal=too_many == 0))
    return found


def base_text(problem: GraphOptimization) -> str:
    """What stands where nothing is decided."""
    base = problem.base
    placement = base.placement if isinstance(base.placement, str) else "given"
    return f"fusion {base.fusion}, placement {placement}, schedule {base.schedule}"


def quick_map_bound(problem: Mapping) -> Bound:
    """Of times without noise: the recorded one, else that of the linear relaxation, else one that
    needs no package."""
    if isinstance(problem, MeasuredMapping):
        return problem.bound()  # nothing is proven about hardware
    plain = without_noise(problem)
    if recorded_row(plain.program, plain.machine) is not None and not plain.pins:
        return plain.bound()  # what is on record knows no pins
    if can_prove(plain):
        from loadmaster.mapping.exact import linear_bound

        with contextlib.suppress(MissingPackage):
            return max(plain.bound(), linear_bound(plain), key=lambda bound: bound.value)
    return weights_bound(plain)


def quick_game_bound(problem: MallocGame) -> Bound:
    """The recorded one, else that of the linear relaxation, else the problem's own."""
    own = problem.bound()
    if own == recorded_bound(problem.program, problem.machine, "malloc-game"):
        return own
    from loadmaster.malloc_game.bounds import game_bound

    with contextlib.suppress(MissingPackage):
        return max(own, game_bound(problem, BOUND_SECONDS), key=lambda bound: bound.value)
    return own


def without_noise(problem: Mapping) -> Mapping:
    """The same with simulated times as they are."""
    return problem if problem.repeatable else Mapping(problem.program, problem.machine, pins=problem.pins)


class Bounded(Solver):
    """A solver that knows a bound from the start, so that the gap is known while it works."""

    def __init__(self, solver: Solver, bound: Bound) -> None:
        self._solver, self._bound = solver, bound
        self.name, self.problem_kind = solver.name, solver.problem_kind
        self.summary, self.deterministic = solver.summary, solver.deterministic
        self.options, self.scheduled = solver.options, solver.scheduled

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        meter.raise_bound(self._bound.value, self._bound.method)
        return self._solver.run(meter, seed, state)


def find_optimum(
    problem: Mapping, solver: str, solution: Solution, seconds: float, say: Callable[[str], None]
) -> Row | None:
    """The optimum, or the best that the exact solver knows; it may raise the solution's bound."""
    if isinstance(problem, MeasuredMapping):
        return None
    row = recorded_row(problem.program, problem.machine)
    if row is not None and not problem.pins:
        status = "optimal" if row["best"] <= row["bound"] else "best on record"
        name = "optimum" if status == "optimal" else "exact"
        return Row("reference", name, int(row["best"]), f"{status}, {row['method']}, on record")
    plain, proven = without_noise(problem), solution.status == Status.OPTIMAL
    if proven or solver in ("auto", "exact") or not seconds or not can_prove(plain):
        return None
    say(f"seeking the optimum for up to {seconds:g} s, for comparison")
    exact = solve(Bounded(make_labelled("mapping", "exact"), solution.bound), plain, Budget(seconds=seconds))
    if exact.bound.value > solution.bound.value:
        solution.bound = exact.bound
    name = "optimum" if exact.status == Status.OPTIMAL else "exact"
    return Row("reference", name, exact.value, f"{exact.status}, {exact.bound.method}", seconds=exact.seconds)


@dataclass(frozen=True)
class Remeasured:
    """What a search found, measured again, and what is taken of it."""

    champion: Champion
    decision: Decision | None
    value: int
    note: str


def remeasure_maps(problem: Mapping, solver: str, seed: int, say: Callable[[str], None]) -> Remeasured | None:
    """Where values are noisy: the best of many is optimistic, so the leaders are measured again."""
    if problem.repeatable:
        return None
    say("measuring the best maps again, in turns with the compiler's")
    champion, measured = remeasure(problem, seed=seed), isinstance(problem, MeasuredMapping)
    median = round(champion.winner.time_ps.middle)
    value = median if measured else champion.simulated_ps
    return Remeasured(champion, champion.winner.decision, value, _again_text(champion, measured, "compiler"))


def remeasure_offloads(
    problem: Offload, solver: str, seed: int, say: Callable[[str], None]
) -> Remeasured | None:
    """The same of offload plans. What `refined` found is only taken if it is surely faster than what it
    began with."""
    if not isinstance(problem, MeasuredOffload):
        return None
    say("measuring the best plans again, in turns with the one that the search began with")
    champion = remeasure(problem, seed=seed, together=AT_ONCE)
    refined = solver == "refined"
    note = _again_text(champion, True, "the simulator's best" if refined else "belady")
    if refined and not champion.gained:
        note += "; that is not surely faster, so the simulator's best is the plan"
        return Remeasured(champion, problem.baseline, round(champion.baseline.time_ps.middle), note)
    winner = champion.winner
    return Remeasured(champion, winner.decision, round(winner.time_ps.middle), note)


def _again_text(champion: Champion, measured: bool, over: str) -> str:
    """The headline of noisy values, with its interval and what the search had thought of it."""
    winner, speedup = champion.winner, champion.speedup
    first = "–" if winner.first_ps is None else show_time(winner.first_ps)
    low, high = show_time(round(winner.time_ps.low)), show_time(round(winner.time_ps.high))
    simulated = f", simulated {show_time(champion.simulated_ps)}" if measured else ""
    return (
        f"measured again {len(winner.samples_ps)} times: median {show_time(round(winner.time_ps.middle))} "
        f"({low} to {high}), {speedup.middle:.3f} × over {over} ({speedup.low:.3f} to "
        f"{speedup.high:.3f}); the search had measured {first}{simulated}"
    )
