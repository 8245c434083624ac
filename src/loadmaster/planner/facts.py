"""What there is to say of a problem before it is solved, and of its plan: numbers by name, and sentences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from loadmaster.allocation.problem import Allocation, ProgramAllocation
from loadmaster.errors import LoadmasterError
from loadmaster.graph import GraphOptimization
from loadmaster.machine.machine import Machine
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.mapping.problem import Mapping
from loadmaster.offload.problem import Offload
from loadmaster.order.problem import PeakOrder
from loadmaster.plan.plan import Plan
from loadmaster.planner.known import Known, base_text
from loadmaster.program.repeats import AGAIN
from loadmaster.search.solver import Solution
from loadmaster.simulate import Timeline, simulate
from loadmaster.units import UNLIMITED, show_bytes, show_time


@dataclass(frozen=True, eq=False)
class Found:
    """What a search has come to."""

    problem: Any
    machine: Machine
    """That the plan is for."""
    solution: Solution
    plan: Plan | None
    known: Sequence[Known]
    model: str
    """The model with its options, as commands take it."""


@dataclass
class Facts:
    """What there is to say of a plan."""

    numbers: dict[str, Any] = field(default_factory=dict)
    places: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def describe_mapping(problem: Mapping, source: str) -> str:
    """What will be decided, in one line."""
    memories = [problem.machine.memories[number] for number in problem.memories]
    sizes = ", ".join(f"{memory.name} {show_bytes(memory.capacity)}" for memory in memories)
    live = int(problem.live.sum())
    return (
        f"{source} on {problem.machine.name}: {problem.nodes:,} nodes, {live:,} tensors to place "
        f"({show_bytes(int(problem.entries.bytes.sum()))}) in {sizes}"
    )


def mapping_facts(found: Found) -> Facts:
    """How full each memory gets, beside the compiler's map."""
    problem: Mapping = found.problem
    facts = Facts({"nodes": problem.nodes, "tensors": int(problem.live.sum())})
    if found.plan is None:
        return facts
    ours = simulate(problem.program, problem.machine, found.plan).memory_peak
    first = simulate(problem.program, problem.machine, problem.plan(problem.compiler)).memory_peak
    facts.places = [
        {
            "what": "memory",
            "name": problem.machine.memories[number].name,
            "peak_bytes": int(ours[number]),
            "compiler_peak_bytes": int(first[number]),
            "capacity_bytes": problem.machine.memories[number].capacity,
        }
        for number in problem.memories
    ]
    return facts


def describe_bytes(problem: Mapping, source: str) -> str:
    """What will be decided, in one line."""
    home = problem.machine.memories[problem.machine.home[0]].name
    return (
        f"{describe_mapping(problem, source)}; fewest bytes through {home}, each of which counts as a "
        "nanosecond"
    )


def bytes_facts(found: Found) -> Facts:
    """What the answer says of itself beyond its value."""
    return Facts({"nodes": found.problem.nodes})


def describe_game(problem: MallocGame, source: str) -> str:
    """What will be decided, in one line."""
    model, memories = problem.model, problem.machine.memories
    fast = memories[model.fast]
    return (
        f"{source} on {problem.machine.name}: {model.steps:,} steps, {problem.moves:,} decisions about "
        f"{len(model.tensors.root):,} tensors ({show_bytes(int(model.tensors.size.sum()))}), "
        f"{fast.name} {show_bytes(fast.capacity)} over {memories[model.slow].name}"
    )


def game_facts(found: Found) -> Facts:
    """What the plan moves, where it waits, and how full the fast memory gets."""
    problem: MallocGame = found.problem
    facts = Facts({"steps": problem.model.steps, "moves": problem.moves})
    plan, fast = found.plan, problem.model.fast
    if plan is None:
        return facts
    sizes = problem.program.storage_bytes
    copied = sum(int(sizes[row.tensor]) if row.low < 0 else row.high - row.low for row in plan.copy_rows)
    moved = _traffic(problem.machine, plan, simulate(problem.program, problem.machine, plan), fast)
    moved["copied_bytes"] = copied
    facts.numbers |= moved
    facts.notes.append(
        f"{moved['residencies']:,} residencies in {problem.machine.memories[fast].name}, peak "
        f"{show_bytes(moved['fast_peak_bytes'])} of {show_bytes(moved['fast_capacity_bytes'])}; "
        f"{moved['copies']:,} copies of {show_bytes(copied)}, {show_time(moved['stall_picoseconds'])} of "
        "waiting for them"
    )
    return facts


