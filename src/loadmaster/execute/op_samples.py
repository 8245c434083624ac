"""Times and workspaces of a captured graph's ops, measured one distinct op at a time.

    samples = sample_ops(captured, "cuda", cache=cache_folder(), say=print)
    costs = samples.costs(captured.program, machine.devices[0].name)

So no more memory is needed than that of one op, though the model itself may not fit, and equal layers are
measured once. Ops are distinct if they call something else, or with other numbers, or with tensors that
differ in type, shape, strides or alignment. What the tensors hold is made up.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from loadmaster.errors import LoadmasterError, require
from loadmaster.execute import own_allocator
from loadmaster.execute.measured_cache import MeasuredCache, describe_device
from loadmaster.execute.op_times import Clock, checked_device, median
from loadmaster.execute.op_values import Fill, Operand, fills_of, make_tensor, operand_of
from loadmaster.execute.script import Call, Calls, Slot, slots_of
from loadmaster.execute.walk import called
from loadmaster.offload.model import LIBRARIES
from loadmaster.program.importers.torch.captured import Captured
from loadmaster.program.importers.torch.graph import has_effects
from loadmaster.program.measured_costs import MeasuredCosts, costless_hash
from loadmaster.program.program import COMPUTED, Program
from loadmaster.search.request import say_nothing
from loadmaster.units import PICOSECONDS, show_bytes

Int64 = npt.NDArray[np.int64]

BATCHES = 5
LEAST_LAUNCHES, MOST_LAUNCHES = 5, 200
_WORK = 1e-3
"""Seconds of device work that a measurement takes, about."""
_ENOUGH = 0.05
"""Seconds after which a measurement on a CPU ends before it has all of its launches: something else has kept it."""
_LOAD, _HEAVY, _MATTERS = 0.06, 2e-4, 2e-3
"""Seconds. A device that has worked for some time runs slower than for a moment: ops that take at least `_HEAVY` each, and
`_MATTERS` together, are timed after `_LOAD` of their own work."""
_ROTATED = 2**27
"""Bytes that repeats go round in, so that no cache holds them: more than twice the largest L2."""
_GRAIN = 512
"""What both allocators round to."""
_UNSTEADY = 1.5
_CHECKED = 4
"""Ops that most of the time goes to, of which two measurements must agree."""
_TRIES = 5
"""So often is an op measured at most for that."""
_JITTER = PICOSECONDS // 10**6
"""Picoseconds by which two measurements of one op may differ, beside the factor."""
_LONGEST = 100 * PICOSECONDS
_MOST_WORKSPACE = 2**44
_MOST_ENTRIES = 100_000


@dataclass(frozen=True, eq=False)
class DistinctOp:
    """Ops of a program that are measured as one."""

    name: str
    """Of the first of them."""
    call: Call
    """Of the first of them."""
    operands: Mapping[int, Operand]
    """By slot of the call."""
    result_bytes: tuple[int, ...]
    """Storage of each result."""
    fills: Mapping[int, Fill]
    """How operands are filled that random numbers, or zeros, would not do for; by slot."""
    key: str
    """Of its signature; empty: it can't be known again, so it is not kept."""
    ops: list[int] = field(default_factory=list)

    @property
    def first(self) -> int:
        """The number of the first of them."""
        return self.call.op

    @property
    def bytes(self) -> int:
        """Of all that it reads and makes."""
        sizes = [*(operand.bytes for operand in self.operands.values()), *self.result_bytes]
        return sum(-(-size // _GRAIN) * _GRAIN for size in sizes)


def distinct_ops(captured: Captured, device: Any) -> list[DistinctOp]:
    """The distinct ops of a graph, views left out, in the order of their first ones."""
    calls, program = Calls(captured, device), captured.program
    tensors = _fake_tensors(captured)
    found: dict[str, DistinctOp] = {}
    for op in np.flatnonzero(~program.op_view).tolist():
        call = calls.call(op)
        slots = list(dict.fromkeys(slots_of((call.args, call.kwargs))))
        operands = {slot: operand_of(tensors[slot]) for slot in slots}
        sizes = tuple(int(program.storage_bytes[slot]) for _, slot in call.results)
        text = _signature(call, operands)
        same = text or f"op {op}"
        if same not in found:
            fills = fills_of(call, operands)
            known = text + json.dumps([[slots.index(slot), *fill] for slot, fill in fills.items()])
            key = hashlib.sha256(known.encode()).hexdigest()[:32] if text and _is_stable(call) else ""
            found[same] = DistinctOp(program.op_name[op], call, operands, sizes, fills, key)
        found[same].ops.append(op)
    return list(found.values())


def _fake_tensors(captured: Captured) -> dict[int, Any]:
    """The tracer's tensor of each tensor of the program."""
    nodes = {node.name: node for node in captured.graph.nodes}
    found: dict[int, Any] = {}
    for (name, part), tensor in captured.tensor_at.items():
        value = nodes[name].meta["val"]
        parts = (
            [each for each in value if hasattr(each, "dtype")] if isinstance(value, list | tuple) else [value]
        )
        found.setdefault(tensor, parts[part])
    for pairs in captured.renamed.values():
        found |= {new: found[old] for old, new in pairs.items()}
    return found


def _signature(call: Call, operands: Mapping[int, Operand]) -> str:
    """All that tells ops apart, as text; empty: there is an argument that has no text."""
    number = {slot: place for place, slot in enumerate(operands)}
    try:
        parts = [
            str(call.target),
            [_described(each, number) for each in call.args],
            {name: _described(each, number) for name, each in sorted(call.kwargs.items())},
            [[str(o.dtype), o.shape, o.stride, o.alignment] for o in operands.values()],
        ]
    except TypeError:
        return ""
    return json.dumps(parts)


def _described(value: Any, number: Mapping[int, int]) -> Any:
    torch = require("torch", "torch")
    if isinstance(value, Slot):
        return {"tensor": number[value.number]}
    if isinstance(value, list | tuple):
        return [_described(each, number) for each in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.device):
        return {"device": ""}  # the one that is measured
    if isinstance(value, torch.SymInt):
        return int(value)
    if isinstance(value, complex | torch.dtype | torch.layout | torch.memory_format):
        return {"value": str(value)}
    raise TypeError(type(value))


def _is_stable(call: Call) -> bool:
    """Whether an op is PyTorch's, whose version is known, or made of it: what others do may change at any time."""
    return getattr(call.target, "namespace", "") in ("aten", "prims", "loadmaster")


class Sample(NamedTuple):
    """What was measured of one distinct op."""

    picoseconds: int
    workspace: int


class Sampler(Protocol):
    """Measures ops; tests have one without a clock."""

    memory: int
    """Bytes that an op and what it works on may take."""
    kept_bytes: int
    """What libraries keep for good, as far as is known now."""

    def running(self) -> Any:
        """A context: all measurements happen within one."""
        ...

    def measure(self, op: DistinctOp) -> Sample:
        """Any error: it can't be measured."""
        ...


class Counter(Protocol):
    """Counts the bytes of a device that are held."""

    grain: int
    """Sizes are counted in multiples of it."""

    def held(self) -> int: ...

    def restart(self) -> None:
        """What comes from the allocator from now on is counted as it is asked for, and `most` anew."""
        ...

    def most(self) -> int: ...

    def release(self) -> None:
        """What nobody holds goes back to the device."""
        ...

    def hold_to(self, count: int | None) -> None:
        """No more bytes than these are taken from now on; None: as many as there are."""
        ...


class OwnCounter:
    """Of our own allocator, which reuses cached blocks that are up to a quarter too large: so there are none."""

    grain = _GRAIN

    def __init__(self, own: Any) -> None:
        self._own = own

    def held(self) -> int:
        return int(self._own.held)

    def restart(self) -> None:
        self._own.release()
        self._own.reset_most()

    def most(self) -> int:
        return int(self._own.most)

    def release(self) -> None:
        self._own.release()

    def hold_to(self, count: int | None) -> None:
        self._own.hold_to(count)


class TorchCounter:
    """Of PyTorch's own allocator, whose blocks may be larger than what was asked for by up to 1 MiB: where it
    knows what was asked for, that counts."""

    def __init__(self, cuda: Any, device: Any) -> None:
        self._cuda, self._device = cuda, device
        exact = cuda.get_allocator_backend() == "native" and "requested_bytes.all.peak" in self._stats()
        self._name, self.grain = ("requested_bytes", 1) if exact else ("allocated_bytes", _GRAIN)

    def _stats(self) -> Mapping[str, int]:
        try:
            found: Mapping[str, int] = self._cuda.memory_stats(self._device)
        except RuntimeError:  # another allocator than PyTorch's own, which counts nothing
            return {}
        return found

    def held(self) -> int:
        return int(self._stats().get(f"{self._name}.all.current", 0))

    def restart(self) -> None:
        with suppress(RuntimeError):
            self._cuda.reset_peak_memory_stats(self._device)

    def most(self) -> int:
        return int(self._stats().get(f"{self._name}.all.peak", 0))

    def release(self) -> None:
        self._cuda.empty_cache()

    def hold_to(self, count: int | None) -> None:
        whole = self._cuda.get_device_properties(self._device).total_memory
        part = 1.0 if count is None else min(1.0, count / whole)
        self._cuda.set_per_process_memory_fraction(part, self._device)


def workspace_of(
    counter: Counter, work: Callable[[], Any], result_bytes: Sequence[int], wait: Callable[[], None]
) -> int:
    """Bytes that work takes beside its results, as they are in the program and as they are really held: never
    fewer than it asks for."""
    counter.restart()
    before = counter.held()
    results = work()
    wait()
    most, after = counter.most(), counter.held()
    del results
    made = sum(-(-size // counter.grain) * counter.grain for size in result_bytes)
    return max(0, most - after, most - before - made)


class DeviceSampler:
    """Measures ops on a device."""

    def __init__(self, device: Any, memory: int | None = None) -> None:
        self.clock = Clock(device)
        self._torch, self._stream, self.kept_bytes = self.clock.torch, None, 0
        self._counter: Counter | None = None
        if self.clock.is_cuda:
            own = own_allocator.current()
            if own is not None:
                made = own_allocator.compute(device)
                self._stream, self.kept_bytes = made.stream, made.kept_bytes
                self._counter = OwnCounter(own)
            else:
                self._torch.cuda.init()
                self._counter = TorchCounter(self._torch.cuda, device)
        self._limit, self.memory = memory, self._available() if memory is None else memory
        self._random: Any = None

    def _available(self) -> int:
        if self._counter is None:
            return _host_available()
        self.clock.wait()
        self._counter.release()
        return int(self._torch.cuda.mem_get_info(self.clock.device)[0])

    @contextmanager
    def running(self) -> Iterator[None]:
        torch, device, counter = self._torch, self.clock.device, self._counter
        with ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.simplefilter("ignore")
            stack.enter_context(torch.inference_mode())
            if counter is not None:
                stack.enter_context(torch.cuda.device(device))
            # Ops that draw numbers draw none of the user's.
            stack.enter_context(torch.random.fork_rng([] if counter is None else [device.index]))
            if self._stream is not None:
                stack.enter_context(own_allocator.on_compute(self._stream))
            self._random = torch.Generator(device).manual_seed(0)
            self.clock.wait()
            before = 0 if counter is None else counter.held()
            if counter is not None:
                counter.hold_to(self._limit)
            try:
                yield
            finally:
                if counter is not None:
                    counter.hold_to(None)
                    self.clock.wait()
                    # A second round finds what the first has left: it is counted once.
                    self.kept_bytes += max(0, counter.held() - before)
                    counter.release()

    def set_up(self, op: DistinctOp) -> None:
        """Run an op once, so that libraries make what they keep."""
        called(op.call, self._values(op))
        self.clock.wait()

    def measure(self, op: DistinctOp) -> Sample:
        clock, first = self.clock, self._values(op)
        called(op.call, first)  # libraries set themselves up
        clock.wait()
        workspace = 0
        if self._counter is not None:
            workspace = workspace_of(
                self._counter, lambda: called(op.call, first), op.result_bytes, clock.wait
            )
        rough = clock.seconds(lambda: called(op.call, first), repeats=1, warmups=1, ahead=True)[0]
        launches = launches_of(rough)
        together = max(1, launches // BATCHES)
        sets = self._sets(op, first, together * BATCHES, workspace)
        results: list[Any] = [None] * len(sets)
        turns = cycle(range(len(sets)))

        def work(count: int = together) -> None:
            for _ in range(count):
                turn = next(turns)
                results[turn] = None
                results[turn] = called(op.call, sets[turn])

        if not clock.is_cuda:
            seconds = self._fastest(lambda: work(1), launches)
            return Sample(min(max(1, round(seconds * PICOSECONDS)), _LONGEST), workspace)
        work(len(sets))  # from here on every allocation finds a block
        if rough >= _HEAVY and rough * len(op.ops) >= _MATTERS:
            seconds = clock.loaded_seconds(work, math.ceil(_LOAD / (rough * together)), BATCHES) / together
        else:  # a device's own times vary
            seconds = median(clock.seconds(work, repeats=BATCHES, warmups=1, ahead=True)) / together
        return Sample(min(max(1, round(seconds * PICOSECONDS)), _LONGEST), workspace)

    def _fastest(self, work: Callable[[], None], launches: int) -> float:
        """Seconds of one launch on a CPU: what else runs there makes ops slower, never faster. Where much does, fewer
        launches have to do."""
        times: list[float] = []
        while len(times) < 2 or (len(times) < launches and sum(times) < _ENOUGH):
            times += self.clock.seconds(work, repeats=1, warmups=0)
        return min(times)

    def _sets(self, op: DistinctOp, first: dict[int, Any], most: int, workspace: int) -> list[dict[int, Any]]:
        """Arguments to go round in: as many as no cache holds, and as there is room for."""
        room = (self.memory - workspace) // 2
        count = max(1, min(most, -(-_ROTATED // max(1, op.bytes)), room // max(1, op.bytes)))
        sets = [first]
        try:
            while len(sets) < count:
                sets.append(self._values(op))
        except Exception as error:
            if not own_allocator.is_shortage(error):
                raise
            del sets[1:]
        return sets

    def _values(self, op: DistinctOp) -> dict[int, Any]:
        return {
            slot: make_tensor(operand, self.clock.device, self._random, op.fills.get(slot))
            for slot, operand in op.operands.items()
        }


def launches_of(seconds: float) -> int:
    """How often an op runs that takes about so long."""
    return int(min(max(_WORK / max(seconds, 1e-9), LEAST_LAUNCHES), MOST_LAUNCHES))


def _host_available() -> int:
    try:
        text = Path("/proc/meminfo").read_text(encoding="utf-8")
        return int(re.findall(r"^MemAvailable:\s+(\d+) kB", text, re.M)[0]) * 1024
    except (OSError, IndexError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


@dataclass(frozen=True, eq=False)
class OpSamples:
    """Times and workspaces of one program's ops on one device, each measured by itself."""

    picoseconds: Int64
    """[n] views take none; `COMPUTED`: it could not be measured."""
    op_workspace: Int64
    """[n] bytes that each op needs for itself while it runs."""
    kept_bytes: int
    """Bytes that libraries keep once they were used."""
    distinct: int
    measured: int
    """Distinct ops that were measured now; others were known, or could not be."""
    notes: tuple[str, ...] = ()

    @property
    def workspace_bytes(self) -> int:
        """Room that a plan must leave."""
        return int(self.op_workspace.max(initial=0)) + self.kept_bytes

    def costs(self, program: Program, device: str) -> MeasuredCosts:
        """For `apply_costs`, `kernel_room` and `PlanRequest.costs`; `device` is the machine's name for it."""
        return MeasuredCosts(
            costless_hash(program),
            device,
            tuple(None if each == COMPUTED else each for each in self.picoseconds.tolist()),
            self.workspace_bytes,
            self.kept_bytes,
            tuple(self.op_workspace.tolist()),
        )


def sample_ops(
    captured: Captured,
    device: Any,
    *,
    cache: Path | None = None,
    say: Callable[[str], None] = say_nothing,
    memory: int | None = None,
    sampler: Sampler | None = None,
) -> OpSamples:
    """Measure the ops of a captured graph that are not known yet.

    Args:
      device: 'cuda', 'cpu' or a torch device. Where our own allocator is to be used it is installed before.
      cache: the folder where measurements are kept (`cache_folder()`); None: nowhere.
      memory: bytes that an op, all that it reads and all that it makes may take; None: all that is free. What
        needs more is not measured: its time is computed from the machine's rates, which a note tells.
      sampler: measures in place of the device, for tests.

    Returns:
      times and workspaces by op. No error of an op ends this.
    """
    chosen = checked_device(str(device))
    ops, count = distinct_ops(captured, chosen), captured.program.n_ops
    own = DeviceSampler(chosen, memory) if sampler is None else None
    sampler = sampler or own
    assert sampler is not None
    store = None if cache is None else MeasuredCache(cache, "ops", describe_device(chosen))
    known, kept = read_samples(store)
    missing = [op for op in ops if op.key not in known]
    measured = Measurements()
    if missing:
        more = f", {len(ops) - len(missing):,} more are known" if len(missing) < len(ops) else ""
        say(f"measuring {len(missing):,} distinct ops of {count:,}{more}")
        measured = measure_steadily(sampler, missing)
    notes = [_note(op, measured.reasons[op.first]) for op in missing if op.first in measured.reasons]
    if not measured.steady:
        notes.append(
            f"one op took {measured.factor:.1f} times as long when measured again: something else uses the device"
        )
    if own is not None and chosen.type == "cuda":
        _set_up(own, [op for op in ops if op.key in known])
    kept = max(kept, sampler.kept_bytes)
    if chosen.type == "cuda" and not kept:
        kept = LIBRARIES  # they had it before: it can't be seen any more
    if store is not None and measured.samples and measured.steady:
        new = {
            op.key: measured.samples[op.first] for op in missing if op.key and op.first in measured.samples
        }
        fault = write_samples(store, new, kept)
        notes += [] if fault is None else [f"the measurements are not kept: {fault}"]
    picoseconds, workspace = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
    for op in ops:
        sample = known.get(op.key) or measured.samples.get(op.first)
        picoseconds[op.ops] = COMPUTED if sample is None else sample.picoseconds
        workspace[op.ops] = 0 if sample is None else sample.workspace
    return OpSamples(picoseconds, workspace, kept, len(ops), len(measured.samples), tuple(notes))


def _set_up(sampler: DeviceSampler, ops: Sequence[DistinctOp]) -> None:
    """What is known is not measured, but libraries must keep nothing for it within a plan."""
    with sampler.running():
        for op in ops:
            if op.bytes <= sampler.memory:
                with suppress(Exception):  # it can't be run with made-up values
                    sampler.set_up(op)


def _note(op: DistinctOp, reason: str) -> str:
    like = f" and {len(op.ops) - 1:,} like it" if len(op.ops) > 1 else ""
    return f"the time of '{op.name}'{like} is computed: {reason}"


@dataclass
class Measurements:
    """Of distinct ops, by the number of the first op of each."""

    times: dict[int, list[int]] = field(default_factory=dict)
    """Picoseconds of every measurement, the smallest first: what else uses the device makes ops slower, so that one counts."""
    workspace: dict[int, int] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    """Why there is no sample."""

    def add(self, op: DistinctOp, found: Sample | str) -> None:
        if isinstance(found, Sample):
            self.times[op.first] = sorted([*self.times.get(op.first, ()), found.picoseconds])
            self.workspace[op.first] = max(found.workspace, self.workspace.get(op.first, 0))
            self.reasons.pop(op.first, None)
        elif op.first not in self.times:
            self.reasons[op.first] = found

    @property
    def samples(self) -> dict[int, Sample]:
        return {first: Sample(times[0], self.workspace[first]) for first, times in self.times.items()}

    def doubtful(self, ops: Sequence[DistinctOp]) -> DistinctOp | None:
        """One that may take another time than is known: of those that most of the time goes to and those that were measured
        twice already."""
        longest = sorted(ops, key=lambda op: -self.times[op.first][0] * len(op.ops))
        for place, op in enumerate(longest):
            times = self.times[op.first]
            if len(times) == 1 and place < _CHECKED:
                return op
            if 1 < len(times) < _TRIES and _factor(*times[:2]) > _UNSTEADY:
                return op
        return None

    @property
    def factor(self) -> float:
        """The largest between the two smallest measurements of an op."""
        both = [times[:2] for times in self.times.values() if len(times) > 1]
        return max((_factor(*times) for times in both), default=1.0)

    @property
    def steady(self) -> bool:
        return self.factor <= _UNSTEADY


def _factor(one: int, other: int) -> float:
    low, high = sorted((one, other))
    return high / (low + _JITTER)


def measure_steadily(sampler: Sampler, ops: Sequence[DistinctOp]) -> Measurements:
    """Measure every op, and those that most of the time goes to until two measurements of each agree. Where the first or
    the last op takes another time at the end, the device was waking up or is busy: all of them once more."""
    found = Measurements()
    for _ in range(2):
        changed = False
        with sampler.running():
            for op in ops:
                found.add(op, _sample(sampler, op))
            done = [op for op in ops if op.first in found.times]
            before = found.samples
            for op in {op.first: op for op in done[:1] + done[-1:]}.values():
                again = _sample(sampler, op)
                found.add(op, again)
                if isinstance(again, Sample):
                    changed |= _factor(again.picoseconds, before[op.first].picoseconds) > _UNSTEADY
            for _ in range(_CHECKED * _TRIES):
                doubtful = found.doubtful(done)
                if doubtful is None:
                    break
                found.add(doubtful, _sample(sampler, doubtful))
        if not changed:
            break
    return found


def _sample(sampler: Sampler, op: DistinctOp) -> Sample | str:
    """What was measured, or why nothing was."""
    if op.bytes > sampler.memory:
        return f"it needs {show_bytes(op.bytes)} and may have {show_bytes(sampler.memory)}"
    if getattr(op.call.target, "is_loop", False):
        return "it may never end with values that are made up"
    if has_effects(op.call.target):
        return "what it does beside its results would be done with values that are made up"
    try:
        return sampler.measure(op)
    except LoadmasterError as error:
        return error.message
    except Exception as error:  # kernels have dozens of ways to say no
        return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def read_samples(cache: MeasuredCache | None) -> tuple[dict[str, Sample], int]:
    """Known samples by key, and what libraries keep; nothing if anything is wrong with the file."""
    content = {} if cache is None else cache.read()
    ops, kept = content.get("ops"), content.get("kept_bytes", 0)
    if not isinstance(ops, dict) or not _within(kept, 0, _MOST_WORKSPACE):
        return {}, 0
    found: dict[str, Sample] = {}
    for key, value in ops.items():
        plain = isinstance(value, list) and len(value) == 2 and re.fullmatch(r"[0-9a-f]{32}", key)
        if not plain or not _within(value[0], 1, _LONGEST) or not _within(value[1], 0, _MOST_WORKSPACE):
            return {}, 0
        found[key] = Sample(*value)
    return found, kept


def _within(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most


def write_samples(cache: MeasuredCache, new: Mapping[str, Sample], kept: int) -> str | None:
    """Add to what is kept, and to what others have added meanwhile; returns what went wrong."""
    known, before = read_samples(cache)
    ops = {**{key: known[key] for key in known if key not in new}, **new}
    latest = list(ops.items())[-_MOST_ENTRIES:]
    return cache.write({"kept_bytes": max(kept, before), "ops": {key: list(each) for key, each in latest}})
