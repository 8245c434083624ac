"""Random programs whose ops can be fused, on machines of several devices."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from generate import Rng, Tie, chance, pick, random_machine, random_program, whole, with_ties
from loadmaster.machine.machine import Machine
from loadmaster.program.build import Builder
from loadmaster.program.program import Program, TensorKind, TieKind

FLOWING = ("add", "mul", "exp", "tanh", "neg", "select")


def random_graph(rng: Rng, max_ops: int = 40) -> tuple[Program, Machine]:
    """A program with fusible ops of few sizes (now and then any program), and a machine."""
    machine = random_machine(rng)
    while machine.rules.copies == "idle":
        machine = random_machine(rng)
    if chance(rng, 0.2):
        devices = len(machine.devices) if chance(rng, 0.25) else None
        return random_program(rng, 14, devices), machine
    return _Maker(rng, whole(rng, 1, max_ops)).make(), machine


class _Maker:
    def __init__(self, rng: Rng, n_ops: int) -> None:
        self.rng, self.n_ops, self.build = rng, n_ops, Builder("random")
        self.readable: list[tuple[int, int]] = []
        """Tensors and their elements."""
        self.ties: list[Tie] = []
        self.reach = pick(rng, (3, 8, 1000))
        self.groups = pick(rng, (0.0, 0.0, 0.15))
        self.barriers = pick(rng, (0.05, 0.3))
        self.outputs = pick(rng, (0.05, 0.2))
        self.scopes = pick(rng, (0, 2, 5))
        self.looped = chance(rng, 0.2)

    def make(self) -> Program:
        rng, build = self.rng, self.build
        loop = build.loop(whole(rng, 1, 3)) if self.looped else -1
        for number in range(whole(rng, 1, 4)):
            kind = pick(rng, (TensorKind.WEIGHT, TensorKind.INPUT, TensorKind.STATE))
            group = whole(rng, 0, 2) if chance(rng, self.groups) else -1
            size = pick(rng, (4, 64))
            given = build.tensor(f"given{number}", shape=(size,), dtype="f32", kind=kind, group=group)
            self.readable.append((given, size))
        begin, end = sorted(whole(rng, 0, self.n_ops) for _ in range(2))
        for number in range(self.n_ops):
            self._op(number, loop if begin <= number < end else -1)
        return with_ties(build.build(), self.ties)

    def _result(self, name: str, size: int, alias: int | None = None) -> int:
        kind = TensorKind.OUTPUT if chance(self.rng, self.outputs) else TensorKind.ACTIVATION
        tensor = self.build.tensor(name, shape=(size,), dtype="f32", kind=kind, alias=alias)
        self.readable.append((tensor, size))
        return tensor

    def _op(self, number: int, loop: int) -> None:
        rng, recent = self.rng, self.readable[-self.reach :]
        source, size = pick(rng, recent)
        if chance(rng, 0.1):
            view = self._result(f"v{number}", size, source)
            self.build.op(f"op{number}", "reshape", reads=[source], writes=[view], view=True, loop=loop)
            return
        reads = [source]
        kind, results = "add", [size]
        if chance(rng, self.barriers):
            kind = "matmul"
        elif chance(rng, 0.15):
            kind, results = "reduce_sum", [max(1, size // pick(rng, (2, 64)))]
        elif chance(rng, 0.15):
            kind, results = "broadcast", [size * pick(rng, (1, 4))]
        elif chance(rng, 0.1) and size > 1:
            kind, results = "split", [size // 2, size // 2]
        else:
            kind = pick(rng, FLOWING)
            reads += [t for t, s in recent if s == size and chance(rng, 0.2)][:3]
        writes = [self._result(f"t{number}.{i}", min(s, 4096)) for i, s in enumerate(results)]
        group = whole(rng, 0, 2) if chance(rng, self.groups) else -1
        scope = f"s{whole(rng, 0, self.scopes)}" if self.scopes else ""
        flops = max(results) if kind not in ("broadcast", "split") else 0
        op = self.build.op(
            f"op{number}",
            kind,
            reads=reads,
            writes=writes,
            vector=flops,
            matrix=flops * 8 if kind == "matmul" else 0,
            group=group,
            scope=scope,
            loop=loop,
        )
        if kind in FLOWING and chance(rng, 0.08):
            self.ties.append((TieKind.INPLACE, source, writes[0], op))


def roomy(machine: Machine) -> Machine:
    """The same machine without limits."""
    return replace(machine, memories=tuple(replace(m, capacity=2**60) for m in machine.memories))


def random_keys(rng: Rng, count: int) -> np.ndarray:
    """Keys with and without ties, some of which forbid."""
    levels = pick(rng, (1, 3, 16, 0))
    keys = rng.random(count) if levels == 0 else rng.integers(0, levels, count) / max(1, levels - 1)
    return np.where(rng.random(count) < pick(rng, (0.0, 0.2)), 0.0, keys)
