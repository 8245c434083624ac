"""`Executor`: a captured model on a real device, exactly as a plan says.

    with Executor(captured, plan, machine, "cuda", weights, capacity=40 * 2**30) as executor:
        results = executor.run(tokens)

Everything is decided when it is made: which copies are issued after which op, what each op waits
for, what is dropped when. A run only walks through that list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median
from traceback import clear_frames
from typing import Any, Self

from loadmaster.errors import BadMachine, BadProgram, Refused, require
from loadmaster.execute import own_allocator
from loadmaster.execute.bind import bind, refuse_capacity
from loadmaster.execute.devices import Backend, CpuBackend, CudaBackend
from loadmaster.execute.pinned import (
    HostMemory,
    HostWeights,
    Layout,
    flat,
    given_shapes,
    host_weights,
    layout_of,
    own_layout,
    shaped,
)
from loadmaster.execute.placement import PLACEMENTS, Allocator, Arena, Placement, Planned, own_stream
from loadmaster.execute.script import Leaf
from loadmaster.execute.walk import Span, Walk, shown
from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import Plan
from loadmaster.program.importers.torch.captured import Captured
from loadmaster.program.importers.torch.graph import Result
from loadmaster.program.program import TensorKind
from loadmaster.units import show_bytes

# What a run gives back, and what was measured.


@dataclass(frozen=True)
class Results:
    """Values are tensors on the host or, where the plan keeps them there, on the device. They are
    the executor's own memory: the next run writes over them."""

    outputs: tuple[Any, ...]
    """What the module returns, flat; of a training step, the loss first."""
    gradients: dict[str, Any]
    """By parameter; those of a weight that was cut into slices are put together on the host."""
    updates: dict[str, Any]
    """New values of buffers, by name; the buffers themselves are left as they were."""
    seconds: float
    peak_bytes: int
    """Most fast memory that was in use."""
    reserved_bytes: int
    """Most fast memory that the allocator held."""
    op_seconds: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Start and end of each op since the start of the run, if timings are asked for."""


def gradients_of(results: Sequence[Result], values: Sequence[Any]) -> dict[str, Any]:
    """Gradients by parameter. Slices of one weight are many leaves with one name."""
    torch = require("torch", "torch")
    whole: dict[str, Any] = {}
    slices: dict[str, list[tuple[int, Any]]] = {}
    for result, value in zip(results, values, strict=True):
        if result.what != "gradient":
            continue
        if result.rows is None:
            whole[result.name] = value
        else:
            slices.setdefault(result.name, []).append((result.rows[0], value))
    for name, parts in slices.items():
        in_order = [value for _, value in sorted(parts, key=lambda part: part[0])]
        known = all(value is not None for value in in_order)
        whole[name] = torch.cat([value.to("cpu") for value in in_order]) if known else None
    return whole


@dataclass(frozen=True)
class Measured:
    """Several runs after some that don't count."""

    runs: Sequence[float]
    peak_bytes: int
    reserved_bytes: int
    last: Results

    @property
    def seconds(self) -> float:
        return median(self.runs)


ROOM = "leave kernels more room when planning: with --costs, or a smaller capacity than the run's"
HOLES = (
    "PyTorch's allocator leaves holes between tensors: plan for a smaller capacity, or let Loadmaster's "
    "be first (own_allocator.install() before anything uses CUDA)"
)


