"""`simulate`: a plan's Timeline from the native core, and many plans at once."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster import _core
from loadmaster.errors import BadPlan
from loadmaster.host import cores
from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import MOST_BYTE, QUEUES, TIES, Plan
from loadmaster.program.hazards import overwriters, places
from loadmaster.program.program import GIVEN, Program, TensorKind, TieKind
from loadmaster.simulate.costs import compute_times
from loadmaster.units import PICOSECONDS

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Timeline:
    """What a plan costs: start and end of everything, bytes over links, and the memories' peaks.

    All times are integer picoseconds.
    """

    total_ps: int
    op_start: Int64
    """[n_ops]; members of a fused group share their times, a view has its root's end as both."""
    op_end: Int64
    op_stall: Int64
    """[n_ops] how long an op waited for explicit copies alone"""
    copy_start: Int64
    """[copies], in the plan's order"""
    copy_end: Int64
    transfers: Int64
    """[x, 4]: tensor, destination device, start, end, in order of booking"""
    link_bytes: Int64
    """[links]"""
    device_busy: Int64
    """[devices]"""
    memory_peak: Int64
    """[memories] largest number of bytes held at once"""
    memory_top: Int64
    """[memories] highest address that an explicit offset uses"""
    memory_over: Int64
    """[memories] bytes above the capacity; the plan is valid only if all are 0"""
    memory_first_over: Int64
    """[memories] when the held bytes first exceeded the capacity, or -1"""

    @property
    def seconds(self) -> float:
        return self.total_ps / PICOSECONDS

    @property
    def stall_ps(self) -> int:
        return int(self.op_stall.sum())

    @property
    def fits(self) -> bool:
        """Whether no memory is over its capacity."""
        return not self.memory_over.any()


def check_ranges(program: Program, machine: Machine, plan: Plan) -> None:
    """Raise `BadPlan` for a plan with an entry that does not exist, before the native core follows it."""
    n, t, m, d = program.n_ops, program.n_tensors, len(machine.memories), len(machine.devices)
    if plan.queue not in QUEUES or plan.tie not in TIES:
        raise _bad(
            f"queue '{plan.queue}' with tie '{plan.tie}' is not known", "queue", f"use {', '.join(QUEUES)}"
        )
    _column(plan.device, "device", n, 0, d)
    _column(plan.order, "order", n, 0, n)
    _column(plan.fusion, "fusion", n, -1, n)
    if plan.order is not None and n and (np.bincount(plan.order, minlength=n) != 1).any():
        raise _bad("the order is not a permutation of the ops", "order", "list every op once")
    if plan.queue == "priority":
        if plan.priority is None:
            raise _bad("the queue 'priority' has no priorities", "priority", "give one per op")
        if plan.priority.shape != (n,) or not np.isfinite(plan.priority).all():
            raise _bad("the priorities must be finite, one per op", "priority", f"give {n} finite numbers")
    tables = (plan.residencies, plan.copies, plan.transfers)
    if plan.queue != "order" and any(table is not None for table in tables):
        raise _bad(
            f"residencies, copies and transfers need an order, and the queue is '{plan.queue}'",
            "queue",
            "use queue 'order'",
        )
    if plan.transfers is not None and machine.rules.copies == "idle":
        raise _bad("a machine with copies = 'idle' has no transfers", "transfers", "leave them out")
    if machine.rules.copies == "idle" and d != 1:
        raise _bad(
            f"a machine with copies = 'idle' needs one device and has {d}",
            machine.name,
            "use copies = 'free'",
            d,
        )
    if machine.rules.copies == "idle" and plan.queue != "order":
        raise _bad(
            f"a machine with copies = 'idle' needs queue 'order', not '{plan.queue}'", "queue", "use 'order'"
        )
    _table(plan.residencies, "residency", ((0, t), (0, m), (-1, MOST_BYTE + 1), (-1, n), (0, n)))
    place = (-1, MOST_BYTE + 1)
    _table(plan.copies, "copy", ((0, t), (0, m), (0, m), (-1, n), (0, n + 1), place, place))
    _table(plan.transfers, "transfer", ((0, t), (0, d)))
    if plan.copies is not None:
        low, high = plan.copies[:, 5], plan.copies[:, 6]
        bad = np.flatnonzero((low >= 0) & (high < low) | (low < 0) & (high >= 0))
        if len(bad):
            raise _bad(
                f"copy {bad[0]} has the byte range {low[bad[0]]} to {high[bad[0]]}",
                f"copy {bad[0]}",
                "give 0 <= low <= high, or leave both out",
            )


def _bad(what: str, object: str, remedy: str, number: Any = None) -> BadPlan:
    return BadPlan(f"the plan can't be run: {what}", object=object, number=number, remedy=remedy)


