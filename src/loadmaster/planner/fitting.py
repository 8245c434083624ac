"""`fits`: does a program fit a machine? Yes with a checked plan, no with a proof, or not known.

Where one memory holds everything but the weights (`arena:SIZE`), the answer is about offsets, and
about the order of the ops too: 'no' means that no order helps, unless the order is to be kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.allocation.auto import AllocationKind, Blame, Unfit, explain_infeasible, is_arena
from loadmaster.allocation.heuristics import SizeFirstFit
from loadmaster.allocation.problem import Allocation, ProgramAllocation
from loadmaster.clock import now
from loadmaster.errors import LoadmasterError, NoAnswer, Refused
from loadmaster.graph import GraphOptimization
from loadmaster.machine.machine import Machine
from loadmaster.mapping.first_fit import first_fit
from loadmaster.order.problem import OP_BOUND, PeakOrder
from loadmaster.plan.check import check
from loadmaster.plan.plan import Plan
from loadmaster.program.program import Program
from loadmaster.runs.bank import Bank, Search, open_bank
from loadmaster.runs.session import Interrupted, solve_with_bank
from loadmaster.search.pins import Pins
from loadmaster.search.problem import Bound, Problem
from loadmaster.search.registry import make_solver
from loadmaster.search.request import PlanRequest
from loadmaster.search.solver import Budget, Meter, Observer, Solution, Status, solve
from loadmaster.units import UNLIMITED

BLAME_SECONDS = 5.0
EXPLAIN_SECONDS = 10.0
"""At most, to say why buffers alone have no placement."""
SECONDS = 20.0
_BASELINE_SECONDS = 1.0
"""At least, for a baseline to compare with where the search has taken all of its time."""
_NAMED = 8
_LONGEST = 48
"""So many tensors are named, and so many characters of their names."""


@dataclass(frozen=True)
class Fits:
    """The answer. Bytes are those of `memory`; of several memories, of all together."""

    answer: bool | None
    """None: neither found nor refuted in the time."""
    memory: str
    capacity: int
    need: int
    """Proven: with less, the answer is no."""
    proof: str
    """Why `need` is needed."""
    enough: int | None = None
    """With so much there is a plan; equal to `need`: the least capacity."""
    any_order: bool = False
    """Whether 'no' holds for every order of the ops."""
    op: int | None = None
    """The op that alone needs too much, or at which too much is alive."""
    tensors: list[tuple[str, int]] = field(default_factory=list)
    """Who is to blame, with bytes: what `op` holds, or (without one) buffers that do not fit together
    and would without any one of them."""
    plan: Plan | None = None
    """Checked; its order is the program's own unless it says so."""
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def excess(self) -> int:
        """Bytes too many; 0 if it fits, or if the bytes would and their shapes do not."""
        return max(0, self.need - self.capacity) if self.answer is False else 0

    def error(self, program: Program) -> LoadmasterError:
        """What to raise if the answer is no, or not known."""
        text = " ".join(self.reasons(program)).rstrip(".")
        if self.answer is None:
            return NoAnswer(text, object=self.memory, number=self.need, remedy=self.remedy)
        return Refused(text, object=self.memory, number=self.excess, remedy=self.remedy)

    @property
    def place(self) -> str:
        """The memory, or all of them, in a sentence."""
        return f"{self.memory} together" if "," in self.memory else f"'{self.memory}'"

    @property
    def remedy(self) -> str:
        """What would help where the answer is not yes."""
        if self.answer is None:
            return "give more --time-limit"
        if not self.need:
            return "a larger machine"
        if self.enough is None:
            return f"a capacity of at least {self.need:,} bytes, or a second memory"
        least = "" if self.enough == self.need else f" ({self.need:,} are proven to be needed)"
        return f"a capacity of {self.enough:,} bytes{least}, or a second memory"

    def reasons(self, program: Program) -> list[str]:
        """Sentences on why the answer is not yes."""
        if self.answer is None:
            return [
                f"not known: no plan was found in {self.place} and none was proven impossible.",
                f"At least {self.need:,} of {self.capacity:,} bytes are needed.",
            ]
        if not self.need:
            return [f"{self.proof}."]
        order = ", whatever the order" if self.any_order else ""
        need, has = ("need", "have") if "," in self.memory else ("needs", "has")
        first = (
            f"{self.place} {need} {self.need:,} bytes and {has} {self.capacity:,}: "
            f"{self.excess:,} too many{order}."
        )
        return [first, self._blame(program)] if self.tensors else [first]

    def _blame(self, program: Program) -> str:
        names = ", ".join(_shorten(name) for name, _ in self.tensors[:_NAMED])
        more = len(self.tensors) - _NAMED
        names += f" and {more:,} more" if more > 0 else ""
        sizes = {size for _, size in self.tensors}
        if len(sizes) == 1:
            total = f"{len(self.tensors)} × {sizes.pop():,}"
        else:
            some = " + ".join(f"{size:,}" for _, size in self.tensors[:_NAMED])
            total = f"{some}{' + …' if more > 0 else ''} = {sum(size for _, size in self.tensors):,}"
        if self.op is None:
            return f"To blame: {names}: {total}; without any one of them the others would fit."
        alone = "alone holds" if self.proof.startswith(OP_BOUND) else "holds, in the best order,"
        named = f"Op {self.op} '{program.op_name[self.op]}' ({program.op_kind[self.op]})"
        return f"{named} {alone} {names}: {total}."


