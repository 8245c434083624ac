"""Gaps from elsewhere: from another plan, from one memory per tensor, and as many as there is room for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from loadmaster.offload.model import BEFORE_USE, Bool, Int64, OffloadModel
from loadmaster.offload.residencies import occupied, settled, stays_of
from loadmaster.plan.plan import BEFORE, Plan


def gaps_of_plan(model: OffloadModel, plan: Plan, run: int | None = None) -> Bool:
    """[G] the gaps over which a plan, of a MallocGame for instance, holds tensors in fast memory. With `run`, the
    ops of one: the plan is of two in a row, and a weight stays between runs that it holds from the last
    use in the first to the first use in the second."""
    keep = np.zeros(model.gaps, dtype=bool)
    spans: dict[int, list[tuple[int, int]]] = {}
    for stay in plan.residency_rows:
        if stay.memory == model.fast:
            spans.setdefault(stay.tensor, []).append((stay.first, stay.last))
    op = np.append(model.step_op, model.step_op[-1:]).tolist()  # the last: of the end
    for gap in range(model.gaps):
        item = int(model.gap_item[gap])
        begin, end = int(model.gap_from[gap]), int(model.gap_to[gap])
        since, until = BEFORE if begin < 0 else op[begin], op[end]
        if begin < 0 and run is not None:
            since, until = op[int(model.use_step[model.use_start[item + 1] - 1])], run + until
        rows = spans.get(int(model.root[item]), ())
        keep[gap] = any(first <= since and until <= last for first, last in rows)
    return keep


def gaps_of_mapping(model: OffloadModel, memory: npt.NDArray[np.integer]) -> Bool:
    """[G] all gaps of the tensors that a map (memory of each root, or -1) has in fast memory."""
    keep: Bool = (np.asarray(memory)[model.root] == model.fast)[model.gap_item]
    return keep


def filled(model: OffloadModel, keep: Bool, capacity: int, order: Int64) -> Bool:
    """[G] the same gaps and, in this order, all others that fit beside what is kept already."""
    kept = settled(model, keep)
    room = occupied(model, stays_of(model, kept))
    for gap in order.tolist():
        item = int(model.gap_item[gap])
        before = model.first_gap[item]
        if kept[gap] or (before >= 0 and kept[before]):
            continue
        more = _room_of(model, kept, gap)
        if (room + more <= capacity).all():
            room += more
            kept[gap] = True
    return settled(model, kept)


def _room_of(model: OffloadModel, kept: Bool, gap: int) -> Int64:
    """[S] the bytes that keeping one more gap takes."""
    item = int(model.gap_item[gap])
    more = np.zeros(model.steps, dtype=np.int64)
    if model.gap_kind[gap] != BEFORE_USE:
        more[model.gap_from[gap] + 1 : model.gap_to[gap]] = model.size[item]
        return more
    more[:] = model.size[item]
    uses = range(int(model.use_start[item]), int(model.use_start[item + 1]))
    for use in uses:
        more[model.use_step[use]] = 0
        between = int(model.use_gap[use])
        if use > uses.start and (between < 0 or kept[between]):
            more[model.use_step[use - 1] : model.use_step[use]] = 0
    return more
