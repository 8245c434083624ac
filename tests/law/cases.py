"""The six problems, as the standing test sees them.

Each case says how an instance is made, from which plans a search starts and by which moves it goes on,
what a plan is worth (by the simulator, not by the problem), what the problem itself says of it, and
what is *claimed*: bounds, proven optima, and the least over all decisions where they can be counted.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np

from generate import Rng, chance, pick
from generate_graph import random_keys
from generate_plan import random_plan
from law import instances, moves, scope
from law.moves import LIVES, MEMORY, OFFSETS, WORK, Ground, Move
from loadmaster.allocation.problem import Allocation, ProgramAllocation
from loadmaster.errors import LoadmasterError
from loadmaster.graph import GraphOptimization
from loadmaster.graph.problem import UNFIT
from loadmaster.machine.machine import Machine
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.mapping.problem import Mapping as MapProblem
from loadmaster.offload.problem import Offload
from loadmaster.order.problem import PeakOrder
from loadmaster.plan.plan import Plan
from loadmaster.search.problem import Decision
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, Solution, Status, solve
from loadmaster.simulate.simulator import Timeline

MOST_DECISIONS = 5_000
"""So many are tried one by one."""


EFFORT = 1.0
"""CP-SAT's own measure of effort: it ends by that, on every computer at the same place."""


class Claim(NamedTuple):
    """No legal plan is worth less."""

    who: str
    value: int
    reached: bool
    """Whether some legal plan is said to be worth just that."""


@cache
def has_exact() -> bool:
    """Whether OR-tools are there."""
    return find_spec("ortools") is not None


class Case:
    """One kind of problem."""

    kind: str
    moves: Mapping[Move, float]
    beyond: Mapping[Move, float]
    """Moves that may leave what the problem decides: now and then."""
    whole = True
    """Whether the decision of a plan says all that the plan says, so that the two are judged alike."""
    rows = False
    """Whether a plan is a decision as it is."""
    asks_exact = True
    """Whether claims are OR-tools' too."""

    def outside(self, problem: Any, plan: Plan) -> str | None:
        """Why a plan is none that the problem decides (see `scope`)."""
        raise NotImplementedError

    def make(self, rng: Rng) -> Any:
        """A problem, or None: nothing to decide, or refused with good reason."""
        raise NotImplementedError

    def ground(self, problem: Any) -> Ground:
        return Ground(problem.program, self.machine(problem), 1)

    def machine(self, problem: Any) -> Machine:
        """On which plans are timed."""
        machine: Machine = problem.machine
        return machine

    def decisions(self, problem: Any, rng: Rng) -> Iterator[Decision]:
        """Some decisions, whose plans a search starts from."""
        raise NotImplementedError

    def starts(self, problem: Any, rng: Rng) -> Iterator[Plan]:
        """Plans that no solver made."""
        yield Plan()
        yield random_plan(rng, problem.program, self.machine(problem), valid_only=True)

    def value(self, problem: Any, plan: Plan, timeline: Timeline) -> int:
        """What a legal plan is worth."""
        return int(timeline.total_ps)

    def judged(self, problem: Any, plan: Plan) -> int | None:
        """What the problem says that a plan is worth; None: it is not legal. Raises `BadPlan` where
        no decision stands for the plan."""
        return self.decided(problem, problem.decision(plan))

    def decided(self, problem: Any, decision: Decision) -> int | None:
        value: int | None = problem.evaluate(decision)
        return value if value is not None and problem.admits(decision) else None

    def claims(self, problem: Any, rng: Rng) -> Iterator[Claim]:
        bound = problem.bound()
        yield Claim(f"bound: {bound.method}", bound.value, False)

    def solved(self, problem: Any, name: str, **options: Any) -> Solution:
        """A solver without a clock: it ends by itself, or by the effort that `options` allow."""
        return solve(make_labelled(problem.kind, name, options), problem, Budget())


def _claim(name: str, solution: Solution) -> Claim:
    return Claim(f"{name}: {solution.bound.method}", solution.bound.value, solution.status == Status.OPTIMAL)


class GameCase(Case):
    kind = "malloc-game"
    rows = True
    moves = MEMORY
    beyond = MEMORY | WORK

    def outside(self, problem: MallocGame, plan: Plan) -> str | None:
        return scope.game(problem, plan)

    def make(self, rng: Rng) -> MallocGame | None:
        program, machine = instances.game_instance(rng)
        try:
            pins = instances.memory_pins(rng, program, machine, home_alone=True)
            return MallocGame(program, machine, pins=pins)
        except LoadmasterError:
            return None

    def decisions(self, problem: MallocGame, rng: Rng) -> Iterator[Decision]:
        yield problem.all_slow()
        for _ in range(4):
            yield rng.integers(0, 3, problem.moves).astype(np.int8)

    def claims(self, problem: MallocGame, rng: Rng) -> Iterator[Claim]:
        yield from super().claims(problem, rng)
        if has_exact() and problem.moves <= 24:
            yield _claim("cp-sat", self.solved(problem, "cp-sat", work=EFFORT))


