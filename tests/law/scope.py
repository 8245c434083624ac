"""What each problem decides, said once more and apart from the problems: a plan that decides anything
else may be legal, but is *outside*. Each function gives the reason, or None: the plan is inside.
"""

from __future__ import annotations

import numpy as np

from loadmaster.allocation.problem import Allocation
from loadmaster.graph import GraphOptimization
from loadmaster.graph.fusion import fusion_violations
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.mapping.problem import Mapping
from loadmaster.offload.problem import Offload
from loadmaster.order.problem import PeakOrder
from loadmaster.plan.live_ranges import place_weights
from loadmaster.plan.plan import BEFORE, HOME, NO_OFFSET, WHOLE, Plan, static_plan
from loadmaster.program.program import Program
from reference.check.facts import HOME as AT_HOME
from reference.check.facts import Facts

Pinned = MallocGame | Mapping | GraphOptimization


def off_a_pin(problem: Pinned, plan: Plan) -> str | None:
    """What is pinned is where it is pinned, if the plan says where it is."""
    for row in plan.residency_rows:
        memory, offset = problem.pins.memory.get(row.tensor, (row.memory, NO_OFFSET))
        if row.memory != memory or offset not in (NO_OFFSET, row.offset):
            return f"{row} is not where it is pinned"
    for op, device in problem.pins.device.items():
        if (0 if plan.device is None else int(plan.device[op])) != device:
            return f"op {op} is not where it is pinned"
    return None


DECIDED = ("device", "order", "fusion", "priority", "transfers")
"""What a plan may decide beside residencies and copies."""


def nothing_but(plan: Plan, *names: str) -> str | None:
    """A plan that leaves all open but these; 'order' without a queue is run as it is written."""
    for name in DECIDED:
        if name not in names and getattr(plan, name) is not None:
            return f"it decides '{name}'"
    if plan.queue != "order" and "queue" not in names:
        return f"its queue is '{plan.queue}'"
    if plan.residency_rows and "residencies" not in names:
        return "it has residencies"
    if plan.copy_rows and "copies" not in names:
        return "it has copies"
    return None


def game(problem: MallocGame, plan: Plan) -> str | None:
    """Residencies and copies in two memories; nothing is in the fast one before the program."""
    own = {problem.model.fast, problem.model.slow}
    for row in plan.residency_rows:
        if row.memory not in own or (row.first == BEFORE and row.memory == problem.model.fast):
            return f"{row} is in another memory, or there before the program"
    for copy in plan.copy_rows:
        if not {copy.source, copy.target} <= own:
            return f"{copy} leaves the two memories"
        link = problem.machine.link_between.get((copy.source, copy.target))
        if link is None or copy.low == WHOLE or problem.machine.rules.copies == "idle":
            continue
        if not problem.machine.links[link].engines:
            return f"{copy} is a part that waits for no other"
    wrong = nothing_but(plan, "residencies", "copies") or off_a_pin(problem, plan)
    return wrong or _kept_in_fast(problem, plan)


def _kept_in_fast(problem: MallocGame, plan: Plan) -> str | None:
    """Who called the program looks for its outputs in slow memory: they are made or copied there."""
    facts = Facts(problem.program, problem.machine, plan)
    for tensor in facts.roots:
        writer = facts.writer[tensor]
        if not facts.is_output[tensor] or writer < 0:
            continue
        if facts.serves(writer, tensor)[0] == problem.model.fast:
            copies = [
                copy for copy in plan.copy_rows if copy.tensor == tensor and copy.target == problem.model.slow
            ]
            there = {
                byte
                for copy in copies
                for byte in range(max(0, copy.low), facts.size[tensor] if copy.high < 0 else copy.high)
            }
            if len(there) < facts.size[tensor]:
                return f"output {tensor} is not in slow memory at the end"
    return None


def offload(problem: Offload, plan: Plan) -> str | None:
    """Residencies and copies; the top of fast memory is left to kernels, and ops work in it alone."""
    size, memory = problem.program.storage_bytes, problem.machine.memories[problem.model.fast]
    left = memory.capacity - problem.model.capacity
    for row in plan.residency_rows:
        end = row.offset + int(size[row.tensor])
        if left and row.memory == problem.model.fast and end > problem.model.capacity:
            return f"{row} reaches into what is left to kernels"
    wrong = nothing_but(plan, "residencies", "copies")
    if wrong:
        return wrong
    facts, outermost = Facts(problem.program, problem.machine, plan), _outermost(problem.program)
    loops: dict[int, list[int]] = {}
    for rank, step in enumerate(facts.steps):
        loops.setdefault(outermost[step.number], []).append(rank)
    for rank, step in enumerate(facts.steps):
        inside = loops[outermost[step.number]] if outermost[step.number] >= 0 else [rank]
        for tensor in [*step.reads, *step.writes]:
            # What a loop touches is there at its first step and at its last: it is one long step.
            served = [facts.serves(at, tensor) for at in (rank, inside[0], inside[-1])]
            if facts.size[tensor] and any(
                memory != problem.model.fast or row == AT_HOME for memory, row in served
            ):
                return f"step {rank} works on tensor {tensor}, which is not in fast memory"
    return None


