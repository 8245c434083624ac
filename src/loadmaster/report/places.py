"""Where tensors live, before and after: the transition matrix and the strip along the program."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadmaster.plan.check.facts import Facts
from loadmaster.program.program import PERSISTENT, Program

Int64 = npt.NDArray[np.int64]
Int8 = npt.NDArray[np.int8]
NOWHERE = -1


@dataclass(frozen=True)
class Transitions:
    """Tensors by their memory before (rows) and after (columns)."""

    memories: list[int]
    """The machine's numbers, in the order of rows and columns."""
    bytes: Int64
    count: Int64


def tensor_memories(facts: Facts) -> Int64:
    """[T] the memory that serves most of the accesses to a root; NOWHERE: nobody uses it."""
    found = np.full(facts.n_tensors, NOWHERE, dtype=np.int64)
    home = facts.machine.home
    for tensor in facts.roots:
        users = list(facts.readers[tensor])
        writer = facts.writer[tensor]
        if writer >= 0 and tensor in facts.steps[writer].writes:
            users.append(writer)
        if not users:
            continue
        if tensor not in facts.residencies_of:
            found[tensor] = home[facts.home_device[tensor]]
            continue
        served = Counter(facts.serves(rank, tensor)[0] for rank in users)
        found[tensor] = max(served, key=lambda memory: (served[memory], -memory))
    return found


def transitions(program: Program, old: Int64, new: Int64) -> Transitions | None:
    """None where all tensors share one memory, before and after."""
    both = np.flatnonzero((old != NOWHERE) & (new != NOWHERE))
    memories = np.unique(np.concatenate([old[both], new[both]])).tolist()
    if len(memories) < 2:
        return None
    at = {memory: number for number, memory in enumerate(memories)}
    rows = np.array([at[memory] for memory in old[both].tolist()])
    columns = np.array([at[memory] for memory in new[both].tolist()])
    size = np.zeros((len(memories), len(memories)), dtype=np.int64)
    count = np.zeros_like(size)
    np.add.at(size, (rows, columns), program.storage_bytes[both])
    np.add.at(count, (rows, columns), 1)
    return Transitions(memories, size, count)


def strip_tensors(program: Program) -> tuple[Int64, Int64]:
    """([n] the largest result of each op, [n] the largest weight or state that it reads), as roots;
    NOWHERE: none. Views have neither."""
    kept = np.isin(program.tensor_kind[program.tensor_alias], [int(kind) for kind in PERSISTENT])
    results = _largest(program, program.write_op, program.write_tensor, ~kept)
    weights = _largest(program, program.read_op, program.read_tensor, kept)
    return results, weights


def _largest(
    program: Program, op: npt.NDArray[np.int32], tensor: npt.NDArray[np.int32], wanted: npt.NDArray[np.bool_]
) -> Int64:
    found = np.full(program.n_ops, NOWHERE, dtype=np.int64)
    kept = np.flatnonzero(~program.op_view[op] & wanted[tensor])
    root = program.tensor_alias[tensor[kept]]
    order = np.argsort(program.storage_bytes[root], kind="stable")
    found[op[kept][order]] = root[order]  # the largest comes last and stays
    return found


def strip_rows(tensors: tuple[Int64, Int64], memories: Int64) -> list[Int8]:
    """The memory of each of them, NOWHERE where there is none."""
    rows = []
    for row in tensors:
        where = np.where(row == NOWHERE, NOWHERE, memories[row])
        rows.append(where.astype(np.int8))
    return rows
