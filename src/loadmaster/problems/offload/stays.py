"""From kept gaps to stays: which items are in fast memory from which step to which, and what to give up
where that is too much."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadmaster.problems.offload.model import BEFORE_USE, BETWEEN, Bool, Int32, Int64, OffloadModel

RESIDENT, MADE, FETCHED = 0, 1, 2
"""How a stay begins: before the program, with the step that makes it, or with a copy."""

SMALL = 8192
"""What is smaller than this part of the capacity makes no room, and costs a copy all the same. (The native repair has
the same number.)"""


@dataclass(frozen=True, eq=False)
class Stays:
    """R stays by item, each from a step to a step, both included."""

    item: Int32
    first: Int32
    last: Int32
    begins: npt.NDArray[np.int8]
    """RESIDENT, MADE or FETCHED"""
    leaves: Bool
    """It is copied out: the host does not have it and it is needed after this stay."""
    earliest: Int32
    """The step before whose end its copy must not be issued (-1: none)"""


def settled(model: OffloadModel, keep: Bool) -> Bool:
    """[G] the same gaps, without what has no meaning: gaps within a life in fast memory are kept, and
    an output that was copied out is at home at the end."""
    kept = keep.copy()
    resident = np.zeros(model.items, dtype=bool)
    before = model.gap_kind == BEFORE_USE
    resident[model.gap_item[before & keep]] = True
    kept |= resident[model.gap_item]
    left = np.zeros(model.items, dtype=bool)
    left[model.gap_item[(model.gap_kind == BETWEEN) & ~kept]] = True
    ends = model.end_gap[left & (model.end_gap >= 0)]
    kept[ends] = False
    return kept


def stays_of(model: OffloadModel, kept: Bool) -> Stays:
    """The stays of settled gaps."""
    item, step = model.use_item, model.use_step
    opens = np.ones(len(item), dtype=bool)
    opens[1:] = item[1:] != item[:-1]
    split = np.zeros(len(item), dtype=bool)
    has = model.use_gap >= 0
    split[has] = ~kept[model.use_gap[has]]
    begin = np.flatnonzero(opens | split)
    end = np.append(begin[1:], len(item))[: len(begin)] - 1  # none where nothing is used
    of, first, last = item[begin], step[begin].copy(), step[end].copy()
    is_first = opens[begin]
    begins = np.where(is_first & ~model.given[of], MADE, FETCHED).astype(np.int8)
    held = is_held(model, kept)[of]
    begins[held], first[held], last[held] = RESIDENT, 0, model.steps - 1
    is_last = np.append(of[1:] != of[:-1], True) if len(of) else np.zeros(0, dtype=bool)
    to_end = model.output[of] & is_last & (begins != RESIDENT)
    # An output that left before is on the host: its last stay ends with its last use.
    stays = to_end & is_first & _kept_or_none(model.end_gap[of], kept)
    last[stays] = model.steps - 1
    leaves = (begins == MADE) & (~is_last | (to_end & ~stays))
    return Stays(of, first, last, begins, leaves, np.full(len(of), -1, dtype=np.int32))


def is_held(model: OffloadModel, kept: Bool) -> Bool:
    """[B] whether an item lies in fast memory between runs."""
    return model.persistent & _kept_or_none(model.first_gap, kept)


def _kept_or_none(gap: Int32, kept: Bool) -> Bool:
    """Whether gaps are kept; where there is none (-1), there is nothing to leave for."""
    found = gap < 0
    found[~found] = kept[gap[~found]]
    return found


def occupied(model: OffloadModel, stays: Stays) -> Int64:
    """[S] bytes of fast memory that stays and kernels take."""
    change = np.zeros(model.steps + 1, dtype=np.int64)
    size = model.size[stays.item]
    np.add.at(change, stays.first, size)
    np.add.at(change, stays.last + 1, -size)
    return np.cumsum(change)[:-1] + model.taken


def repaired(model: OffloadModel, keep: Bool, capacity: int, extra: Int64 | None = None) -> Bool:
    """[G] settled gaps that fit: from the first step on at which too much is kept, what is used again
    last leaves first; what is tiny beside the capacity (`SMALL`), only if nothing else can. `extra` is [S], room
    that others take."""
    room = model.taken if extra is None else model.taken + extra
    kept: Bool = model.tables.repaired(np.asarray(keep, dtype=np.int8), capacity, room) != 0
    return kept