def _shorten(name: str) -> str:
    """The end of a long name, which is what tells it from its neighbours."""
    return name if len(name) <= _LONGEST else f"…{name[1 - _LONGEST :]}"


def fits(
    program: Program,
    machine: Machine,
    *,
    seconds: float = SECONDS,
    keep_order: bool = False,
    pins: Pins | None = None,
    seed: int = 0,
    bank: Bank | str | Path | None = None,
) -> Fits:
    """Say whether a program fits a machine, with a plan or a proof.

    Args:
      program: what has to fit.
      machine: an arena (one memory: offsets and order are sought), or one with several memories.
      seconds: when to stop; then the answer may be None.
      keep_order: leave the ops in the program's order.
      pins: what is decided already.
      seed: the same seed gives the same answer, unless the seconds end it.
      bank: a folder of answers that are used and kept; a 'no' is always proven here.

    Returns:
      yes with a checked plan, no with the bytes that are needed and who needs them, or neither.
    """
    seeking = _Seeking(seconds, seed, open_bank(bank))
    if is_arena(machine):
        return _in_arena(program, machine, seeking, keep_order, pins or Pins())
    return _in_memories(program, machine, seeking)


def buffers_fit(
    problem: Allocation, seconds: float = SECONDS, seed: int = 0, bank: Bank | None = None
) -> Fits:
    """Whether buffers fit the capacity of their problem."""
    seeking = _Seeking(seconds, seed, bank)
    found = _placed(problem, seeking, 0.7)
    return _explained(problem, found, seeking) if found.plan is None else found


def order_fits(
    program: Program, machine: Machine, seconds: float = SECONDS, seed: int = 0, bank: Bank | None = None
) -> Fits:
    """Whether there is an order of the ops in which what is alive at one time fits the memory; offsets are not asked
    for."""
    problem, seeking = PeakOrder(program, machine), _Seeking(seconds, seed, bank)
    home, resident = machine.memories[machine.home[0]], problem.resident
    free = PeakOrder(program, _with_home(machine, UNLIMITED))  # so that the least peak comes with a proof
    best = seeking.solve(free, 1.0, enough=home.capacity - resident)
    need = best.bound.value + resident
    found = Fits(None, home.name, home.capacity, need, best.bound.method, any_order=True)
    if best.decision is not None and best.value is not None:
        found = replace(found, enough=best.value + resident)
        plan = problem.plan(best.decision)
        if best.value + resident <= home.capacity and not problem.violations(plan):
            return replace(found, answer=True, plan=plan)
    if need <= home.capacity:
        return found
    op, tensors = _widest(free) if best.bound.method == OP_BOUND else (None, [])
    return replace(found, answer=False, op=op, tensors=tensors)


