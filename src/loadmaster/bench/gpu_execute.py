"""Plans and peers of one model on the device: measured, verified, one row each."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from loadmaster.bench import Row
from loadmaster.bench.gpu_peers import PeerRun, measure_peer
from loadmaster.bench.gpu_plans import GRAPH, Planned, roomy
from loadmaster.bench.gpu_workload import Workload, device_weights, random_inputs
from loadmaster.errors import LoadmasterError, Refused, require
from loadmaster.execute.clock import median
from loadmaster.execute.executor import Executor
from loadmaster.execute.op_times import arguments, player
from loadmaster.execute.pinned import HostMemory, HostWeights, host_weights
from loadmaster.execute.ready import difference
from loadmaster.machine.machine import Machine
from loadmaster.program.program import PERSISTENT
from loadmaster.units import PICOSECONDS

CLOSE = 0.02
"""Largest difference, as a share of the largest value, at which two kernels of one op still agree:
sums in 16 bits and with atomics depend on their order."""


class Bench:
    """A model with its weights in pinned host memory, for as many plans and peers as wanted."""

    def __init__(self, workload: Workload, machine: Machine) -> None:
        self.workload, self.machine = workload, machine
        self.torch = require("torch", "torch")
        device = workload.device
        weights = device_weights(workload)
        self.inputs = random_inputs(workload.captured, device)
        captured = workload.captured
        with self.torch.no_grad(), self.repeatable():
            found = player(captured).run(*arguments(captured, weights, self.inputs))
        # What the ordinary run gives, in the order of the graph's results.
        self.expected = [_on_host(value) for value in found]
        steep = [float(value.abs().max()) for role, value in zip(captured.results, self.expected, strict=True)
                 if role.what == "gradient" and value is not None and value.numel()]  # fmt: skip
        self.steepest = max(steep, default=0.0)
        """The largest value in any gradient."""
        del found
        memory = HostMemory(pinned=device.type == "cuda")
        self.weights: HostWeights = host_weights(workload.captured, weights, memory)
        del weights
        self.host_inputs = [value.cpu() for value in self.inputs]
        self.tidy()

    def values(self) -> dict[str, Any]:
        """Parameters and buffers by name, as they lie on the host; slices are joined."""
        parts: dict[str, list[Any]] = {}
        for given in self.workload.captured.given:
            if given.kind in PERSISTENT and given.tensor >= 0:
                parts.setdefault(given.source, []).append(self.weights.value(given.tensor))
        return {name: each[0] if len(each) == 1 else self.torch.cat(each) for name, each in parts.items()}  # fmt: skip

    def tidy(self) -> None:
        gc.collect()
        if self.workload.device.type == "cuda":
            self.torch.cuda.synchronize()
            self.torch.cuda.empty_cache()

    def run_plan(self, planned: Planned, workspace: int, *, graph: bool = False, repeats: int = 5,
                 baseline_ps: float | None = None) -> Row:  # fmt: skip
        """Execute a plan under its budget and compare it with the ordinary run and the simulation."""
        assert planned.plan is not None
        began = time.perf_counter()
        solver = planned.solver + (GRAPH if graph else "")
        extra: dict[str, Any] = {"percent": planned.percent, "simulated": planned.simulated_ps,
                                 "limit": planned.limit_ps, "capacity": planned.capacity, "planned_peak": planned.peak,
                                 "bytes_in": planned.bytes_in, "bytes_out": planned.bytes_out,
                                 "kind": "plan", "plan_seconds": planned.seconds}  # fmt: skip
        status, value, seconds = "ok", -1.0, []
        try:
            with Executor(self.workload.captured, planned.plan, roomy(self.machine, planned.capacity),
                          self.workload.device, self.weights, capacity=planned.capacity,
                          workspace=workspace, graph=graph) as executor:  # fmt: skip
                exact = None if graph else self.verified_exactly(executor)
                measured = executor.measure(*self.host_inputs, repeats=repeats, warmups=2)
                seconds = list(measured.runs)
                extra |= {"peak": measured.peak_bytes, "reserved": measured.reserved_bytes}
                # Where even such kernels differ, what counts is the size of the difference.
                same = exact is not None and exact["equal"]
                extra |= exact if exact and same else self.verified(measured.last, self.steepest)
        except (LoadmasterError, RuntimeError) as error:
            status, extra["reason"] = "failed", str(error).splitlines()[0]
        finally:
            self.tidy()
        if seconds:
            value = median(seconds) * PICOSECONDS
            extra |= {"best": min(seconds) * PICOSECONDS, "worst": max(seconds) * PICOSECONDS,
                      "repeats": len(seconds), "difference": planned.simulated_ps / value - 1}  # fmt: skip
            if extra["largest_difference"] > CLOSE:
                status = "wrong"
            elif extra["peak"] > planned.capacity:
                status = "over the budget"
        return Row(
            f"{self.workload.name}@{planned.percent}", value, "ps", status, machine=self.machine.name,
            solver=solver, evaluations=planned.evaluations, seconds=time.perf_counter() - began,
            baseline=baseline_ps, bound=float(planned.bound_ps),
            gap=value / planned.bound_ps - 1 if planned.bound_ps and value > 0 else None, extra=extra,
        )  # fmt: skip

    def verified_exactly(self, executor: Executor) -> dict[str, Any] | None:
        """A run with kernels whose sums do not depend on chance, against the ordinary run with them; None
        where they need more memory than there is."""
        try:
            with self.repeatable():
                return self.verified(executor.run(*self.host_inputs))
        except Refused:
            return None

    @contextmanager
    def repeatable(self) -> Iterator[None]:
        """For training: kernels that add in a fixed order. (Inference has no others here.)"""
        torch = self.torch
        if not self.workload.training or self.workload.device.type != "cuda":
            yield
            return
        before = torch.backends.cudnn.deterministic
        # New tensors must not be filled: a copy may already be on its way into them.
        torch.utils.deterministic.fill_uninitialized_memory = False
        torch.backends.cudnn.deterministic = True
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(False)
            torch.backends.cudnn.deterministic = before

    def verified(self, results: Any, scale: float = 0.0) -> dict[str, Any]:
        """Whether results are those of the ordinary run: bit for bit, or how far apart, as a share of the
        largest value of a tensor or, of gradients, of `scale`: some are nothing but rounding. Small
        gradients could hide behind a large scale: `by_itself` names all that are not close by their own."""
        outputs = iter(results.outputs)
        worst, where = 0.0, ""
        same = True
        by_itself: dict[str, float] = {}
        for role, wanted in zip(self.workload.captured.results, self.expected, strict=True):
            if role.what in ("output", "loss"):
                got = next(outputs)
            else:
                got = (results.gradients if role.what == "gradient" else results.updates)[role.name]
            if wanted is None or got is None:
                same &= wanted is None and got is None
                continue
            got = got.to("cpu") if role.rows is None else got.to("cpu")[slice(*role.rows)]
            if not self.torch.equal(got, wanted):
                same = False
                far = difference(got, wanted, scale if role.what == "gradient" else 0.0)
                worst, where = max((worst, where), (far, role.name or role.what))
                if (own := difference(got, wanted)) > CLOSE:
                    by_itself[role.name or role.what] = own
        return {
            "equal": same,
            "largest_difference": worst,
            "furthest": where,
            "by_itself": by_itself,
        }

    def run_peer(self, name: str, percent: int, capacity: int | None, activation_bytes: int, *,
                 baseline_ps: float | None = None, bound_ps: float = 0.0) -> Row:  # fmt: skip
        """A peer under the same budget."""
        began = time.perf_counter()
        setting = self.workload.setting(self.values(), self.inputs, capacity=capacity,
                                        activation_bytes=activation_bytes)  # fmt: skip
        try:
            found = measure_peer(name, setting)
        except (RuntimeError, ValueError, KeyError) as error:
            found = PeerRun(name, "failed", note=str(error).splitlines()[0])
        self.tidy()
        value = found.seconds * PICOSECONDS if found.seconds > 0 else -1.0
        return Row(
            f"{self.workload.name}@{percent}", value, "ps", found.status, machine=self.machine.name, solver=name,
            seconds=time.perf_counter() - began, baseline=baseline_ps, bound=bound_ps,
            gap=value / bound_ps - 1 if bound_ps and value > 0 else None,
            extra={"percent": percent, "kind": "peer", "capacity": capacity, "peak": found.allocated,
                   "reserved": found.reserved, "repeats": found.repeats, "reason": found.note},
        )  # fmt: skip


def _on_host(value: Any) -> Any:
    return value.detach().to("cpu", copy=True) if hasattr(value, "detach") else None


def ordered(plans: Sequence[Planned], ours: Sequence[str]) -> list[Planned]:
    """The most important first: a budget of half, ours, then what it is compared with."""
    urgency: Mapping[int, int] = {50: 0, 100: 1, 75: 2, 30: 3}
    return sorted(plans, key=lambda p: (urgency.get(p.percent, 9), p.solver not in ours))
