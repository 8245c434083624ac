"""Peers of one model on the device: measured under the same budgets as plans, one row each.

They need no captured graph, and PyTorch's own allocator, whose limit is the budget.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks.suites import Row
from benchmarks.suites.gpu_peers import PeerRun, Setting, measure_peer
from benchmarks.suites.gpu_streamed import owned
from benchmarks.suites.gpu_workload import inputs_like
from loadmaster.execute.pinned import HostMemory, flat, layout_of, made_up, own_layout, shaped
from loadmaster.program.importers.torch.importer import made_on_meta
from loadmaster.units import PICOSECONDS


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
                self.values[key] = _on_host(made_up(key, tensor.shape, tensor.dtype, device), memory)

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


def _on_host(value: Any, memory: HostMemory) -> Any:
    value = own_layout(value)
    layout = layout_of(value)
    row = memory.take(layout.bytes)
    row.copy_(flat(value, layout))
    return shaped(row, layout)
