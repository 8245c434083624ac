"""What a program needs before anything is decided: bytes, flops, the peak of live bytes in
program order, its largest tensors, and how fast a machine could run it at best."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadmaster.arrays import distinct
from loadmaster.machine.machine import Machine
from loadmaster.program.hazards import places
from loadmaster.program.program import FLOP_CLASSES, PERSISTENT, Program, TensorKind

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Needs:
    """A program's totals. Loops count as often as they run; views cost nothing."""

    ops: int
    views: int
    tensors: int
    bytes_of: dict[str, int]
    """Storage by kind of tensor: 'weight', 'input', …; aliases count once."""
    flops_of: dict[str, int]
    """Flops by class."""
    traffic: int
    """Bytes that all ops read and write."""
    persistent: int
    """Bytes that are there all the time: weights and state, and what is written over them."""
    peak: Peak

    @property
    def flops(self) -> int:
        return sum(self.flops_of.values())

    @property
    def intensity(self) -> float:
        """Flops per byte."""
        return self.flops / self.traffic if self.traffic else 0.0


@dataclass(frozen=True)
class Peak:
    """The largest number of bytes alive at once, weights and state left out, in program order."""

    bytes: int
    op: int
    """The first op at which it is reached; -1: nothing is ever alive."""
    tensors: tuple[int, ...]
    """What is alive there, largest first; of tensors that share a place, the one that fills it."""


def needs(program: Program) -> Needs:
    """Count what a program needs of any machine.

    Args:
      program: loops count as often as they run.

    Returns:
      ops, flops and bytes by kind, and the peak of live bytes in program order.
    """
    repeat = program.op_repeat.astype(object)  # Python's integers: sums of loops exceed int64
    roots = program.tensor_alias == np.arange(program.n_tensors)
    bytes_of = {
        kind.name.lower(): int(program.storage_bytes[roots & (program.tensor_kind == kind)].sum())
        for kind in TensorKind
    }
    flops = (program.op_flops.astype(object) * repeat[:, None]).sum(axis=0)
    moved = np.where(program.op_view, 0, accessed_bytes(program)).astype(object)
    return Needs(
        ops=program.n_ops,
        views=int(program.op_view.sum()),
        tensors=program.n_tensors,
        bytes_of=bytes_of,
        flops_of={name: int(count) for name, count in zip(FLOP_CLASSES, flops, strict=True)},
        traffic=int((moved * repeat).sum()),
        persistent=persistent_bytes(program),
        peak=live_peak(program),
    )


def accessed_bytes(program: Program) -> Int64:
    """[n] bytes that one run of each op reads and writes."""
    total = program.op_other_bytes.copy()
    np.add.at(total, program.read_op, program.read_bytes)
    np.add.at(total, program.write_op, program.write_bytes)
    return total


def persistent_bytes(program: Program) -> int:
    """Bytes of all places that hold a weight or a state."""
    _, size, kept = _places(program)
    return int(size[kept].sum())


def _places(program: Program) -> tuple[npt.NDArray[np.int32], Int64, npt.NDArray[np.int32]]:
    """(place of each root, size of each place, places that hold a weight or a state)."""
    place = places(program)
    size = np.zeros(program.n_tensors, dtype=np.int64)
    np.maximum.at(size, place[program.tensor_alias], program.storage_bytes)
    held = np.isin(program.tensor_kind, [int(kind) for kind in PERSISTENT])
    return place, size, distinct(place[program.tensor_alias[held]])


def live_peak(program: Program) -> Peak:
    """The peak of live bytes in program order: what one memory must hold beside the weights.

    Roots that in-place or loop-carried ties join have one place, as large as the largest of them
    and held whenever one of them is alive. Places that hold a weight are there anyway.
    """
    place, size, kept = _places(program)
    roots = program.tensor_alias == np.arange(program.n_tensors)
    change = np.zeros(program.n_ops + 1, dtype=np.int64)
    lasting = set(kept.tolist())
    windows = [(spot, begin, end) for spot, begin, end in _windows(program, place) if spot not in lasting]
    for spot, begin, end in windows:
        change[begin] += size[spot]
        change[end + 1] -= size[spot]
    live = np.cumsum(change)[:-1]
    if not live.max(initial=0):
        return Peak(0, -1, ())
    op = int(live.argmax())
    there = [spot for spot, begin, end in windows if begin <= op <= end]
    fills = {
        int(place[t]): int(t)
        for t in np.flatnonzero(roots)[::-1]
        if program.storage_bytes[t] == size[place[t]]
    }
    there.sort(key=lambda spot: (-size[spot], spot))
    return Peak(int(live[op]), op, tuple(fills[spot] for spot in there))


def _windows(program: Program, place: npt.NDArray[np.int32]) -> Iterator[tuple[int, int, int]]:
    """(place, first op, last op) of the times, apart from each other, at which a place is in use."""
    root, real = program.tensor_alias, ~program.op_view
    first = np.where(program.producer >= 0, program.producer, 0)
    last = np.full(program.n_tensors, -1, dtype=np.int64)
    for op, tensor in ((program.write_op, program.write_tensor), (program.read_op, program.read_tensor)):
        counts = real[op]  # a view is no use of what it views
        np.maximum.at(last, root[tensor[counts]], op[counts])
    outputs = root[program.tensor_kind == TensorKind.OUTPUT]
    last[outputs[program.tensor_kind[outputs] != TensorKind.INPUT]] = program.n_ops - 1
    used = np.flatnonzero((root == np.arange(program.n_tensors)) & (last >= first))
    spans = sorted(zip(place[used].tolist(), first[used].tolist(), last[used].tolist(), strict=True))
    for spot, group in itertools.groupby(spans, key=lambda span: span[0]):
        begin, end = -1, -1
        for _, start, stop in group:
            if start > end and end >= 0:
                yield spot, begin, end
            if start > end:
                begin = start
            end = max(end, stop)
        yield spot, begin, end


def find_largest(program: Program, count: int) -> list[int]:
    """The largest tensors, aliases left out."""
    roots = np.flatnonzero(program.tensor_alias == np.arange(program.n_tensors))
    ranked = roots[np.argsort(-program.storage_bytes[roots], kind="stable")]
    return [int(tensor) for tensor in ranked[: max(0, count)]]


def compute_balance(program: Program, machine: Machine) -> list[tuple[str, str, float]]:
    """(device, memory, flops per byte at which computing takes as long as reading from it).

    The rate is that for matrix flops of the type in which the program does most of them; devices
    that look the same are listed once.
    """
    flops = np.bincount(program.op_dtype.codes, weights=program.op_flops[:, 0].astype(np.float64))
    main = program.op_dtype.values[int(flops.argmax())] if len(flops) else "*"
    rows, seen = [], set()
    for device, reach in zip(machine.devices, machine.reach, strict=True):
        rates = device.rates["matrix"]
        rate = rates.get(main, rates.get("*", min(rates.values())))
        looks = (rate, tuple(machine.memories[number].read for number in reach))
        if looks not in seen:
            seen.add(looks)
            rows += [
                (device.name, machine.memories[number].name, rate / machine.memories[number].read)
                for number in reach
            ]
    return rows
