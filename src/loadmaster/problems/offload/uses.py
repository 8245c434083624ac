"""Which steps use what."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from loadmaster.program.program import Program

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Uses:
    """By root."""

    step_op: Int32
    """[S] the op of each step"""
    steps: dict[int, list[int]]
    """Root -> the steps that use it, ascending"""
    held: dict[int, list[bool]]
    """Root -> whether it must stay from the use before to this one: a loop is around both"""
    whole: dict[int, int]
    """Root -> the step after which all of it is made"""


def find_uses(program: Program) -> Uses:
    """Reads and writes of all steps, loops as one long step each."""
    step_op = np.flatnonzero(~program.op_view).astype(np.int32)
    number = np.full(program.n_ops, -1, dtype=np.int64)
    number[step_op] = np.arange(len(step_op))
    loop_of = _outermost(program)[step_op].tolist()
    spans: dict[int, tuple[int, int]] = {}
    for step, loop in enumerate(loop_of):
        if loop >= 0:
            spans[loop] = (spans.get(loop, (step, step))[0], step)
    touched, whole = _touched(program, number)
    for root, step in whole.items():
        if loop_of[step] >= 0:
            whole[root] = spans[loop_of[step]][1]
    steps, held = {}, {}
    for root in sorted(touched):
        for loop in {loop_of[step] for step in touched[root]} - {-1}:
            touched[root].update(spans[loop])
        used = steps[root] = sorted(touched[root])
        held[root] = [False, *(loop_of[a] == loop_of[b] >= 0 for a, b in pairwise(used))]
    return Uses(step_op, steps, held, whole)


def _touched(program: Program, number: Int64) -> tuple[dict[int, set[int]], dict[int, int]]:
    """Root -> its steps, and root -> the last step that writes it."""
    found: dict[int, set[int]] = {}
    written: dict[int, int] = {}
    for ops, tensors, writes in (
        (program.read_op, program.read_tensor, False),
        (program.write_op, program.write_tensor, True),
    ):
        real = ~program.op_view[ops]
        roots = program.tensor_alias[tensors[real]].tolist()
        for step, root in zip(number[ops[real]].tolist(), roots, strict=True):
            found.setdefault(root, set()).add(step)
            if writes:
                written[root] = max(step, written.get(root, -1))
    return found, written


def _outermost(program: Program) -> Int64:
    """[n] the outermost loop around each op, or -1."""
    outer = np.full(program.n_loops + 1, -1, dtype=np.int64)  # the last: outside all
    for loop in range(program.n_loops):  # parents come before their loops
        parent = int(program.loop_parent[loop])
        outer[loop] = loop if parent < 0 else outer[parent]
    return outer[program.op_loop]
