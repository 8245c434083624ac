"""Models of the GPU suite on the device: made ready, then plans and peers measured and verified, one row each.

Peers need no captured graph, and PyTorch's own allocator, whose limit is the budget.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.suites import Row
from benchmarks.suites.gpu_folder import free
from benchmarks.suites.gpu_peers import PeerRun, Setting, measure_peer, owned
from benchmarks.suites.gpu_plans import GRAPH, Planned, roomy
from loadmaster.errors import LoadmasterError, Refused, require
from loadmaster.execute.executor import Executor
from loadmaster.execute.op_times import OpTimes, arguments, measure_ops, median, player
from loadmaster.execute.pinned import (
    HostMemory,
    HostWeights,
    RandomWeights,
    add_rooms,
    flat,
    given_shapes,
    host_weights,
    layout_of,
    made_up,
    own_layout,
    shaped,
)
from loadmaster.execute.ready import difference
from loadmaster.machine.machine import Machine
from loadmaster.program.importers.torch.captured import Captured, capture
from loadmaster.program.importers.torch.importer import made_on_meta
from loadmaster.program.program import TensorKind
from loadmaster.units import PICOSECONDS


@dataclass(frozen=True)
class Workload:
    """A captured model whose parameters have shapes and no data."""

    name: str
    training: bool
    build: Callable[[], tuple[Any, tuple[Any, ...]]]
    """(module, args), called with the meta device as the default."""
    captured: Captured
    device: Any

    def module(self) -> Any:
        """A new module on the meta device, in the mode in which it was captured."""
        return made_on_meta(self.build)[0].train(self.training)

    def setting(self, values: Mapping[str, Any], inputs: Sequence[Any], **more: Any) -> Setting:
        return Setting(self.module, values, inputs, self.device, self.training, **more)


def prepare(
    name: str,
    build: Callable[[], Any],
    device: Any,
    *,
    training: bool,
    split_over: int | None = None,
    batch_slices: int = 1,
) -> Workload:
    """Capture a model for a device; nothing is computed."""
    module, args = made_on_meta(build)[:2]
    captured = capture(
        module.train(training),
        args,
        name=name,
        training=training,
        split_over=split_over,
        batch_slices=batch_slices,
        device=device.type,
    )
    return Workload(name, training, build, captured, device)


def random_inputs(captured: Captured, device: Any, seed: int = 0) -> list[Any]:
    """The graph's input tensors."""
    shapes = given_shapes(captured)
    return inputs_like(
        [shapes[given.node] for given in captured.given if given.kind == TensorKind.INPUT], device, seed
    )


def inputs_like(shapes: Sequence[tuple[Sequence[int], Any]], device: Any, seed: int = 0) -> list[Any]:
    """Tensors of these shapes and types: floats are normal, integers 0 or 1, which every table has."""
    torch = require("torch", "torch")
    random = torch.Generator(device).manual_seed(seed)
    made = []
    for shape, dtype in shapes:
        if dtype.is_floating_point:
            value = torch.randn(shape, device=device, generator=random).to(dtype)
        else:
            value = torch.randint(0, 2, tuple(shape), device=device, generator=random).to(dtype)
        made.append(value)
    return made


def device_weights(workload: Workload) -> dict[str, Any]:
    """All weights by name, made up on the device."""
    made = RandomWeights(workload.captured, workload.device)
    return {name: made[name] for name in made}


@dataclass(frozen=True)
class Measured:
    """A model with everything resident."""

    times: OpTimes
    eager: PeerRun
    weight_bytes: int

    @property
    def activation_bytes(self) -> int:
        """What eager PyTorch needs beside the weights."""
        return max(0, self.eager.allocated - self.weight_bytes)


def measure_model(workload: Workload, *, passes: int = 7) -> Measured:
    """Every op's time, and the ordinary run."""
    weights, inputs = device_weights(workload), random_inputs(workload.captured, workload.device)
    captured = workload.captured
    times = measure_ops(captured, weights, inputs, workload.device, passes=passes)
    held = sum(value.numel() * value.element_size() for value in weights.values())
    eager = measure_peer("eager", workload.setting(weights, inputs))
    # The weights were there before: they are shared with the module and count.
    peak = eager.allocated + (held if workload.device.type == "cuda" else 0)
    return Measured(times, replace(eager, allocated=peak), held)


CLOSE = 0.02
"""Largest difference, as a share of the largest value, at which two kernels of one op still agree:
sums in 16 bits and with atomics depend on their order."""


