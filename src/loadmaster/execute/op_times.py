"""Every op's time where it runs: whole passes with everything resident, with marks between ops.

    times = measure_ops(captured, weights, inputs, torch.device("cuda"))

Marks cost a little. What they add is taken off by measuring the pass without any: as a CUDA graph
where the ops allow it, where the host can't be the limit either.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.errors import BadProgram, LoadmasterError, require
from loadmaster.files import replacing
from loadmaster.program.measured_costs import FORMAT, costless_hash
from loadmaster.program.program import Program, TensorKind
from loadmaster.units import PICOSECONDS

_SLEEP_HZ = 2.0e9
"""Cycles per second that a sleeping GPU counts, at most."""
_LONGEST_SLEEP = 2.0


def checked_device(name: str) -> Any:
    """A torch device that is there, or an error that says what is missing."""
    torch = require("torch", "torch")
    kind = name.partition(":")[0]
    if kind not in ("cuda", "cpu"):
        raise LoadmasterError(
            f"there is no device '{name}' to run on", object="--device", number=name, remedy="use cuda or cpu"
        )
    if kind == "cuda" and not torch.cuda.is_available():
        raise LoadmasterError(
            "this computer has no CUDA device that PyTorch can use",
            object=name,
            remedy="use --device cpu, or run where an NVIDIA GPU is",
        )
    return torch.device(kind, torch.cuda.current_device()) if name == "cuda" else torch.device(name)


class Clock:
    """Measures on one device."""

    def __init__(self, device: Any) -> None:
        self.torch = require("torch", "torch")
        self.device = device
        self.is_cuda = device.type == "cuda"

    def wait(self) -> None:
        """Until everything that was asked of the device is done."""
        if self.is_cuda:
            self.torch.cuda.synchronize(self.device)

    def seconds(
        self, work: Callable[[], object], *, repeats: int = 5, warmups: int = 2, ahead: bool = False
    ) -> list[float]:
        """Each repeat's seconds. `ahead`: the device is kept waiting until the host has asked for
        (nearly) everything, so that what the host needs for asking does not count."""
        asking = 0.0
        for _ in range(warmups):
            self.wait()
            began = time.perf_counter()
            work()
            asking = time.perf_counter() - began
            self.wait()
        return [self._once(work, asking if ahead else 0.0) for _ in range(repeats)]

    def _once(self, work: Callable[[], object], asking: float) -> float:
        if not self.is_cuda:
            began = time.perf_counter()
            work()
            return time.perf_counter() - began
        begin, end = self.event(), self.event()
        self.wait()
        self.hold_back(asking)
        begin.record()
        work()
        end.record()
        self.wait()
        return float(begin.elapsed_time(end)) / 1e3

    def loaded_seconds(self, work: Callable[[], object], before: int, repeats: int) -> float:
        """Seconds of one repeat, of several without a pause after so many that don't count (CUDA only)."""
        begin, end = self.event(), self.event()
        for _ in range(before):
            work()
        begin.record()
        for _ in range(repeats):
            work()
        end.record()
        self.wait()
        return float(begin.elapsed_time(end)) / 1e3 / repeats

    def event(self) -> Any:
        """An event that keeps its time (CUDA only)."""
        return self.torch.cuda.Event(enable_timing=True)

    def hold_back(self, seconds: float) -> None:
        """Let the device wait about so long before the work that is asked of it next."""
        if self.is_cuda and seconds > 0:
            self.torch.cuda._sleep(int(min(1.5 * seconds, _LONGEST_SLEEP) * _SLEEP_HZ))


