"""Plans in which every tensor stays in one memory for its whole life."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import BEFORE, NO_OFFSET, Plan, Residency
from loadmaster.program.program import PERSISTENT, Program, TensorKind

HOME = -1
"""As a memory: undecided, so its home."""


def lifetimes(program: Program) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(first op, last op) at which each root must be somewhere; weights and state: all ops.

    Views count as their root; outputs live to the end; inputs from the start. A root that
    nobody touches has last < first.
    """
    n, root = program.n_ops, program.tensor_alias
    first = np.where(program.producer >= 0, program.producer, 0).astype(np.int64)
    last = np.full(program.n_tensors, -1, dtype=np.int64)
    for tensors, ops in (
        (program.write_tensor, program.write_op),
        (program.read_tensor, program.read_op),
    ):
        real = ~program.op_view[ops]
        np.maximum.at(last, root[tensors[real]], ops[real])
    outputs = root[program.tensor_kind == TensorKind.OUTPUT]
    last[outputs[program.tensor_kind[outputs] != TensorKind.INPUT]] = n - 1
    kept = np.isin(program.tensor_kind, [int(kind) for kind in PERSISTENT])
    first[kept], last[kept] = 0, n - 1
    return first, last


def static_plan(
    program: Program, machine: Machine, memory: Sequence[int], offset: Sequence[int] | None = None
) -> Plan:
    """The plan that keeps root t in `memory[t]` (or at home) for its whole life, in program order.

    Weights and state are in place before the program starts. Inputs stay at home.
    """
    first, last = lifetimes(program)
    rows = []
    for tensor in np.flatnonzero(np.asarray(memory) >= 0).tolist():
        kind = program.tensor_kind[tensor]
        if (
            program.tensor_alias[tensor] != tensor
            or kind == TensorKind.INPUT
            or last[tensor] < first[tensor]
        ):
            continue
        begin = BEFORE if kind in PERSISTENT else int(first[tensor])
        where = NO_OFFSET if offset is None else int(offset[tensor])
        rows.append(Residency(tensor, int(memory[tensor]), where, begin, int(last[tensor])))
    return Plan.of(residencies=rows)
