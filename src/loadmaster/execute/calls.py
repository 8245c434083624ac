"""`CallExecutor`: a planned graph as the function that `torch.compile` calls, in one call or in two.

A training step is one plan and two calls: the forward call stops after its last op, with activations where the plan
has them, and the backward call goes on from there. If another graph needs the memory in between, what lies there is
copied to the host and back (`spill`, `restore`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadmaster.errors import require
from loadmaster.execute.executor import Executor
from loadmaster.execute.pinned import HostMemory, HostWeights, flat, layout_of, own_layout, shaped
from loadmaster.execute.placement import Arena
from loadmaster.execute.script import Leaf
from loadmaster.execute.walk import shown
from loadmaster.program.importers.torch.captured import Captured, Given
from loadmaster.program.program import PERSISTENT

_SAMPLES = 16


class Rows:
    """Pinned rows of bytes that callers may keep: one is used again when nobody has it any more."""

    def __init__(self, *, pinned: bool) -> None:
        self._torch, self._memory = require("torch", "torch"), HostMemory(pinned)
        self._rows: dict[int, list[tuple[Any, int]]] = {}

    def take(self, count: int) -> Any:
        """A row of its own storage that nobody else looks at."""
        rows = self._rows.setdefault(count, [])
        for row, alone in rows:
            if storage_users(row) == alone:
                return row
        # Its own storage, so that it can be told whether a caller still has it.
        row = self._torch.from_numpy(self._memory.take(count).numpy())
        rows.append((row, storage_users(row)))
        return row


def storage_users(tensor: Any) -> int:
    """How many tensors look at its storage, by PyTorch's own count."""
    torch = require("torch", "torch")
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


class Fingerprint:
    """Whether a weight on the host is what it was: by its address, its version and some of its bytes."""

    def __init__(self, value: Any) -> None:
        self._seen = self._look(value)

    def changed(self, value: Any) -> bool:
        """Since this was last asked."""
        before, self._seen = self._seen, self._look(value)
        return before != self._seen

    def _look(self, value: Any) -> tuple[int, int, bytes]:
        # Not every change moves the version: `p.data.mul_` does not.
        return int(value.data_ptr()), int(value._version), _sample(value)


def _sample(value: Any) -> bytes:
    if not value.numel():
        return b""
    row = flat(value.detach(), layout_of(value)).numpy()
    return bytes(row[np.linspace(0, len(row) - 1, _SAMPLES).astype(np.int64)])


@dataclass(frozen=True)
class Paused:
    """A training step between its two calls, on the host."""

    values: list[Any]
    saved: list[tuple[Any, Any]]
    """(bytes of the device, what they were)."""
    host: dict[int, Any]
    layouts: dict[int, Any]
    held_back: list[Any]


