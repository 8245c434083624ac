"""`with_repeats`: a plan for a program some of whose forward ops run again in the backward pass.

Each choice of repeats is a program of its own, and so an offload problem of its own, whose bound says what
it can be worth. The problems are tried with quick rules, the lowest bound first, until no bound is below
the best time; between the best choice and its neighbours others are looked for; the best one is solved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from loadmaster.errors import LoadmasterError
from loadmaster.problems.offload.bounds import earliest_starts, ops_bound
from loadmaster.problems.offload.problem import Offload
from loadmaster.problems.problem import Bound
from loadmaster.program.program import Program
from loadmaster.program.repeats import Repeated, repeat
from loadmaster.solvers.offload.repeat_sets import Choice, Int64, RepeatCuts, choices, varied
from loadmaster.solvers.offload.simple import AllResident, Belady, submit
from loadmaster.solvers.offload.steady import PRICE
from loadmaster.solvers.offload.stream import Stream
from loadmaster.solvers.solver import Budget, Meter, Solution

Make = Callable[[Repeated], Offload]
Solved = Callable[[Offload], Solution]
CHOICES = 12
"""Of each kind of cuts, at first."""
TRIES = 60
"""Problems for which quick plans are made, at most."""
CLOSER = 12
"""Of those, around the best of the first choices."""


@dataclass(frozen=True)
class Recomputed:
    """A program with repeats, its problem, and what was found for that."""

    repeated: Repeated
    problem: Offload
    solution: Solution

    @property
    def value(self) -> float:
        """Picoseconds; infinite without a plan."""
        return np.inf if self.solution.value is None else self.solution.value


def with_repeats(base: Program, make: Make, solved: Solved) -> Recomputed:
    """The best plan that was found for the program with any choice of repeats, none of them included.

    `make` poses the problem of a program with repeats, at the same capacity each time; what it has of each
    op (workspaces) is `table[repeated.origin]`. `solved` gets what looks best, and the base program too
    where that might be faster still.
    """
    search = _Search(base, make)
    plain = search.tried(())
    quick_best = search.best()
    found = _better(quick_best, solved)
    if quick_best is not plain and plain.problem.bound().value < found.value:
        found = min(found, _better(plain, solved), key=lambda each: each.value)
    return found


def quick(problem: Offload) -> Solution:
    """The best of a few rules."""
    meter = Meter(problem, Budget())
    for rule in (AllResident(), Belady(), Stream()):
        for decision in rule.make(problem):
            if not meter.exhausted:
                submit(meter, decision)
    return meter.solution(white_box=True)


def op_times(problem: Offload) -> Int64:
    """[n_ops] picoseconds of each op with all it uses in fast memory."""
    time = np.zeros(problem.program.n_ops, dtype=np.int64)
    time[problem.model.step_op] = problem.duration
    return time


def repeated_bound(problem: Offload) -> Bound:
    """What no plan for the base program, whose problem this is, is faster than, whatever is repeated: how many
    bytes repeats spare is not known, so that none must move but those of inputs."""
    start = earliest_starts(problem.program, problem.machine, problem.model, problem.clock)
    return ops_bound(start, problem.clock)


class _Search:
    """Choices of one program and what is known of each."""

    def __init__(self, base: Program, make: Make) -> None:
        self.base, self.make = base, make
        self._posed: dict[tuple[int, ...], tuple[Repeated, Offload] | None] = {}
        self._tried: dict[tuple[int, ...], Recomputed] = {}
        nothing = repeat(base, [])
        self._posed[()] = nothing, make(nothing)  # if that is refused, everything is

    def best(self) -> Recomputed:
        best = self.tried(())
        rows = {cuts: choices(cuts, CHOICES) for cuts in varied(self.base, op_times(best.problem))}
        every = dict.fromkeys(choice.ops for row in rows.values() for choice in row)
        for ops in sorted(every, key=self.bound):
            if self.bound(ops) >= best.value or len(self._tried) >= TRIES:
                break
            best = min(best, self.tried(ops), key=lambda found: found.value)
        return self._closer(rows, best)

    def posed(self, ops: tuple[int, ...]) -> tuple[Repeated, Offload] | None:
        if ops not in self._posed:
            repeated = repeat(self.base, ops)
            try:
                self._posed[ops] = repeated, self.make(repeated)
            except LoadmasterError:  # it has no room for some op
                self._posed[ops] = None
        return self._posed[ops]

    def bound(self, ops: tuple[int, ...]) -> float:
        posed = self.posed(ops)
        return np.inf if posed is None else posed[1].bound().value

    def tried(self, ops: tuple[int, ...]) -> Recomputed:
        if ops not in self._tried:
            posed = self.posed(ops)
            assert posed is not None
            self._tried[ops] = Recomputed(*posed, quick(posed[1]))
        return self._tried[ops]

    def _closer(self, rows: dict[RepeatCuts, list[Choice]], best: Recomputed) -> Recomputed:
        """The best one, after looking between it and its neighbours, nearer each time."""
        most = min(TRIES, len(self._tried) + CLOSER)
        found = True
        while found and len(self._tried) < most:
            found = False
            around = next(ops for ops, known in self._tried.items() if known is best)
            for cuts, less, more in list(_neighbours(rows, around)):
                middle = cuts.between(less, more)
                if middle is None:
                    continue
                rows[cuts].insert(rows[cuts].index(more), middle)
                if self.bound(middle.ops) < best.value and len(self._tried) < most:
                    found = True
                    best = min(best, self.tried(middle.ops), key=lambda each: each.value)
        return best


def _neighbours(
    rows: dict[RepeatCuts, list[Choice]], ops: tuple[int, ...]
) -> Iterator[tuple[RepeatCuts, Choice, Choice]]:
    """(cuts, a choice, the next one) where one of the two repeats these ops."""
    for cuts, row in rows.items():
        for less, more in pairwise(row):
            if ops in (less.ops, more.ops):
                yield cuts, less, more


def _better(start: Recomputed, solved: Solved) -> Recomputed:
    """What the solver makes of a problem, or what was known of it if that is faster by more than the
    price of a steadier plan."""
    found = Recomputed(start.repeated, start.problem, solved(start.problem))
    return start if start.value * (1 + PRICE) < found.value else found
