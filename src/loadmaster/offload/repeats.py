"""`with_repeats`: a plan for a program some of whose forward ops run again in the backward pass.

Each choice of repeats is a program of its own, and so an offload problem of its own, whose bound says what
it can gain. The problems are tried with quick rules, the lowest bound first, until no bound is below
the best time; between the best choice and its neighbours others are looked for; the best one is solved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from loadmaster.errors import LoadmasterError
from loadmaster.offload.heuristics import AllResident, Belady, Stream, submit
from loadmaster.offload.problem import Offload
from loadmaster.offload.search import PRICE
from loadmaster.program.program import Program, TensorKind
from loadmaster.program.repeats import Repeated, repeat, repeatable
from loadmaster.search.solver import Budget, Meter, Solution


class Network:
    """Nodes are numbers; arcs have room for so much."""

    def __init__(self, nodes: int) -> None:
        self._to: list[int] = []
        self._room: list[int] = []  # arc 2i and its reverse 2i + 1
        self._arcs: list[list[int]] = [[] for _ in range(nodes)]

    def add(self, start: int, end: int, room: int) -> None:
        for node, other, size in ((start, end, room), (end, start, 0)):
            self._arcs[node].append(len(self._to))
            self._to.append(other)
            self._room.append(size)

    def cut(self, source: int, sink: int) -> tuple[int, list[bool]]:
        """(the least room, [nodes] whether a node is on the sink's side of the cut, which is the smallest
        such side). It uses the network up."""
        total = 0
        while (level := self._levels(source, sink))[sink] >= 0:
            total += self._blocked(source, sink, level)
        return total, self._before(sink)

    def _levels(self, source: int, sink: int) -> list[int]:
        """[nodes] steps from the source along arcs with room, or -1."""
        level = [-1] * len(self._arcs)
        level[source] = 0
        queue = [source]
        for node in queue:  # it grows
            for arc in self._arcs[node]:
                if self._room[arc] and level[self._to[arc]] < 0:
                    level[self._to[arc]] = level[node] + 1
                    queue.append(self._to[arc])
            if level[sink] >= 0:
                break
        return level

    def _blocked(self, source: int, sink: int, level: list[int]) -> int:
        """Fill shortest ways until none is left; how much went."""
        to, room, arcs = self._to, self._room, self._arcs
        tried = [0] * len(arcs)
        total, node, path = 0, source, list[int]()
        while True:
            if node == sink:
                amount = min(room[arc] for arc in path)
                total += amount
                for arc in path:
                    room[arc] -= amount
                    room[arc ^ 1] += amount
                full = next(place for place, arc in enumerate(path) if not room[arc])
                node = to[path[full] ^ 1]
                del path[full:]
                continue
            here, at = arcs[node], tried[node]
            while at < len(here) and not (room[here[at]] and level[to[here[at]]] == level[node] + 1):
                at += 1
            tried[node] = at
            if at < len(here):
                path.append(here[at])
                node = to[here[at]]
            elif path:
                node = to[path.pop() ^ 1]
                tried[node] += 1
            else:
                return total

    def _before(self, sink: int) -> list[bool]:
        """[nodes] from which the sink can be reached along arcs with room."""
        met = [False] * len(self._arcs)
        met[sink] = True
        queue = [sink]
        for node in queue:  # it grows
            for arc in self._arcs[node]:
                if self._room[arc ^ 1] and not met[self._to[arc]]:
                    met[self._to[arc]] = True
                    queue.append(self._to[arc])
        return met


Bool = npt.NDArray[np.bool_]
Int64 = npt.NDArray[np.int64]
_NO_LIMIT = 1 << 200


@dataclass(frozen=True)
class Choice:
    """Ops to repeat, bytes kept for the backward pass, time of the repeats (as the cuts weigh it)."""

    ops: tuple[int, ...]
    kept: int
    time: int


class RepeatCuts:
    """Cuts of one program. `time`: picoseconds of each op. `slope`: how much more dearly a repeat at the
    end of the forward pass is weighed than one at its begin: like layers differ by that. `borders`: at so
    many places, what the forward pass carries on is never made again, so that no chain of repeats is longer."""

    def __init__(self, base: Program, time: Int64, slope: float = 0.0, borders: int = 0) -> None:
        forward = ~base.op_backward & ~base.op_view
        self._ops = np.flatnonzero(forward).tolist()
        place = np.linspace(-0.5, 0.5, len(self._ops)) if self._ops else np.zeros(0)
        self._time = np.rint(time[self._ops] * (1 + slope * place)).astype(np.int64).tolist()
        root = base.tensor_alias
        made = np.flatnonzero((root == np.arange(base.n_tensors)) & (base.producer >= 0))
        self._tensors = made[forward[base.producer[made]]].tolist()
        residencies = np.zeros(base.n_tensors, dtype=bool)
        residencies[root[base.tensor_kind == TensorKind.OUTPUT]] = True  # there in any case: free
        self._bytes = np.where(residencies, 0, base.storage_bytes)[self._tensors].tolist()
        used = base.op_backward[base.read_op] & ~base.op_view[base.read_op]
        self._used = np.isin(self._tensors, root[base.read_tensor[used]]).tolist()
        number = {op: row for row, op in enumerate(self._ops)}
        self._maker = [number[op] for op in base.producer[self._tensors].tolist()]
        row_of = {tensor: row for row, tensor in enumerate(self._tensors)}
        self._reads = [
            sorted({row_of[t] for t in root[base.reads(op)].tolist() if t in row_of}) for op in self._ops
        ]
        can = repeatable(base)[self._ops]
        can[self._carried(borders)] = False
        self._can = can.tolist()

    def _carried(self, borders: int) -> list[int]:
        """Rows of the ops whose results cross one of the narrowest places of the forward pass."""
        ops = len(self._ops)
        last = list(self._maker)
        for op, reads in enumerate(self._reads):
            for tensor in reads:
                last[tensor] = max(last[tensor], op)
        change = np.zeros(ops + 1, dtype=np.int64)
        np.add.at(change, np.array(self._maker, dtype=np.int64), self._bytes)
        np.add.at(change, np.array(last, dtype=np.int64), -np.array(self._bytes, dtype=np.int64))
        alive = np.cumsum(change)[:ops]  # [op] bytes that cross from it to the next
        part = np.searchsorted(
            np.cumsum(self._time) / max(1, sum(self._time)), np.arange(borders + 1) / max(1, borders)
        )
        places = [
            begin + int(np.argmin(alive[begin:end]))
            for begin, end in zip(part[:-1].tolist(), part[1:].tolist(), strict=True)
            if end > begin
        ]
        return sorted(
            {op for place in places for op, end in zip(self._maker, last, strict=True) if op <= place < end}
        )

    def nothing(self) -> Choice:
        """No repeats."""
        return Choice((), sum(size for size, used in zip(self._bytes, self._used, strict=True) if used), 0)

    def most(self) -> Choice:
        """The least bytes, and of those the least time."""
        return self.cheapest(sum(self._time) + 1, 1)[0]

    def between(self, less: Choice, more: Choice) -> Choice | None:
        """A choice on the near side of the line between two, as far from it as there is one; or None."""
        bytes_less, time_more = less.kept - more.kept, more.time - less.time
        if bytes_less <= 0 or time_more <= 0:
            return None
        found, cost = self.cheapest(time_more, bytes_less)
        return found if cost < time_more * less.kept + bytes_less * less.time else None

    def cheapest(self, byte: int, picosecond: int) -> tuple[Choice, int]:
        """The choice of least cost, and its cost, for a price of each."""
        tensors, ops = len(self._tensors), len(self._ops)
        # Tensor t is kept if its first node 2t is on the source's side and its second one is not.
        source, sink = 2 * tensors + ops, 2 * tensors + ops + 1
        network = Network(sink + 1)
        for row in range(ops):
            network.add(
                source, 2 * tensors + row, picosecond * self._time[row] if self._can[row] else _NO_LIMIT
            )
            for tensor in self._reads[row]:
                network.add(2 * tensor + 1, 2 * tensors + row, _NO_LIMIT)
        for tensor in range(tensors):
            network.add(2 * tensors + self._maker[tensor], 2 * tensor, _NO_LIMIT)
            network.add(2 * tensor, 2 * tensor + 1, byte * self._bytes[tensor])
            if self._used[tensor]:
                network.add(2 * tensor + 1, sink, _NO_LIMIT)
        cost, needed = network.cut(source, sink)
        rows = [row for row in range(ops) if needed[2 * tensors + row]]
        kept = sum(self._bytes[t] for t in range(tensors) if needed[2 * t + 1] and not needed[2 * t])
        return Choice(tuple(self._ops[row] for row in rows), kept, sum(self._time[row] for row in rows)), cost


def choices(cuts: RepeatCuts, count: int) -> list[Choice]:
    """Up to `count` choices from no repeats to the least bytes, the widest steps between them divided first."""
    found = [cuts.nothing(), cuts.most()]
    closed: set[Choice] = set()
    while len(found) < count:
        open_ = [at for at, choice in enumerate(found[:-1]) if choice not in closed]
        if not open_:
            break
        at = max(open_, key=lambda row: found[row].kept - found[row + 1].kept)
        middle = cuts.between(found[at], found[at + 1])
        if middle is None:
            closed.add(found[at])
        else:
            found.insert(at + 1, middle)
    return found


def varied(base: Program, time: Int64) -> Iterator[RepeatCuts]:
    """Cuts with the slopes and borders that may gain."""
    for slope in (0.0, 0.5, -0.5):
        yield RepeatCuts(base, time, slope)
    for borders in (4, 8, 16):
        yield RepeatCuts(base, time, 0.0, borders)


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


def least_bound(base: Program, make: Make) -> int | None:
    """The lowest bound of the program with one of a few choices of repeats: searches come near to it, where quick rules
    without repeats may take three times as long. None: nothing fits."""
    try:
        search = _Search(base, make)
    except LoadmasterError:
        return None
    made = search.problem_with(())
    assert made is not None
    few = choices(RepeatCuts(base, op_times(made[1])), CHOICES)
    least = min(search.bound(choice.ops) for choice in few)
    return None if least == np.inf else int(least)


def quick(problem: Offload) -> Solution:
    """The best of a few rules."""
    meter = Meter(problem, Budget())
    for rule in (AllResident(), Belady(), Stream()):
        for decision in rule.make(problem):
            if not meter.exhausted:
                submit(meter, decision)
    return meter.solution()


def op_times(problem: Offload) -> Int64:
    """[n_ops] picoseconds of each op with all it uses in fast memory."""
    time = np.zeros(problem.program.n_ops, dtype=np.int64)
    time[problem.model.step_op] = problem.duration
    return time


class _Search:
    """Choices of one program and what is known of each."""

    def __init__(self, base: Program, make: Make) -> None:
        self.base, self.make = base, make
        self._problems: dict[tuple[int, ...], tuple[Repeated, Offload] | None] = {}
        self._tried: dict[tuple[int, ...], Recomputed] = {}
        nothing = repeat(base, [])
        self._problems[()] = nothing, make(nothing)  # if that is refused, everything is

    def best(self) -> Recomputed:
        best = self.tried(())
        rows = {cuts: choices(cuts, CHOICES) for cuts in varied(self.base, op_times(best.problem))}
        every = dict.fromkeys(choice.ops for row in rows.values() for choice in row)
        for ops in sorted(every, key=self.bound):
            if self.bound(ops) >= best.value or len(self._tried) >= TRIES:
                break
            best = min(best, self.tried(ops), key=lambda found: found.value)
        return self._closer(rows, best)

    def problem_with(self, ops: tuple[int, ...]) -> tuple[Repeated, Offload] | None:
        if ops not in self._problems:
            repeated = repeat(self.base, ops)
            try:
                self._problems[ops] = repeated, self.make(repeated)
            except LoadmasterError:  # it has no room for some op
                self._problems[ops] = None
        return self._problems[ops]

    def bound(self, ops: tuple[int, ...]) -> float:
        made = self.problem_with(ops)
        return np.inf if made is None else made[1].bound().value

    def tried(self, ops: tuple[int, ...]) -> Recomputed:
        if ops not in self._tried:
            made = self.problem_with(ops)
            assert made is not None
            self._tried[ops] = Recomputed(*made, quick(made[1]))
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