class _Seeking:
    """How answers are sought: within what is left of the time, with a seed and perhaps a bank. Of a bank plans alone
    are taken: a 'no' must not rest on its word."""

    def __init__(self, seconds: float, seed: int, bank: Bank | None = None) -> None:
        self._end = now() + seconds
        self.seed, self.bank = seed, None if bank is None else bank.for_starts()

    def left(self, share: float = 1.0) -> float:
        return max(0.1, share * (self._end - now()))

    def solve(
        self, problem: Problem, share: float, observer: Observer | None = None, enough: int | None = None
    ) -> Solution:
        """By `auto`, in a share of the time; not at all if the bank has a plan that is good `enough`."""
        solver, budget = make_solver(problem.kind, "auto"), Budget(seconds=self.left(share))
        if self.bank is None or observer is not None:
            return solve(solver, problem, budget, self.seed, observer)
        known = None if enough is None else self.bank.recall(problem, Search("auto"))
        if known is not None and enough is not None and known.value <= enough:
            meter = Meter(problem, Budget())
            meter.evaluate(known.decision)
            return meter.solution()
        return solve_with_bank(self.bank, solver, problem, budget, self.seed)


def _in_arena(program: Program, machine: Machine, seeking: _Seeking, keep_order: bool, pins: Pins) -> Fits:
    own = ProgramAllocation(program, machine, pins=pins)
    found = _beside_weights(own, program, machine, seeking, keep_order, pins)
    enough = None if found.enough is None else found.enough + own.resident
    capacity = min(UNLIMITED, found.capacity + own.resident)
    return replace(found, capacity=capacity, need=found.need + own.resident, enough=enough)


def _beside_weights(
    own: ProgramAllocation,
    program: Program,
    machine: Machine,
    seeking: _Seeking,
    keep_order: bool,
    pins: Pins,
) -> Fits:
    """The answer about all but the weights that are kept in the arena."""
    found = _placed(own, seeking, 0.3)
    if keep_order or program.n_loops or pins:  # pins are about offsets in this very order
        return _explained(own, found, seeking) if found.plan is None else found
    ordered = PeakOrder(program, machine)
    bound = ordered.bound()
    if found.plan is not None or own.capacity is None:
        return replace(found, need=bound.value, proof=bound.method)
    if bound.value > own.capacity:
        return _no_order(ordered, bound, found, seeking)
    # Without a limit, so that the least peak comes with a proof.
    free = PeakOrder(program, _with_home(machine, UNLIMITED))
    best = seeking.solve(free, 0.5, enough=own.capacity)
    if best.bound.value > own.capacity:
        return _no_order(ordered, best.bound, found, seeking)
    if best.decision is not None and best.value is not None and best.value <= own.capacity:
        again = ProgramAllocation(program, machine, order=free.plan(best.decision).order)
        other = _placed(again, seeking, 0.8)
        if other.plan is not None:
            return replace(other, need=best.bound.value, proof=best.bound.method)
    return replace(found, answer=None, need=best.bound.value, proof=best.bound.method)


def _placed(problem: Allocation, seeking: _Seeking, share: float) -> Fits:
    """Yes if offsets are found; else not known yet, or 'no' by a complete search."""
    name = problem.machine.memories[problem.machine.home[0]].name
    solution = seeking.solve(problem, share)
    capacity = UNLIMITED if problem.capacity is None else problem.capacity
    unknown = Fits(None, name, capacity, solution.bound.value, solution.bound.method)
    if solution.decision is None:
        return replace(unknown, answer=False if solution.status == Status.INFEASIBLE else None)
    plan = problem.plan(solution.decision)
    if problem.violations(plan):  # the order itself is unsound, as in a program made by hand
        return unknown
    return replace(unknown, answer=True, enough=solution.value, plan=plan)