class OffloadCase(Case):
    kind = "offload"
    rows = True
    asks_exact = False
    moves = MEMORY
    beyond = MEMORY | WORK

    def outside(self, problem: Offload, plan: Plan) -> str | None:
        return scope.offload(problem, plan)

    def make(self, rng: Rng) -> Offload | None:
        program, machine = instances.offload_instance(rng)
        reserve = pick(rng, (0, 0, 0, 5))
        try:
            return Offload(program, machine, reserve=reserve)
        except LoadmasterError:
            return None

    def decisions(self, problem: Offload, rng: Rng) -> Iterator[Decision]:
        for share in (1.0, 0.0, 0.5, 0.5):
            keep = rng.random(problem.gaps) < share
            yield problem.vector(keep, lead=int(rng.integers(0, 8)))


class MappingCase(Case):
    kind = "mapping"
    moves = LIVES
    beyond = MEMORY | WORK
    whole = False  # a map has no offsets

    def outside(self, problem: MapProblem, plan: Plan) -> str | None:
        return scope.mapping(problem, plan)

    def make(self, rng: Rng) -> MapProblem | None:
        program, machine = instances.map_instance(rng)
        try:
            return MapProblem(program, machine, pins=instances.memory_pins(rng, program, machine))
        except LoadmasterError:
            return None

    def machine(self, problem: MapProblem) -> Machine:
        return replace(problem.machine, devices=problem.machine.devices[:1], text="")

    def ground(self, problem: MapProblem) -> Ground:
        entry_of = problem.entries.of_tensor
        entries = np.unique(entry_of[entry_of >= 0]).tolist()
        together = [np.flatnonzero(entry_of == entry).tolist() for entry in entries]
        return Ground(problem.program, self.machine(problem), 1, together)

    def decisions(self, problem: MapProblem, rng: Rng) -> Iterator[Decision]:
        yield problem.all_slowest()
        for _ in range(4):
            yield rng.integers(0, problem.slowest + 1, 2 * problem.nodes).astype(np.int8)

    def claims(self, problem: MapProblem, rng: Rng) -> Iterator[Claim]:
        yield from super().claims(problem, rng)
        live, memories = np.flatnonzero(problem.live), problem.slowest + 1
        if memories ** len(live) <= MOST_DECISIONS:
            chosen = list(itertools.product(range(memories), repeat=len(live)))
            maps = np.tile(problem.all_slowest(), (len(chosen), 1))
            maps[:, live] = np.array(chosen, dtype=np.int8).reshape(len(chosen), len(live))
            value = problem.score(maps).value
            yield Claim("every map", int(value[value >= 0].min()), True)
        if has_exact():
            from loadmaster.mapping.exact import linear_bound

            bound = linear_bound(problem)
            yield Claim(bound.method, bound.value, False)
            if chance(rng, 0.03):  # it starts two processes
                yield _claim("exact", self.solved(problem, "exact"))


class GraphCase(Case):
    kind = "graph"
    moves = WORK
    beyond = MEMORY | WORK

    def outside(self, problem: GraphOptimization, plan: Plan) -> str | None:
        return scope.graph(problem, plan)

    def make(self, rng: Rng) -> GraphOptimization | None:
        program, machine = instances.graph_instance(rng)
        decided = ("placement", "fusion", "schedule")
        tasks = pick(rng, (decided, decided, decided[::2], decided[:1], decided[1:]))
        try:
            problem = GraphOptimization(
                program,
                machine,
                tasks=tasks,
                groups=pick(rng, ("op", "auto", "scope", "coplace")),
                profile=pick(rng, ("loadmaster", "loadmaster", "paper")),
                readers=pick(rng, ("each", "each", "all")),
                pins=instances.device_pins(rng, program, machine),
            )
        except LoadmasterError:
            return None
        return problem if problem.nodes else None

    def ground(self, problem: GraphOptimization) -> Ground:
        return Ground(problem.program, problem.machine, problem.devices)

    def decisions(self, problem: GraphOptimization, rng: Rng) -> Iterator[Decision]:
        yield problem.vector()
        for _ in range(4):
            yield problem.vector(
                random_keys(rng, problem.nodes),
                rng.integers(0, problem.devices, problem.groups),
                random_keys(rng, problem.nodes),
            )

    def judged(self, problem: GraphOptimization, plan: Plan) -> int | None:
        return problem.value_of(plan)

    def decided(self, problem: GraphOptimization, decision: Decision) -> int | None:
        value = super().decided(problem, decision)
        return None if value is None or value >= UNFIT else value

    def claims(self, problem: GraphOptimization, rng: Rng) -> Iterator[Claim]:
        yield from super().claims(problem, rng)
        if has_exact():
            yield _claim("cp-sat", self.solved(problem, "cp-sat", work=EFFORT))


