"""Random small programs and machines for the MallocGame: everything its rules speak of occurs.

Programs are sound: what is overwritten in place or carried by a loop is not read afterwards, and
no output is overwritten.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from generate import RATES, Rng, _device, _rate, chance, pick, whole
from loadmaster.machine.machine import Link, Machine, Memory, Rules
from loadmaster.program.build import Builder
from loadmaster.program.program import COMPUTED, Program, TensorKind, TieKind

GIVEN_KINDS = (TensorKind.WEIGHT, TensorKind.INPUT, TensorKind.STATE)


def random_game(rng: Rng, ops: tuple[int, int] = (4, 14)) -> tuple[Program, Machine]:
    """A program of about so many ops and a machine with a small fast memory."""
    return random_game_program(rng, ops), random_game_machine(rng)


@dataclass
class _Loop:
    number: int
    entry: int
    """How many tensors there were when it began."""
    carried: int = -1
    """The root that it enters with."""
    read: bool = False


class _Maker:
    def __init__(self, rng: Rng, ops: int) -> None:
        self.rng, self.ops, self.build = rng, ops, Builder("random")
        self.size: list[int] = []
        self.root: list[int] = []
        self.kind: list[TensorKind] = []
        self.loop_of: list[int] = []
        """The loop that each tensor was made in."""
        self.closed: set[int] = set()
        """Roots that nobody may read any more."""
        self.loops: list[_Loop] = []
        self.views = pick(rng, (0.0, 0.1, 0.25))
        self.in_place = pick(rng, (0.0, 0.2, 0.5))
        self.looping = pick(rng, (0.0, 0.15, 0.3))
        self.outputs = pick(rng, (0.05, 0.2, 0.4))
        self.largest = pick(rng, (8, 24, 24, 60))
        self.flops = pick(rng, (10, 60, 300))
        self.slow_only = pick(rng, (0.0, 0.1))
        self.recent = pick(rng, (0.3, 0.7, 0.9))

    def make(self) -> Program:
        rng = self.rng
        for number in range(whole(rng, 1, 5)):
            self._tensor(f"given{number}", pick(rng, GIVEN_KINDS))
        for number in range(self.ops):
            self._change_loop(number)
            if chance(rng, self.views) and self._open():
                self._view(number)
            else:
                self._op(number, self._reads())
        while self.loops:
            self._leave(f"last{len(self.loops)}")
        outputs = [t for t, kind in enumerate(self.kind) if kind == TensorKind.OUTPUT]
        if outputs and chance(rng, 0.3):
            self.build.tie(TieKind.DONATED, 0, pick(rng, outputs))
        return self.build.build()

    # --- tensors ---------------------------------------------------------------------------------

    def _tensor(self, name: str, kind: TensorKind, alias: int = -1) -> int:
        size = 0 if chance(self.rng, 0.02) else whole(self.rng, 1, self.largest)
        fast = not chance(self.rng, self.slow_only)
        new = self.build.tensor(name, bytes=size, kind=kind, fast=fast, alias=alias if alias >= 0 else None)
        self.size.append(size)
        self.kind.append(kind)
        self.root.append(self.root[alias] if alias >= 0 else new)
        self.loop_of.append(self._loop())
        return new

    def _loop(self) -> int:
        return self.loops[-1].number if self.loops else -1

    def _open(self) -> list[int]:
        return [t for t, root in enumerate(self.root) if root not in self.closed]

    def _is_output(self, root: int) -> bool:
        return any(r == root and self.kind[t] == TensorKind.OUTPUT for t, r in enumerate(self.root))

    def _result_kind(self) -> TensorKind:
        return TensorKind.OUTPUT if chance(self.rng, self.outputs) else TensorKind.ACTIVATION

    # --- ops -------------------------------------------------------------------------------------

    def _reads(self) -> list[int]:
        tensors = self._open()
        if not tensors or chance(self.rng, 0.05):
            return []
        near = tensors[-4:]
        return [
            pick(self.rng, near if chance(self.rng, self.recent) else tensors)
            for _ in range(whole(self.rng, 1, 3))
        ]

    def _access(self, tensor: int) -> tuple[int, int]:
        size = self.size[tensor]
        part = size > 0 and chance(self.rng, 0.15)
        return tensor, whole(self.rng, 0, size + 2) if part else size

    def _op(
        self, number: int | str, reads: list[int], kind: TensorKind | None = None
    ) -> tuple[int, list[int]]:
        rng = self.rng
        for loop in self.loops:
            loop.read |= loop.carried >= 0 and loop.carried in {self.root[t] for t in reads}
        results = 0 if chance(rng, 0.05) and kind is None else 2 if chance(rng, 0.15) else 1
        writes = [
            self._tensor(f"t{number}.{i}", self._result_kind() if kind is None or i else kind)
            for i in range(results)
        ]
        scratch = [t for t in writes if chance(rng, 0.02)]
        op = self.build.op(
            f"op{number}",
            pick(rng, ("matmul", "add", "exp")),
            reads=[self._access(t) for t in reads + scratch],
            writes=[self._access(t) for t in writes],
            matrix=whole(rng, 0, self.flops) if chance(rng, 0.6) else 0,
            vector=whole(rng, 0, self.flops) if chance(rng, 0.4) else 0,
            other_bytes=whole(rng, 0, 20) if chance(rng, 0.1) else 0,
            loop=self._loop(),
        )
        if kind is None and writes and not scratch and chance(rng, self.in_place):
            self._overwrite(op, reads, writes[0])
        return op, writes

    def _overwrite(self, op: int, reads: list[int], target: int) -> None:
        carried = {loop.carried for loop in self.loops}
        # An op that overwrites what it does not read is odd, and not wrong.
        sources = [
            t
            for t in (self._open()[:-1] if chance(self.rng, 0.05) else reads)
            if self.loop_of[self.root[t]] == self._loop()
            and not self._is_output(self.root[t])
            and self.root[t] not in carried
        ]
        if sources:
            source = self.root[pick(self.rng, sources)]
            self.build.tie(TieKind.INPLACE, source, target, op)
            self.closed.add(source)

    def _view(self, number: int) -> None:
        source = pick(self.rng, self._open())
        root = self.root[source]
        given = self.kind[root] in GIVEN_KINDS and not chance(self.rng, 0.1)
        kept = given or root in [loop.carried for loop in self.loops]
        kind = TensorKind.ACTIVATION if kept else self._result_kind()
        result = self._tensor(f"view{number}", kind, alias=source)
        self.build.op(f"op{number}", "reshape", reads=[source], writes=[result], view=True, loop=self._loop())

    # --- loops -----------------------------------------------------------------------------------

    def _change_loop(self, number: int) -> None:
        while self.loops and chance(self.rng, 0.3):
            self._leave(f"{number}.{len(self.loops)}")
        while len(self.loops) < 2 and chance(self.rng, self.looping):
            around = [loop.carried for loop in self.loops if loop.carried >= 0]
            carries = [
                t
                for t in self._open()
                if self.root[t] == t
                and not self._is_output(t)
                and self.loop_of[t] == self._loop()
                and t not in around
            ]
            if around and around[-1] not in self.closed and chance(self.rng, 0.4):
                carries = around[-1:]  # one value through both loops
            loop = _Loop(self.build.loop(whole(self.rng, 1, 4), self._loop()), len(self.root))
            if carries and chance(self.rng, 0.7):
                loop.carried = pick(self.rng, carries)
            self.loops.append(loop)

    def _leave(self, name: str) -> None:
        """The last op of a loop leaves the next value of what it carries, in place or not."""
        loop = self.loops[-1]
        source = loop.carried
        if source >= 0 and source not in self.closed:
            in_place = chance(self.rng, 0.4)
            missed = not loop.read and chance(self.rng, 0.9)
            reads = [source] if in_place or missed else []
            op, writes = self._op(name, reads + self._reads()[:1], self._result_kind())
            for other in self.loops:
                if other.carried == source:
                    self.build.tie(TieKind.CARRIED, source, writes[0], other.number)
                    other.carried = -1
            if in_place:
                self.build.tie(TieKind.INPLACE, source, writes[0], op)
            self.closed.add(source)
            if chance(self.rng, 0.3):  # not the loop's last step then
                self.loop_of[writes[0]] = loop.number
                self._op(f"{name}+", [writes[0]])
        self.loops.pop()
        for t in range(loop.entry, len(self.root)):  # it lives on outside, as its last value
            if self.loop_of[t] == loop.number:
                self.loop_of[t] = self._loop()


def random_game_program(rng: Rng, ops: tuple[int, int] = (4, 14)) -> Program:
    """So many ops, and some more where loops end."""
    program = _Maker(rng, whole(rng, *ops)).make()
    if not chance(rng, 0.15):
        return program
    named = rng.random((program.n_ops, 1)) < pick(rng, (0.3, 1.0))
    costs = np.where(named, rng.integers(0, 60, named.shape), COMPUTED).astype(np.int64)
    return replace(program, costs=costs)


def random_game_machine(rng: Rng) -> Machine:
    """One device, a fast memory of a few tensors, a slow one of all, sometimes one between."""
    rates = pick(rng, RATES[:2])
    slower = tuple(rate // 4 for rate in rates)

    def memory(name: str, capacity: int, rates: tuple[int, ...], alignment: int) -> Memory:
        latency = whole(rng, 1, 4) if chance(rng, 0.15) else 0
        return Memory(name, capacity, _rate(rng, rates), _rate(rng, rates), latency, alignment)

    memories = [
        memory("fast", pick(rng, (16, 40, 64, 120)) + whole(rng, 0, 9), rates, pick(rng, (1, 1, 4, 8))),
        memory("slow", 2**40, pick(rng, (slower, slower, rates)), 1),
    ]
    if chance(rng, 0.15):
        memories.insert(1, memory("mid", whole(rng, 10, 60), rates, 4))
    engines = pick(rng, (("in", "out"), ("bus", "bus"), ("", ""), ("in", "")))
    links = [
        Link(
            source,
            target,
            _rate(rng, pick(rng, (slower, rates))),
            whole(rng, 1, 5) if chance(rng, 0.2) else 0,
            (engine,) if engine else (),
        )
        for source, target, engine in (("slow", "fast", engines[0]), ("fast", "slow", engines[1]))
        if not chance(rng, 0.05)
    ]
    rules = Rules(
        ports=pick(rng, ("serial", "serial", "parallel")),
        overlap=pick(rng, (0, 0, 0, 333_333, 1_000_000)),
        copies=pick(rng, ("idle", "free")),
    )
    device = _device(rng, "core", tuple(m.name for m in memories), rates, chance(rng, 0.6))
    return Machine("random", (device,), tuple(memories), tuple(links), rules)
