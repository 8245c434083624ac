"""Stores: the places where the bytes of one tensor can lie, and which of them are there when.

A store is the home of devices, or a strand. A *strand* is a run of residencies in one memory at one
offset whose windows touch, so bytes put into one are still there in the next. Moments: step k
starts at 2k and ends at 2k + 1; -1 is before the program.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from loadmaster.plan.check.facts import HOME, Facts

NO_COPY = -1


@dataclass
class Store:
    """A place for one tensor, and the bytes [low, high) that are there from a moment on."""

    memory: int
    first: int
    last: int
    """The ranks between which its bytes are kept."""
    offset: int = HOME
    entries: list[tuple[int, int, int, int]] = field(default_factory=list)
    """(moment, low, high, the copy that brought them or NO_COPY)"""

    def put(self, moment: int, low: int, high: int, copy: int = NO_COPY) -> None:
        self.entries.append((moment, low, high, copy))

    def missing(self, moment: int, low: int, high: int) -> int:
        """How many of the bytes [low, high) are not there at a moment."""
        count, reached = 0, low
        for since, begin, end, _ in sorted(self.entries, key=lambda entry: entry[1]):
            if since <= moment and end > reached and reached < high:
                count += max(0, min(begin, high) - reached)
                reached = max(reached, end)
        return count + max(0, high - reached)


def strands_of(facts: Facts, tensor: int) -> tuple[list[Store], dict[int, Store]]:
    """The strands of a tensor, and the strand of each residency that holds anything."""
    windows = []
    for row in facts.residencies_of.get(tensor, []):
        first, last = facts.window(row)
        if first <= last:
            residency = facts.residencies[row]
            windows.append((residency.memory, residency.offset, first, last, row))
    strands: list[Store] = []
    strand_of: dict[int, Store] = {}
    for memory, offset, first, last, row in sorted(windows):
        newest = strands[-1] if strands else None
        same = newest is not None and (newest.memory, newest.offset) == (memory, offset)
        if newest is None or not same or first > newest.last + 1:
            newest = Store(memory, first, last, offset)
            strands.append(newest)
        newest.last = max(newest.last, last)
        strand_of[row] = newest
    return strands, strand_of