class Bench:
    """A model with its weights in pinned host memory, for as many plans as there are. What plans copy out has
    its room there too, taken once."""

    def __init__(self, workload: Workload, machine: Machine) -> None:
        self.workload, self.machine = workload, machine
        self.torch = require("torch", "torch")
        device = workload.device
        weights = device_weights(workload)
        self.inputs = random_inputs(workload.captured, device)
        captured = workload.captured
        self._strict = True
        found = self._ordinary(weights)
        # What the ordinary run gives, in the order of the graph's results.
        self.expected = [_on_host(value) for value in found]
        steep = [
            float(value.abs().max())
            for role, value in zip(captured.results, self.expected, strict=True)
            if role.what == "gradient" and value is not None and value.numel()
        ]
        self.steepest = max(steep, default=0.0)
        """The largest value in any gradient."""
        del found
        self.ordinary_again: dict[str, Any] | None = None
        """How the ordinary step differs from itself, run a second time."""
        if workload.training:
            again = [value if hasattr(value, "detach") else None for value in self._ordinary(weights)]
            self.ordinary_again = self.compared(again, self.steepest)
            del again
        self._memory = HostMemory(pinned=device.type == "cuda")
        self.weights: HostWeights = host_weights(workload.captured, weights, self._memory)
        del weights
        self._again: tuple[tuple[int, ...], Captured, HostWeights] = ((), captured, self.weights)
        self.host_inputs = [value.cpu() for value in self.inputs]
        free(self.workload.device)

    def _ordinary(self, weights: Mapping[str, Any]) -> Any:
        """All results with everything resident."""
        captured = self.workload.captured
        try:
            with self.torch.no_grad(), self.repeatable():
                return player(captured).run(*arguments(captured, weights, self.inputs))
        except RuntimeError as error:
            if not self._strict or "deterministic" not in str(error):
                raise
            self._strict = False  # some op has no such kernel: the others may still have
            return self._ordinary(weights)

    def _bound(self, planned: Planned) -> tuple[Captured, HostWeights]:
        """The graph of a plan, with the ops that it runs again, and rows for what it moves."""
        assert planned.plan is not None
        captured, weights = self.workload.captured, self.weights
        if ops := tuple(planned.repeats):
            if self._again[0] != ops:  # what runs again has tensors of its own
                self._again = (ops, captured.repeated(ops), HostWeights(dict(weights.rows), weights.layouts))
            captured, weights = self._again[1:]
        add_rooms(weights, captured, planned.plan, self.machine.reach[0][0], self._memory)
        given = {each.tensor for each in captured.given}
        roots = {
            int(captured.program.tensor_alias[result.tensor])
            for result in captured.results
            if result.tensor >= 0
        }
        for tensor in (roots - given) & set(weights.rows):
            weights.rows[tensor].fill_(255)  # what an earlier plan left there must not be found
        return captured, weights

    def run_plan(
        self,
        planned: Planned,
        workspace: int,
        *,
        graph: bool = False,
        repeats: int = 5,
        baseline_ps: float | None = None,
    ) -> Row:
        """Execute a plan under its budget and compare it with the ordinary run and the simulation."""
        assert planned.plan is not None
        began = time.perf_counter()
        solver = planned.solver + (GRAPH if graph else "")
        extra: dict[str, Any] = {
            "percent": planned.percent,
            "simulated": planned.simulated_ps,
            "limit": planned.limit_ps,
            "capacity": planned.capacity,
            "planned_peak": planned.peak,
            "bytes_in": planned.bytes_in,
            "bytes_out": planned.bytes_out,
            "kind": "plan",
            "plan_seconds": planned.seconds,
            "half": planned.half_ps,
            "again": len(planned.repeats),
        }
        status, value, seconds = "ok", -1.0, []
        try:
            captured, weights = self._bound(planned)
            with Executor(
                captured,
                planned.plan,
                roomy(self.machine, planned.capacity),
                self.workload.device,
                weights,
                capacity=planned.capacity,
                workspace=workspace,
                graph=graph,
            ) as executor:
                exact = None if graph else self.verified_exactly(executor)
                measured = executor.measure(*self.host_inputs, repeats=repeats, warmups=2)
                seconds = list(measured.runs)
                extra |= {"peak": measured.peak_bytes, "reserved": measured.reserved_bytes}
                extra |= exact or self.verified(measured.last, self.steepest)
                if not extra["equal"]:
                    extra["ordinary_again"] = self.ordinary_again
        except (LoadmasterError, RuntimeError) as error:
            status, extra["reason"] = "failed", str(error).splitlines()[0]
        finally:
            free(self.workload.device)
        if seconds:
            value = median(seconds) * PICOSECONDS
            extra |= {
                "best": min(seconds) * PICOSECONDS,
                "worst": max(seconds) * PICOSECONDS,
                "repeats": len(seconds),
                "difference": planned.simulated_ps / value - 1,
            }
            if extra["largest_difference"] > CLOSE:
                status = "wrong"
            elif extra["peak"] > planned.capacity:
                status = "over the budget"
        return Row(
            f"{self.workload.name}@{planned.percent}",
            value,
            "ps",
            status,
            machine=self.machine.name,
            solver=solver,
            evaluations=planned.evaluations,
            seconds=time.perf_counter() - began,
            baseline=baseline_ps,
            bound=float(planned.bound_ps),
            gap=value / planned.bound_ps - 1 if planned.bound_ps and value > 0 else None,
            extra=extra,
        )

    def verified_exactly(self, executor: Executor) -> dict[str, Any] | None:
        """A run with kernels whose sums do not depend on chance, against the ordinary run with them; None
        where they need more memory than there is. Where even such kernels differ, what counts is the size of
        the difference."""
        try:
            with self.repeatable():
                return self.verified(executor.run(*self.host_inputs), self.steepest)
        except Refused:
            return None

    def repeatable(self) -> AbstractContextManager[None]:
        """For training: kernels that add in a fixed order. (Inference has no others here.)"""
        if not self.workload.training or self.workload.device.type != "cuda":
            return nullcontext()
        return fixed_order(self._strict)

    def verified(self, results: Any, scale: float = 0.0) -> dict[str, Any]:
        """Whether results are those of the ordinary run (see `compared`)."""
        outputs, found = iter(results.outputs), []
        for role in self.workload.captured.results:
            if role.what in ("output", "loss"):
                got = next(outputs)
            else:
                got = (results.gradients if role.what == "gradient" else results.updates)[role.name]
            found.append(got if got is None or role.rows is None else got[slice(*role.rows)])
        return self.compared(found, scale)

    def compared(self, found: Sequence[Any], scale: float = 0.0) -> dict[str, Any]:
        """Results, in the graph's order, against those of the ordinary run: bit for bit, or how far apart, as a
        share of the largest value of a tensor or, of gradients, of `scale`: some are nothing but rounding. Small
        gradients could hide behind a large scale: `by_itself` names all that are not close by their own."""
        same, worst, where = True, 0.0, ""
        by_itself: dict[str, float] = {}
        for role, got, expected in zip(self.workload.captured.results, found, self.expected, strict=True):
            if expected is None or got is None:
                same &= expected is None and got is None
                continue
            # On the device: a training step has a billion numbers to compare.
            got, expected = (each.to(self.workload.device) for each in (got, expected))
            if not self.torch.equal(got, expected):
                same = False
                own = far = difference(got, expected)
                if scale and role.what == "gradient":
                    far = difference(got, expected, scale)
                worst, where = max((worst, where), (far, role.name or role.what))
                if own > CLOSE:
                    by_itself[role.name or role.what] = own
        return {"equal": same, "largest_difference": worst, "furthest": where, "by_itself": by_itself}


