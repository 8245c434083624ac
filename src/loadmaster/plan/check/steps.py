"""Ops as steps, as a readable plan has them: who runs together, at which position, who reads what.

Follows section 1 of docs/simulation.md. A step is known by its *rank*: 0 is the step with the
smallest position, 1 the next, and so on. "Tensor" means a root wherever nothing else is said.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

from loadmaster.machine.machine import Machine
from loadmaster.plan.check.report import Words
from loadmaster.plan.plan import Plan
from loadmaster.program.program import GIVEN, PERSISTENT, Program, TensorKind, TieKind


class Step(NamedTuple):
    """Ops that run as one."""

    number: int
    """Its smallest op."""
    position: int
    device: int
    members: tuple[int, ...]
    reads: list[int]
    """The tensors it reads from outside (a step of one op: all that it reads)."""
    writes: list[int]
    """The tensors it writes and that leave it (a step of one op: all that it writes)."""


class Steps(Words):
    """The program's columns as lists, and the plan's steps. Its order is a permutation."""

    def __init__(self, program: Program, machine: Machine, plan: Plan) -> None:
        super().__init__(program, machine)
        self.plan = plan
        n_ops, n_tensors = program.n_ops, program.n_tensors
        self.n_ops, self.n_tensors = n_ops, n_tensors
        self.in_order = plan.queue == "order"

        self.root: list[int] = program.tensor_alias.tolist()
        self.roots = [tensor for tensor in range(n_tensors) if self.root[tensor] == tensor]
        self.size: list[int] = program.storage_bytes.tolist()
        kinds = program.tensor_kind.tolist()
        self.is_input = [kind == TensorKind.INPUT for kind in kinds]
        self.is_given = [kind in GIVEN for kind in kinds]
        self.is_persistent = [kind in PERSISTENT for kind in kinds]
        self.is_output = [False] * n_tensors
        for tensor, kind in enumerate(kinds):
            if kind == TensorKind.OUTPUT:
                self.is_output[self.root[tensor]] = True
        self.ties = [
            (kind, self.root[source], self.root[target], at)
            for kind, source, target, at in zip(
                program.tie_kind.tolist(),
                program.tie_source.tolist(),
                program.tie_target.tolist(),
                program.tie_at.tolist(),
                strict=True,
            )
            if kind != TieKind.DONATED
        ]

        self.device: list[int] = [0] * n_ops if plan.device is None else plan.device.tolist()
        self.order: list[int] = list(range(n_ops)) if plan.order is None else plan.order.tolist()
        self.position = [0] * n_ops
        for position, op in enumerate(self.order):
            self.position[op] = position
        self.is_view: list[bool] = program.op_view.tolist()
        self.loop: list[int] = program.op_loop.tolist()

        self.op_reads = _rows(program.read_start.tolist(), program.read_tensor.tolist())
        self.op_writes = _rows(program.write_start.tolist(), program.write_tensor.tolist())

        groups = self._groups()
        self.step_of = [-1] * n_ops
        for rank, members in enumerate(groups):
            for op in members:
                self.step_of[op] = rank
        self.writer = self._writers()
        self.steps = [self._step(members) for members in groups]
        self.readers: list[list[int]] = [[] for _ in range(n_tensors)]
        for rank, step in enumerate(self.steps):
            for tensor in dict.fromkeys(step.reads):
                self.readers[tensor].append(rank)

    def _groups(self) -> list[tuple[int, ...]]:
        """The members of every step, steps by their smallest position."""
        fusion = [-1] * self.n_ops if self.plan.fusion is None else self.plan.fusion.tolist()
        groups: dict[tuple[str, int], list[int]] = {}
        for op in self.order:
            if not self.is_view[op]:
                key = ("fused", fusion[op]) if fusion[op] >= 0 else ("alone", op)
                groups.setdefault(key, []).append(op)
        return [tuple(sorted(members)) for members in groups.values()]

    def _writers(self) -> list[int]:
        """[tensors] the rank of the step that writes each root, or -1."""
        writer = [-1] * self.n_tensors
        for op in range(self.n_ops):
            if not self.is_view[op]:
                for tensor in self.op_writes[op]:
                    root = self.root[tensor]
                    if tensor == root or writer[root] < 0:
                        writer[root] = self.step_of[op]
        return writer

    def _step(self, members: tuple[int, ...]) -> Step:
        reads = [self.root[tensor] for op in members for tensor in self.op_reads[op]]
        writes = [self.root[tensor] for op in members for tensor in self.op_writes[op]]
        if len(members) > 1:
            inside = set(writes)
            reads = [tensor for tensor in dict.fromkeys(reads) if tensor not in inside]
            writes = [tensor for tensor in dict.fromkeys(writes) if self.leaves[tensor]]
        number = members[0]
        position = min(self.position[op] for op in members)
        return Step(number, position, self.device[number], members, reads, writes)

    @cached_property
    def leaves(self) -> list[bool]:
        """[tensors] whether a written tensor is needed outside the step that writes it."""
        leaves = list(self.is_output)
        for _, _, target, _ in self.ties:
            leaves[target] = True
        for op in range(self.n_ops):
            if not self.is_view[op]:
                for tensor in self.op_reads[op]:
                    if self.writer[self.root[tensor]] != self.step_of[op]:
                        leaves[self.root[tensor]] = True
        return leaves

    @cached_property
    def step_at_or_before(self) -> list[int]:
        """[positions] rank of the step of the last op, views left out, up to there; or -1."""
        ranks, last = [], -1
        for op in self.order:
            last = last if self.is_view[op] else self.step_of[op]
            ranks.append(last)
        return ranks

    @cached_property
    def step_at_or_after(self) -> list[int]:
        """[positions] rank of the step of the first op, views left out, from there; or n steps."""
        ranks, following = [], len(self.steps)
        for op in reversed(self.order):
            following = following if self.is_view[op] else self.step_of[op]
            ranks.append(following)
        return ranks[::-1]

    def op_at(self, rank: int) -> int:
        """The number of a step, or of the nearest one if there is none of this rank."""
        rank = max(0, min(rank, len(self.steps) - 1))
        return self.steps[rank].number if self.steps else 0


def _rows(start: list[int], entries: list[int]) -> list[list[int]]:
    """Compressed rows as lists."""
    return [entries[low:high] for low, high in pairwise(start)]
