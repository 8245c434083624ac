"""Random legal plans for a device that works in its fast memory alone, made the slow obvious way."""

from __future__ import annotations

from typing import Any

import numpy as np

from loadmaster.machine import Machine, load_machine
from loadmaster.plan import BEFORE, NO_OFFSET, Copy, Plan, Residency
from loadmaster.program import Program, TensorKind

HBM, HOST = 0, 1


def machine_with(capacity: int) -> Machine:
    return load_machine("h200").with_capacity("hbm", capacity)


class OffloadPlans:
    """Plans of one program. `keep`: the chance that a tensor stays between two uses, and that a
    weight is resident; 1: everything is, 0: nothing."""

    def __init__(self, program: Program, seed: int) -> None:
        self.program, self.rng = program, np.random.default_rng(seed)
        self.ops = [op for op in range(program.n_ops) if not program.op_view[op]]
        self.rank = {op: rank for rank, op in enumerate(self.ops)}
        self.root = program.tensor_alias.tolist()
        self.uses: dict[int, list[int]] = {}
        self.maker: dict[int, int] = {}
        for rank, op in enumerate(self.ops):
            for tensor in program.writes(op).tolist():
                self.maker[self.root[tensor]] = rank
            for tensor in (*program.reads(op).tolist(), *program.writes(op).tolist()):
                ranks = self.uses.setdefault(self.root[tensor], [])
                if rank not in ranks:
                    ranks.append(rank)
        kinds = program.tensor_kind.tolist()
        self.outputs = {self.root[t] for t, kind in enumerate(kinds) if kind == TensorKind.OUTPUT}

    def make(self, keep: float, sliced: bool = False) -> Plan:
        self.residencies: list[Residency] = []
        self.copies: list[Copy] = []
        self.sliced = sliced
        for tensor, ranks in sorted(self.uses.items()):
            if not self.program.storage_bytes[tensor]:
                continue
            kind = self.program.tensor_kind[tensor]
            if kind in (TensorKind.WEIGHT, TensorKind.STATE) and self.rng.random() < keep:
                last = self.program.n_ops - 1
                self.residencies.append(Residency(tensor, HBM, NO_OFFSET, BEFORE, last))
            else:
                self._stays(tensor, ranks, keep)
        order = sorted(self.copies, key=lambda copy: (copy.issued_after, copy.needed_by))
        return Plan.of(residencies=self.residencies, copies=order)

    def _stays(self, tensor: int, ranks: list[int], keep: float) -> None:
        pieces = [[ranks[0]]]
        for rank in ranks[1:]:
            if rank == pieces[-1][-1] + 1 or self.rng.random() < keep:
                pieces[-1].append(rank)
            else:
                pieces.append([rank])
        steps, made = len(self.ops), tensor in self.maker
        home = -1 if not made else steps + 1  # the rank from which the host has it
        free = -1  # the rank after which a stay may begin
        stays_out = made and tensor in self.outputs and self.rng.random() >= keep
        for number, piece in enumerate(pieces):
            first, last = piece[0], piece[-1]
            if number or not made:
                first = int(self.rng.integers(max(free, home), piece[0])) + 1
                self._copy(tensor, HOST, HBM, first - 1, piece[0])
            if made and number == 0 and (len(pieces) > 1 or stays_out):
                follows = pieces[1][0] if len(pieces) > 1 else steps + 1
                # Out after any op of this stay, done before any that leaves time to come back.
                issued = int(self.rng.integers(first, last + 1))
                home = int(self.rng.integers(issued + 1, max(issued + 2, follows)))
                home = min(home, steps)
                self._copy(tensor, HBM, HOST, issued, home)
                last = max(last, home - 1)
            if made and tensor in self.outputs and not stays_out and number == len(pieces) - 1:
                last = steps - 1
            free = last
            row = Residency(tensor, HBM, NO_OFFSET, self.ops[first], self.ops[last])
            self.residencies.append(row)

    def _copy(self, tensor: int, source: int, target: int, issued: int, needed: int) -> None:
        after = BEFORE if issued < 0 else self.ops[issued]
        by = self.program.n_ops if needed >= len(self.ops) else self.ops[needed]
        size = int(self.program.storage_bytes[tensor])
        if self.sliced and size > 1:
            cut = int(self.rng.integers(1, size))
            self.copies.append(Copy(tensor, source, target, after, by, 0, cut))
            self.copies.append(Copy(tensor, source, target, after, by, cut, size))
        else:
            self.copies.append(Copy(tensor, source, target, after, by))


def handover(captured: Any) -> tuple[Plan, int]:
    """A plan for linear, tanh, linear without biases over 64 × 64 numbers in 64 KiB: the last weight
    takes the room of the hidden values (also given), which are still being copied out then."""
    program = captured.program
    at = {name: tensor for tensor, name in enumerate(program.tensor_name)}
    first, tanh, last = range(3)
    hidden, result, final = (int(program.writes(op)[0]) for op in range(3))
    entry = next(given.tensor for given in captured.given if not given.source)
    size = 64 * 64 * 4
    rows = [
        Residency(at["0.weight"], HBM, 0, BEFORE, last),
        Residency(entry, HBM, size, first, first),
        Residency(hidden, HBM, 2 * size, first, tanh),
        Residency(result, HBM, 3 * size, tanh, last),
        Residency(at["2.weight"], HBM, 2 * size, last, last),
        Residency(final, HBM, size, last, last),
    ]
    copies = [
        Copy(entry, HOST, HBM, BEFORE, first),
        Copy(hidden, HBM, HOST, first, last),
        Copy(at["2.weight"], HOST, HBM, tanh, last),
    ]
    return Plan.of(residencies=rows, copies=copies), hidden
