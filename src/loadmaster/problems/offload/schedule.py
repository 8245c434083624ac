"""From stays to a plan: when each copy is issued, and what must wait for it.

Copies out are issued when the tensor is made and hold its room until they are expected to be done, or
until the room is needed. Copies in follow in the order of need: each as late as the link allows if no
step is to wait, `lead` earlier, and later where there is no room.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from loadmaster.plan.plan import BEFORE, NO_OFFSET, WHOLE, Plan
from loadmaster.problems.offload.model import Int32, Int64, OffloadModel
from loadmaster.problems.offload.offsets import pack
from loadmaster.problems.offload.stays import FETCHED, RESIDENT, Stays


@dataclass(frozen=True, eq=False)
class Scheduled:
    """Stays with the times of their copies, in steps."""

    stays: Stays
    """`first` and `last` include the time that copies take"""
    issued: Int32
    """[R] the step after which its copy in is issued, or -1; of stays that are fetched"""
    needed: Int32
    """[R] the step that needs its copy in"""
    out_needed: Int32
    """[R] the step that needs its copy out, S: the end; of stays that leave"""
    offset: Int64 | None = None
    """[R] where they lie, if that is known already"""


def schedule(model: OffloadModel, stays: Stays, capacity: int, lead: int) -> Scheduled:
    """When stays (by item, then by step) begin and end with the copies that they need."""
    return _timed(stays, model.tables.scheduled(_table(stays), capacity, lead, model.taken))


def schedule_placed(model: OffloadModel, stays: Stays, lead: int) -> Scheduled | None:
    """The same at addresses: stays are packed as long as they are used, then get the time of their copies
    where nobody else lies. None: not even that packs."""
    found = pack(model, stays, model.capacity)
    if found is None:
        return None
    offset, scratch = found
    times, offset = model.tables.scheduled_placed(_table(stays), model.capacity, lead, scratch, offset)
    return replace(_timed(stays, times), offset=offset)


def _table(stays: Stays) -> Int32:
    return np.stack(
        [stays.item, stays.first, stays.last, stays.begins, stays.leaves, stays.earliest], axis=1
    ).astype(np.int32)


def _timed(stays: Stays, times: Int32) -> Scheduled:
    first, last, issued, out_needed = times.T.copy()
    whole = Stays(stays.item, first, last, stays.begins, stays.leaves, stays.earliest)
    return Scheduled(whole, issued, stays.first, out_needed)


def plan_of(model: OffloadModel, n_ops: int, made: Scheduled, offset: Int64 | None = None) -> Plan:
    """The rows of a plan; `offset` is [R], of each stay."""
    stays, op = made.stays, np.append(model.step_op, n_ops).astype(np.int64)
    after = np.concatenate([[0], model.step_op + 1])  # [step]: the op right after the step before
    count = len(stays.item)
    table = np.empty((count, 5), dtype=np.int64)
    table[:, 0], table[:, 1] = model.root[stays.item], model.fast
    table[:, 2] = NO_OFFSET if offset is None else offset
    resident, fetched = stays.begins == RESIDENT, stays.begins == FETCHED
    table[:, 3] = np.where(resident, BEFORE, np.where(fetched, after[stays.first], op[stays.first]))
    table[:, 4] = np.where(resident, n_ops - 1, op[stays.last])
    coming, leaving = np.flatnonzero(fetched), np.flatnonzero(stays.leaves)
    into = _copies(model, stays, coming, (model.home, model.fast))
    issue = made.issued[coming]
    into[:, 3] = np.where(issue < 0, BEFORE, op[issue])
    into[:, 4] = op[made.needed[coming]]
    out = _copies(model, stays, leaving, (model.fast, model.home))
    out[:, 3], out[:, 4] = op[model.made[stays.item[leaving]]], op[made.out_needed[leaving]]
    copies = np.concatenate([into, out])
    copies = copies[np.lexsort((copies[:, 0], copies[:, 4], copies[:, 3]))]
    return Plan(residencies=table if count else None, copies=copies if len(copies) else None)


def _copies(model: OffloadModel, stays: Stays, rows: Int64, way: tuple[int, int]) -> Int64:
    table = np.full((len(rows), 7), WHOLE, dtype=np.int64)
    table[:, 0] = model.root[stays.item[rows]]
    table[:, 1], table[:, 2] = way
    return table
