"""Random programs, machines and plans, for tests that compare two ways to one answer.

Everything is drawn from the generator passed in, so a seed names a case. Sizes and rates are
small and often round: coincidences (two things at one instant, equal keys) are where
simulators differ.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from generate_plan import random_plan
from loadmaster.errors import BadProgram
from loadmaster.machine.machine import Device, Link, Machine, Memory, Rules
from loadmaster.plan.plan import Plan
from loadmaster.program.build import Builder
from loadmaster.program.program import CANNOT_RUN, COMPUTED, Program, TensorKind, TieKind
from loadmaster.program.validate import validate

__all__ = ["random_case", "random_machine", "random_plan", "random_program"]

Rng = np.random.Generator
Item = TypeVar("Item")

KINDS = ("matmul", "add", "mul", "div", "exp", "tanh", "softmax", "concat", "fusion", "gelu")
DTYPES = ("f32", "bf16", "i8")
RATES: tuple[tuple[int, ...], ...] = (
    (10**12,),  # 1 per picosecond, everywhere: many things happen at one instant
    (10**12, 5 * 10**11, 2 * 10**12, 25 * 10**10),
    (),  # anything
)
"""Which rates a machine has, per second."""


def chance(rng: Rng, share: float) -> bool:
    return bool(rng.random() < share)


def pick(rng: Rng, items: list[Item] | tuple[Item, ...]) -> Item:
    return items[int(rng.integers(len(items)))]


def whole(rng: Rng, least: int, most: int) -> int:
    return int(rng.integers(least, most + 1))


def random_case(rng: Rng, *, max_ops: int = 14, valid_only: bool = False) -> tuple[Program, Machine, Plan]:
    """A program, a machine and a plan for them."""
    machine = random_machine(rng)
    devices = len(machine.devices) if chance(rng, 0.25) else None
    program = random_program(rng, max_ops=max_ops, cost_devices=devices)
    return program, machine, random_plan(rng, program, machine, valid_only=valid_only)


Tie = tuple[TieKind, int, int, int]
"""Kind, source, target, and the op or loop at which they are tied."""


def with_ties(program: Program, wishes: list[Tie]) -> Program:
    """The program with those of the ties, one after the other, that leave it without hazards."""
    columns = ("tie_kind", "tie_source", "tie_target", "tie_at")
    for wish in wishes:
        added = {
            name: np.append(getattr(program, name), np.array(value, getattr(program, name).dtype))
            for name, value in zip(columns, wish, strict=True)
        }
        with suppress(BadProgram):
            program = validate(replace(program, **added))
    return program


# --- programs --------------------------------------------------------------------------------


@dataclass
class _Style:
    """How likely each feature is: a program has few of them, so that they stand out."""

    view: float
    chain: float
    in_place: float
    loop: float
    scratch: float
    group: float
    output: float
    size: int
    uniform: bool
    """All tensors have this size and all ops the same flops: twins end at one instant."""


def random_program(rng: Rng, max_ops: int = 14, cost_devices: int | None = None) -> Program:
    """A program of 0 to `max_ops` ops; `cost_devices`: with a cost table of so many columns."""
    maker = _ProgramMaker(rng, whole(rng, 0 if chance(rng, 0.02) else 1, max_ops))
    program = maker.make()
    if cost_devices is None:
        return program
    named = rng.integers(0, 40, (program.n_ops, cost_devices))
    share = pick(rng, (0.3, 0.8, 1.0))
    costs = np.where(rng.random(named.shape) < share, named, COMPUTED).astype(np.int64)
    if chance(rng, 0.1):
        costs[rng.random(named.shape) < 0.1] = CANNOT_RUN
    return replace(program, costs=costs)


class _ProgramMaker:
    def __init__(self, rng: Rng, n_ops: int) -> None:
        self.rng, self.n_ops = rng, n_ops
        self.build = Builder("random")
        self.readable: list[int] = []
        self.size: dict[int, int] = {}
        self.ties: list[Tie] = []
        self.loops: list[tuple[int, int]] = []
        """The loops around the next op, and how many tensors there were when each began."""
        self.style = _Style(
            view=pick(rng, (0.0, 0.15, 0.35)),
            chain=pick(rng, (0.0, 0.5, 0.9)),
            in_place=pick(rng, (0.0, 0.15, 0.4)),
            loop=pick(rng, (0.0, 0.1, 0.3)),
            scratch=pick(rng, (0.0, 0.1)),
            group=pick(rng, (0.0, 0.3)),
            output=pick(rng, (0.0, 0.1, 0.3)),
            size=pick(rng, (4, 16, 300)),
            uniform=chance(rng, 0.25),
        )

        if self.style.uniform:
            self.style.chain, self.style.in_place = 0.0, 0.0  # wide, so that twins run together

    def make(self) -> Program:
        for number in range(whole(self.rng, 0, 4)):
            kind = pick(self.rng, (TensorKind.WEIGHT, TensorKind.INPUT, TensorKind.STATE))
            self._tensor(f"given{number}", kind)
        for number in range(self.n_ops):
            self._change_loop()
            if self.readable and chance(self.rng, self.style.view):
                self._view(number)
            else:
                self._op(number)
        while self.loops:
            self._leave_loop()
        self._donate()
        return with_ties(self.build.build(), self.ties)

    def _tensor(self, name: str, kind: TensorKind, alias: int | None = None) -> int:
        rng = self.rng
        size = self.style.size
        if not self.style.uniform:
            size = 0 if chance(rng, 0.05) else whole(rng, 1, self.style.size)
        tensor = self.build.tensor(
            name,
            bytes=size,
            dtype=pick(rng, DTYPES),
            kind=kind,
            group=whole(rng, 0, 2) if chance(rng, self.style.group) else -1,
            fast=chance(rng, 0.8),
            alias=alias,
        )
        self.size[tensor] = size
        self.readable.append(tensor)
        return tensor

    def _result_kind(self) -> TensorKind:
        return TensorKind.OUTPUT if chance(self.rng, self.style.output) else TensorKind.ACTIVATION

    def _access(self, tensor: int) -> tuple[int, int]:
        size = self.size[tensor]
        if size and not self.style.uniform and chance(self.rng, 0.25):
            size = whole(self.rng, 0, size + 3)  # a part of it, or some bytes twice
        return (tensor, size)

    def _amount(self, most: int, share: float) -> int:
        if self.style.uniform or not chance(self.rng, share):
            return 0
        return whole(self.rng, 0, most)

    def _reads(self) -> list[int]:
        if not self.readable or chance(self.rng, 0.08):
            return []
        if chance(self.rng, self.style.chain):
            reads = [self.readable[-1]]
            return reads + ([pick(self.rng, self.readable)] if chance(self.rng, 0.3) else [])
        most = 2 if self.style.uniform else 3
        return [pick(self.rng, self.readable) for _ in range(whole(self.rng, 1, most))]

    def _op(self, number: int) -> None:
        rng = self.rng
        reads = self._reads()
        n_writes = 0 if chance(rng, 0.07) else whole(rng, 1, 2) if chance(rng, 0.3) else 1
        writes = [self._tensor(f"t{number}.{i}", self._result_kind()) for i in range(n_writes)]
        scratch = [tensor for tensor in writes if chance(rng, self.style.scratch)]
        op = self.build.op(
            f"op{number}",
            pick(rng, KINDS),
            reads=[self._access(tensor) for tensor in reads + scratch],
            writes=[self._access(tensor) for tensor in writes],
            matrix=self._amount(40, 0.5),
            vector=self._amount(20, 0.6),
            transcendental=self._amount(9, 0.4),
            other_bytes=self._amount(30, 0.15),
            dtype=pick(rng, DTYPES),
            loop=self.loops[-1][0] if self.loops else -1,
            group=whole(rng, 0, 2) if chance(rng, self.style.group) else -1,
        )
        for target in writes:
            if reads and chance(rng, self.style.in_place):
                self.ties.append((TieKind.INPLACE, pick(rng, reads), target, op))

    def _view(self, number: int) -> None:
        # Of the last tensor more often than not, so that views of views occur.
        source = self.readable[-1] if chance(self.rng, 0.6) else pick(self.rng, self.readable)
        result = self._tensor(f"view{number}", self._result_kind(), alias=source)
        self.build.op(
            f"op{number}",
            "reshape",
            reads=[source],
            writes=[result],
            view=True,
            loop=self.loops[-1][0] if self.loops else -1,
        )

    def _change_loop(self) -> None:
        while self.loops and chance(self.rng, 0.25):
            self._leave_loop()
        while len(self.loops) < 3 and chance(self.rng, self.style.loop):
            parent = self.loops[-1][0] if self.loops else -1
            loop = self.build.loop(whole(self.rng, 1, 4), parent)
            self.loops.append((loop, len(self.readable)))

    def _leave_loop(self) -> None:
        loop, before = self.loops.pop()
        made_inside = self.readable[before:]
        if before and made_inside and chance(self.rng, 0.6):
            source = pick(self.rng, self.readable[:before])
            self.ties.append((TieKind.CARRIED, source, pick(self.rng, made_inside), loop))

    def _donate(self) -> None:
        if len(self.readable) > 1 and chance(self.rng, 0.2):
            self.ties.append((TieKind.DONATED, self.readable[0], self.readable[-1], -1))


# --- machines --------------------------------------------------------------------------------


def random_machine(rng: Rng) -> Machine:
    """One to four devices over memories of their own and shared ones."""
    idle = chance(rng, 0.3)
    n_devices = 1 if idle else pick(rng, (1, 2, 2, 3, 4))
    rates = pick(rng, RATES)
    plain = len(rates) == 1 and chance(rng, 0.6)  # twins on different devices take equally long
    memories: list[Memory] = []

    def memory(small: bool) -> str:
        name = f"mem{len(memories)}"
        capacity = whole(rng, 0, 60) if small else pick(rng, (40, 400, 2**62))
        memories.append(
            Memory(
                name,
                capacity=capacity,
                read=_rate(rng, rates),
                write=_rate(rng, rates),
                latency=whole(rng, 1, 5) if not plain and chance(rng, 0.3) else 0,
                alignment=pick(rng, (1, 1, 4, 8)),
            )
        )
        return name

    shared_fast = memory(small=True) if chance(rng, 0.3) else None
    shared_home = memory(small=False) if n_devices > 1 and chance(rng, 0.08) else None
    devices = []
    for number in range(n_devices):
        reach = [memory(small=True) for _ in range(whole(rng, 0, 2))]
        if shared_fast is not None and chance(rng, 0.8):
            reach.insert(whole(rng, 0, len(reach)), shared_fast)
        reach.append(shared_home or memory(small=False))
        devices.append(_device(rng, f"dev{number}", tuple(reach), rates, plain))
    rules = Rules(
        ports=pick(rng, ("serial", "parallel")),
        overlap=pick(rng, (0, 0, 50_000, 333_333, 1_000_000)),
        copies="idle" if idle else "free",
    )
    links = _links(rng, [memory.name for memory in memories], rates)
    return Machine("random", tuple(devices), tuple(memories), links, rules)


def _rate(rng: Rng, rates: tuple[int, ...]) -> int:
    return pick(rng, rates) if rates else int(10 ** rng.uniform(9, 13))


def _device(rng: Rng, name: str, reach: tuple[str, ...], rates: tuple[int, ...], plain: bool) -> Device:
    def by_type() -> dict[str, int]:
        types = pick(rng, (("*",), ("*", "f32"), ("f32", "i8"), ("bf16",)))
        return {dtype: _rate(rng, rates) for dtype in types}

    by_class = {"matrix": by_type(), "vector": by_type()}
    if chance(rng, 0.5):
        by_class["transcendental"] = by_type()
    units = pick(
        rng,
        (
            (("matrix", "vector", "transcendental"),),
            (("matrix",), ("vector", "transcendental")),
            (("matrix", "vector"), ("transcendental",)),
            (("matrix",), ("vector",), ("transcendental",)),
        ),
    )
    launch = whole(rng, 1, 6) if not plain and chance(rng, 0.4) else 0
    return Device(name, reach, by_class, launch, units)


def _links(rng: Rng, memories: list[str], rates: tuple[int, ...]) -> tuple[Link, ...]:
    share = pick(rng, (1.0, 1.0, 1.0, 1.0, 0.9, 0.6))
    engines = pick(rng, ("own", "ends", "bus", "none", "mixed"))
    links = []
    for source in memories:
        for target in memories:
            if source == target or not chance(rng, share):
                continue
            kind = pick(rng, ("own", "ends", "bus", "none")) if engines == "mixed" else engines
            names = {
                "own": (f"{source}-{target}",),
                "ends": (f"out.{source}", f"in.{target}"),
                "bus": ("bus",),
                "none": (),
            }[kind]
            latency = whole(rng, 1, 8) if chance(rng, 0.4) else 0
            links.append(Link(source, target, _rate(rng, rates), latency, names))
    return tuple(links)