def _traffic(machine: Machine, plan: Plan, timeline: Timeline, fast: int) -> dict[str, Any]:
    return {
        "residencies": len(plan.residency_rows),
        "copies": len(plan.copy_rows),
        "stall_picoseconds": int(timeline.op_stall.sum()),
        "fast_peak_bytes": int(timeline.memory_peak[fast]),
        "fast_capacity_bytes": machine.memories[fast].capacity,
    }


def describe_offload(problem: Offload, source: str) -> str:
    """What will be decided, in one line."""
    model, memory = problem.model, problem.machine.memories[problem.model.fast]
    to_kernels = problem.for_kernels
    left = f", {show_bytes(to_kernels)} of it left to kernels" if to_kernels else ""
    return (
        f"{source} on {problem.machine.name}: {model.steps:,} steps, {model.gaps:,} decisions about "
        f"{model.items:,} tensors; it needs {show_bytes(model.needed)} at once, {memory.name} has "
        f"{show_bytes(memory.capacity)}{left}"
    )


def offload_facts(found: Found) -> Facts:
    """What the plan moves and runs again, where it waits, and how full the fast memory gets."""
    problem: Offload = found.problem
    model, machine = problem.model, problem.machine
    again = _repeats(problem)
    facts = Facts(
        {
            "steps": model.steps,
            "gaps": model.gaps,
            "needed_bytes": model.needed,
            "ops_picoseconds": problem.limit_ps,
            **again,
        }
    )
    if found.plan is None:
        return facts
    timeline = simulate(problem.program, machine, found.plan)
    over = {
        (machine.memory(link.source), machine.memory(link.target)): int(count)
        for link, count in zip(machine.links, timeline.link_bytes, strict=True)
    }
    moved = _traffic(machine, found.plan, timeline, model.fast)
    moved |= {"bytes_in": over[model.home, model.fast], "bytes_out": over[model.fast, model.home]}
    facts.numbers |= moved
    facts.notes.append(
        f"{machine.memories[model.fast].name}: peak {show_bytes(moved['fast_peak_bytes'])} of "
        f"{show_bytes(moved['fast_capacity_bytes'])}; {moved['copies']:,} copies, "
        f"{show_bytes(moved['bytes_in'])} in and {show_bytes(moved['bytes_out'])} out, "
        f"{show_time(moved['stall_picoseconds'])} of waiting for them"
    )
    if problem.program.repeats is not None:
        took, all_ops = again["repeat_picoseconds"], problem.limit_ps
        facts.notes.append(
            f"{again['repeats']:,} ops run again in the backward pass, which takes {show_time(took)} of the "
            f"ops' {show_time(all_ops)}; the bound is for these, with any others at least "
            f"{show_time(all_ops - took)}"
        )
    if problem.kernels is not None and problem.program.costs is None:
        facts.notes.append(
            f"what kernels take for themselves is not known without --costs: {show_bytes(problem.for_kernels)} "
            f"are left to libraries, nothing to ops; measure it with 'loadmaster calibrate {found.model} "
            "--costs costs.json'"
        )
    return facts


def _repeats(problem: Offload) -> dict[str, Any]:
    """How many ops run again, and how long that takes."""
    repeats = problem.program.repeats
    if repeats is None:
        return {"repeats": 0, "repeat_picoseconds": 0}
    again = np.array([name.endswith(AGAIN) for name in problem.program.op_name])
    return {
        "repeats": len(repeats.ops),
        "repeat_picoseconds": int(problem.duration[again[problem.model.step_op]].sum()),
    }


