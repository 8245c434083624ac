"""What a user wants of the offset problem: one call that picks the solver and explains a 'no'."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster import _core
from loadmaster.allocation.buffers import Buffers, check_pins
from loadmaster.allocation.buffers_csv import read_buffers, read_pairs
from loadmaster.allocation.exact import Exact
from loadmaster.allocation.problem import Allocation, ProgramAllocation
from loadmaster.allocation.several import replan
from loadmaster.clock import engine_seconds
from loadmaster.errors import LoadmasterError, Refused, nearest
from loadmaster.host import cores
from loadmaster.machine import Machine, load_machine
from loadmaster.program import Program
from loadmaster.search.auto import Auto, Stage
from loadmaster.search.kind import Facts, Found, Known, ProblemKind, solve_known
from loadmaster.search.problem import Problem
from loadmaster.search.registry import make_solver
from loadmaster.search.request import BadRequest, PlanRequest, ProblemSource
from loadmaster.search.solver import Budget, Meter, Observer, Solution, Solver, Status, solve
from loadmaster.units import UNLIMITED

MANY = 6_000
"""Above so many buffers the greedy portfolio goes alone: a tree search would not get far."""
SOME = 1_000
"""Above so many buffers it goes first: a node of the tree costs as much as a placement of them all."""
_FIRST_NODES = 300_000
_GREEDY_EFFORT = 100_000_000
"""Steps: about a second of one core."""
REPLAN_SECONDS = 60.0


def make_auto(threads: int | None = None) -> Auto:
    """A short exact search and the greedy portfolio in turn, then the exact search to the end.

    Tight problems fall to the first, loose ones with much freedom to the second, and what is left
    of the time goes into proof. The first two are limited by their work and not by the clock. Whatever
    reaches the bound ends it: no stage runs to improve on a proof.
    """

    def schedule(problem: Problem) -> list[Stage]:
        assert isinstance(problem, Allocation)
        if len(problem.buffers) > MANY:
            return [Stage("large", {"threads": threads})]
        short = Stage("exact", {"threads": threads, "nodes": _FIRST_NODES}, when=_fits_not_yet)
        greedy = Stage("large", {"threads": threads, "effort": _GREEDY_EFFORT}, when=_fits_not_yet)
        first = [greedy, short] if len(problem.buffers) > SOME else [short, greedy]
        return [*first, Stage("exact", {"threads": threads}, when=_fits_not_yet)]

    summary = "exact search and greedy portfolio in turn: the one to use"
    return Auto("allocation", schedule, summary=summary)


def _fits_not_yet(meter: Meter) -> bool:
    """Within a capacity any placement is as good as another."""
    assert isinstance(meter.problem, Allocation)
    return meter.problem.capacity is None or meter.best is None


def allocate(
    buffers: Buffers,
    capacity: int | None = None,
    *,
    seconds: float | None = 10.0,
    seed: int = 0,
    observer: Observer | None = None,
) -> Solution:
    """Give buffers offsets.

    Args:
      buffers: n of them, with lifetimes and sizes (`read_buffers`, `Buffers.of`).
      capacity: bytes that the offsets must fit; None: the least height that is found.
      seconds: when to stop; None: when it is proven.
      seed: the same seed gives the same answer, unless the seconds end it.
      observer: is told of every improvement.

    Returns:
      `decision` `[n]` offsets (None if none fit), `value` the height, its bound and status.
    """
    problem = Allocation(buffers, capacity)
    return solve(make_auto(), problem, Budget(seconds=seconds), seed, observer)


def offset_solver(
    name: str, off: Sequence[str], threads: int | None, options: Mapping[str, Any] | None = None
) -> Solver:
    """A solver by name. With techniques turned `off` it is the exact search, which has them."""
    solver = make_solver("allocation", name, options)
    for technique in off:
        if technique not in _core.TECHNIQUES:
            raise BadRequest(
                f"there is no technique '{technique}'{nearest(technique, tuple(_core.TECHNIQUES))}",
                object=technique,
                remedy=f"use one of {', '.join(_core.TECHNIQUES)}",
            )
    given = {**(options or {}), **({} if threads is None else {"threads": threads})}
    if name == "exact" or (off and name == "auto"):
        return Exact(**{"techniques": dict.fromkeys(off, False), **given})
    if off:
        raise BadRequest(
            f"--off needs solver 'exact', not '{solver.name}'", object="--off", remedy="leave it out"
        )
    return make_auto(**given) if name == "auto" else solver


def read_problem(
    source: str | Program, capacity: int | None = None, *, minimize: bool = False, pairs: Path | None = None
) -> Allocation:
    """The offset problem of a CSV of buffers, or of a model in its own order.

    Args:
      source: the CSV file, or the model.
      capacity: None: of a CSV the one that its name states, else none.
      minimize: whether the least capacity is sought, whatever the name states.
      pairs: a CSV with columns a,b: ids of buffers that never share a byte.
    """
    if capacity is not None and minimize:
        raise BadRequest(
            "--capacity and --minimize exclude each other", object="--minimize", remedy="give one"
        )
    if isinstance(source, str):
        buffers, stated = read_buffers(source)
        if pairs is not None:
            buffers = buffers.changed(apart=read_pairs(pairs, buffers))
        if capacity is None and not minimize:
            capacity = stated
        return Allocation(buffers, capacity, Path(source).stem)
    if pairs is not None:
        raise BadRequest("--pairs needs a CSV of buffers", object="--pairs", remedy="give a CSV file")
    machine = load_machine(f"arena:{'unlimited' if capacity is None else capacity}")
    return ProgramAllocation(source, machine)


def replan_offsets(problem: Allocation, previous: Path, seconds: float | None, seed: int) -> Solution:
    """Offsets that differ little from those of an earlier answer: `metrics` says which buffers moved."""
    before, _ = read_buffers(previous)
    if (before.pinned < 0).any():
        raise BadRequest(
            f"'{previous}' has no offset for every buffer",
            object=str(previous),
            remedy="give an answer of --out",
        )
    if problem.capacity is None:
        raise BadRequest("--previous needs a capacity", object="--previous", remedy="give --capacity")
    answer = replan(
        problem.buffers, before, before.pinned, problem.capacity, seconds=seconds or REPLAN_SECONDS, seed=seed
    )
    meter = Meter(problem, Budget(seconds=seconds))
    if answer is None:
        return meter.solution()
    meter.evaluate(answer.offset)
    moved = [problem.buffers.ids[b] for b in answer.moved.tolist()]
    return meter.solution(moved=moved, moved_bytes=int(problem.buffers.size[answer.moved].sum()))


@dataclass(frozen=True)
class Blame:
    """Why buffers do not fit."""

    buffers: npt.NDArray[np.int64]
    """Infeasible together, and not without any one of them; empty if the time did not suffice."""
    instant: int
    """The time at which most bytes are alive."""
    alive: int
    """Bytes of all buffers alive then."""
    excess: int
    """How far `alive` is above the capacity; 0: the bytes fit, and it is the shapes."""


def explain_infeasible(problem: Allocation, seconds: float = 10.0, seed: int = 0) -> Blame:
    """An irreducible set of buffers to blame, and the worst instant."""
    assert problem.capacity is not None
    limit = engine_seconds(seconds)
    stop = _core.Stop(-1.0 if limit is None else limit, -1)
    options = {"threads": cores(), "seed": seed}
    blamed = problem.native.infeasible_subset(problem.capacity, options, stop)
    times, live = problem.buffers.live_profile()
    worst = int(np.argmax(live)) if len(live) else 0
    alive = int(live[worst]) if len(live) else 0
    return Blame(blamed, int(times[worst]) if len(times) else 0, alive, max(0, alive - problem.capacity))


class Unfit(Refused):
    """Buffers are proven not to fit; `blame` says which."""

    def __init__(self, problem: Allocation, solution: Solution, blame: Blame) -> None:
        self.blame = blame
        if blame.excess:
            why = f"{blame.alive:,} bytes are alive at time {blame.instant}, {blame.excess:,} too many"
        elif len(blame.buffers):
            why = f"the bytes alive fit, but these {len(blame.buffers)} shapes do not"
        else:
            why = "the shapes do not fit"
        least = f"a capacity of at least {solution.bound.value:,} bytes"
        super().__init__(
            f"{problem.name} does not fit into {problem.capacity:,} bytes: {why}",
            object=problem.name,
            number=blame.excess,
            remedy=least if blame.excess else "try --minimize",
        )


KNOWN = ("first-fit", "xla-best-fit")


class AllocationKind(ProblemKind[Allocation]):
    """The problem as the planner sees it."""

    name = "allocation"
    accepts = frozenset({"pins", "keep_order"})
    by_clock = ("auto", "exact", "large", "cp-sat")
    settles = ("baseline", "result")
    before = KNOWN
    space = "offsets of buffers that live as long as they do in this order"
    left_out = "other orders, buffers that share a place, tiles"
    bound_row = "always"

    def make(self, request: PlanRequest) -> Allocation:
        """In the program's own order."""
        machine = request.own_machine
        program = request.load_program(machine)
        return ProgramAllocation(program, machine, pins=request.resolve_pins(program, machine))

    def describe(self, problem: Allocation, source: str) -> str:
        memory = problem.machine.memories[problem.machine.home[0]].name
        size = "no limit" if problem.capacity is None else f"{problem.capacity:,} bytes"
        order = ""
        if isinstance(problem, ProgramAllocation):
            order = f", ops in {'their own' if problem.order is None else 'another'} order"
        return (
            f"{source}: an offset in '{memory}' ({size}) for each of {len(problem.buffers):,} buffers{order}"
        )

    def known(self, problem: Allocation, source: str, seconds: float = math.inf) -> list[Known]:
        """Without a capacity, so that a baseline that does not fit says what it would need."""
        found = solve_known(Allocation(problem.buffers, None, problem.name), KNOWN, seconds)
        return [
            replace(each, legal=each.decision is not None and problem.evaluate(each.decision) is not None)
            for each in found
        ]

    def facts(self, problem: Allocation, found: Found) -> Facts:
        """What is left of the memory."""
        facts = Facts({"buffers": len(problem.buffers), "capacity_bytes": problem.capacity})
        if found.value is not None and problem.capacity is not None:
            left = problem.capacity - found.value
            facts.notes.append(f"fits: {left:,} of {problem.capacity:,} bytes are left over")
        return facts

    def explain(
        self, problem: Allocation, solution: Solution, seconds: float, seed: int
    ) -> LoadmasterError | None:
        """Which buffers do not fit together, where that is proven."""
        infeasible = solution.decision is None and solution.status == Status.INFEASIBLE
        if not infeasible or problem.capacity is None:
            return None
        return Unfit(problem, solution, explain_infeasible(problem, seconds, seed))