def _column(values: npt.NDArray[Any] | None, name: str, rows: int, least: int, limit: int) -> None:
    if values is None:
        return
    if values.dtype != np.int32 or values.shape != (rows,):
        raise _bad(f"'{name}' must be int32[{rows}]", name, "give one entry per op")
    bad = np.flatnonzero((values < least) | (values >= limit))
    if len(bad):
        raise _bad(
            f"'{name}' of op {bad[0]} is {values[bad[0]]}",
            name,
            f"give {least} to {limit - 1}",
            int(values[bad[0]]),
        )


def _table(rows: npt.NDArray[Any] | None, name: str, limits: tuple[tuple[int, int], ...]) -> None:
    if rows is None:
        return
    if rows.dtype != np.int64 or rows.ndim != 2 or rows.shape[1] != len(limits):
        raise _bad(f"the table of each {name} must be int64[.., {len(limits)}]", name, "use Plan.of")
    for column, (least, limit) in enumerate(limits):
        bad = np.flatnonzero((rows[:, column] < least) | (rows[:, column] >= limit))
        if len(bad):
            raise _bad(
                f"{name} {bad[0]} has {rows[bad[0], column]} in column {column}",
                f"{name} {bad[0]}",
                f"give {least} to {limit - 1}",
                int(rows[bad[0], column]),
            )


def explain(fault: tuple[int, int, int], program: Program, machine: Machine) -> BadPlan:
    """The native core's fault as a sentence."""
    code, a, b = fault
    op = program.op_name
    memory = [m.name for m in machine.memories]
    if code == 1:
        return _bad(
            f"fused ops '{op[a]}' and '{op[b]}' are on different devices", op[a], "put them on one", b
        )
    if code == 2:
        return _bad(
            f"fused ops '{op[a]}' and '{op[b]}' are in different loops", op[a], "fuse within a loop", b
        )
    if code == 3:
        return _bad(f"op '{op[a]}' can't run on device '{machine.devices[b].name}'", op[a], "move it", b)
    if code == 4:
        return _bad(
            f"machine '{machine.name}' has no link from '{memory[a]}' to '{memory[b]}'",
            memory[a],
            "add the link, or move the data another way",
            b,
        )
    if code == 5:
        return _bad(
            f"op '{op[a]}' waits for something that never happens",
            op[a],
            "order it after what it reads, and fuse no cycle",
            a,
        )
    if code == 6:
        return _bad(f"copy {a} is needed before it is issued", f"copy {a}", "issue it after an earlier op", a)
    if code == 7:
        return _bad(
            f"copy {a} must start or end in '{memory[machine.home[0]]}' on this machine",
            f"copy {a}",
            "copy through the slowest memory",
            a,
        )
    name = program.tensor_name[a] if a >= 0 else "?"
    return _bad(
        f"the list of transfers is wrong at tensor '{name}' to device {b}",
        name,
        "list every needed transfer once, or none",
        b,
    )


def simulate(program: Program, machine: Machine, plan: Plan | None = None) -> Timeline:
    """Time a plan. Raises `BadPlan` if it can't run.

    Args:
      program, machine: what the plan is about.
      plan: None: the plan that decides nothing.

    Returns:
      start and end of every op `[n]` and copy in picoseconds, traffic by memory, peaks, and the total.
    """
    return get_simulator(program, machine).run(plan or Plan())


_SIMULATORS: weakref.WeakKeyDictionary[Program, dict[str, Simulator]] = weakref.WeakKeyDictionary()


def get_simulator(program: Program, machine: Machine) -> Simulator:
    """The simulator of a program on a machine, made once."""
    known = _SIMULATORS.setdefault(program, {})
    if machine.hash not in known:
        known[machine.hash] = Simulator(program, machine)
    return known[machine.hash]


class Simulator:
    """A program on a machine, ready to time plans. Threads may share it."""

    def __init__(self, program: Program, machine: Machine) -> None:
        # A weak reference: simulators are kept per program and must not keep it alive.
        self._program = weakref.ref(program)
        self.machine = machine
        self.native = _core.Simulator(_columns(program, machine))

    @property
    def program(self) -> Program:
        program = self._program()
        if program is None:
            raise ReferenceError("the program of this simulator is gone")
        return program

    def run(self, plan: Plan) -> Timeline:
        """One plan's Timeline."""
        check_ranges(self.program, self.machine, plan)
        result = self.native.run(_arrays(plan))
        fault = result.pop("fault")
        if fault[0]:
            raise explain(fault, self.program, self.machine)
        return Timeline(**result)

    def run_many(self, plans: Sequence[Plan], threads: int | None = None) -> tuple[Int64, Int64]:
        """(total_ps[B], bytes over [B, memories]) of many plans on all cores."""
        for plan in plans:
            check_ranges(self.program, self.machine, plan)
        total, over, faults = self.native.run_many([_arrays(plan) for plan in plans], threads or cores())
        bad = np.flatnonzero(faults[:, 0])
        if len(bad):
            raise explain(tuple(faults[bad[0]].tolist()), self.program, self.machine)
        return total, over

    def run_static(self, memory: npt.NDArray[np.int8], threads: int | None = None) -> tuple[Int64, Int64]:
        """(total_ps[B], peak[B, memories]) of whole-life mappings `memory[B, tensors]`.

        Entry [b, t] is the memory of root t for its whole life, or -1 for its home; entries of
        inputs and views are ignored. Equal to `run` of `static_plan`, and much faster.
        """
        return self.native.run_static(np.ascontiguousarray(memory, dtype=np.int8), threads or cores())