def _explained(problem: Allocation, found: Fits, seeking: _Seeking) -> Fits:
    """Who is to blame in this order, if the search has proved it."""
    assert problem.capacity is not None
    if found.answer is not False:
        return found
    blame: Blame = explain_infeasible(problem, min(BLAME_SECONDS, seeking.left()), seeking.seed)
    rows = blame.buffers.tolist()
    named = [(problem.buffers.ids[b], int(problem.buffers.size[b])) for b in rows]
    least = _least(Allocation(problem.buffers), seeking)
    need = max(problem.capacity + 1, blame.alive)
    if least is not None and least[1] > need:
        need = least[1]
    return replace(
        found,
        need=need,
        tensors=named,
        enough=None if least is None else least[0],
        proof="bytes alive at one time" if blame.excess else "exact search",
        extra={"instant": blame.instant, "alive": blame.alive},
    )


def _no_order(ordered: PeakOrder, bound: Bound, found: Fits, seeking: _Seeking) -> Fits:
    """No order helps: the op that holds most alone, if that is the proof, and what would be enough."""
    program, free = ordered.program, _with_home(ordered.machine, UNLIMITED)
    in_order = ProgramAllocation(program, free)
    least = _least(in_order, seeking)
    if least is None or least[0] > bound.value:
        orders = PeakOrder(program, free)
        best = seeking.solve(orders, 0.5)
        bound = max(bound, best.bound, key=lambda each: each.value)
        if best.decision is not None:
            in_order = ProgramAllocation(program, free, order=orders.plan(best.decision).order)
            other = _least(in_order, seeking)
            least = min((each for each in (least, other) if each is not None), default=None)
    op, tensors = _widest(ordered) if bound.method == OP_BOUND else _alive(in_order)
    return replace(
        found,
        answer=False,
        any_order=True,
        need=bound.value,
        proof=bound.method,
        op=op,
        tensors=tensors,
        enough=None if least is None else least[0],
    )


def _least(problem: Allocation, seeking: _Seeking) -> tuple[int, int] | None:
    """(least capacity found, bound) in one order."""
    solution = seeking.solve(problem, 0.5)
    return None if solution.value is None else (solution.value, solution.bound.value)


def _widest(ordered: PeakOrder) -> tuple[int | None, list[tuple[str, int]]]:
    """The op that holds most bytes alone, and what it holds; None: what is given or kept is more."""
    graph = ordered.graph
    held: list[list[int]] = [[] for _ in graph.node_op]
    for value, (opener, users) in enumerate(zip(graph.opener, graph.users, strict=True)):
        for node in {opener, *users} - {-1}:
            held[node].append(value)

    def total(values: list[int]) -> int:
        return sum(graph.size[value] for value in values)

    node = max(range(len(held)), key=lambda each: total(held[each]), default=-1)
    op = int(graph.node_op[node]) if node >= 0 else None
    chosen = held[node] if node >= 0 else []
    if total(chosen) < ordered.bound().value:
        given = [v for v, opener in enumerate(graph.opener) if opener < 0]
        kept = [v for v, is_kept in enumerate(graph.kept) if is_kept]
        op, chosen = None, max(given, kept, key=total)
    names = ordered.program.tensor_name
    return op, [(names[graph.root[value]], graph.size[value]) for value in chosen]


def _alive(problem: ProgramAllocation) -> tuple[int, list[tuple[str, int]]]:
    """The op at the peak of an order, and what is alive there."""
    buffers = problem.buffers
    times, live = buffers.live_profile()
    peak = int(times[int(np.argmax(live))])
    here = np.flatnonzero((buffers.lower <= peak) & (peak < buffers.upper)).tolist()
    op = peak if problem.order is None else int(problem.order[peak])
    return op, [(buffers.ids[b], int(buffers.size[b])) for b in here]


class _First(Observer):
    """Ends a search at its first plan."""

    def improved(self, meter: Meter) -> None:
        self.stop = True