def median(values: Sequence[float]) -> float:
    """The middle one: of an even number the lower, which was measured."""
    return sorted(values)[(len(values) - 1) // 2]


_MOST_PER_MARK = 2e-6
"""Seconds that one mark may have cost; what is left over has other causes and is spread."""


@dataclass(frozen=True)
class OpTimes:
    """Times of one model's ops on one device, everything resident."""

    picoseconds: npt.NDArray[np.int64]
    """[n] corrected so that they add up to `whole_seconds`; views take none."""
    marked_seconds: float
    """The pass with marks: the sum of the raw times."""
    eager_seconds: float
    """The pass asked for op by op, without marks."""
    graph_seconds: float | None
    """The pass as one CUDA graph; None where that can't be."""
    op_workspace: npt.NDArray[np.int64]
    """[n] bytes that each op needed for itself while it ran."""
    kept_bytes: int
    """Bytes that libraries keep once they were used (cuBLAS' workspaces)."""
    peak_bytes: int
    """The most that was allocated in a pass, weights included."""
    notes: tuple[str, ...] = field(default=())

    @property
    def whole_seconds(self) -> float:
        """A pass in which the device never waits for the host."""
        return (
            min(self.marked_seconds, self.eager_seconds) if self.graph_seconds is None else self.graph_seconds
        )

    @property
    def workspace_bytes(self) -> int:
        """Room that a plan must leave."""
        return int(self.op_workspace.max(initial=0)) + self.kept_bytes


def player(captured: Any, watch: Callable[[int, bool], None] | None = None) -> Any:
    """An interpreter of the captured graph that drops values after their last use. `watch` is
    called with an op's number before it runs, with False, and after, with True."""
    from torch.fx import Interpreter
    from torch.nn import Module

    number = {node: op for op, node in enumerate(captured.op_node)}

    class Player(Interpreter):  # type: ignore[misc, unused-ignore]
        def run_node(self, node: Any) -> Any:
            op = number.get(node.name)
            if op is None or watch is None:
                return super().run_node(node)
            watch(op, False)
            result = super().run_node(node)
            watch(op, True)
            return result

    return Player(Module(), graph=captured.graph)


def arguments(captured: Any, weights: Mapping[str, Any], inputs: Sequence[Any]) -> list[Any]:
    """The values of the graph's placeholders, in their order; `inputs` are its tensors alone."""
    known = {**captured.constants, **weights}
    rest = iter(inputs)
    value: dict[str, Any] = {}
    for given in captured.given:
        if given.kind == TensorKind.INPUT:
            value[given.node] = next(rest)
        elif given.source in known:
            whole = known[given.source]
            value[given.node] = whole if given.rows is None else whole[slice(*given.rows)]
        elif given.tensor >= 0:
            raise BadProgram(
                f"there is no value for '{given.source}'",
                object=given.source,
                remedy="give every parameter and buffer of the module",
            )
    # What has no value here is a number or a flag, or is read by nobody.
    return [value.get(node.name) for node in captured.graph.nodes if node.op == "placeholder"]


def measure_ops(
    captured: Any,
    weights: Mapping[str, Any],
    inputs: Sequence[Any],
    device: Any,
    *,
    passes: int = 7,
    graph: bool = True,
) -> OpTimes:
    """Weights by name and inputs in order, all on the device already."""
    clock = Clock(device)
    notes: list[str] = []
    values = arguments(captured, weights, inputs)
    with clock.torch.no_grad():
        workspace, kept, peak = _workspaces(clock, captured, values)
        plain = player(captured)
        eager = median(clock.seconds(lambda: plain.run(*values), repeats=passes))

        def as_graph() -> float | None:
            try:
                return _as_graph(clock, lambda: plain.run(*values), passes)
            except RuntimeError as error:
                notes.append(f"no CUDA graph: {str(error).splitlines()[0]}")
                return None

        def mark() -> npt.NDArray[np.float64]:
            return _marked(clock, captured, values, passes)

        whole = None
        if clock.is_cuda:
            marked, whole, note = agreeing(mark, as_graph if graph else lambda: None)
            notes += note
        else:
            marked = mark()
    raw = np.median(marked, axis=0)
    seconds = corrected(raw, min(eager, float(raw.sum())) if whole is None else whole)
    seconds[captured.program.op_view] = 0
    return OpTimes(
        np.round(seconds * PICOSECONDS).astype(np.int64),
        float(raw.sum()),
        eager,
        whole,
        workspace,
        kept,
        peak,
        tuple(notes),
    )


_UNEVEN = 1.5
_GRAPH_SHARE = 0.5
_ATTEMPTS = 3


def agreeing(
    mark: Callable[[], npt.NDArray[np.float64]], as_graph: Callable[[], float | None]
) -> tuple[npt.NDArray[np.float64], float | None, list[str]]:
    """Marked passes `[passes, n]` and the pass as one graph, measured again while they contradict each other.

    Passes of which the middle one takes far longer than the shortest share the device with something else: then
    nothing is known, and they are refused. A graph that takes less than half of its ops' time did not run
    them all: it is not used, and a note says so.
    """
    spread, note = 1.0, ""
    for _ in range(_ATTEMPTS):
        marked = mark()
        sums = marked.sum(axis=1)
        spread = float(np.median(sums) / sums.min()) if sums.min() > 0 else 1.0
        if spread > _UNEVEN:
            continue
        whole, raw = as_graph(), np.median(marked, axis=0)
        least = float(raw.sum()) - _MOST_PER_MARK * int((raw > 0).sum())
        if whole is None or whole >= _GRAPH_SHARE * least:
            return marked, whole, []
        note = (
            f"as a CUDA graph a pass took {whole * 1e3:.3g} ms and its ops one by one {raw.sum() * 1e3:.3g} ms: "
            "the graph's time is not used"
        )
    if not note or spread > _UNEVEN:
        raise LoadmasterError(
            f"passes of the same ops differ: the middle one took {spread:.1f} times as long as the shortest",
            object="calibrate",
            number=spread,
            remedy="calibrate while no other process uses the device",
        )
    return marked, None, [note]


def corrected(raw: npt.NDArray[np.float64], whole: float) -> npt.NDArray[np.float64]:
    """Times between marks, made to add up to the pass without marks: first each mark's own cost is
    taken off, up to a limit and never more than 70 % of an op; the rest is a common factor."""
    timed = raw > 0
    surplus = raw.sum() - whole
    if surplus > 0 and timed.any():
        each = min(surplus / int(timed.sum()), _MOST_PER_MARK)
        raw = np.where(timed, np.maximum(raw - each, 0.3 * raw), 0.0)
    total = raw.sum()
    return raw * (whole / total) if total > 0 else raw


def _marked(clock: Clock, captured: Any, values: list[Any], passes: int) -> npt.NDArray[np.float64]:
    """[passes, n] seconds of each op; views have none."""
    views, n = captured.program.op_view, captured.program.n_ops
    found = np.zeros((passes, n))
    asking = 0.0
    for number in range(-1, passes):  # the first one warms up
        marks: dict[tuple[int, bool], Any] = {}

        def watch(op: int, after: bool, marks: dict[tuple[int, bool], Any] = marks) -> None:
            if views[op]:
                return
            if clock.is_cuda:
                marks[op, after] = mark = clock.event()
                mark.record()
            else:
                marks[op, after] = time.perf_counter()

        marking = player(captured, watch)
        clock.wait()
        clock.hold_back(asking)
        began = time.perf_counter()
        marking.run(*values)
        asking = time.perf_counter() - began
        clock.wait()
        if number < 0:
            continue
        for op in np.flatnonzero(~views).tolist():
            begin, end = marks[op, False], marks[op, True]
            found[number, op] = begin.elapsed_time(end) / 1e3 if clock.is_cuda else end - begin
    return found


def _as_graph(clock: Clock, work: Callable[[], object], passes: int) -> float:
    """Seconds of the work captured once and replayed."""
    torch = clock.torch
    graph = torch.cuda.CUDAGraph()
    side = torch.cuda.Stream(clock.device)
    side.wait_stream(torch.cuda.current_stream(clock.device))
    with torch.cuda.stream(side):
        work()  # libraries set themselves up outside of the capture
    torch.cuda.current_stream(clock.device).wait_stream(side)
    clock.wait()
    with torch.cuda.graph(graph):
        kept = work()
    seconds = median(clock.seconds(graph.replay, repeats=passes))
    del kept, graph
    return seconds


def _workspaces(clock: Clock, captured: Any, values: list[Any]) -> tuple[npt.NDArray[np.int64], int, int]:
    """(bytes of each op for itself, bytes that stay afterwards, peak of the pass)."""
    own = np.zeros(captured.program.n_ops, dtype=np.int64)
    if not clock.is_cuda:
        player(captured).run(*values)
        return own, 0, 0
    cuda = clock.torch.cuda
    before = cuda.memory_allocated(clock.device)
    player(captured).run(*values)
    clock.wait()
    kept = max(0, cuda.memory_allocated(clock.device) - before)
    cuda.reset_peak_memory_stats(clock.device)
    peak = before

    def watch(op: int, after: bool) -> None:
        nonlocal peak
        if after:
            most = cuda.max_memory_allocated(clock.device)
            own[op] = most - cuda.memory_allocated(clock.device)
            peak = max(peak, most)
        else:
            cuda.reset_peak_memory_stats(clock.device)

    player(captured, watch).run(*values)
    clock.wait()
    return own, kept, peak


def cost_document(
    program: Program, times: OpTimes, device: str, slowdown: Mapping[str, float]
) -> dict[str, Any]:
    """What a cost file holds."""
    return {
        "loadmaster_costs": FORMAT,
        "program": costless_hash(program),
        "device": device,
        "picoseconds": times.picoseconds.tolist(),
        "workspace_bytes": times.workspace_bytes,
        "kept_bytes": times.kept_bytes,
        "op_workspace": times.op_workspace.tolist(),
        "marked_seconds": times.marked_seconds,
        "eager_seconds": times.eager_seconds,
        "graph_seconds": times.graph_seconds,
        "peak_bytes": times.peak_bytes,
        "copy_slowdown": dict(slowdown),
        "notes": list(times.notes),
    }


def write_cost_file(document: Mapping[str, Any], path: Path) -> None:
    """Write to a temporary file, then rename."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(document) + "\n", encoding="utf-8")
