"""`simulate`: a plan's Timeline from the native core, and many plans at once."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster import _core
from loadmaster.host import cores
from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import QUEUES, Plan
from loadmaster.program.hazards import overwriters, places
from loadmaster.program.program import GIVEN, Program, TensorKind, TieKind
from loadmaster.simulate.costs import compute_times
from loadmaster.simulate.faults import check_ranges, explain
from loadmaster.simulate.timeline import Timeline

Int64 = npt.NDArray[np.int64]


def simulate(program: Program, machine: Machine, plan: Plan | None = None) -> Timeline:
    """Time a plan (default: the plan that decides nothing). Raises `BadPlan` if it can't run."""
    return simulator(program, machine).run(plan or Plan())


_SIMULATORS: weakref.WeakKeyDictionary[Program, dict[str, Simulator]] = weakref.WeakKeyDictionary()


def simulator(program: Program, machine: Machine) -> Simulator:
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


def _starts(lengths: Sequence[int]) -> Int64:
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
        "access_start": _starts(counts.tolist()),
        "access_tensor": program.tensor_alias[tensor[kept]],
        "access_bytes": size[kept],
        "access_write": write[kept],
    }
