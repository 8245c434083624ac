"""`OffloadModel`: what is used when, and the gaps between two uses that can be decided about.

Steps are the ops that are no views, in program order. An *item* is a root tensor that a step uses: reads
or writes.
A *gap* lies before the first use of a weight, between two uses that a step separates, or after the last
use of an output. Kept: the item stays in fast memory. Not kept: it leaves, and comes back if it is used
again. A loop counts as one long step for all that is touched in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster import _core
from loadmaster.arrays import distinct
from loadmaster.errors import BadMachine, BadProgram
from loadmaster.machine.machine import Machine
from loadmaster.program.program import GIVEN, PERSISTENT, Program, TensorKind, TieKind

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Uses:
    """U uses by root, then by step."""

    step_op: Int32
    """[S] the op of each step"""
    root: Int64
    """[U]"""
    step: Int64
    """[U] that uses the root, ascending"""
    held: Bool
    """[U] whether it must stay from the use before to this one: a loop is around both"""
    whole: Int64
    """[T] the step after which all of a root is made, or -1"""


def find_uses(program: Program) -> Uses:
    """Reads and writes of all steps, loops as one long step each."""
    step_op = np.flatnonzero(~program.op_view).astype(np.int32)
    steps = max(1, len(step_op))
    number = np.full(program.n_ops, -1, dtype=np.int64)
    number[step_op] = np.arange(len(step_op))
    loop_of = _outermost(program)[step_op]
    sides = []
    for ops, tensors in ((program.read_op, program.read_tensor), (program.write_op, program.write_tensor)):
        real = ~program.op_view[ops]
        sides.append((program.tensor_alias[tensors[real]].astype(np.int64), number[ops[real]]))
    whole = np.full(program.n_tensors, -1, dtype=np.int64)
    np.maximum.at(whole, *sides[1])
    used = np.concatenate([root * steps + step for root, step in sides])
    if (loop_of >= 0).any():
        # What a loop touches is used at its first and at its last step.
        first, last = np.full(program.n_loops, steps), np.full(program.n_loops, -1)
        inside = np.flatnonzero(loop_of >= 0)
        np.minimum.at(first, loop_of[inside], inside)
        np.maximum.at(last, loop_of[inside], inside)
        made = whole >= 0
        around = np.where(made, loop_of[whole], -1)
        whole = np.where(around >= 0, last[around], whole)
        looped = used[loop_of[used % steps] >= 0]
        loop, start = loop_of[looped % steps], looped - looped % steps
        used = np.concatenate([used, start + first[loop], start + last[loop]])
    used = distinct(used)
    root, step = used // steps, used % steps
    loop = loop_of[step]
    held = np.zeros(len(used), dtype=np.bool_)
    held[1:] = (root[1:] == root[:-1]) & (loop[1:] >= 0) & (loop[1:] == loop[:-1])
    return Uses(step_op, root, step, held, whole)


def _outermost(program: Program) -> Int64:
    """[n] the outermost loop around each op, or -1."""
    outer = np.full(program.n_loops + 1, -1, dtype=np.int64)  # the last: outside all
    for loop in range(program.n_loops):  # parents come before their loops
        parent = int(program.loop_parent[loop])
        outer[loop] = loop if parent < 0 else outer[parent]
    return outer[program.op_loop]


Bool = npt.NDArray[np.bool_]
Int8 = npt.NDArray[np.int8]

BEFORE_USE, BETWEEN, TO_END = 0, 1, 2
"""Kinds of gaps."""


@dataclass(frozen=True, eq=False)
class OffloadModel:
    """S steps, B items, U uses, G gaps, by row. Times are picoseconds, room is in aligned bytes."""

    fast: int
    home: int
    capacity: int
    step_op: Int32
    """[S]"""
    root: Int32
    """[B]"""
    size: Int64
    """[B] room"""
    copy_in: Int64
    """[B] time of a copy alone"""
    copy_out: Int64
    given: Bool
    """[B] the host has it from the start"""
    persistent: Bool
    """[B] it may lie in fast memory between runs"""
    output: Bool
    """[B] it must be somewhere at the end, and an op makes it"""
    made: Int32
    """[B] the step after which it can be copied out, or -1: given"""
    use_start: Int64
    """[B + 1]"""
    use_step: Int32
    """[U] by item, ascending"""
    use_gap: Int32
    """[U] the gap before this use: none (-1) for what is made then, or always kept"""
    gap_item: Int32
    """[G]"""
    gap_kind: Int8
    gap_from: Int32
    """[G] the step of the use before it, or -1"""
    gap_to: Int32
    """[G] the step of the use after it, or S"""
    end_gap: Int32
    """[B] the gap after its last use, or -1"""
    first_gap: Int32
    """[B] the gap before its first use, or -1"""
    clock: Int64
    """[S + 1] the start of each step if nothing waits, and the end; all 0 until that is known"""
    taken: Int64
    """[S] room that kernels take for themselves"""

    @property
    def steps(self) -> int:
        return len(self.step_op)

    @cached_property
    def tables(self) -> _core.OffloadTables:
        """The columns as the native core reads them."""
        names = (
            "size",
            "copy_in",
            "copy_out",
            "made",
            "first_gap",
            "end_gap",
            "use_start",
            "use_step",
            "use_gap",
            "gap_item",
            "gap_from",
            "gap_to",
            "gap_kind",
            "clock",
        )
        columns = {name: np.ascontiguousarray(getattr(self, name)) for name in names}
        return _core.OffloadTables({**columns, "output": self.output.astype(np.int8)})

    @property
    def items(self) -> int:
        return len(self.root)

    @property
    def gaps(self) -> int:
        return len(self.gap_item)

    @cached_property
    def use_item(self) -> Int32:
        """[U]"""
        return np.repeat(np.arange(self.items, dtype=np.int32), np.diff(self.use_start))

    @cached_property
    def last_use(self) -> Int32:
        """[B]"""
        return self.use_step[self.use_start[1:] - 1]

    @cached_property
    def first_use(self) -> Int32:
        """[B]"""
        return self.use_step[self.use_start[:-1]]

    @cached_property
    def needed(self) -> int:
        """Bytes with which nothing ever has to leave."""
        room = np.zeros(self.steps + 1, dtype=np.int64)
        always = self.persistent
        begin = np.where(always, 0, self.first_use)
        end = np.where(always | self.output, self.steps - 1, self.last_use)
        np.add.at(room, begin, self.size)
        np.add.at(room, end + 1, -self.size)
        return int((np.cumsum(room)[:-1] + self.taken).max(initial=0))


def offload_model(program: Program, machine: Machine, reserve: int = 0) -> OffloadModel:
    """The columns of a program on a machine's first device; `reserve` bytes are left to kernels."""
    fast, home = _memories(machine)
    _check_ties(program)
    memory, uses = machine.memories[fast], find_uses(program)
    sized = program.storage_bytes[uses.root] > 0
    step, held = uses.step[sized].astype(np.int32), uses.held[sized]
    roots, count = np.unique(uses.root[sized].astype(np.int32), return_counts=True)
    start = np.concatenate([[0], np.cumsum(count)]).astype(np.int64)
    _check_fast(program, machine, fast, roots)
    kind = program.tensor_kind[roots]
    given = np.isin(kind, [int(k) for k in GIVEN])
    persistent = np.isin(kind, [int(k) for k in PERSISTENT])
    output = np.zeros(program.n_tensors, dtype=bool)
    output[program.tensor_alias[program.tensor_kind == TensorKind.OUTPUT]] = True
    leaves = output[roots] & ~given
    return OffloadModel(
        fast=fast,
        home=home,
        capacity=(memory.capacity - reserve) // memory.alignment * memory.alignment,
        step_op=uses.step_op,
        root=roots,
        size=-(-program.storage_bytes[roots] // memory.alignment) * memory.alignment,
        copy_in=_copy_times(program, machine, roots, home, fast),
        copy_out=_copy_times(program, machine, roots, fast, home),
        given=given,
        persistent=persistent,
        output=leaves,
        made=uses.whole[roots].astype(np.int32),
        use_start=start,
        use_step=step,
        clock=np.zeros(len(uses.step_op) + 1, dtype=np.int64),
        taken=np.zeros(len(uses.step_op), dtype=np.int64),
        **_gaps(start, step, held, persistent, leaves, len(uses.step_op)),
    )


def _memories(machine: Machine) -> tuple[int, int]:
    """(fast, home) of a machine on which such plans make sense."""
    reach = machine.reach[0]
    fast, home = reach[0], reach[-1]
    both = {(home, fast), (fast, home)} <= set(machine.link_between)
    if len(machine.devices) > 1 or fast == home or not both or machine.rules.copies != "free":
        raise BadMachine(
            f"machine '{machine.name}' can't be planned for as a device that works in one memory alone",
            object=machine.name,
            number=len(machine.devices),
            remedy='give one device, two memories, links both ways and copies = "free"',
        )
    return fast, home


def _check_ties(program: Program) -> None:
    for row in np.flatnonzero(program.tie_kind != TieKind.DONATED).tolist():
        name = program.tensor_name[program.tie_target[row]]
        raise BadProgram(
            f"tensor '{name}' is written over another one, and offload plans know no such ties",
            object=name,
            remedy="leave --problem out, capture the model with PyTorch, or give a machine such as h200-zero-copy",
        )


def _check_fast(program: Program, machine: Machine, fast: int, roots: Int32) -> None:
    for tensor in roots[~program.tensor_fast[roots]].tolist():
        name = program.tensor_name[tensor]
        raise BadProgram(
            f"tensor '{name}' may not be in '{machine.memories[fast].name}', where the ops of "
            f"'{machine.devices[0].name}' work",
            object=name,
            remedy="let it be there",
        )


def _copy_times(program: Program, machine: Machine, roots: Int32, source: int, target: int) -> Int64:
    link = machine.links[machine.link_between[source, target]]
    size = np.ascontiguousarray(program.storage_bytes[roots])
    times: Int64 = _core.ceil_times(size, np.full(len(size), link.bandwidth, dtype=np.int64))
    return np.maximum(1, times + link.latency)


def _gaps(start: Int64, step: Int32, held: Bool, weight: Bool, output: Bool, steps: int) -> dict[str, Any]:
    """Gaps by item: before the first use, between uses, after the last."""
    items, uses = len(start) - 1, len(step)
    item = np.repeat(np.arange(items), np.diff(start))
    before = np.flatnonzero(weight)
    # The gap of a use is the one before it: none before an item's first.
    leaves = ~held
    leaves[start[:-1]] = False
    leaves[1:] &= np.diff(step) > 1
    between = np.flatnonzero(leaves)
    last = step[start[1:] - 1]
    after = np.flatnonzero(output & (last < steps - 1))
    parts = [
        (before, BEFORE_USE, np.full(len(before), -1), step[start[before]], start[before]),
        (item[between], BETWEEN, step[between - 1], step[between], between),
        (after, TO_END, last[after], np.full(len(after), steps), start[after + 1] - 1),
    ]
    kind = np.repeat([part[1] for part in parts], [len(part[0]) for part in parts])
    gap_item, begin, end, use = (np.concatenate([part[k] for part in parts]) for k in (0, 2, 3, 4))
    order = np.lexsort((kind, use, gap_item))
    gap = np.empty(len(order), dtype=np.int32)
    gap[order] = np.arange(len(order))
    use_gap = np.full(uses, -1, dtype=np.int32)
    first_gap, end_gap = (np.full(items, -1, dtype=np.int32) for _ in range(2))
    first_gap[before], use_gap[between], end_gap[after] = np.split(
        gap, np.cumsum([len(before), len(between)])
    )
    return {
        "use_gap": use_gap,
        "first_gap": first_gap,
        "end_gap": end_gap,
        "gap_item": gap_item[order].astype(np.int32),
        "gap_kind": kind[order].astype(np.int8),
        "gap_from": begin[order].astype(np.int32),
        "gap_to": end[order].astype(np.int32),
    }


GRAIN = 512
SLACK = 2 * 2**20
"""Bytes that an op that takes some may take beside them."""
SPARE = 16 * 2**20
"""Bytes beside what was measured, for all that is not modelled."""
LIBRARIES = 36 * 2**20
"""What libraries keep on an H200 for a stream, at the least: a plan's stream has its own."""


@dataclass(frozen=True, eq=False)
class Kernels:
    """What kernels take beside the tensors of a program."""

    workspace: Int64
    """[n_ops] bytes while an op runs"""
    kept: int = 0
    """Bytes that libraries keep"""
    spare: int = 0
    """Bytes beside what was measured"""

    def room(self, ops: Int32) -> Int64:
        """Bytes for themselves while ops run: pieces of it are rounded up and come and go in some order."""
        own = self.workspace[ops]
        found: Int64 = np.where(own > 0, -(-own // GRAIN) * GRAIN + SLACK, 0)
        return found

    def as_json(self) -> dict[str, Any]:
        some = np.flatnonzero(self.workspace)
        return {
            "workspace": [some.tolist(), self.workspace[some].tolist()],
            "kept": self.kept,
            "spare": self.spare,
        }

    @classmethod
    def of_json(cls, about: dict[str, Any], ops: int) -> Kernels:
        """The inverse of `as_json`."""
        workspace = np.zeros(ops, dtype=np.int64)
        workspace[np.array(about["workspace"][0], dtype=np.int64)] = about["workspace"][1]
        return cls(workspace, about["kept"], about.get("spare", 0))


def unmeasured_kernels(ops: int) -> Kernels:
    """Of a GPU on which nothing was measured: libraries keep what they do, and ops get nothing for themselves."""
    return Kernels(np.zeros(ops, dtype=np.int64), LIBRARIES, SPARE)


def measured_kernels(op_workspace: Sequence[int], kept: int) -> Kernels | None:
    """What was measured of kernels; None on a device whose memory is one arena: there they take nothing."""
    own = np.array(op_workspace, dtype=np.int64)
    return Kernels(own, max(kept, LIBRARIES), SPARE) if kept or own.any() else None