class CallExecutor(Executor):
    """An executor whose weights are the caller's own tensors, seen anew with every call."""

    def __init__(self, captured: Captured, *where: Any, rows: Rows, args: Sequence[Any], **options: Any) -> None:
        # captured.given has one row per placeholder: primals first, in the order of `args`.
        self._primals = [given for given in captured.given if not given.late][: len(args)]
        rest = [given for given in captured.given if given.source in captured.constants]
        host = HostWeights({}, {})
        for given, value in [
            *zip(self._primals, args, strict=True),
            *((given, captured.constants[given.source]) for given in rest),
        ]:
            if given.kind in PERSISTENT and given.tensor >= 0 and not given.held:
                host.layouts[given.tensor] = layout_of(own := own_layout(value.detach().cpu()))
                host.rows[given.tensor] = flat(own, host.layouts[given.tensor])
        super().__init__(captured, *where, host, **options)
        self._pool = rows
        self._late = [given for given in captured.given if given.late]
        self._walk.late = frozenset(given.tensor for given in self._late if not given.held)
        steps = [step.call.op for step in self.script.steps]
        whole = captured.forward_ops is None
        self.pause = len(steps) if whole else sum(op < (captured.forward_ops or 0) for op in steps)
        self._fill_sinks(steps)
        self._residents_of = [
            (at, given) for at, given in enumerate(self._primals) if given.kind in PERSISTENT and not given.held
        ]
        self._seen = {at: Fingerprint(args[at]) for at, _ in self._residents_of}
        self._lies = {each.tensor: number for number, each in enumerate(self.script.residencies) if each.first < 0}
        self._moved = set(self.script.moved)
        self._fakes = {node.name: node.meta.get("val") for node in captured.graph.nodes}
        for given in self._late:  # a plan may make room for it before it comes
            self._layouts[given.tensor] = layout_of(self._fakes[given.node])
        self._values: list[Any] = []

    def _add_rooms(self) -> None:
        """Room on the host for what is copied out; results get theirs anew for each call, inputs bring it."""
        results = {leaf.root for leaf in self.script.leaves}
        rows = {
            tensor: int(self.captured.program.storage_bytes[tensor])
            for tensor in self.script.moved
            if tensor not in results
        }
        memory = HostMemory(self._backend.pinned, sum(rows.values()))
        self._host |= {tensor: memory.take(size) for tensor, size in rows.items()}

    def _fill_sinks(self, steps: list[int]) -> None:
        """Results that are taken on the device: after which step, and which of them it is."""
        rank = {op: at for at, op in enumerate(steps)}
        producer = self.captured.program.producer
        self._sinks: dict[int, int] = {}
        """Result -> number of its target."""
        for number, (leaf, result) in enumerate(zip(self.script.leaves, self.captured.results, strict=True)):
            if result.sink and leaf.root >= 0 and producer[leaf.root] >= 0:
                target = self._sinks[number] = len(self._sinks)
                self._walk.sinks.setdefault(rank[int(producer[leaf.root])], []).append((leaf, target))

    def forward(self, args: Sequence[Any]) -> list[Any]:
        """The results of the forward call, in order; None where there is none."""
        self._refresh(args)
        for given, value in zip(self._primals, args, strict=True):
            if given.held:
                if given.tensor >= 0:
                    self._kept[given.tensor] = value.detach()
            elif given.kind not in PERSISTENT and given.tensor >= 0:
                self._give(given, value.detach())
        self._hand_out(late=False)
        with self._running():
            self._values = self._walk.begin(self._kept)
            self._walk.advance(self._values, [], 0, self.pause)
            self._walk.placement.at(-1)
            if self.captured.forward_ops is None:
                self._walk.end()
            self._backend.settle()
        found = self._found(args, late=False)
        if self.captured.forward_ops is None:
            self._values = []
        return found

    def backward(self, args: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        """The gradients, in order of the primals; None where there is none."""
        for given, value in zip(self._late, tangents, strict=True):
            own = self._like_traced(given, value.detach())
            if given.held:
                self._values[given.tensor] = own.to(self._backend.device)
            elif given.tensor >= 0:
                self._give(given, own)
        self._hand_out(late=True)
        with self._running():
            self._walk.resume(self._values)
            self._walk.advance(self._values, [], self.pause, len(self.script.steps))
            self._walk.end()
            self._backend.settle()
        found = self._found(args, late=True)
        self._values = []
        return found

    def spill(self) -> Paused:
        """What a step between its two calls has, its part of the device copied to the host: the memory is
        another's until `restore`, and other calls can be made."""
        assert isinstance(self._placement, Arena)
        self._backend.settle()
        saved = []
        for row in self._placement.bytes_at(self.pause):
            there = self._torch.empty(len(row), dtype=self._torch.uint8, pin_memory=self._backend.pinned)
            saved.append((row, there.copy_(row)))
        paused = Paused(self._values, saved, dict(self._host), dict(self._layouts), self._walk.held_back)
        self._values = []
        self._add_rooms()  # what was copied out is needed later
        return paused

    def restore(self, paused: Paused) -> None:
        """The inverse of `spill`; weights that stay between runs are there again as well."""
        for row, there in paused.saved:
            row.copy_(there)
        self._values, self._walk.held_back = paused.values, paused.held_back
        for mine, theirs in ((self._host, paused.host), (self._layouts, paused.layouts)):
            mine.clear()
            mine.update(theirs)
        self._backend.settle()

    def abandon(self) -> None:
        """Nobody will ask for the backward call any more."""
        self._values = []

    def reload(self) -> None:
        """Bring the weights that stay between runs to the device anew: another graph had the memory."""
        for tensor, number in self._lies.items():
            self._load(tensor, number)
        self._backend.settle()

    @property
    def is_movable(self) -> bool:
        """Whether the memory can be another's in between."""
        return isinstance(self._placement, Arena)

    def _refresh(self, args: Sequence[Any]) -> None:
        """Weights that were changed since they were last seen."""
        for at, given in self._residents_of:
            if given.tensor < 0 or not self._seen[at].changed(args[at]):
                continue
            value = own_layout(args[at].detach())
            self._layouts[given.tensor] = layout_of(value)
            self._host[given.tensor] = flat(value, self._layouts[given.tensor])
            if given.tensor in self._lies:
                self._load(given.tensor, self._lies[given.tensor])

    def _load(self, tensor: int, number: int) -> None:
        layout = self._layouts[tensor]
        self._placement.row(number, self._kept[tensor], layout).copy_(self._host[tensor])

    def _give(self, given: Given, value: Any) -> None:
        """An input for this call: where it lies, if copies can be made from there."""
        value = own_layout(value)
        layout = self._layouts[given.tensor] = layout_of(value)
        if not layout.bytes:
            self._kept[given.tensor] = self._empty(layout)
        elif value.device.type == "cpu" and (not self._backend.pinned or value.is_pinned()):
            self._host[given.tensor] = flat(value, layout)
        else:
            size = int(self.captured.program.storage_bytes[given.tensor])
            row = self._host[given.tensor] = self._pool.take(size)
            row[: layout.bytes].copy_(flat(value, layout))

    def _like_traced(self, given: Given, value: Any) -> Any:
        """A tangent with the strides that the graph was traced with."""
        like = self._fakes[given.node]
        if value.stride() == like.stride():
            return value
        torch = self._torch
        own = torch.empty_strided(tuple(like.shape), like.stride(), dtype=value.dtype, device=value.device)
        return own.copy_(value)

    def _hand_out(self, *, late: bool) -> None:
        """Fresh memory for the results of a call: on the host a row each, on the device what the caller takes."""
        torch = self._torch
        targets = self._walk.targets = self._walk.targets or [None] * len(self._sinks)
        for number, result in enumerate(self.captured.results):
            if result.late != late or result.tensor < 0:
                continue
            leaf = self.script.leaves[number]
            if number in self._sinks:
                like = self._fakes[result.node]
                targets[self._sinks[number]] = torch.empty_strided(
                    tuple(like.shape), like.stride(), dtype=like.dtype, device=self._backend.device
                )
            elif leaf.root in self._moved:
                self._host[leaf.root] = self._pool.take(int(self.captured.program.storage_bytes[leaf.root]))

    def _found(self, args: Sequence[Any], *, late: bool) -> list[Any]:
        found = []
        given_back = {given.node: at for at, given in enumerate(self._primals)}
        for number, (leaf, result) in enumerate(zip(self.script.leaves, self.captured.results, strict=True)):
            if result.late != late:
                continue
            if number in self._sinks:
                found.append(self._walk.targets[self._sinks[number]])
                self._walk.targets[self._sinks[number]] = None
            elif not result.node:
                found.append(None)
            elif leaf.root < 0:
                found.append(args[given_back[result.node]] if result.node in given_back else None)
            else:
                found.append(self._handed(leaf))
        if self._backend.pinned:
            self._backend.settle()
        return found

    def _handed(self, leaf: Leaf) -> Any:
        """A result that the caller may keep."""
        torch = self._torch
        value = self._values[leaf.root]
        if value is None:
            row, layout = self._host[leaf.root], self._layouts[leaf.root]
            root = shaped(row, layout)
            if not leaf.views and leaf.root in self._moved:
                return root  # its row is the caller's now
            value = shown(leaf, root)
        else:
            value = shown(leaf, value)
        own = torch.empty_strided(
            tuple(value.shape),
            _dense_stride(value),
            dtype=value.dtype,
            pin_memory=self._backend.pinned and value.numel() > 0,
        )
        return own.copy_(value, non_blocking=True)

    @contextmanager
    def _running(self) -> Iterator[None]:
        """What a call happens within."""
        with (
            self._guarded(),
            self._torch.inference_mode(),
            self._backend.held_to(self.capacity),
            self._placement.running(),
        ):
            yield


def _dense_stride(value: Any) -> tuple[int, ...]:
    """The strides of a copy without holes in which elements come in the same order."""
    order = sorted(range(value.ndim), key=lambda axis: (value.stride(axis), value.shape[axis]))
    strides, step = [0] * value.ndim, 1
    for axis in order:
        strides[axis] = step
        step *= max(1, int(value.shape[axis]))
    return tuple(strides)
