"""What an allocator that learns of each tensor only when it comes would hold: it leaves holes.

PyTorch's caching allocator with expandable segments is modelled: two heaps, for tensors up to 1 MiB
and above, each one growing range of addresses; the smallest hole that fits is taken, the end of the range last.
A plan whose bytes fit can still be too much for it, so plans for it are made to fit in the end.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadmaster.problems.offload.model import Int64, OffloadModel
from loadmaster.problems.offload.schedule import Scheduled
from loadmaster.problems.offload.stays import MADE, RESIDENT

SMALL, GRAIN = 2**20, 512
PAGES = {True: 2 * 2**20, False: 20 * 2**20}
"""Bytes by which the heap of small and of large tensors grows."""


@dataclass(frozen=True, eq=False)
class Kernels:
    """What kernels take beside the tensors of a program."""

    workspace: Int64
    """[n_ops] bytes while an op runs"""
    kept: int = 0
    """Bytes that libraries keep"""
    spare: int = 0
    """Bytes beside what was measured, for all that is not modelled"""

    def as_json(self) -> dict[str, Any]:
        some = np.flatnonzero(self.workspace)
        return {"workspace": [some.tolist(), self.workspace[some].tolist()], "kept": self.kept,
                "spare": self.spare}  # fmt: skip

    @classmethod
    def of_json(cls, about: dict[str, Any], ops: int) -> Kernels:
        """The inverse of `as_json`."""
        workspace = np.zeros(ops, dtype=np.int64)
        workspace[np.array(about["workspace"][0], dtype=np.int64)] = about["workspace"][1]
        return cls(workspace, about["kept"], about.get("spare", 0))


class _Heap:
    """Addresses from 0 on; holes by size, then address."""

    def __init__(self) -> None:
        self.top = 0
        self._holes: list[tuple[int, int]] = []
        self._end_of: dict[int, int] = {}
        self._start_of: dict[int, int] = {}

    def take(self, size: int) -> tuple[int, int]:
        at = bisect_left(self._holes, (size, -1))
        while at < len(self._holes) and sum(self._holes[at]) == self.top:
            at += 1  # the end can grow: it is the last choice
        if at < len(self._holes):
            start, end = self._remove(self._holes[at][1])
        else:
            start = self._remove(self._start_of[self.top])[0] if self.top in self._start_of else self.top  # fmt: skip
            end = self.top = max(self.top, start + size)
        if start + size < end:
            self._add(start + size, end)
        return start, start + size

    def give(self, start: int, end: int) -> None:
        if start in self._start_of:
            start = self._remove(self._start_of[start])[0]
        if end in self._end_of:
            end = self._remove(end)[1]
        self._add(start, end)

    def _add(self, start: int, end: int) -> None:
        insort(self._holes, (end - start, start))
        self._end_of[start], self._start_of[end] = end, start

    def _remove(self, start: int) -> tuple[int, int]:
        end = self._end_of.pop(start)
        del self._start_of[end]
        del self._holes[bisect_left(self._holes, (end - start, start))]
        return start, end


def held_by_allocator(model: OffloadModel, made: Scheduled, kernels: Kernels) -> int:
    """Bytes at the most, in one run."""
    heaps = {True: _Heap(), False: _Heap()}
    places: dict[int, tuple[_Heap, tuple[int, int]]] = {}
    for key, size in _events(model, made, kernels):
        if size < 0:
            heap, place = places.pop(key)
            heap.give(*place)
        else:
            room = -(-max(1, size) // GRAIN) * GRAIN
            heap = heaps[room <= SMALL]
            places[key] = heap, heap.take(room)
    return kernels.kept + kernels.spare + sum(-(-heap.top // PAGES[small]) * PAGES[small] for small, heap in heaps.items())  # fmt: skip


def _events(model: OffloadModel, made: Scheduled, kernels: Kernels) -> Iterator[tuple[int, int]]:
    """(key, bytes, or -1: it goes) in the order in which an executor asks."""
    stays = made.stays
    size = model.size[stays.item].tolist()
    coming: list[list[int]] = [[] for _ in range(model.steps + 1)]
    results: list[list[int]] = [[] for _ in range(model.steps)]
    going: list[list[int]] = [[] for _ in range(model.steps)]
    for stay, (begins, first, last) in enumerate(
        zip(stays.begins.tolist(), stays.first.tolist(), stays.last.tolist(), strict=True)
    ):
        if begins == RESIDENT:
            yield stay, size[stay]
            continue
        (results if begins == MADE else coming)[first].append(stay)
        going[last].append(stay)
    workspace = kernels.workspace[model.step_op].tolist()
    yield from ((stay, size[stay]) for stay in coming[0])
    for step in range(model.steps):
        yield from ((stay, size[stay]) for stay in results[step])
        if workspace[step]:
            yield -1, workspace[step]
            yield -1, -1
        yield from ((stay, -1) for stay in going[step])
        yield from ((stay, size[stay]) for stay in coming[step + 1])
