"""A slow, obvious simulator, written from docs/simulation.md alone.

It exists to be compared with the native one: plain integers, lists and dicts, one thing
after the other, nothing kept incrementally that can be looked up again.

    simulate_reference(program, machine, plan) -> Timeline
"""

from __future__ import annotations

import numpy as np

from loadmaster.errors import BadPlan
from loadmaster.machine.machine import Machine
from loadmaster.plan.plan import Plan
from loadmaster.program.program import Program
from loadmaster.simulate.simulator import Int64, Timeline
from reference.simulate.free import run_free
from reference.simulate.idle import run_idle
from reference.simulate.log import Log
from reference.simulate.memory import MemoryLedger
from reference.simulate.steps import Scene

FOREVER = 2**62 - 1


def simulate_reference(program: Program, machine: Machine, plan: Plan) -> Timeline:
    """Time a plan, or raise `BadPlan`."""
    idle = machine.rules.copies == "idle"
    if idle:
        _check_idle(machine, plan)
    scene = Scene(program, machine, plan)
    ledger = MemoryLedger(scene)
    log = run_idle(scene, ledger) if idle else run_free(scene, ledger)
    return _timeline(scene, ledger, log)


def _check_idle(machine: Machine, plan: Plan) -> None:
    if len(machine.devices) != 1:
        raise BadPlan(
            f"machine '{machine.name}' has copies = 'idle' and {len(machine.devices)} devices",
            object=machine.name,
            number=len(machine.devices),
            remedy="use a machine with one device, or copies = 'free'",
        )
    if plan.queue != "order":
        raise BadPlan(
            f"the plan has the queue '{plan.queue}' and machine '{machine.name}' copies = 'idle'",
            object=plan.queue,
            remedy="use the queue 'order'",
        )
    if plan.transfers is not None:
        raise BadPlan(
            f"the plan lists {len(plan.transfers)} transfers and machine '{machine.name}' "
            "has copies = 'idle'",
            object="transfers",
            number=len(plan.transfers),
            remedy="leave transfers out: there is one device",
        )


def _timeline(scene: Scene, ledger: MemoryLedger, log: Log) -> Timeline:
    n_ops = scene.n_ops
    op_start, op_end, op_stall = [0] * n_ops, [0] * n_ops, [0] * n_ops
    device_busy = [0] * len(scene.machine.devices)
    for step in scene.steps.values():
        for op in step.members:
            op_start[op], op_end[op] = log.step_start[step.number], log.step_end[step.number]
        op_stall[step.number] = log.stall[step.number]
        device_busy[step.device] += step.run_time
    for op in range(n_ops):
        if scene.program.op_view[op]:
            for root, _ in scene.op_writes[op]:
                time = log.step_end[scene.writer[root]] if root in scene.writer else 0
                op_start[op] = op_end[op] = time

    link_bytes = [0] * len(scene.machine.links)
    for transfer in scene.transfers.values():
        link_bytes[transfer.link] += transfer.link_bytes
    for copy in scene.copies:
        link_bytes[copy.link] += copy.bytes * copy.factor

    rows = range(len(scene.copies))
    return Timeline(
        total_ps=min(log.total, FOREVER),
        op_start=_column(op_start),
        op_end=_column(op_end),
        op_stall=_column(op_stall),
        copy_start=_column([log.copy_start[row] for row in rows]),
        copy_end=_column([log.copy_end[row] for row in rows]),
        transfers=_column([number for row in log.transfers for number in row]).reshape(-1, 4),
        link_bytes=_column(link_bytes),
        device_busy=_column(device_busy),
        memory_peak=_column(ledger.peak),
        memory_top=_column(ledger.top()),
        memory_over=_column(ledger.over()),
        memory_first_over=_column(ledger.first_over),
    )


def _column(values: list[int]) -> Int64:
    """What is too large for the native core sticks to FOREVER there; here it is exact until now."""
    return np.array([min(value, FOREVER) for value in values], dtype=np.int64)
