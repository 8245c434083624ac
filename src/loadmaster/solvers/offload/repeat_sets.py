"""Which forward ops to run again: minimum cuts between what is kept for the backward pass and what is repeated.

What backward ops read of the forward pass is either kept, which takes its bytes, or made again, which takes
its op's time and needs all that the op reads. For any price of time in bytes the cheapest choice is a
minimum cut. A choice that no price makes the cheapest lies above the line between two that some price does;
`between` finds the next one of those. Bytes are those at the turning point, where the forward pass ends:
what repeats take later is left to the simulator.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadmaster.program.program import Program, TensorKind
from loadmaster.program.repeats import repeatable
from loadmaster.solvers.min_cut import Network

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
        stays = np.zeros(base.n_tensors, dtype=bool)
        stays[root[base.tensor_kind == TensorKind.OUTPUT]] = True  # there in any case: free
        self._bytes = np.where(stays, 0, base.storage_bytes)[self._tensors].tolist()
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
    """Cuts with the slopes and borders that are worth trying."""
    for slope in (0.0, 0.5, -0.5):
        yield RepeatCuts(base, time, slope)
    for borders in (4, 8, 16):
        yield RepeatCuts(base, time, 0.0, borders)
