"""Placements between the game and plans: rows of numbers, plans, and moves that resemble them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from loadmaster.errors import BadPlan
from loadmaster.plan.plan import BEFORE, Plan
from loadmaster.problems.malloc_game.model import GameModel
from loadmaster.problems.malloc_game.moves import COPY, DROP, NO_COPY
from loadmaster.problems.problem import decided_elsewhere

Int8 = npt.NDArray[np.int8]
Int64 = npt.NDArray[np.int64]

RESIDENCY = -2
"""In the last two columns of a row: it is a residency (tensor, memory, offset, first, last), and no
copy (tensor, source, target, issued after, needed by, low, high)."""
WIDTH = 7
DECIDES = ("residencies", "copies")
"""Parts of a plan: those that rows can hold."""


def encode(plan: Plan) -> Int64:
    """[m, 7] the residencies, then the copies of a plan that decides nothing else."""
    for row in decided_elsewhere(plan, "malloc-game", DECIDES):
        raise BadPlan(row.message, object="plan", remedy="give residencies and copies alone")
    stays = np.empty((0, 5), dtype=np.int64) if plan.residencies is None else plan.residencies
    copies = np.empty((0, WIDTH), dtype=np.int64) if plan.copies is None else plan.copies
    marked = np.pad(stays, ((0, 0), (0, 2)), constant_values=RESIDENCY)
    return np.concatenate([marked, copies]).astype(np.int64)


def decode(rows: npt.NDArray[np.integer]) -> Plan:
    """The plan of `encode`'s rows."""
    table = np.asarray(rows, dtype=np.int64)
    if table.ndim != 2 or table.shape[1] != WIDTH:
        raise BadPlan(
            f"a placement is [m, {WIDTH}] and this is {list(table.shape)}",
            object="placement",
            number=WIDTH,
            remedy="give the rows of encode(plan)",
        )
    is_stay = table[:, 5] == RESIDENCY
    return Plan.of(residencies=table[is_stay, :5].tolist(), copies=table[~is_stay].tolist())


def game_plan(model: GameModel, n_ops: int, residencies: Int64, copies: Int64) -> Plan:
    """The plan of a placement by rows of the model's tensors and by steps, as the core gives it."""
    op, root = model.step_op.tolist(), model.tensors.root.tolist()
    # A window begins right after the op before it, so that a copy issued there belongs to it even
    # if a view lies between.
    begin = [0, *(each + 1 for each in op)]
    return Plan.of(
        residencies=[
            (root[tensor], model.fast, offset, begin[first], op[last])
            for tensor, offset, first, last in residencies.tolist()
        ],
        copies=[
            (
                root[tensor],
                *((model.slow, model.fast) if into else (model.fast, model.slow)),
                op[issued] if issued >= 0 else BEFORE,
                op[needed] if needed < len(op) else n_ops,
            )
            for tensor, into, issued, needed, _ in copies.tolist()
        ],
    )


def moves_of(model: GameModel, plan: Plan) -> Int8:
    """[N] the moves that come nearest to a plan: a fast site is Copy if a copy brought the tensor
    for it, or takes it from there; NoCopy if not; all others are Drop."""
    moves = np.full(model.sites, DROP, dtype=np.int8)
    row_of, carried = model.tensors.of_root, model.tensors.carried
    sites: list[list[int]] = [[] for _ in range(len(model.tensors.root))]
    for site, tensor in enumerate(model.site_tensor.tolist()):
        sites[tensor].append(site)
    step_op = model.step_op.tolist()
    op_of = [step_op[step] for step in model.site_step.tolist()]
    for stay in sorted(plan.residency_rows, key=lambda row: (row.tensor, row.first, row.last)):
        tensor = int(row_of[stay.tensor])
        if tensor < 0 or stay.memory != model.fast:
            continue
        copies = [copy for copy in plan.copy_rows if copy.tensor == stay.tensor]
        fills = [
            copy.needed_by
            for copy in copies
            if copy.target == model.fast
            and copy.issued_after >= stay.first - 1
            and copy.needed_by <= stay.last
        ]
        leaves = any(copy.source == model.fast for copy in copies)
        served = [u for u in sites[tensor] if max([stay.first, *fills]) <= op_of[u] <= stay.last]
        for place, site in enumerate(served):
            if model.site_write[site]:
                moves[site] = COPY if leaves else NO_COPY
            else:
                moves[site] = COPY if fills and place == 0 else NO_COPY
    _settle_groups(model, carried, moves)
    return moves


def _settle_groups(model: GameModel, carried: npt.NDArray[np.int32], moves: Int8) -> None:
    """A group is decided at its first site: Copy where any of it comes or goes."""
    group_of = carried[model.site_tensor]
    for group in np.unique(group_of[group_of >= 0]).tolist():
        members = np.flatnonzero(group_of == group)
        tensors = np.flatnonzero(carried == group)
        moving = (model.tensors.given[tensors] | model.tensors.output[tensors]).any()
        fast = moves[members[0]] != DROP
        moves[members] = NO_COPY if fast else DROP
        if fast and moving:
            moves[members[0]] = COPY
