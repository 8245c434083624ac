"""Plans in which every tensor stays in one memory for its whole life."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import BEFORE, NO_OFFSET, Plan, Residency
from loadmaster.program.program import PERSISTENT, Program, TensorKind, TieKind

HOME = -1
"""As a memory: undecided, so its home."""


def lifetimes(
    program: Program, order: npt.NDArray[np.int32] | None = None
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(first op, last op) at which each root must be somewhere; weights and state: all ops. With an
    order of the ops, the positions in it.

    Views count as their root; outputs live to the end; inputs from the start. A root that
    nobody touches has last < first.
    """
    n, root = program.n_ops, program.tensor_alias
    at = np.zeros(n + 1, dtype=np.int64)  # the last one: no op makes it, it is there at the start
    at[slice(n) if order is None else order] = np.arange(n)
    first = at[program.producer]
    last = np.full(program.n_tensors, -1, dtype=np.int64)
    for tensors, ops in ((program.write_tensor, program.write_op), (program.read_tensor, program.read_op)):
        real = ~program.op_view[ops]
        np.maximum.at(last, root[tensors[real]], at[ops[real]])
    outputs = root[program.tensor_kind == TensorKind.OUTPUT]
    last[outputs[program.tensor_kind[outputs] != TensorKind.INPUT]] = n - 1
    kept = np.isin(program.tensor_kind, [int(kind) for kind in PERSISTENT])
    first[kept], last[kept] = 0, n - 1
    return first, last


def lifetimes_in_loops(program: Program) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """`lifetimes`, and what a loop carries stays to the loop's last op: the next iteration finds
    it there."""
    first, last = lifetimes(program)
    carried = np.flatnonzero(program.tie_kind == TieKind.CARRIED)
    if len(carried):
        end = np.full(program.n_loops + 1, -1, dtype=np.int64)  # the last one: outside every loop
        np.maximum.at(end, program.op_loop, np.arange(program.n_ops))
        for loop in range(program.n_loops - 1, -1, -1):  # parents come before their loops
            end[program.loop_parent[loop]] = max(end[program.loop_parent[loop]], end[loop])
        for tensors in (program.tie_source, program.tie_target):
            root = program.tensor_alias[tensors[carried]]
            # An input that a loop starts with is used, though no op may read it under its own name.
            used = (last[root] >= first[root]) | (program.tensor_kind[root] == TensorKind.INPUT)
            np.maximum.at(last, root[used], end[program.tie_at[carried[used]]])
    return first, last


def static_plan(
    program: Program,
    machine: Machine,
    memory: Sequence[int],
    offset: Sequence[int] | None = None,
    *,
    in_loops: bool = False,
) -> Plan:
    """The plan that keeps root t in `memory[t]` (or at home) for its whole life, in program order.

    Weights and state are in place before the program starts. Inputs stay at home. `in_loops`: lives
    are those of `lifetimes_in_loops`, which the checker wants of what a loop carries.
    """
    first, last = lifetimes_in_loops(program) if in_loops else lifetimes(program)
    rows = []
    for tensor in np.flatnonzero(np.asarray(memory) >= 0).tolist():
        kind = program.tensor_kind[tensor]
        if program.tensor_alias[tensor] != tensor or kind == TensorKind.INPUT or last[tensor] < first[tensor]:
            continue
        begin = BEFORE if kind in PERSISTENT else int(first[tensor])
        where = NO_OFFSET if offset is None else int(offset[tensor])
        rows.append(Residency(tensor, int(memory[tensor]), where, begin, int(last[tensor])))
    return Plan.of(residencies=rows)
