"""`CallExecutor`: a planned graph as the function that `torch.compile` calls, in one call or in two.

A training step is one plan and two calls: the forward call stops after its last op, with activations where the plan
has them, and the backward call goes on from there. If another graph needs the memory in between, what lies there is
copied to the host and back (`spill`, `restore`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from loadmaster import clock
from loadmaster.errors import require
from loadmaster.execute.executor import Executor
from loadmaster.execute.pinned import (
    Fingerprints,
    HostMemory,
    HostWeights,
    Layout,
    flat,
    layout_of,
    own_layout,
    shaped,
)
from loadmaster.execute.placement import Arena
from loadmaster.execute.script import Leaf, Move
from loadmaster.execute.walk import shown
from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import Plan
from loadmaster.program.importers.torch.captured import Captured, Given
from loadmaster.program.importers.torch.compiled import Prepared
from loadmaster.program.program import PERSISTENT, TensorKind

WARM_CALLS = 2
"""Before a CUDA graph: the first call shows where results are made, the second makes them in place."""
TRIED_CALLS = 2
"""Of either kind that are timed."""


class Rows:
    """Pinned rows of bytes that callers may keep: one is used again when nobody has it any more."""

    def __init__(self, *, pinned: bool) -> None:
        self._torch, self._memory = require("torch", "torch"), HostMemory(pinned)
        self._rows: dict[int, list[tuple[Any, int]]] = {}

    def take(self, count: int) -> Any:
        """A row that nobody else looks at, as long as somebody looks at what is returned."""
        rows = self._rows.setdefault(count, [])
        for row, alone in rows:
            if storage_users(row) == alone:
                return row[:]
        # Its own storage, so that it can be told whether a caller still has it.
        row = self._torch.from_numpy(self._memory.take(count).numpy())
        rows.append((row, storage_users(row)))
        return row[:]

    @property
    def bytes(self) -> int:
        """Of all rows, whoever looks at them."""
        return sum(count * len(rows) for count, rows in self._rows.items())

    def clear(self) -> None:
        """Nothing is kept to be used again: callers have what they have."""
        self._rows.clear()
        self._memory = HostMemory(self._memory.pinned)


def base_free(tensor: Any) -> Any:
    """The same memory as a tensor that is no view: autograd lets nobody write over views that a function made, and
    what is written over one would count as a change of all that lies in the memory of the plan."""
    if tensor.is_conj() or tensor.is_neg():
        return tensor.detach()
    if not tensor._is_view():
        return tensor
    found = tensor.new_empty(0)
    return found.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())


def storage_users(tensor: Any) -> int:
    """How many tensors look at its storage, by PyTorch's own count."""
    torch = require("torch", "torch")
    return int(torch._C._storage_Use_Count(tensor.untyped_storage()._cdata))