class Executor:
    """A model bound to a plan, a device and its weights once, and run as often as wanted.

    `weights`: tensors by parameter or buffer name, or `HostWeights` that executors share.
    `capacity`: bytes of fast memory (default: the machine's); `workspace`: what kernels need beside
    the plan (of no account where it is 'planned': they get what it leaves). `placement`: 'planned' (the
    default where the process has our own allocator), 'allocator' (PyTorch's, which may need more than the plan
    says) or 'arena' (always on a CPU). `graph`: as one CUDA graph. `delay`: on a CPU, seconds that each copy is late. `checked=False` trusts the plan.
    `block`: bytes of the device that are there already, for as many as the placement takes. `pause`: the rank of the
    step before which a run may rest.
    """

    def __init__(
        self,
        captured: Captured,
        plan: Plan,
        machine: Machine,
        device: Any,
        weights: Mapping[str, Any] | HostWeights,
        *,
        capacity: int | None = None,
        workspace: int = 0,
        placement: str | None = None,
        graph: bool = False,
        timings: bool = False,
        delay: Callable[[], float] | None = None,
        checked: bool = True,
        block: Any = None,
        pause: int | None = None,
    ) -> None:
        self._torch = require("torch", "torch")
        self.captured, self.machine = captured, machine
        fast = machine.memories[machine.reach[0][0]]
        self.capacity = fast.capacity if capacity is None else capacity
        self._backend = backend_for(device, delay)
        self._graph, self._timings = graph, timings
        self.placement = self._chosen(placement)
        self.script = bind(captured, plan, machine, self._backend.device, checked=checked)
        stream, kept, beside = None, workspace, "kernels' workspace"
        if self.placement == "planned":  # kernels' own room is among the tensors
            (stream, kept), beside = own_stream(self._backend.device), "kept by libraries"
        refuse_capacity(self.script.peak, kept, self.capacity, fast.name, beside)
        self._backend.open()
        self._replayed: tuple[Any, list[Any]] | None = None
        self._graph_peaks = (0, 0)
        if not isinstance(weights, HostWeights):
            weights = host_weights(captured, weights, HostMemory(self._backend.pinned))
        self._host: dict[int, Any] = dict(weights.rows)
        self._layouts: dict[int, Layout] = dict(weights.layouts)
        self._add_rooms()
        sizes = captured.program.storage_bytes.tolist()
        self._placement: Placement
        with self._guarded(), self._backend.held_to(self.capacity):
            if self.placement == "planned":
                self._placement = Planned(
                    self.script,
                    sizes,
                    self.capacity,
                    self._backend.device,
                    kept,
                    stream,
                    self._name,
                    block=block,
                    pause=pause,
                )
            elif self.placement == "arena":
                self._placement = Arena(
                    self.script.residencies, self.capacity, self._backend.device, block=block
                )
            else:
                self._placement = Allocator(self._backend.device)
            self._kept = self._residents()
        self._walk = Walk(
            self.script, self._backend, self._placement, self._host, self._layouts, sizes, timings
        )
        shapes = given_shapes(captured)
        self._shapes = [shapes[g.node] for g in captured.given if g.kind == TensorKind.INPUT]
        self._handed_back = {given.node: given.tensor for given in captured.given}

    def _chosen(self, placement: str | None) -> str:
        """Where results go; options that don't go together are refused."""
        if placement not in (None, *PLACEMENTS):
            raise BadMachine(
                f"there is no placement '{placement}'",
                object="placement",
                number=placement,
                remedy=f"use {', '.join(PLACEMENTS)}",
            )
        if self._graph and (self._backend.arena_only or self._timings):
            raise BadMachine(
                "a CUDA graph runs on a CUDA device and in one piece",
                object="graph",
                remedy="leave out the graph, or the timings of ops",
            )
        if self._backend.arena_only:
            return "arena"
        ours = own_allocator.current() is not None
        if ours and placement == "allocator":
            raise BadMachine(
                "this process has our allocator in place of PyTorch's",
                object="placement",
                number=placement,
                remedy="use 'planned', or don't install it",
            )
        return placement or ("planned" if ours else "allocator")

    def _name(self, rank: int) -> str:
        return self.captured.program.op_name[self.script.steps[rank].call.op]

    def _add_rooms(self) -> None:
        """Room on the host for inputs and for what is copied out."""
        sizes = self.captured.program.storage_bytes
        inputs = [given.tensor for given in self.captured.given if given.kind == TensorKind.INPUT]
        rows = {tensor: int(sizes[tensor]) for tensor in (*inputs, *self.script.moved)}
        memory = HostMemory(self._backend.pinned, sum(rows.values()))
        for tensor, size in rows.items():
            if tensor not in self._host:
                self._host[tensor] = memory.take(size)

    def _residents(self) -> list[Any]:
        """Slots with the weights that stay between runs, and with tensors of no bytes."""
        values: list[Any] = [None] * self.captured.program.n_tensors
        for number, residency in enumerate(self.script.residencies):
            if residency.first < 0:
                layout = self._layouts[residency.tensor]
                room = self._placement.room(number, layout)
                self._placement.row(number, room, layout).copy_(self._host[residency.tensor])
                values[residency.tensor] = room
        for tensor, layout in self._layouts.items():
            if not layout.bytes:
                values[tensor] = self._empty(layout)
        self._backend.settle()
        return values

    def _empty(self, layout: Layout) -> Any:
        return self._torch.empty(layout.size, dtype=layout.dtype, device=self._backend.device)

    def run(self, *inputs: Any) -> Results:
        """One pass over the inputs (tensors for `captured.given` of kind INPUT, in order)."""
        backend, leaves = self._backend, self.script.leaves
        self._take(inputs)
        spans: list[Span] = []
        with (
            self._guarded(),
            self._torch.inference_mode(),
            backend.held_to(self.capacity),
            self._placement.running(),
        ):
            if self._graph and self._replayed is None:
                self._replayed = captured_run(self._walk, self._kept)
                self._graph_peaks = backend.peaks()
            start = backend.now()
            if self._replayed is None:
                values = self._walk.run(self._kept, spans)
            else:
                self._replayed[0].replay()
                values = self._replayed[1]
            end = backend.now()
            backend.settle()
            found = [self._value(leaf, values) for leaf in leaves]
        seconds = backend.seconds(start, end)
        peaks = self._placement.peaks()
        if peaks is None:
            allocated, reserved = backend.peaks()
            peaks = max(allocated, self._graph_peaks[0]), max(reserved, self._graph_peaks[1])
        by_what: dict[str, list[tuple[str, Any]]] = {}
        for leaf, value in zip(leaves, found, strict=True):
            kind = "output" if leaf.what == "loss" else leaf.what
            by_what.setdefault(kind, []).append((leaf.name, value))
        return Results(
            outputs=tuple(value for _, value in by_what.get("output", [])),
            gradients=gradients_of(self.captured.results, found),
            updates=dict(by_what.get("update", [])),
            seconds=seconds,
            peak_bytes=peaks[0] or self.script.peak,
            reserved_bytes=peaks[1] or self.script.peak,
            op_seconds={op: (backend.seconds(start, a), backend.seconds(start, b)) for op, a, b in spans},
        )

    def measure(self, *inputs: Any, repeats: int = 5, warmups: int = 2) -> Measured:
        """Times of several runs; the median is the one to quote."""
        for _ in range(warmups):
            self.run(*inputs)
        seconds: list[float] = []
        peak = reserved = 0
        last: Results | None = None
        for _ in range(max(1, repeats)):
            last = None  # what it keeps on the device must not count twice
            last = self.run(*inputs)
            seconds.append(last.seconds)
            peak, reserved = max(peak, last.peak_bytes), max(reserved, last.reserved_bytes)
        assert last is not None
        return Measured(seconds, peak, reserved, last)

    def close(self) -> None:
        """Give the device's memory back."""
        self._backend.close()
        self._kept, self._replayed, self._host = [], None, {}
        del self._walk, self._placement

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self, inputs: tuple[Any, ...]) -> None:
        """Inputs into their room on the host."""
        expected = [given for given in self.captured.given if given.kind == TensorKind.INPUT]
        if len(inputs) != len(expected):
            raise BadProgram(
                f"'{self.captured.program.name}' takes {len(expected)} inputs and got {len(inputs)}",
                object=self.captured.program.name,
                number=len(inputs),
                remedy="give one tensor for each input",
            )
        for given, (shape, dtype), value in zip(expected, self._shapes, inputs, strict=True):
            if (tuple(value.shape), value.dtype) != (shape, dtype):
                raise BadProgram(
                    f"input '{given.node}' is {value.dtype} {tuple(value.shape)} and was "
                    f"captured as {dtype} {shape}",
                    object=given.node,
                    remedy="capture the module with such inputs",
                )
            value = own_layout(value.detach())
            layout = self._layouts[given.tensor] = layout_of(value)
            self._host[given.tensor][: layout.bytes].copy_(flat(value, layout))
            if not layout.bytes:
                self._kept[given.tensor] = self._empty(layout)

    def _value(self, leaf: Leaf, values: list[Any]) -> Any:
        """One of the results, from where it ended."""
        if leaf.root < 0:
            tensor = self._handed_back.get(leaf.node)
            if tensor is not None and tensor not in self._host:
                raise BadProgram(
                    f"the model returns '{leaf.node}', which it never reads",
                    object=leaf.node,
                    remedy="leave it out of what the module returns",
                )
            return None if tensor is None else shaped(self._host[tensor], self._layouts[tensor])
        if leaf.at_host:
            root = shaped(self._host[leaf.root], self._layouts[leaf.root])
        else:
            root = values[leaf.root]
        return shown(leaf, root)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Memory that does not suffice is told in one line; after any error nothing runs on."""
        try:
            yield
        except Exception as error:
            self._backend.settle()
            # Where memory ends while a CUDA graph is captured, the capture's own error hides that.
            if isinstance(error, Refused) or not own_allocator.is_shortage(error):
                raise
            clear_frames(error.__traceback__)  # they hold what was made on the device so far
            reserved = self._backend.peaks()[1]
            raise Refused(
                f"the device ran out of its {show_bytes(self.capacity)}: the plan fills "
                f"{show_bytes(self.script.peak)} and the allocator held {show_bytes(reserved)}",
                object="capacity",
                number=self.capacity,
                remedy=HOLES if self.placement == "allocator" else ROOM,
            ) from error


def backend_for(device: Any, delay: Callable[[], float] | None = None) -> Backend:
    """The backend of a device by name: 'cpu', 'cuda' or 'cuda:1'."""
    kind = str(device).partition(":")[0]
    if kind not in ("cpu", "cuda"):
        raise BadMachine(
            f"there is no device '{device}'",
            object="device",
            number=str(device),
            remedy="use cpu, cuda or cuda:1",
        )
    return CpuBackend(delay) if kind == "cpu" else CudaBackend(device)


def captured_run(walk: Walk, kept: list[Any]) -> tuple[Any, list[Any]]:
    """A walk as a CUDA graph, and the values that its replays leave. Ordinary runs come first: they
    set up what kernels need only once."""
    torch = require("torch", "torch")
    for _ in range(2):  # the first one shows where results are made, the second makes them in place
        walk.run(kept, [])
        walk.backend.settle()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=walk.placement.stream):
        values = walk.run(kept, [])
    return graph, values
