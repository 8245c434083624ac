"""Between vectors and explicit plans."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from loadmaster.arrays import Float64, Int32, Int64
from loadmaster.errors import BadPlan
from loadmaster.graph.fusion import fusion_violations
from loadmaster.plan.check import Violation, check
from loadmaster.plan.plan import Plan
from loadmaster.program.program import Program
from loadmaster.search.problem import decided_elsewhere

if TYPE_CHECKING:
    from loadmaster.graph.problem import GraphOptimization


def make_plan(program: Program, fusion: Int32, device: Int32, start: Int64) -> Plan:
    """Steps in the order in which they start; a device takes the first that is ready, which is the
    one that it took before. Views stand behind what they show."""
    ops = np.arange(program.n_ops)
    step = np.where(fusion >= 0, fusion, ops)
    begin = start.copy()
    views = np.flatnonzero(program.op_view)
    root = program.tensor_alias[program.read_tensor[program.read_start[views]]]
    maker = program.producer[root]
    step[views] = np.where(maker >= 0, step[maker], -1)
    begin[views] = np.where(maker >= 0, start[maker], -1)
    order = np.lexsort((ops, step, begin)).astype(np.int32)
    fused = fusion if np.any(fusion >= 0) else None
    return Plan(device=device, order=order, queue="ready", fusion=fused)


def make_decision(problem: GraphOptimization, plan: Plan) -> Float64:
    """The inverse of `plan`, as far as keys can express a plan."""
    program, nodes = problem.program, problem.node_op
    n_ops = program.n_ops
    device = np.zeros(n_ops, dtype=np.int32) if plan.device is None else plan.device
    clusters = np.full(n_ops, -1, dtype=np.int32) if plan.fusion is None else plan.fusion
    keys = _fusion_keys(problem, _by_smallest(clusters))
    placed = problem.vector(
        fusion=keys,
        device=_group_devices(problem, device, _by_smallest(clusters)),
        schedule=_schedule_keys(problem, plan),
    )
    again = problem.plan(placed)
    if not np.array_equal(again.device[nodes], device[nodes]):  # type: ignore[index]
        raise _inexpressible(problem, "the devices")
    return placed


def make_near(problem: GraphOptimization, plan: Plan) -> Float64:
    """A vector for a plan of a like problem: where keys can't express its clusters, those of the base plan."""
    n_ops = problem.program.n_ops
    device = np.zeros(n_ops, dtype=np.int32) if plan.device is None else plan.device
    clusters = _by_smallest(np.full(n_ops, -1, dtype=np.int32) if plan.fusion is None else plan.fusion)
    try:
        keys = _fusion_keys(problem, clusters)
    except BadPlan:
        keys = None
    return problem.vector(
        fusion=keys, device=_group_devices(problem, device, clusters), schedule=_schedule_keys(problem, plan)
    )


def _by_smallest(clusters: Int32) -> Int32:
    """Clusters by their smallest op; a cluster of one is none."""
    named = np.full(len(clusters), -1, dtype=np.int32)
    fused = np.flatnonzero(clusters >= 0)
    _, first, code, count = np.unique(
        clusters[fused], return_index=True, return_inverse=True, return_counts=True
    )
    named[fused] = np.where(count[code] > 1, fused[first][code], -1)
    return named


def _fusion_keys(problem: GraphOptimization, clusters: Int32) -> Float64 | None:
    if "fusion" not in problem.tasks:
        if not np.array_equal(problem.fuse(problem.split(problem.vector())[0]), clusters):
            raise _inexpressible(problem, "the clusters, which are not decided,")
        return None
    nodes = problem.node_op
    inside = np.zeros(problem.program.n_ops, dtype=bool)
    pairs = nodes[problem.edges]
    together = (clusters[pairs[0]] >= 0) & (clusters[pairs[0]] == clusters[pairs[1]])
    inside[pairs[0][together]] = True
    for rank in (np.arange(1, len(nodes) + 1), np.arange(len(nodes), 0, -1)):
        keys = np.where(inside[nodes], 0.1 + 0.9 * rank / max(1, len(nodes)), 0.0)
        if np.array_equal(problem.fuse(keys), clusters):
            return keys
    raise _inexpressible(problem, "the clusters")