@contextmanager
def fixed_order(strict: bool) -> Iterator[None]:
    """Kernels whose sums do not depend on chance. Strictly, an op that has none is an error; if that is only
    a warning, attention takes the other ones although it has them."""
    torch = require("torch", "torch")
    before = torch.backends.cudnn.deterministic
    # New tensors must not be filled: a copy may already be on its way into them.
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.deterministic = True
    torch.use_deterministic_algorithms(True, warn_only=not strict)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)
        torch.backends.cudnn.deterministic = before


def _on_host(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if hasattr(value, "detach") else None


class PeerBench:
    """A model whose weights lie in (pinned) host memory: the same values that plans are run with."""

    def __init__(
        self, name: str, build: Callable[[], Any], device: Any, *, training: bool, machine: str
    ) -> None:
        self.name, self.device, self.training, self.machine = name, device, training, machine
        self.build = build
        module, args = made_on_meta(build)[:2]
        self.inputs = inputs_like([(tuple(each.shape), each.dtype) for each in args], device)
        memory = HostMemory(pinned=device.type == "cuda")
        self.values: dict[str, Any] = {}
        seen: set[int] = set()
        for key, _, _, tensor in owned(module):
            if id(tensor) not in seen:
                seen.add(id(tensor))
                self.values[key] = _copy_to_host(made_up(key, tensor.shape, tensor.dtype, device), memory)

    def module(self) -> Any:
        return made_on_meta(self.build)[0].train(self.training)

    def row(
        self,
        peer: str,
        percent: int,
        capacity: int,
        activation_bytes: int,
        *,
        repeats: int = 7,
        baseline_ps: float | None = None,
        bound_ps: float = 0.0,
    ) -> Row:
        """A peer under a budget."""
        began = time.perf_counter()
        setting = Setting(
            self.module, self.values, self.inputs, self.device, self.training, capacity, activation_bytes
        )
        try:
            found = measure_peer(peer, setting, repeats=repeats)
        except (RuntimeError, ValueError, KeyError) as error:
            found = PeerRun(peer, "failed", note=str(error).splitlines()[0])
        value = found.seconds * PICOSECONDS if found.seconds > 0 else -1.0
        return Row(
            f"{self.name}@{percent}",
            value,
            "ps",
            found.status,
            machine=self.machine,
            solver=peer,
            seconds=time.perf_counter() - began,
            baseline=baseline_ps,
            bound=bound_ps,
            gap=value / bound_ps - 1 if bound_ps and value > 0 else None,
            extra={
                "percent": percent,
                "kind": "peer",
                "capacity": capacity,
                "peak": found.allocated,
                "reserved": found.reserved,
                "repeats": found.repeats,
                "reason": found.note,
            },
        )


def _copy_to_host(value: Any, memory: HostMemory) -> Any:
    value = own_layout(value)
    layout = layout_of(value)
    row = memory.take(layout.bytes)
    row.copy_(flat(value, layout))
    return shaped(row, layout)
