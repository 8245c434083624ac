"""Buffers with fixed lifetimes and sizes: the input of the offset problem, as plain columns."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from loadmaster.errors import LoadmasterError, Refused
from loadmaster.machine.machine import Machine
from loadmaster.plan.check import check_offsets
from loadmaster.plan.plan import NO_OFFSET, lifetimes, lifetimes_in_loops
from loadmaster.program.build import clean_name
from loadmaster.program.hazards import places
from loadmaster.program.program import PERSISTENT, Labels, Program, TensorKind
from loadmaster.program.validate import validate
from loadmaster.search.pins import BadPin, Pins
from loadmaster.units import UNLIMITED

Int64 = npt.NDArray[np.int64]
NONE = -1
"""No pin, no hint."""


class BadBuffers(LoadmasterError):
    """Buffers that make no sense."""


class Gap(NamedTuple):
    """During [start, end) a buffer uses only its bytes [low, high); low = high: it is absent."""

    start: int
    end: int
    low: int = 0
    high: int = 0


class Pieces(NamedTuple):
    """What buffers really occupy: bytes [low, high) of a buffer during [lower, upper)."""

    buffer: Int64
    lower: Int64
    upper: Int64
    low: Int64
    high: Int64


@dataclass(frozen=True, eq=False)
class Buffers:
    """`n` buffers, alive during [lower, upper). Nothing is decided here."""

    ids: tuple[str, ...]
    lower: Int64
    upper: Int64
    size: Int64
    alignment: Int64
    pinned: Int64
    """An offset that is fixed, or NONE."""
    hint: Int64
    """An offset that is welcome, or NONE."""
    benefit: npt.NDArray[np.float64]
    """[n] of having a buffer in a fast memory: bytes accessed, by default its size. Files call it `worth`."""
    gaps: dict[int, tuple[Gap, ...]] = field(default_factory=dict)
    """Of the buffers that have some, ascending."""
    apart: tuple[tuple[int, int], ...] = ()
    """Pairs that never share a byte, whatever their lifetimes."""

    @classmethod
    def of(
        cls,
        lower: npt.ArrayLike,
        upper: npt.ArrayLike,
        size: npt.ArrayLike,
        *,
        ids: Sequence[str] | None = None,
        alignment: npt.ArrayLike = 1,
        pinned: npt.ArrayLike = NONE,
        hint: npt.ArrayLike = NONE,
        benefit: npt.ArrayLike | None = None,
        gaps: dict[int, Sequence[Gap]] | None = None,
        apart: Sequence[tuple[int, int]] = (),
    ) -> Buffers:
        """Checked buffers from arrays; a single number stands for all."""
        sizes = np.array(size, dtype=np.int64).reshape(-1)
        count = len(sizes)

        def column(values: npt.ArrayLike) -> Int64:
            return np.array(np.broadcast_to(np.asarray(values, dtype=np.int64), (count,)))

        buffers = cls(
            tuple(ids) if ids is not None else tuple(map(str, range(count))),
            column(lower),
            column(upper),
            sizes,
            column(alignment),
            column(pinned),
            column(hint),
            sizes.astype(np.float64) if benefit is None else np.array(benefit, dtype=np.float64),
            {b: tuple(Gap(*gap) for gap in rows) for b, rows in (gaps or {}).items() if rows},
            tuple((int(a), int(b)) for a, b in apart),
        )
        return buffers._checked()

    def __len__(self) -> int:
        return len(self.size)

    def _checked(self) -> Buffers:
        if len(set(self.ids)) != len(self):
            twice = next(name for name, count in Counter(self.ids).items() if count > 1)
            raise BadBuffers(f"two buffers have one id, '{twice}'", object=twice, remedy="give each its own")
        safe = np.maximum(1, self.alignment)
        rules = (
            (
                self.upper <= self.lower,
                "ends at {} and must end after it begins",
                self.upper,
                "let upper be above lower",
            ),
            (self.size < 0, "has {} bytes", self.size, "give at least 0"),
            (
                self.size > UNLIMITED // max(1, len(self)),
                "has {} bytes, too many to add up",
                self.size,
                "check the size",
            ),
            (
                (self.alignment < 1) | (self.alignment > 2**40),
                "has alignment {}",
                self.alignment,
                "give 1 to 2^40",
            ),
            (
                (self.pinned < NONE) | (self.pinned > UNLIMITED // 2),
                "is pinned to {}",
                self.pinned,
                "give an offset from 0 up",
            ),
            (
                (self.pinned > 0) & (self.pinned % safe != 0),
                "is pinned to {}, off its alignment",
                self.pinned,
                "pin it to a multiple",
            ),
            (
                (self.hint < NONE) | (self.hint > UNLIMITED // 2),
                "has the hint {}",
                self.hint,
                "give an offset from 0 up, or -1",
            ),
            (
                (self.hint > 0) & (self.hint % safe != 0),
                "has the misaligned hint {}",
                self.hint,
                "give a multiple of its alignment, or -1",
            ),
            (
                (np.abs(self.lower) > 2**61) | (np.abs(self.upper) > 2**61),
                "lives until {}, beyond 2^61",
                self.upper,
                "use smaller times",
            ),
            (
                ~np.isfinite(self.benefit) | (self.benefit < 0),
                "has the worth {}",
                self.benefit,
                "give a finite number from 0 up",
            ),
        )
        for bad, what, column, remedy in rules:
            if bad.any():
                b = int(np.argmax(bad))
                raise BadBuffers(
                    f"buffer '{self.ids[b]}' {what.format(column[b])}",
                    object=self.ids[b],
                    number=str(column[b]),
                    remedy=remedy,
                )
        for b, gaps in self.gaps.items():
            self._check_gaps(b, gaps)
        for a, b in self.apart:
            if not (0 <= a < len(self) and 0 <= b < len(self) and a != b):
                raise BadBuffers(
                    f"the pair ({a}, {b}) does not name two buffers", object="apart", remedy="name two"
                )
        return self

    def _check_gaps(self, b: int, gaps: tuple[Gap, ...]) -> None:
        after = int(self.lower[b])
        for gap in gaps:
            inside = after <= gap.start < gap.end <= self.upper[b]
            if not inside or not 0 <= gap.low <= gap.high <= self.size[b]:
                raise BadBuffers(
                    f"buffer '{self.ids[b]}' has the gap {gap.start}-{gap.end}@{gap.low}:{gap.high}",
                    object=self.ids[b],
                    number=gap.start,
                    remedy="give gaps inside its life, in order, with bytes inside its size",
                )
            after = gap.end

    @cached_property
    def pieces(self) -> Pieces:
        """Buffers without gaps are one piece each, in order; the others are cut."""
        plain = np.ones(len(self), dtype=bool)
        plain[list(self.gaps)] = False
        whole = np.flatnonzero(plain)
        rows = [(b, *piece) for b in sorted(self.gaps) for piece in self._cut(b)]
        cut = np.array(rows, dtype=np.int64).reshape(len(rows), 5)
        columns = [whole, self.lower[whole], self.upper[whole], np.zeros_like(whole), self.size[whole]]
        return Pieces(*(np.concatenate([a, b]).astype(np.int64) for a, b in zip(columns, cut.T, strict=True)))

    def _cut(self, b: int) -> list[tuple[int, int, int, int]]:
        pieces, at, size = [], int(self.lower[b]), int(self.size[b])
        for gap in self.gaps[b]:
            if gap.start > at:
                pieces.append((at, gap.start, 0, size))
            if gap.high > gap.low:
                pieces.append((gap.start, gap.end, gap.low, gap.high))
            at = gap.end
        if at < self.upper[b]:
            pieces.append((at, int(self.upper[b]), 0, size))
        return pieces

    @cached_property
    def stretches(self) -> tuple[Int64, Int64, Int64]:
        """(times at which a piece begins or ends, ascending; number of the first and of the last stretch
        between two of them during which each piece is alive)."""
        p = self.pieces
        times = np.sort(np.concatenate([p.lower, p.upper]))
        times = times[np.append(True, times[1:] != times[:-1])[: len(times)]]
        return times, np.searchsorted(times, p.lower), np.searchsorted(times, p.upper) - 1

    @cached_property
    def max_live(self) -> int:
        """The largest number of bytes in use at one time: no placement is lower."""
        return int(self.live_profile()[1].max(initial=0))

    def live_profile(self) -> tuple[Int64, Int64]:
        """(times, bytes in use from each time to the next)."""
        p = self.pieces
        times = np.concatenate([p.lower, p.upper])
        change = np.concatenate([p.high - p.low, p.low - p.high])
        if not len(times):
            return times, times
        order = np.argsort(times)
        times = times[order]
        first = np.flatnonzero(np.append(True, times[1:] != times[:-1]))
        return times[first], np.cumsum(np.add.reduceat(change[order], first))

    def changed(self, **columns: object) -> Buffers:
        """The same buffers with some columns replaced, checked again."""
        return replace(self, **columns)._checked()  # type: ignore[arg-type]

    @cached_property
    def hash(self) -> str:
        """SHA-256 of all that can change a result; ids are left out."""
        digest = hashlib.sha256(b"loadmaster buffers 1")
        for column in (
            self.lower,
            self.upper,
            self.size,
            self.alignment,
            self.pinned,
            self.hint,
            self.benefit,
        ):
            digest.update(column.astype(column.dtype.newbyteorder("<")).tobytes())
        digest.update(repr((sorted(self.gaps.items()), self.apart)).encode())
        return digest.hexdigest()


# Buffers as a Program, and a Program as buffers.


def buffers_as_program(buffers: Buffers, name: str) -> Program:
    """One op per stretch of time in which the same buffers are alive; one tensor per piece.

    A piece is written by the first op of its life and read by the last. Columns are made at once:
    a million buffers would take minutes through the builder.
    """
    pieces = buffers.pieces
    times, first, last = buffers.stretches
    ops, count = max(0, len(times) - 1), len(pieces.buffer)
    size = pieces.high - pieces.low
    read_start, read_tensor = _rows(last, ops)
    write_start, write_tensor = _rows(first, ops)
    zeros = np.zeros(ops, dtype=np.int64)
    nothing = np.full(ops, -1, dtype=np.int32)
    same = np.zeros(ops, dtype=np.int32)
    return validate(
        Program(
            name=clean_name(name),
            order_source="schedule",
            op_name=tuple(f"t{time}" for time in times[:-1].tolist()),
            op_kind=Labels(("step",) if ops else (), same),
            op_dtype=Labels(("u8",) if ops else (), same),
            op_scope=Labels(("",) if ops else (), same),
            op_attributes=Labels(("",) if ops else (), same),
            op_flops=np.zeros((ops, 3), dtype=np.int64),
            op_other_bytes=zeros,
            op_backward=np.zeros(ops, dtype=np.bool_),
            op_view=np.zeros(ops, dtype=np.bool_),
            op_loop=nothing,
            op_group=nothing.copy(),
            op_source=np.full(ops, -1, dtype=np.int64),
            loop_parent=np.empty(0, dtype=np.int32),
            loop_trips=np.empty(0, dtype=np.int64),
            tensor_name=_piece_names(buffers),
            tensor_bytes=size,
            tensor_dtype=Labels(("u8",) if count else (), np.zeros(count, dtype=np.int32)),
            tensor_kind=np.full(count, TensorKind.ACTIVATION, dtype=np.int8),
            tensor_shape_start=np.arange(count + 1, dtype=np.int64),
            tensor_shape=size,
            tensor_group=np.full(count, -1, dtype=np.int32),
            tensor_fast=np.ones(count, dtype=np.bool_),
            tensor_alias=np.arange(count, dtype=np.int32),
            read_start=read_start,
            read_tensor=read_tensor,
            read_bytes=size[read_tensor],
            write_start=write_start,
            write_tensor=write_tensor,
            write_bytes=size[write_tensor],
            tie_kind=np.empty(0, dtype=np.int8),
            tie_source=np.empty(0, dtype=np.int32),
            tie_target=np.empty(0, dtype=np.int32),
            tie_at=np.empty(0, dtype=np.int32),
        )
    )


def _rows(op: Int64, ops: int) -> tuple[Int64, npt.NDArray[np.int32]]:
    counts = np.bincount(op, minlength=ops)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), np.argsort(op, kind="stable").astype(
        np.int32
    )


def _piece_names(buffers: Buffers) -> tuple[str, ...]:
    names: list[str] = []
    if not buffers.gaps and all(map(str.isprintable, buffers.ids)):
        return buffers.ids
    seen: dict[int, int] = {}
    for buffer in buffers.pieces.buffer.tolist():
        seen[buffer] = seen.get(buffer, 0) + 1
        name = clean_name(buffers.ids[buffer])
        names.append(name if seen[buffer] == 1 else f"{name}#{seen[buffer]}")
    return (
        tuple(names)
        if len(set(names)) == len(names)
        else tuple(f"{i}:{name}" for i, name in enumerate(names))
    )


def program_as_buffers(
    program: Program, machine: Machine, memory: int, order: npt.NDArray[np.int32] | None = None
) -> tuple[Buffers, list[list[int]]]:
    """The buffers that a program needs in one memory, weights and state left out, in program order
    or (a program without loops) in another.

    Tensors that share one place (in-place updates, loop-carried values) are one buffer. Returns the
    roots of each buffer too.
    """
    first, last = lifetimes_in_loops(program) if order is None else lifetimes(program, order)
    place = places(program)
    kept = np.isin(program.tensor_kind, [int(kind) for kind in PERSISTENT])
    roots = np.flatnonzero((program.tensor_alias == np.arange(program.n_tensors)) & (last >= first))
    persistent_places = set(place[roots[kept[roots]]].tolist())
    members: dict[int, list[int]] = {}
    for root in roots.tolist():
        if place[root] not in persistent_places:
            members.setdefault(int(place[root]), []).append(root)
    groups = list(members.values())
    align = machine.memories[memory].alignment
    sizes = [max(int(program.storage_bytes[root]) for root in group) for group in groups]
    accessed = np.zeros(program.n_tensors, dtype=np.float64)
    for tensors, count in (
        (program.read_tensor, program.read_bytes),
        (program.write_tensor, program.write_bytes),
    ):
        np.add.at(accessed, program.tensor_alias[tensors], count)
    buffers = Buffers.of(
        [min(int(first[root]) for root in group) for group in groups],
        [max(int(last[root]) for root in group) + 1 for group in groups],
        [-(-size // align) * align for size in sizes],
        ids=[program.tensor_name[group[0]] for group in groups],
        alignment=align,
        benefit=[float(sum(accessed[root] for root in group)) for group in groups],
    )
    return buffers, groups


def pinned_buffers(
    buffers: Buffers, roots: list[list[int]], program: Program, machine: Machine, pins: Pins
) -> Buffers:
    """The buffers of `program_as_buffers` with the offsets that are pinned."""
    row_of = {root: b for b, group in enumerate(roots) for root in group}
    home, pinned = machine.home[0], buffers.pinned.copy()
    for tensor, (memory, offset) in pins.memory.items():
        name, there = program.tensor_name[tensor], machine.memories[memory].name
        if (tensor in row_of) != (memory == home) or (memory != home and offset != NO_OFFSET):
            where = machine.memories[home].name
            raise BadPin(
                f"tensor '{name}' can't be pinned to '{there}' here: '{where}' has everything but the "
                "weights, and the weights have no offsets",
                object=name,
                number=there,
                remedy="give --problem mapping to choose memories",
            )
        if memory == home and offset != NO_OFFSET:
            pinned[row_of[tensor]] = offset
    changed = buffers.changed(pinned=pinned)
    check_pins(changed, machine.memories[home].capacity)
    return changed


class PinsClash(Refused):
    """Pins that no placement can keep; `ids` are the buffers to blame."""

    def __init__(self, message: str, *, ids: Sequence[str], number: int, remedy: str) -> None:
        super().__init__(message, object=ids[-1], number=number, remedy=remedy)
        self.ids = tuple(ids)


def check_pins(buffers: Buffers, capacity: int | None) -> None:
    """Pins that no placement can keep are named at once."""
    fixed = buffers.pinned >= 0
    if not fixed.any():
        return
    end = np.where(fixed, buffers.pinned + buffers.size, 0)
    if capacity is not None and end.max() > capacity:
        b = int(np.argmax(end > capacity))
        raise PinsClash(
            f"the pin of '{buffers.ids[b]}' ends at {end[b]:,} and the memory at {capacity:,}",
            ids=[buffers.ids[b]],
            number=int(end[b]),
            remedy="pin it lower",
        )
    offset = np.where(fixed, buffers.pinned, 0)
    pieces = Pieces(*(column[fixed[buffers.pieces.buffer]] for column in buffers.pieces))
    found = check_offsets(
        buffers.ids,
        pieces,
        np.where(fixed, buffers.size, 0),
        offset,
        alignment=buffers.alignment,
        pinned=buffers.pinned,
        apart=buffers.apart,
    )
    if not found:
        return
    a, b, why = _clash(buffers, pieces, found[0].tensor)
    raise PinsClash(
        f"the pins of '{buffers.ids[a]}' to offset {offset[a]:,} and '{buffers.ids[b]}' to {offset[b]:,} overlap: {why}",
        ids=[buffers.ids[a], buffers.ids[b]],
        number=int(offset[b]),
        remedy="move one of them",
    )


def _clash(buffers: Buffers, pieces: Pieces, b: int | None) -> tuple[int, int, str]:
    """Two pinned buffers that share bytes, of which one is `b`, and why they may not."""
    low, high = (buffers.pinned[pieces.buffer] + column for column in (pieces.low, pieces.high))
    for own in np.flatnonzero(pieces.buffer == b).tolist():
        meet = (pieces.lower < pieces.upper[own]) & (pieces.lower[own] < pieces.upper)
        meet &= (np.maximum(low, low[own]) < np.minimum(high, high[own])) & (pieces.buffer != b)
        for other in np.flatnonzero(meet)[:1].tolist():
            time = max(pieces.lower[own], pieces.lower[other])
            first, second = sorted((int(pieces.buffer[own]), int(pieces.buffer[other])))
            return first, second, f"both are alive at time {time}"
    pinned, end = buffers.pinned, buffers.pinned + buffers.size
    pairs = ((c, d) for c, d in buffers.apart if min(pinned[c], pinned[d]) >= 0)
    first, second = next((c, d) for c, d in pairs if max(pinned[c], pinned[d]) < min(end[c], end[d]))
    return first, second, "they must be kept apart"