class Trial:
    """Whether calls are faster as CUDA graphs or op by op. A graph saves launches, and each wait of an op for a copy
    costs more in it: only the device knows. First come calls of the one kind, then of the other."""

    def __init__(self) -> None:
        self._seconds: dict[bool, list[float]] = {False: [], True: []}

    @property
    def as_graph(self) -> bool:
        """Which kind the next call should be."""
        plain, graphs = self._seconds[False], self._seconds[True]
        if len(plain) < TRIED_CALLS:
            return False
        return len(graphs) < TRIED_CALLS or min(graphs) <= min(plain)

    @property
    def least(self) -> dict[str, float]:
        """The shortest call of each kind so far."""
        names = {False: "op by op", True: "CUDA graph"}
        return {names[kind]: min(each) for kind, each in self._seconds.items() if each}

    def is_open(self, both: bool) -> bool:
        """Whether calls have still to be timed. `both`: of both kinds."""
        kinds = (False, True) if both else (False,)
        return any(len(self._seconds[kind]) < TRIED_CALLS for kind in kinds)

    def note(self, as_graph: bool, seconds: float) -> None:
        """What a call took."""
        self._seconds[as_graph].append(seconds)
        del self._seconds[as_graph][TRIED_CALLS:]


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
    """An executor whose weights are the caller's own tensors, seen anew with every call.

    `args`: the primals of the first call. `rows`: where results on the host lie. `as_graph`: after some calls as CUDA
    graphs. `lend`: bytes of the device as a tensor that the caller may keep, for results that stay there. `ahead`:
    calls that read and make nothing on the host that is the caller's return before the device is done with them.
    """

    def __init__(
        self,
        captured: Captured,
        plan: Plan,
        machine: Machine,
        device: Any,
        args: Sequence[Any],
        rows: Rows,
        *,
        as_graph: bool = False,
        lend: Callable[[Any], Any] | None = None,
        ahead: bool = False,
        **options: Any,
    ) -> None:
        # captured.given has one row per placeholder: primals first, in the order of `args`.
        self._primals = [given for given in captured.given if not given.late][: len(args)]
        self._late = [given for given in captured.given if given.late]
        self._brought = [
            (at, given)
            for at, given in enumerate(self._primals)
            if given.tensor >= 0 and ((given.held and not given.source) or given.kind == TensorKind.INPUT)
        ]
        """What a call brings; weights are looked at in `_refresh`."""
        self._parameters = [
            (at, given)
            for at, given in enumerate(self._primals)
            if given.tensor >= 0 and given.held and given.source
        ]
        """What the caller has on the device for good."""
        self._addresses: list[int] = []
        """Of those, in the last call."""
        self._numbers = {given.node: at for at, given in enumerate([*self._primals, *self._late])}
        values = dict(zip((given.node for given in self._primals), args, strict=True))
        host = HostWeights({}, {})
        for given in captured.given:
            if given.kind in PERSISTENT and given.tensor >= 0 and not given.held:
                value = values[given.node] if given.node in values else captured.constants[given.source]
                host.layouts[given.tensor] = layout_of(own := own_layout(value.detach().cpu()))
                host.rows[given.tensor] = flat(own, host.layouts[given.tensor])
        forward, views = captured.forward_ops, captured.program.op_view
        self.pause = int((~views).sum() if forward is None else (~views[:forward]).sum())
        super().__init__(captured, plan, machine, device, host, pause=self.pause, **options)
        self._rows, self._moved, self._lend = rows, set(self.script.moved), lend
        self._walk.late = frozenset(given.tensor for given in self._late if not given.held)
        self._fakes = {node.name: node.meta.get("val") for node in captured.graph.nodes}
        for given in self._late:  # a plan may make room for it before it comes
            self._layouts[given.tensor] = self._late_layout(given)
        self._fill_sinks()
        last, leaves = len(self.script.steps) - 1, zip(self.script.leaves, captured.results, strict=True)
        self._ends = {each.tensor: at for at, each in enumerate(self.script.residencies) if each.last == last}
        self._walk.watch(leaf.root for leaf, result in leaves if result.stays)
        self._lies = {each.tensor: at for at, each in enumerate(self.script.residencies) if each.first < 0}
        self._weights = [(at, given) for at, given in enumerate(self._primals) if given.tensor in self._lies]
        self._seen = Fingerprints([args[at] for at, _ in self._weights])
        self._streamed = [
            (at, given)
            for at, given in enumerate(self._primals)
            if given.kind in PERSISTENT
            and given.tensor >= 0
            and not given.held
            and given.tensor not in self._lies
        ]
        self._values: list[Any] = []
        self._kept_targets: dict[int, Any] = {}
        """Where CUDA graphs put results that are taken on the device, by number of the target."""
        self._alone: dict[int, int] = {}
        """How many look at such a one if no caller does."""
        self._kept_rows: dict[int, Any] = {}
        """Where they put those that are taken on the host, by tensor."""
        self._replayed_forward = False
        self.states: dict[int, Any] = {}
        """Number of a result -> the tensor on the device that it is the new value of."""
        self._calls = 0
        self._as_graph = as_graph and self.placement == "planned"
        self._trial = Trial()
        self._draws = draws(captured.graph)
        results = zip(self.script.leaves, captured.results, strict=True)
        self._stays_there = all(
            result.sink or result.stays or not result.node or leaf.root < 0 for leaf, result in results
        )
        """No result is made on the host."""
        self.waits = True
        """Forward calls wait for the device where it reads on the host; else whoever makes them does, later."""
        self._may_go_ahead, self._ahead = ahead and self._leaves_host_alone, False
        self._entries = self._first_moves()
        """What comes to the device before the first step and only then: inputs that are there already go to their
        rooms at once."""
        self._borrowed: list[int] = []
        """Inputs that are copied from where the caller has them on the device."""
        self._seconds, self._records = 0.0, False
        """Of the call so far; whether a CUDA graph was recorded in it."""
        self._graphs: dict[bool, Any] = {}
        self._zeros: dict[Any, Any] = {}
        self._absent: frozenset[int] = frozenset()
        """Tangents that the last backward call came without."""
        self._recorded: list[Any] = []
        self._fixed: dict[int, Any] = {}
        """Where a CUDA graph finds what callers bring, by tensor."""

    def _add_rooms(self) -> None:
        """Room on the host for what is copied out; results get theirs anew for each call, inputs bring it."""
        leaves = zip(self.script.leaves, self.captured.results, strict=True)
        results = {leaf.root for leaf, result in leaves if not result.sink and not result.stays}
        rows = {
            tensor: int(self.captured.program.storage_bytes[tensor])
            for tensor in self.script.moved
            if tensor not in results
        }
        memory = HostMemory(self._backend.pinned, sum(rows.values()))
        self._host |= {tensor: memory.take(size) for tensor, size in rows.items()}

    def _fill_sinks(self) -> None:
        """Results that are taken on the device: after which step, and which of them it is."""
        rank = {step.call.op: at for at, step in enumerate(self.script.steps)}
        producer = self.captured.program.producer
        self._sinks: dict[int, int] = {}
        """Result -> number of its target."""
        for number, (leaf, result) in enumerate(zip(self.script.leaves, self.captured.results, strict=True)):
            if result.sink and leaf.root >= 0 and producer[leaf.root] >= 0:
                target = self._sinks[number] = len(self._sinks)
                self._walk.sinks.setdefault(rank[int(producer[leaf.root])], []).append((leaf, target))
        self._walk.targets = [None] * len(self._sinks)

    @property
    def _leaves_host_alone(self) -> bool:
        """Whether no weight is read on the host while a call runs, and no result is made there."""
        late = all(given.held or given.tensor < 0 for given in self._late)
        return not self._streamed and late and self._stays_there

    def _first_moves(self) -> dict[int, list[Move]]:
        """Input -> its copies, if all of them come before the first step."""
        if not isinstance(self._placement, Arena):
            return {}
        inputs = {given.tensor for _, given in self._brought if not given.held and not given.source}
        later = {move.slot for step in self.script.steps for move in step.fetches}
        found: dict[int, list[Move]] = {}
        for move in self.script.fetches:
            if move.slot in inputs - later:
                found.setdefault(move.slot, []).append(move)
        return found

    def _settle(self) -> None:
        """Wait for the device before results are handed out, if anybody has to: who reads them on the host, or who
        compares what calls take."""
        later = self._ahead or (self._stays_there and self._backend.pinned)
        if not later or self._is_tried:
            self._backend.settle()

    @property
    def _is_tried(self) -> bool:
        """Whether this call is timed, or comes before those."""
        return self._calls < WARM_CALLS or self._trial.is_open(self._as_graph)

    @property
    def _may_begin(self) -> bool:
        """Whether a call may begin before it is known that weights are what they were: it changes nothing but its
        results, and can be made again."""
        return self.captured.forward_ops is None and not (self._is_tried or self.states or self._draws)

    def forward(self, args: Sequence[Any]) -> list[Any]:
        """The results of the forward call, in order; None where there is none."""
        early = self._may_begin
        if not early:
            self._refresh(args)
        recording = self._as_graph and self._calls >= WARM_CALLS and self._trial.as_graph
        ready: list[tuple[Given, Any]] = []
        self._ahead = self._may_go_ahead
        self._keep_parameters(args)
        for at, given in self._brought:
            value = args[at].detach()
            if given.held:
                self._kept[given.tensor] = self._held(given, value, recording)
            elif given.tensor in self._entries and value.numel() and self._is_there(value):
                ready.append((given, value))
            else:
                self._ahead = False  # it is the caller's own, and may change when the call returns
                self._give(given, value, recording)
        self._set_placed(frozenset(given.tensor for given, _ in ready))
        recording &= self._hand_out(late=False, fixed=recording)
        self._seconds, self._records = 0.0, False
        with self._running():
            for given, value in ready:
                self._place(given, value)
            if recording:
                self._replay(False, self._first_half)
                self._values = list(self._recorded)
            else:
                self._first_half()
            self._settle()
        if early and self._refresh(args):  # what runs has the old weights
            self._backend.settle()
            return self.forward(args)
        self._replayed_forward = recording
        waits = not self._ahead and (self.waits or not self._stays_there)
        found = self._found(args, late=False, fixed=recording, waits=waits)
        if self.captured.forward_ops is None:
            self._end_call()
        return found

    def backward(self, args: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
        """The gradients, in order of the primals; None where there is none. `tangents`: None for zeros."""
        recording = self._replayed_forward and self._as_graph
        absent = frozenset(at for at, value in enumerate(tangents) if value is None)
        if absent != self._absent:  # a CUDA graph knows where it finds them
            self._absent = absent
            self._graphs.pop(True, None)
        for given, value in zip(self._late, tangents, strict=True):
            if value is None and given.held:
                self._values[given.tensor] = self._nothing(given)
                continue
            own = self._nothing(given).cpu() if value is None else value.detach()
            own = self._like_traced(given, own)
            if given.held:
                self._values[given.tensor] = self._held(given, own.to(self._backend.device), recording)
            elif given.tensor >= 0:
                self._give(given, own, recording)
                if not own.numel():  # no copy brings it
                    self._values[given.tensor] = self._kept[given.tensor]
        recording &= self._hand_out(late=True, fixed=recording)
        with self._running():
            if recording:
                self._replay(True, self._second_half)
            else:
                self._second_half()
            self._settle()
        found = self._found([*args, *tangents], late=True, fixed=recording, waits=not self._ahead)
        self._end_call()
        return found

    def _end_call(self) -> None:
        timed = self._calls >= WARM_CALLS and self._trial.is_open(self._as_graph)
        if timed and not self._records:
            self._trial.note(self._replayed_forward, self._seconds)
        self._calls += 1
        self._values = []
        while self._borrowed:
            self._host.pop(self._borrowed.pop(), None)

    def _first_half(self) -> None:
        self._values = self._walk.begin(self._kept)
        self._walk.advance(self._values, [], 0, self.pause)
        if self.captured.forward_ops is None:
            self._walk.end()
        self._walk.placement.at(-1)
        self._backend.join()

    def _second_half(self) -> None:
        self._walk.resume(self._values)
        self._walk.advance(self._values, [], self.pause, len(self.script.steps))
        self._walk.end()
        self._backend.join()

    def _replay(self, late: bool, half: Callable[[], None]) -> None:
        """Half a step as a CUDA graph, recorded when it is first wanted."""
        torch = self._torch
        if late not in self._graphs:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self._placement.stream):
                half()
            self._graphs[late], self._records = graph, True
            if not late:
                self._recorded = list(self._values)
        self._graphs[late].replay()

    def spill(self) -> Paused:
        """What a step between its two calls has, its part of the device copied to the host: the memory is
        another's until `restore`, and other calls can be made."""
        self._backend.settle()
        saved = []
        # What PyTorch's allocator has given is nobody else's as long as it is held.
        for row in self._placement.bytes_at(self.pause) if isinstance(self._placement, Arena) else []:
            there = self._torch.empty(len(row), dtype=self._torch.uint8, pin_memory=self._backend.pinned)
            saved.append((row, there.copy_(row)))
        paused = Paused(self._values, saved, dict(self._host), dict(self._layouts), self._walk.held_back)
        self._values = []
        self._add_rooms()  # what was copied out is needed later
        self._graphs, self._as_graph = {}, False  # those know the old rows
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
        """Nobody will ask for the backward call any more; what is on the device is given up."""
        self._values, self._recorded, self._graphs = [], [], {}

    def close(self) -> None:
        self.abandon()
        self._fixed, self._kept_targets, self._kept_rows, self.states = {}, {}, {}, {}
        super().close()

    def reload(self) -> None:
        """Bring the weights that stay between runs to the device anew: another graph had the memory."""
        for tensor, number in self._lies.items():
            self._load(tensor, number)
        self._backend.settle()

    @property
    def is_movable(self) -> bool:
        """Whether the memory can be another's in between."""
        return isinstance(self._placement, Arena)

    @property
    def is_ahead(self) -> bool:
        """Whether the last call read and made nothing on the host that is the caller's."""
        return self._ahead

    @property
    def is_new(self) -> bool:
        """Whether it was just made: its first calls load kernels."""
        return self._calls <= WARM_CALLS

    @property
    def call_seconds(self) -> dict[str, float]:
        """What calls take on the device."""
        return self._trial.least

    @property
    def reserved_bytes(self) -> int:
        """What it has of the device, libraries' workspaces included."""
        peaks = self._placement.peaks()
        return self.script.peak if peaks is None else peaks[1]

    def _refresh(self, args: Sequence[Any]) -> bool:
        """Weights that were changed since they were last seen. False: none was, or is read where it lies anyway."""
        changed = self._seen.changed([args[at] for at, _ in self._weights])
        for number in changed:
            at, given = self._weights[number]
            self._renew(given, args[at])
            self._load(given.tensor, self._lies[given.tensor])
        moved = [
            (at, given)
            for at, given in self._streamed
            if args[at].data_ptr() != self._host[given.tensor].data_ptr()
        ]
        for at, given in moved:
            self._renew(given, args[at])
        return bool(changed or moved)

    def _renew(self, given: Given, value: Any) -> None:
        """The weight lies elsewhere on the host now."""
        own = own_layout(value.detach())
        layout = layout_of(own)
        if own.data_ptr() != self._host[given.tensor].data_ptr():
            self._graphs = {}
        self._layouts[given.tensor], self._host[given.tensor] = layout, flat(own, layout)

    def _load(self, tensor: int, number: int) -> None:
        layout = self._layouts[tensor]
        self._placement.row(number, self._kept[tensor], layout).copy_(self._host[tensor])

    def _keep_parameters(self, args: Sequence[Any]) -> None:
        """Parameters on the device mostly are where they were."""
        addresses = [args[at].data_ptr() for at, _ in self._parameters]
        if addresses == self._addresses:
            return
        self._addresses, self._graphs = addresses, {}  # those know the old ones
        for at, given in self._parameters:
            self._kept[given.tensor] = args[at].detach()

    def _held(self, given: Given, value: Any, fixed: bool) -> Any:
        """What the caller has on the device; a CUDA graph finds it at one address."""
        if not fixed:
            return value
        known = self._fixed.get(given.tensor)
        if known is None:
            known = self._fixed[given.tensor] = self._torch.empty_strided(
                tuple(value.shape), value.stride(), dtype=value.dtype, device=value.device
            )
        return known.copy_(value)

    def _give(self, given: Given, value: Any, fixed: bool) -> None:
        """An input for this call: where it lies, if copies can be made from there."""
        value = own_layout(value)
        layout = self._layouts[given.tensor] = layout_of(value)
        if not layout.bytes:
            self._kept[given.tensor] = self._empty(layout)
            return
        here = value.device.type == "cpu" and (not self._backend.pinned or value.is_pinned())
        if not fixed and value.is_cuda:
            row = flat(value, layout)
            self._borrowed.append(given.tensor)
        elif here and (not fixed or given.source):
            row = flat(value, layout)
        else:
            size = int(self.captured.program.storage_bytes[given.tensor])
            if not fixed:
                self._host.pop(given.tensor, None)
                row = self._rows.take(size)
            elif given.tensor in self._fixed:
                row = self._fixed[given.tensor]
            else:
                row = self._fixed[given.tensor] = self._rows.take(size)
            row[: layout.bytes].copy_(flat(value, layout))
        old = self._host.get(given.tensor)
        if fixed and given.source and old is not None and row.data_ptr() != old.data_ptr():
            self._graphs = {}
        self._host[given.tensor] = row

    @staticmethod
    def _is_there(value: Any) -> bool:
        """Whether the caller has an input on the device."""
        return bool(value.is_cuda)

    def _set_placed(self, slots: frozenset[int]) -> None:
        """Inputs that are in their rooms when this call begins."""
        if slots != self._walk.placed:
            self._walk.placed = slots
            self._graphs = {}  # they copy what was not there

    def _place(self, given: Given, value: Any) -> None:
        """An input that the caller has on the device goes to its room."""
        value = own_layout(value)
        layout = self._layouts[given.tensor] = layout_of(value)
        source = flat(value, layout)
        for move in self._entries[given.tensor]:
            low, high = move.low, min(move.high, layout.bytes)
            self._placement.row(move.residency, None, layout)[low:high].copy_(source[low:high])

    def _late_layout(self, given: Given) -> Layout:
        """How a tangent lies: as it was traced, without holes."""
        like = self._fakes[given.node]
        layout = layout_of(like)
        if layout.bytes == like.numel() * like.element_size() and not layout.offset:
            return layout
        size = like.numel() * like.element_size()
        return Layout(like.dtype, tuple(map(int, like.shape)), _dense(like), 0, size)

    def _nothing(self, given: Given) -> Any:
        """The tangent of a result that no loss depends on: zeros, which take no room."""
        like = self._fakes[given.node]
        if like.dtype not in self._zeros:
            self._zeros[like.dtype] = self._torch.zeros((), dtype=like.dtype, device=self._backend.device)
        return self._zeros[like.dtype].expand(tuple(like.shape))

    def _like_traced(self, given: Given, value: Any) -> Any:
        """A tangent that lies as its room was made for it."""
        layout = self._late_layout(given)
        if value.stride() == layout.stride:
            return value
        own = self._torch.empty_strided(layout.size, layout.stride, dtype=value.dtype, device=value.device)
        return own.copy_(value)

    def _hand_out(self, *, late: bool, fixed: bool) -> bool:
        """Memory for the results of a call: on the host a row each, on the device what the caller takes. For a CUDA
        graph the same each time, which is False where a caller still has what lies there."""
        torch, targets = self._torch, self._walk.targets
        mine = [
            at
            for at, result in enumerate(self.captured.results)
            if result.late == late and result.tensor >= 0
        ]
        kept = [self._sinks[number] for number in mine if self._sinks.get(number) in self._kept_targets]
        if fixed and any(storage_users(self._kept_targets[at]) > self._alone[at] for at in kept):
            fixed = False
        for number in mine:
            root = self.script.leaves[number].root
            if number in self._sinks:
                at = self._sinks[number]
                if number in self.states:
                    targets[at] = self.states[number]
                    continue
                if fixed and at in self._kept_targets:
                    targets[at] = self._kept_targets[at]
                    continue
                like = self._fakes[self.captured.results[number].node]
                targets[at] = torch.empty_strided(
                    tuple(like.shape), like.stride(), dtype=like.dtype, device=self._backend.device
                )
                if fixed:
                    self._alone[at] = storage_users(targets[at])
                    self._kept_targets[at] = targets[at]
            elif root in self._moved:
                self._host.pop(root, None)
                if fixed and root in self._kept_rows:
                    self._host[root] = self._kept_rows[root]
                    continue
                self._host[root] = self._rows.take(int(self.captured.program.storage_bytes[root]))
                if fixed:
                    self._kept_rows[root] = self._host[root]
        return fixed

    def _found(self, args: Sequence[Any], *, late: bool, fixed: bool, waits: bool) -> list[Any]:
        found: list[Any] = []
        lent: dict[int, Any] = {}
        for number, (leaf, result) in enumerate(zip(self.script.leaves, self.captured.results, strict=True)):
            if result.late != late:
                continue
            if number in self.states:
                found.append(None)
            elif number in self._sinks:
                value = self._walk.targets[self._sinks[number]]
                found.append(base_free(value.detach()) if fixed else value)
                self._walk.targets[self._sinks[number]] = None
            elif not result.node:
                found.append(None)
            elif result.stays:
                found.append(base_free(self._lent(leaf, lent)))
            elif leaf.root < 0:
                found.append(args[self._numbers[result.node]] if result.node in self._numbers else None)
            else:
                found.append(base_free(self._handed(leaf, fixed)))
        if self._backend.pinned and waits:
            self._backend.settle()  # copies to the host are done
        return found

    def _lent(self, leaf: Leaf, known: dict[int, Any]) -> Any:
        """A result that lies on the device at the end; `known`: the roots of those before it."""
        if leaf.root not in known:
            layout = self._layouts[leaf.root]
            if not layout.bytes:
                known[leaf.root] = self._empty(layout)
            else:
                row = self._placement.row(self._ends[leaf.root], None, layout)
                known[leaf.root] = shaped(row.clone() if self._lend is None else self._lend(row), layout)
        return shown(leaf, known[leaf.root])

    def _handed(self, leaf: Leaf, fixed: bool) -> Any:
        """A result that the caller may keep."""
        torch, value = self._torch, self._values[leaf.root]
        if value is None:
            root = shaped(self._host[leaf.root], self._layouts[leaf.root])
            if not leaf.views and not fixed and leaf.root in self._moved:
                return root  # its row is the caller's now
            value = shown(leaf, root)
        else:
            value = shown(leaf, value)
        pinned = self._backend.pinned and value.numel() > 0
        own = torch.empty_strided(tuple(value.shape), _dense(value), dtype=value.dtype, pin_memory=pinned)
        return own.copy_(value, non_blocking=True)

    @contextmanager
    def _running(self) -> Iterator[None]:
        """What a call happens within."""
        began = clock.now()
        with (
            self._guarded(),
            self._torch.inference_mode(),
            self._backend.held_to(self.capacity),
            self._placement.running(),
        ):
            yield
        self._seconds += clock.now() - began


