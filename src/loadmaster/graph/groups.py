"""Groups: the ops that share one placement decision.

*Hard* ones are a rule: what a weight, its moments, its updates and in-place ops must keep together.
*Soft* ones are a choice of the problem: 'op' (none), 'scope' (ops of one innermost scope, forward
with backward) or 'coplace' (an op with a single reader joins it). Ops that are pinned to a device,
and what must be with them, are groups of their own.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import numpy.typing as npt

from loadmaster.arrays import Int32, Int64
from loadmaster.errors import Refused
from loadmaster.machine.machine import Machine
from loadmaster.program.hazards import root_writers
from loadmaster.program.program import Program, TensorKind, TieKind
from loadmaster.search.pins import BadPin, Pins

SOFT = ("auto", "op", "scope", "coplace")
MOST_OPS = 64
MOST_WORK = 0.05
"""Limits of a group that 'coplace' makes: ops, and share of the work."""


class Sets:
    """Disjoint sets of ops; the smallest op stands for its set."""

    def __init__(self, count: int) -> None:
        self._parent = list(range(count))

    def find(self, op: int) -> int:
        parent = self._parent
        while parent[op] != op:
            parent[op] = parent[parent[op]]
            op = parent[op]
        return op

    def join(self, a: int, b: int) -> None:
        a, b = sorted((self.find(a), self.find(b)))
        self._parent[b] = a

    def join_all(self, ops: list[int]) -> None:
        for a, b in pairwise(ops):
            self.join(a, b)

    def roots(self) -> Int32:
        return np.array([self.find(op) for op in range(len(self._parent))], dtype=np.int32)


def root_readers(program: Program) -> list[list[int]]:
    """[T] the ops, views left out, that read each root; ascending, each once."""
    readers: list[list[int]] = [[] for _ in range(program.n_tensors)]
    roots = program.tensor_alias[program.read_tensor].tolist()
    views = program.op_view.tolist()
    for op, root in zip(program.read_op.tolist(), roots, strict=True):
        if not views[op] and (not readers[root] or readers[root][-1] != op):
            readers[root].append(op)
    return readers


def root_homes(program: Program) -> Int32:
    """[T] the op with which a root lives: its writer, or the one that a weight must be with, or its
    first reader; -1 for inputs, which are everywhere, and for what nobody uses."""
    home, readers, with_group = root_writers(program), root_readers(program), first_ops(program)
    kept = program.is_persistent
    roots = program.is_root
    for root in np.flatnonzero(kept & roots & (home < 0)).tolist():
        first = readers[root][0] if readers[root] else -1
        home[root] = with_group.get(int(program.tensor_group[root]), first)
    return home


def first_ops(program: Program) -> dict[int, int]:
    """Hard group -> its first op, views left out."""
    first: dict[int, int] = {}
    for op in np.flatnonzero((program.op_group >= 0) & ~program.op_view).tolist():
        first.setdefault(int(program.op_group[op]), op)
    return first


def hard_components(program: Program) -> Int32:
    """[n_ops] ops with one number must be on one device; -1: the op is free."""
    sets, touched = Sets(program.n_ops), np.zeros(program.n_ops, dtype=bool)
    readers, writer = root_readers(program), root_writers(program).tolist()

    def together(ops: list[int]) -> None:
        touched[ops] = True
        sets.join_all(ops)

    of_group: dict[int, list[int]] = {}
    for op in np.flatnonzero((program.op_group >= 0) & ~program.op_view).tolist():
        of_group.setdefault(int(program.op_group[op]), []).append(op)

    def home_ops(root: int) -> list[int]:
        """The ops whose device is the home of a tensor; a weight without a group is at home with
        its first reader, whichever that becomes: all of them must agree."""
        if writer[root] >= 0:
            return [writer[root]]
        if program.tensor_kind[root] == TensorKind.INPUT:
            return []
        return of_group.get(int(program.tensor_group[root]), readers[root])

    with_group = {group: list(ops) for group, ops in of_group.items()}
    for tensor in np.flatnonzero(program.tensor_group >= 0).tolist():
        if program.tensor_alias[tensor] == tensor:
            group = int(program.tensor_group[tensor])
            with_group.setdefault(group, []).extend(home_ops(tensor))
    for ops in with_group.values():
        together(ops)
    inside = _loop_members(program)
    for kind, source, target, at in zip(
        program.tie_kind.tolist(),
        program.tie_source.tolist(),
        program.tie_target.tolist(),
        program.tie_at.tolist(),
        strict=True,
    ):
        a, b = int(program.tensor_alias[source]), int(program.tensor_alias[target])
        if kind == TieKind.INPLACE:
            if program.tensor_kind[a] != TensorKind.INPUT:
                together([*home_ops(a), *home_ops(b)])
        elif kind == TieKind.CARRIED:
            users = {*readers[a], *readers[b], writer[a], writer[b]} - {-1}
            together(sorted(op for op in users if inside[op] & (1 << at)))
    return np.where(touched & ~program.op_view, sets.roots(), -1).astype(np.int32)


def _loop_members(program: Program) -> list[int]:
    """[n_ops] the loops around each op, as the bits of a number."""
    around = [0] * (program.n_loops + 1)
    for loop, parent in enumerate(program.loop_parent.tolist()):
        around[loop] = around[parent] | 1 << loop
    return [around[loop] for loop in program.op_loop.tolist()]


def find_groups(program: Program, component: Int32, soft: str, work: Int64) -> Int32:
    """[n_ops] the group of each op, numbered by first appearance; -1 for views."""
    if soft == "auto":
        soft = "scope" if any(program.op_scope.values) else "coplace"
    sets = Sets(program.n_ops)
    real = np.flatnonzero(~program.op_view)
    held = real[component[real] >= 0]
    for op, first in zip(held.tolist(), component[held].tolist(), strict=True):
        sets.join(op, first)
    if soft == "scope":
        first_of: dict[int, int] = {}
        for op in real.tolist():
            code = int(program.op_scope.codes[op])
            if program.op_scope.values[code]:
                sets.join(op, first_of.setdefault(code, op))
    elif soft == "coplace":
        _coplace(program, component, sets, work)
    return _number(sets.roots(), real)


def _number(label: npt.NDArray[np.integer], real: Int64) -> Int32:
    """[n_ops] labels of the ops `real` numbered by first appearance; -1 for all others."""
    _, first, code = np.unique(label[real], return_index=True, return_inverse=True)
    numbers = np.full(len(label), -1, dtype=np.int32)
    numbers[real] = np.argsort(np.argsort(first))[code]
    return numbers


def _coplace(program: Program, component: Int32, sets: Sets, work: Int64) -> None:
    """From the last op to the first, an op whose results have one reader joins it."""
    readers = root_readers(program)
    of = sets.roots()
    count = np.bincount(of, minlength=program.n_ops).tolist()
    load = np.bincount(of, weights=work.astype(np.float64), minlength=program.n_ops).tolist()
    most = MOST_WORK * float(work.sum())
    hard, views = component.tolist(), program.op_view.tolist()
    written, start = program.tensor_alias[program.write_tensor].tolist(), program.write_start.tolist()
    for op in range(program.n_ops - 1, -1, -1):
        if views[op]:
            continue
        after = {reader for root in written[start[op] : start[op + 1]] for reader in readers[root]} - {op}
        if len(after) != 1:
            continue
        reader = after.pop()
        a, b = sets.find(op), sets.find(reader)
        differ = hard[op] >= 0 and hard[reader] >= 0 and hard[op] != hard[reader]
        if a == b or differ or count[a] + count[b] > MOST_OPS or load[a] + load[b] > most:
            continue
        sets.join(a, b)
        kept, gone = min(a, b), max(a, b)
        count[kept] += count[gone]
        load[kept] += load[gone]


def pinned_components(
    program: Program, machine: Machine, component: Int32, pins: Pins
) -> tuple[Int32, dict[int, int]]:
    """Hard components [n_ops] in which every pinned op has one, and component -> device.

    A component decides for the step that it is fused into, so that a pinned op stays where it is
    whatever it is fused with.
    """
    if pins.memory:
        name = program.tensor_name[next(iter(pins.memory))]
        raise BadPin(
            f"tensor '{name}' can't be pinned here: a tensor lives with the op that makes it",
            object=name,
            remedy="give --pin-op OP=DEVICE",
        )
    component = component.copy()
    chosen: dict[int, int] = {}
    by: dict[int, int] = {}
    for op, device in sorted(pins.device.items()):
        name = program.op_name[op]
        if program.op_view[op]:
            raise BadPin(
                f"op '{name}' only shows another tensor and runs nowhere",
                object=name,
                remedy="pin the op that makes the tensor",
            )
        if component[op] < 0:
            component[op] = op
        own = int(component[op])
        if chosen.setdefault(own, device) != device:
            first, other = program.op_name[by[own]], machine.devices[chosen[own]].name
            raise Refused(
                f"'{first}' is pinned to '{other}' and '{name}' to '{machine.devices[device].name}', and "
                "they must be on one device",
                object=name,
                number=device,
                remedy="pin both to one device",
            )
        by.setdefault(own, op)
    return component, chosen


def pinned_groups(group: Int32, component: Int32, chosen: dict[int, int]) -> tuple[Int32, Int32]:
    """(groups [n_ops], numbered by first appearance, with pinned components apart; device [G] or -1)."""
    apart = group.astype(np.int64)
    for number, own in enumerate(chosen):
        apart[component == own] = int(group.max(initial=-1)) + 1 + number
    groups = _number(apart, np.flatnonzero(group >= 0))
    device = np.full(int(groups.max(initial=-1)) + 1, -1, dtype=np.int32)
    for own, where in chosen.items():
        device[groups[component == own]] = where
    return groups, device


def check_runs(program: Program, machine: Machine, node_op: Int32, durations: Int64, pins: Pins) -> None:
    """Raise if a device can't run what is pinned to it."""
    for op, device in pins.device.items():
        if durations[int(np.searchsorted(node_op, op)), device] < 0:
            name, where = program.op_name[op], machine.devices[device].name
            raise Refused(
                f"'{where}' can't run op '{name}' ({program.op_kind[op]})",
                object=name,
                number=device,
                remedy="pin it to another device",
            )