def _group_devices(problem: GraphOptimization, device: Int32, clusters: Int32) -> Int32:
    """A group's device is that of its first op that decides for a step, else of its first op."""
    found = np.zeros(problem.groups, dtype=np.int32)
    nodes, groups = problem.node_op, problem.node_group
    alone = (clusters[nodes] < 0) | (clusters[nodes] == nodes) | (problem.hard[nodes] >= 0)
    for chosen in (np.ones(len(nodes), dtype=bool), alone):
        rows = np.flatnonzero(chosen)[::-1]
        found[groups[rows]] = device[nodes[rows]]
    return found


def _schedule_keys(problem: GraphOptimization, plan: Plan) -> Float64 | None:
    nodes = problem.node_op
    if plan.queue == "fifo" or plan.queue == "priority":
        return None if plan.priority is None else np.asarray(plan.priority)[nodes]
    order = np.arange(problem.program.n_ops) if plan.order is None else plan.order
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    return 1.0 - position[nodes] / max(1, len(order))


def _inexpressible(problem: GraphOptimization, what: str) -> BadPlan:
    return BadPlan(
        f"{what} of this plan of '{problem.program.name}' are none that keys can express",
        object=problem.program.name,
        remedy="hand in a plan of this problem",
    )


def violations(problem: GraphOptimization, plan: Plan) -> list[Violation]:
    """What the checker says with the plan's timeline."""
    try:
        timeline = problem.simulator.run(plan)
    except BadPlan:
        timeline = None  # the checker says why
    return check(problem.program, problem.machine, plan, timeline)


def outside(problem: GraphOptimization, plan: Plan) -> list[Violation]:
    """What a sound plan decides that vectors of this problem can't."""
    program, nodes = problem.program, problem.node_op
    decides = ("device", "order", "queue", "priority", "fusion")
    found = decided_elsewhere(plan, problem.kind, decides)
    found += fusion_violations(program, problem.rules, plan)
    none = np.full(program.n_ops, -1, dtype=np.int32)
    clusters = none if plan.fusion is None else _by_smallest(plan.fusion)
    alone = np.flatnonzero((clusters >= 0) & (problem.touched == 0))
    if len(alone):
        op = int(alone[0])
        message = (
            f"op {op} '{program.op_name[op]}' is fused, and the rules of fusion never join it with another"
        )
        found.append(Violation("fusion", f"{message}: leave it alone", op=op, number=len(alone)))
    apart = _apart(problem, clusters, plan)
    if apart is not None:
        one, other = apart
        message = f"op {one} '{program.op_name[one]}' shares its placement with op {other} "
        message += f"'{program.op_name[other]}', which is on another device: put them together"
        found.append(Violation(problem.kind, message, op=one, number=other))
    _, device, _ = problem.split(problem.vector())
    placed = np.zeros(program.n_ops, dtype=np.int32) if plan.device is None else plan.device
    for task, differs in (
        ("fusion", clusters[nodes] != problem.base_clusters[nodes]),
        ("placement", placed[nodes] != device[problem.node_group]),
    ):
        if task not in problem.tasks and differs.any():
            op = int(nodes[np.argmax(differs)])
            message = f"op {op} '{program.op_name[op]}' differs from the base plan, and {task} is not "
            message += "decided here: keep the base plan's"
            found.append(Violation(problem.kind, message, op=op, number=int(differs.sum())))
    return found


def _apart(problem: GraphOptimization, clusters: Int32, plan: Plan) -> tuple[int, int] | None:
    """Two ops that decide for their steps, of one placement group and on two devices."""
    if plan.device is None:
        return None
    label = np.where(clusters >= 0, clusters, np.arange(problem.program.n_ops))
    # Of a cluster the first op with a hard group decides, else its first.
    nodes = problem.node_op[np.lexsort((problem.node_op, problem.hard[problem.node_op] < 0))]
    decides = nodes[np.unique(label[nodes], return_index=True)[1]]
    first: dict[int, int] = {}
    group = dict(zip(problem.node_op.tolist(), problem.node_group.tolist(), strict=True))
    for op in decides.tolist():
        other = first.setdefault(group[op], op)
        if plan.device[op] != plan.device[other]:
            return op, other
    return None
