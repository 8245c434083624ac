"""`GraphOptimization` as the planner sees it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from loadmaster.errors import LoadmasterError, Refused
from loadmaster.graph import TASKS, Base, GraphOptimization
from loadmaster.graph.base import expert_placement
from loadmaster.graph.search import BY_CLOCK, CONSTRUCTIVE
from loadmaster.search.kind import Facts, Found, Known, ProblemKind
from loadmaster.search.problem import Decision
from loadmaster.search.request import BadRequest, PlanRequest
from loadmaster.simulate import Timeline
from loadmaster.units import UNLIMITED, show_bytes


def parse_base(texts: Sequence[str]) -> Base | None:
    """What stands where a graph plan decides nothing, from 'fusion=none,placement=single' and the like."""
    given: dict[str, str] = {}
    for text in (part for each in texts for part in each.split(",")):
        name, equals, value = text.strip().partition("=")
        if not equals or name not in ("fusion", "placement", "schedule"):
            raise BadRequest(
                f"--base '{text}' is not PART=NAME",
                object="--base",
                number=text,
                remedy="write --base fusion=none,placement=single,schedule=fifo",
            )
        given[name] = value.replace("-", "_")
    return Base(**given) if given else None


class GraphKind(ProblemKind[GraphOptimization]):
    """Fusion, placement and schedule by the time of a pass."""

    name = "graph"
    accepts = frozenset({"pins", "tasks", "groups", "base", "keep_order"})
    by_clock = BY_CLOCK
    white_box = (*CONSTRUCTIVE, "auto", "cp-sat")
    shows_itself = True
    before = ("base",)
    space = "plans that decide the tasks above, group by group, and leave the rest as the base has it"
    left_out = "recomputing, groups taken apart, memories within a device"
    bound_row = "proven"

    def make(self, request: PlanRequest) -> GraphOptimization:
        machine = request.own_machine
        program = request.load_program(machine)
        tasks = TASKS if request.tasks is None else request.tasks
        if len(machine.devices) == 1 and "placement" in tasks:
            raise BadRequest(
                f"machine '{machine.name}' has one device: there is nothing to place",
                object="--tasks",
                number=1,
                remedy="give --tasks fusion,schedule, or --machine p100x4",
            )
        problem = GraphOptimization(
            program,
            machine,
            tasks=tasks,
            groups=request.groups or "auto",
            base=request.base or Base(),
            pins=request.resolve_pins(program, machine),
        )
        if problem.no_plan is not None:
            raise Refused(
                f"no plan of '{program.name}' fits '{machine.name}': {problem.no_plan}",
                object=program.name,
                remedy="give a larger machine, or --capacity",
            )
        return problem

    def describe(self, problem: GraphOptimization, source: str) -> str:
        plural = "s" if problem.devices > 1 else ""
        return (
            f"{source} on {problem.machine.name}: {', '.join(problem.tasks)} of {problem.nodes:,} ops in "
            f"{problem.groups:,} groups on {problem.devices} device{plural}; base: {_base_text(problem)}"
        )

    def known(self, problem: GraphOptimization, source: str, seconds: float = math.inf) -> list[Known]:
        """The base plan first, the expert's placement in it, and the base plan by critical path."""
        vectors: dict[str, Decision] = {"base": problem.vector()}
        made = {
            "base": _base_text(problem),
            "expert": "base with whole layers on neighbours",
            "critical-path": "base, the longest way to the end first",
        }
        if "placement" in problem.tasks and problem.base.placement != "expert":
            group = np.full(problem.program.n_ops, -1, dtype=np.int32)
            group[problem.node_op] = problem.node_group
            expert = expert_placement(problem.program, group, problem.groups, problem.devices)
            if expert is not None:
                vectors["expert"] = problem.vector(device=expert)
        if "schedule" in problem.tasks and problem.base.schedule != "critical_path":
            vectors["critical-path"] = problem.vector(schedule=np.zeros(problem.nodes))
        time, over, fault = problem.measure(np.stack(list(vectors.values())))
        found = []
        for row, (name, vector) in enumerate(vectors.items()):
            value, too_many, status = int(time[row]), int(over[row].sum()), made[name]
            if fault[row, 0]:
                status = "can't run on these devices"
            elif too_many:
                status = f"does not fit: {show_bytes(too_many)} too many"
            found.append(Known(name, vector, None if fault[row, 0] else value, status, legal=too_many == 0))
        return found

    def facts(self, problem: GraphOptimization, found: Found) -> Facts:
        """How busy each device is and how full its memory gets, beside the base plan; bytes over links."""
        facts = Facts(
            {
                "nodes": problem.nodes,
                "groups": problem.groups,
                "tasks": list(problem.tasks),
                "base": _base_text(problem),
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
                "capacity_bytes": _limit(problem.machine.memories[memory].capacity),
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


def _base_text(problem: GraphOptimization) -> str:
    """What stands where nothing is decided."""
    base = problem.base
    placement = base.placement if isinstance(base.placement, str) else "given"
    return f"fusion {base.fusion}, placement {placement}, schedule {base.schedule}"


def _base_timeline(problem: GraphOptimization, base: Known) -> Timeline | None:
    if base.value is None or base.decision is None:
        return None
    try:
        return problem.simulator.run(problem.plan(base.decision))
    except LoadmasterError:
        return None


def _limit(capacity: int) -> int | None:
    return None if capacity >= UNLIMITED else capacity


KIND = GraphKind()