def _outermost(program: Program) -> list[int]:
    """[n_ops] the outermost loop around each op, or -1."""
    found = []
    for loop in program.op_loop.tolist():
        while loop >= 0 and program.loop_parent[loop] >= 0:
            loop = int(program.loop_parent[loop])
        found.append(loop)
    return found


def mapping(problem: Mapping, plan: Plan) -> str | None:
    """The residencies of a static plan, at any offset."""
    wrong = nothing_but(plan, "residencies") or off_a_pin(problem, plan)
    if wrong:
        return wrong
    memory = np.full(problem.program.n_tensors, HOME)
    for row in plan.residency_rows:
        memory[row.tensor] = row.memory
        if row.memory not in problem.memories or problem.entries.of_tensor[row.tensor] < 0:
            return f"{row} is not decided"
    if any(row.offset == NO_OFFSET for row in plan.residency_rows) and not problem.admits(
        problem.of_tensors(memory)
    ):
        return "it leaves offsets open where there are none"
    decided = problem.tensor_memories(problem.of_tensors(memory))
    want = static_plan(problem.program, problem.machine, decided.tolist(), in_loops=True)
    if _places(plan) != _places(want):
        return "its stays are not those of a map: one memory for a whole life"
    return None


def _places(plan: Plan) -> list[tuple[int, ...]]:
    """The residencies without their offsets."""
    return sorted((*row[:2], *row[3:]) for row in plan.residency_rows)


def allocation(problem: Allocation, plan: Plan) -> str | None:
    """The residencies of the buffers' lives; offsets alone are free, one for each buffer, as far as
    the buffers' own alignments, pins and pairs go."""
    offset = problem.decision(plan)
    again, buffers = problem.plan(offset), problem.buffers
    if sorted(plan.residency_rows) != sorted(again.residency_rows):
        return "its residencies are not those of the buffers"
    if not np.array_equal(again.order, plan.order):  # type: ignore[arg-type]
        return "its order is another"
    off_pin = (buffers.pinned >= 0) & (offset != buffers.pinned)
    if (offset < 0).any() or (offset % buffers.alignment).any() or off_pin.any():
        return "a buffer has no offset, or is off its alignment or its pin"
    for a, b in buffers.apart:
        if max(offset[a], offset[b]) < min(offset[a] + buffers.size[a], offset[b] + buffers.size[b]):
            return "two buffers share bytes and are to be kept apart"
    if any(found.rule == "overlap" for found in problem.offset_violations(offset)):
        return "buffers collide, as large as the largest of the tensors that share each"
    if problem.capacity is not None and (offset + buffers.size > problem.capacity).any():
        return "a buffer ends beyond the capacity"
    return nothing_but(plan, "residencies", "order")


def graph(problem: GraphOptimization, plan: Plan) -> str | None:
    """Devices, clusters by the rules of fusion, and who goes first, as far as they are decided."""
    program, nodes = problem.program, problem.node_op
    clusters = np.full(program.n_ops, -1) if plan.fusion is None else _by_smallest(plan.fusion)
    if "fusion" not in problem.tasks and not np.array_equal(clusters[nodes], problem.base_clusters[nodes]):
        return "its clusters are not those of the base plan"
    if fusion_violations(program, problem.rules, plan):
        return "its clusters are not allowed"
    device = np.zeros(program.n_ops, dtype=np.int32) if plan.device is None else plan.device
    chosen = (clusters[nodes] < 0) | (clusters[nodes] == nodes) | (problem.hard[nodes] >= 0)
    for group in np.unique(problem.node_group).tolist():
        if len(set(device[nodes[chosen & (problem.node_group == group)]].tolist())) > 1:
            return "the ops of a placement group are on several devices"
    if "placement" not in problem.tasks:
        base = problem.split(problem.vector())[1][problem.node_group]
        if not np.array_equal(device[nodes][chosen], base[chosen]):
            return "its devices are not those of the base plan"
    if not problem.touched[clusters >= 0].all():
        return "it fuses ops that are never fused with another"
    wrong = nothing_but(plan, "device", "order", "fusion", "priority", "queue")
    return wrong or off_a_pin(problem, plan)


def _by_smallest(fusion: np.ndarray) -> np.ndarray:
    named = np.full(len(fusion), -1)
    for group in np.unique(fusion[fusion >= 0]).tolist():
        members = np.flatnonzero(fusion == group)
        named[members] = members[0] if len(members) > 1 else -1
    return named


def order(problem: PeakOrder, plan: Plan) -> str | None:
    """The order; weights lie where the problem says."""
    rows = []
    if problem._weights is not None:
        chosen = np.arange(problem.program.n_ops, dtype=np.int32) if plan.order is None else plan.order
        rows = list(place_weights(problem.program, problem._weights, chosen))
    if sorted(rows) != sorted(plan.residency_rows):
        return "it has residencies of its own"
    return nothing_but(plan, "order", "residencies")