def _in_memories(program: Program, machine: Machine, seeking: _Seeking) -> Fits:
    """Several memories, or several devices: any sound plan is a yes."""
    names = ", ".join(memory.name for memory in machine.memories)
    capacity = min(UNLIMITED, sum(memory.capacity for memory in machine.memories))
    unknown = Fits(None, names, capacity, 0, "nothing is proven")
    if len(machine.devices) > 1:
        problem = GraphOptimization(program, machine)
        if problem.no_plan is not None:
            return replace(unknown, answer=False, any_order=True, proof=problem.no_plan)
        found = seeking.solve(problem, 1.0, _First())
        plan = None if found.decision is None else problem.plan(found.decision)
        return unknown if plan is None else replace(unknown, answer=True, plan=plan)
    for plan in (Plan(), first_fit(program, machine)):
        if not check(program, machine, plan):
            return replace(unknown, answer=True, plan=plan)
    if program.n_loops:
        return unknown
    ordered = PeakOrder(program)  # aligned to single bytes: no machine needs less
    need = ordered.bound().value + ordered.graph.resident
    if need > capacity:
        op, tensors = _widest(ordered)
        return replace(
            unknown,
            answer=False,
            any_order=True,
            need=need,
            op=op,
            tensors=tensors,
            proof=f"{OP_BOUND}, and the weights",
        )
    return unknown


def _with_home(machine: Machine, capacity: int) -> Machine:
    return machine.with_capacity(machine.memories[machine.home[0]].name, capacity)


class ArenaKind(AllocationKind):
    """Offsets in the program's order, or in one that fits where that does not."""

    def make(self, request: PlanRequest) -> Allocation:
        own = super().make(request)
        assert isinstance(own, ProgramAllocation)
        if own.capacity is None or own.buffers.max_live <= own.capacity or request.keep_order or own.pins:
            return own
        request.say(
            f"in the program's own order {own.buffers.max_live:,} bytes are alive at once and there are "
            f"{own.capacity:,}: seeking another order"
        )
        found = fits(own.program, own.machine, seed=request.seed)
        if found.plan is None:
            raise found.error(own.program)
        return ProgramAllocation(own.program, own.machine, order=found.plan.order)


ARENA = ArenaKind()


@dataclass(frozen=True, eq=False)
class Placement:
    """Offsets for buffers, checked, beside first fit in order of size."""

    problem: Allocation
    solution: Solution
    plan: Plan | None
    """None: there is no placement, and `error` says why."""
    baseline: Solution | None
    error: LoadmasterError | None

    @property
    def blame(self) -> Blame | None:
        """Which buffers do not fit, where that is proven."""
        return self.error.blame if isinstance(self.error, Unfit) else None


def judge_placement(problem: Allocation, solution: Solution, seconds: float | None, seed: int) -> Placement:
    """What a solver found for buffers, held against the checker and a baseline; or why it found nothing."""
    if solution.decision is None:
        limit = min(seconds or EXPLAIN_SECONDS, EXPLAIN_SECONDS)
        error = ARENA.explain(problem, solution, limit, seed) or NoAnswer(
            f"{problem.name}: no placement was found and none was proven impossible in {solution.seconds:.1f} s",
            object=problem.name,
            number=problem.capacity,
            remedy="give more --time-limit",
        )
        return Placement(problem, solution, None, None, error)
    plan = problem.plan(solution.decision)
    violations = problem.violations(plan)
    if violations:  # a bug of a solver must never reach a file
        raise Refused(
            f"the checker refuses the placement: {violations[0].message}",
            object=problem.name,
            number=len(violations),
            remedy="report this as a bug",
        )
    interrupted = Interrupted.of(problem.name, solution)
    left = None if seconds is None else max(_BASELINE_SECONDS, seconds - solution.seconds)
    baseline = solve(SizeFirstFit(), Allocation(problem.buffers), Budget(seconds=left))
    return Placement(problem, solution, plan, baseline, interrupted if solution.interrupted else None)