class OrderCase(Case):
    kind = "order"
    asks_exact = False
    moves: Mapping[Move, float] = {moves.reorder: 1}
    beyond = MEMORY | WORK
    whole = False  # nor has an order of nodes its views

    def outside(self, problem: PeakOrder, plan: Plan) -> str | None:
        return scope.order(problem, plan)

    def make(self, rng: Rng) -> PeakOrder | None:
        program, machine = instances.order_instance(rng)
        try:
            return PeakOrder(program, machine)
        except LoadmasterError:
            return None

    def machine(self, problem: PeakOrder) -> Machine:
        return replace(problem.machine, devices=problem.machine.devices[:1], text="")

    def decisions(self, problem: PeakOrder, rng: Rng) -> Iterator[Decision]:
        yield problem.program_order
        for _ in range(4):
            yield problem.from_keys(rng.random((1, problem.nodes)))[0]

    def value(self, problem: PeakOrder, plan: Plan, timeline: Timeline) -> int:
        return int(timeline.memory_peak[problem.machine.home[0]]) - problem.resident

    def claims(self, problem: PeakOrder, rng: Rng) -> Iterator[Claim]:
        yield from super().claims(problem, rng)
        if problem.nodes <= 6:
            orders = np.array(list(itertools.permutations(range(problem.nodes))), dtype=np.int32)
            value = problem.score(orders).value
            yield Claim("every order", int(value[value >= 0].min()), True)
        for name in ("peak-dp", "peak-cut"):
            yield _claim(name, self.solved(problem, name))


class AllocationCase(Case):
    kind = "allocation"
    moves = OFFSETS
    beyond = MEMORY | WORK

    def outside(self, problem: Allocation, plan: Plan) -> str | None:
        return scope.allocation(problem, plan)

    def make(self, rng: Rng) -> Allocation | None:
        try:
            if chance(rng, 0.5):
                program, machine = instances.arena_instance(rng)
                pins = instances.memory_pins(rng, program, machine)
                return ProgramAllocation(program, machine, pins=pins)
            buffers = instances.small_buffers(rng)
            near = buffers.max_live + pick(rng, (0, 1, 3))
            return Allocation(buffers, pick(rng, (None, None, near)))
        except LoadmasterError:
            return None

    def decisions(self, problem: Allocation, rng: Rng) -> Iterator[Decision]:
        buffers = problem.buffers
        stacked = np.zeros(len(buffers), dtype=np.int64)
        top = int(np.maximum(0, buffers.pinned + buffers.size).max(initial=0))
        for b in rng.permutation(len(buffers)).tolist():
            step = int(buffers.alignment[b])
            if buffers.size[b] == 0 or buffers.pinned[b] >= 0:  # an empty one lies nowhere
                stacked[b] = max(0, int(buffers.pinned[b]))
                continue
            stacked[b] = -(-top // step) * step
            top = max(top, int(stacked[b] + buffers.size[b]))
        yield stacked
        for name in ("first-fit", "xla-best-fit"):
            found = solve(make_labelled("allocation", name), problem, Budget(evaluations=5)).decision
            if found is not None:
                yield found
        any_offset = rng.integers(0, 20, len(buffers))
        yield np.where(buffers.size > 0, any_offset, np.maximum(0, buffers.pinned))

    def starts(self, problem: Allocation, rng: Rng) -> Iterator[Plan]:
        yield from (problem.plan(next(self.decisions(problem, rng))) for _ in range(2))

    def value(self, problem: Allocation, plan: Plan, timeline: Timeline) -> int:
        empty = (problem.buffers.size == 0) & (problem.buffers.pinned > 0)  # they have no residency
        top = int(timeline.memory_top[problem.machine.home[0]])
        return max(top, int(problem.buffers.pinned[empty].max(initial=0)))

    def claims(self, problem: Allocation, rng: Rng) -> Iterator[Claim]:
        yield from super().claims(problem, rng)
        solution = self.solved(problem, "exact", nodes=100_000, threads=1)
        yield _claim("exact", solution)
        if solution.status == Status.INFEASIBLE:
            yield Claim("exact: infeasible", 2**62, False)
        if has_exact() and chance(rng, 0.2):
            solution = self.solved(problem, "cp-sat", work=EFFORT)
            yield _claim("cp-sat", solution)
            if solution.status == Status.INFEASIBLE:
                yield Claim("cp-sat: infeasible", 2**62, False)


CASES: dict[str, Case] = {
    case.kind: case
    for case in (GameCase(), OffloadCase(), MappingCase(), AllocationCase(), GraphCase(), OrderCase())
}