def _arrays(plan: Plan) -> _core.PlanArrays:
    return (
        plan.device,
        plan.order,
        plan.fusion,
        plan.priority,
        QUEUES.index(plan.queue),
        plan.tie == "critical_path",
        plan.residencies,
        plan.copies,
        plan.transfers,
    )


def _columns(program: Program, machine: Machine) -> dict[str, npt.NDArray[Any]]:
    compute, named = compute_times(program, machine)
    root = program.tensor_alias
    place = places(program)
    place_size = np.zeros(program.n_tensors, dtype=np.int64)
    np.maximum.at(place_size, place[root], program.storage_bytes)
    output = np.zeros(program.n_tensors, dtype=np.int8)
    output[root[program.tensor_kind == TensorKind.OUTPUT]] = 1
    tied = np.zeros(program.n_tensors, dtype=np.int8)
    tied[root[program.tie_target[program.tie_kind != TieKind.DONATED]]] = 1
    view_root = np.full(program.n_ops, -1, dtype=np.int32)
    view_root[program.op_view] = root[program.read_tensor[program.read_start[:-1][program.op_view]]]
    writer = np.where(np.isin(program.tensor_kind, [int(k) for k in GIVEN]), -1, program.producer)
    groups = int(max(program.op_group.max(initial=-1), program.tensor_group.max(initial=-1))) + 1
    group_op = np.full(groups, -1, dtype=np.int32)
    real = np.flatnonzero((program.op_group >= 0) & ~program.op_view)[::-1]
    group_op[program.op_group[real]] = real  # the smallest comes last and stays
    reach = [memory for memories in machine.reach for memory in memories]
    engines = {name: number for number, name in enumerate(machine.engines)}
    held = [[engines[engine] for engine in dict.fromkeys(link.engines)] for link in machine.links]
    return {
        "view": program.op_view.astype(np.int8),
        "view_root": view_root,
        "loop": program.op_loop,
        "repeat": program.op_repeat,
        "group": program.op_group,
        "other_bytes": program.op_other_bytes,
        "compute": compute,
        "named": named,
        "root": root,
        "size": program.storage_bytes,
        "role": program.tensor_kind,
        "output": output,
        "tied": tied,
        "writer": writer.astype(np.int32),
        "place": place,
        "place_size": place_size,
        "overwriter": overwriters(program),
        "tensor_group": program.tensor_group,
        "group_op": group_op,
        **_accesses(program),
        "device_reach": np.array(reach, dtype=np.int32),
        "device_reach_start": _starts([len(memories) for memories in machine.reach]),
        "device_launch": np.array([device.launch for device in machine.devices], dtype=np.int64),
        "memories": np.array(
            [[m.capacity, m.read, m.write, m.latency, m.alignment] for m in machine.memories], dtype=np.int64
        ),
        "links": np.array(
            [
                [machine.memory(k.source), machine.memory(k.target), k.bandwidth, k.latency]
                for k in machine.links
            ],
            dtype=np.int64,
        ).reshape(len(machine.links), 4),
        "link_engines": np.array([engine for link in held for engine in link], dtype=np.int32),
        "link_engine_start": _starts([len(link) for link in held]),
        "rules": np.array(
            [
                len(engines),
                machine.rules.ports == "parallel",
                machine.rules.overlap,
                machine.rules.copies == "idle",
            ],
            dtype=np.int64,
        ),
    }


def _starts(lengths: Sequence[int] | Int64) -> Int64:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _accesses(program: Program) -> dict[str, npt.NDArray[Any]]:
    # Reads, then writes of each op, to roots; views have none.
    op = np.concatenate([program.read_op, program.write_op])
    tensor = np.concatenate([program.read_tensor, program.write_tensor])
    size = np.concatenate([program.read_bytes, program.write_bytes])
    write = np.repeat([0, 1], [len(program.read_op), len(program.write_op)]).astype(np.int8)
    kept = np.flatnonzero(~program.op_view[op])
    kept = kept[np.argsort(op[kept], kind="stable")]
    counts = np.bincount(op[kept], minlength=program.n_ops)
    return {
        "access_start": _starts(counts),
        "access_tensor": program.tensor_alias[tensor[kept]],
        "access_bytes": size[kept],
        "access_write": write[kept],
    }