def describe_graph(problem: GraphOptimization, source: str) -> str:
    """What will be decided, in one line."""
    plural = "s" if problem.devices > 1 else ""
    return (
        f"{source} on {problem.machine.name}: {', '.join(problem.tasks)} of {problem.nodes:,} ops in "
        f"{problem.groups:,} groups on {problem.devices} device{plural}; base: {base_text(problem)}"
    )


def graph_facts(found: Found) -> Facts:
    """How busy each device is and how full its memory gets, beside the base plan; bytes over links."""
    problem: GraphOptimization = found.problem
    facts = Facts(
        {
            "nodes": problem.nodes,
            "groups": problem.groups,
            "tasks": list(problem.tasks),
            "base": base_text(problem),
        }
    )
    if found.plan is None:
        return facts
    after, first = problem.simulator.run(found.plan), _base_timeline(problem, found.known[0])
    facts.places = [
        {
            "what": "device",
            "name": device.name,
            "memory": problem.machine.memories[memory].name,
            "busy_seconds": int(after.device_busy[number]) / 10**12,
            "busy_share": int(after.device_busy[number]) / max(1, after.total_ps),
            "peak_bytes": int(after.memory_peak[memory]),
            "base_peak_bytes": None if first is None else int(first.memory_peak[memory]),
            "capacity_bytes": limit(problem.machine.memories[memory].capacity),
        }
        for number, device in enumerate(problem.machine.devices)
        for memory in [problem.machine.home[number]]
    ]
    moved, before = int(after.link_bytes.sum()), None if first is None else int(first.link_bytes.sum())
    fusion = found.plan.fusion
    clusters = 0 if fusion is None else len(set(fusion[fusion >= 0].tolist()))
    facts.numbers |= {"link_bytes": moved, "base_link_bytes": before, "clusters": clusters}
    beside = "" if before is None else f" (base {show_bytes(before)})"
    facts.notes.append(f"{show_bytes(moved)} over links{beside}; {clusters:,} fused clusters")
    return facts


def _base_timeline(problem: GraphOptimization, base: Known) -> Timeline | None:
    if base.value is None or base.decision is None:
        return None
    try:
        return problem.simulator.run(problem.plan(base.decision))
    except LoadmasterError:
        return None


def limit(capacity: int) -> int | None:
    """A capacity, None where there is none."""
    return None if capacity >= UNLIMITED else capacity


def describe_order(problem: PeakOrder, source: str) -> str:
    """What will be decided, in one line."""
    return (
        f"{source}: the order of {problem.nodes:,} ops, with {show_bytes(problem.graph.resident)} of weights "
        "that are always there and are not counted"
    )


def order_facts(found: Found) -> Facts:
    """What the order saves."""
    problem: PeakOrder = found.problem
    value, bound = found.solution.value, found.solution.bound.value
    facts = Facts(
        {
            "ops": problem.nodes,
            "resident_bytes": problem.graph.resident,
            "before_bytes": problem.reference,
            "after_bytes": value,
            "bound_bytes": bound,
        }
    )
    if value is not None:
        proof = "proven the least" if value <= bound else f"at least {bound:,} whatever the order"
        facts.notes.append(f"before {problem.reference:,} bytes, after {value:,}: {proof}")
    return facts


def describe_allocation(problem: Allocation, source: str) -> str:
    """What will be decided, in one line."""
    memory = problem.machine.memories[problem.machine.home[0]].name
    size = "no limit" if problem.capacity is None else f"{problem.capacity:,} bytes"
    order = ""
    if isinstance(problem, ProgramAllocation):
        order = f", ops in {'their own' if problem.order is None else 'another'} order"
    return f"{source}: an offset in '{memory}' ({size}) for each of {len(problem.buffers):,} buffers{order}"


def allocation_facts(found: Found) -> Facts:
    """What is left of the memory."""
    problem: Allocation = found.problem
    facts = Facts({"buffers": len(problem.buffers), "capacity_bytes": problem.capacity})
    if found.solution.value is not None and problem.capacity is not None:
        left = problem.capacity - found.solution.value
        facts.notes.append(f"fits: {left:,} of {problem.capacity:,} bytes are left over")
    return facts