@dataclass(frozen=True, eq=False)
class NamedBuffers(ProblemSource):
    """Buffers alone: lives and sizes, no ops."""

    kind = "allocation"
    name: str
    buffers: Buffers
    capacity: int | None = None
    """Of the memory that they are meant for, if that is known."""

    def make_problem(self, request: PlanRequest) -> Allocation:
        """The offsets of the buffers; the capacity is the arena's, else their own."""
        if request.pins or request.evaluator or request.noise or request.graph_option:
            raise BadRequest(
                f"'{self.name}' has buffers alone: no ops, no memories to choose from",
                object=self.name,
                remedy="leave the other options out; a column 'offset' pins a buffer",
            )
        capacity = self.capacity
        if request.machine is not None:
            machine = request.own_machine
            if not is_arena(machine):
                raise BadRequest(
                    f"'{self.name}' has buffers for one memory, and '{machine.name}' has several",
                    object="--machine",
                    number=machine.name,
                    remedy="give --machine arena:1MiB",
                )
            room = machine.memories[machine.home[0]].capacity
            capacity = None if room >= UNLIMITED else room
        check_pins(self.buffers, capacity)
        return Allocation(self.buffers, capacity, self.name)


def is_arena(machine: Machine) -> bool:
    """One device, and one memory for all but the weights, which have room without limit elsewhere:
    nothing is to be chosen but offsets."""
    others = [m for m in machine.reach[0] if m != machine.home[0]]
    roomy = all(machine.memories[m].capacity >= UNLIMITED for m in others)
    return len(machine.devices) == 1 and bool(others) and roomy