def draws(graph: Any) -> bool:
    """Whether an op of a graph draws random numbers: made twice, it is not the same."""
    torch = require("torch", "torch")
    return any(torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) for node in graph.nodes)


def _dense(value: Any) -> tuple[int, ...]:
    """The strides of a copy without holes in which elements come in the same order."""
    order = sorted(range(value.ndim), key=lambda axis: (value.stride(axis), value.shape[axis]))
    strides, step = [0] * value.ndim, 1
    for axis in order:
        strides[axis] = step
        step *= max(1, int(value.shape[axis]))
    return tuple(strides)


def numbers_among(prepared: Prepared) -> dict[int, Any]:
    """Primals that are one number, and their types as traced: Dynamo gives numbers that Python draws in another one."""
    traced = {node.name: node.meta.get("val") for node in prepared.graph.nodes}
    values = {at: traced[name] for at, name in enumerate(prepared.primals)}
    return {
        at: each.dtype
        for at, each in values.items()
        if getattr(each, "ndim", None) == 0 and each.is_floating_point()
    }


def gradients_made_of(prepared: Prepared) -> list[frozenset[int]]:
    """By primal: the tangents that its gradient is made of."""
    place = {name: at for at, name in enumerate(prepared.tangents)}
    reached: dict[Any, frozenset[int]] = {}
    for node in prepared.graph.nodes:
        own = frozenset([place[node.name]] if node.name in place else [])
        reached[node] = own.union(*(reached[each] for each in node.all_input_nodes))
    gradients = prepared.leaves[prepared.forward_outputs :]
    return [frozenset() if each is None else reached[each] for each in gradients]
