"""Is a placement of buffers sound? A plain sweep, apart from every allocator."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence

from loadmaster.plan.check.facts import Violation

Piece = tuple[int, int, int, int, int]
"""(buffer, lower, upper, low, high): the buffer's bytes [low, high) are in use during [lower, upper)."""


def check_offsets(
    ids: Sequence[str],
    pieces: Sequence[Piece],
    sizes: Sequence[int],
    offsets: Sequence[int],
    *,
    alignment: Sequence[int],
    pinned: Sequence[int],
    apart: Sequence[tuple[int, int]] = (),
    capacity: int | None = None,
) -> list[Violation]:
    """Every defect of a placement, or the empty list."""
    found = []
    for b, offset in enumerate(offsets):
        if offset < 0:
            found.append(_violation("residency", f"buffer '{ids[b]}' has no offset ({offset})", b, offset))
        if offset % alignment[b]:
            found.append(
                _violation(
                    "residency",
                    f"buffer '{ids[b]}' is at {offset:,}, off its alignment {alignment[b]:,}",
                    b,
                    offset,
                )
            )
        if pinned[b] >= 0 and offset != pinned[b]:
            found.append(
                _violation(
                    "residency",
                    f"buffer '{ids[b]}' is pinned to {pinned[b]:,} and lies at {offset:,}",
                    b,
                    offset,
                )
            )
        if capacity is not None and offset + sizes[b] > capacity:
            found.append(
                _violation(
                    "capacity",
                    f"buffer '{ids[b]}' ends at {offset + sizes[b]:,} and the capacity is {capacity:,}",
                    b,
                    offset + sizes[b] - capacity,
                )
            )
    for a, b in apart:
        if max(offsets[a], offsets[b]) < min(offsets[a] + sizes[a], offsets[b] + sizes[b]):
            found.append(
                _violation(
                    "overlap",
                    f"buffers '{ids[a]}' and '{ids[b]}' share bytes and must be kept apart",
                    a,
                    offsets[a],
                )
            )
    return found + _overlaps(ids, pieces, offsets)


def _overlaps(ids: Sequence[str], pieces: Sequence[Piece], offsets: Sequence[int]) -> list[Violation]:
    # Sweep over time; what is alive is kept by address, so only neighbours can collide.
    events = sorted(
        event
        for i, (_, lower, upper, low, high) in enumerate(pieces)
        if high > low
        for event in ((lower, 1, i), (upper, 0, i))
    )
    found = []
    alive: list[tuple[int, int, int]] = []
    for time, begins, i in events:
        buffer, _, _, low, high = pieces[i]
        entry = (offsets[buffer] + low, offsets[buffer] + high, i)
        at = bisect_left(alive, entry)
        if not begins:
            if at < len(alive) and alive[at] == entry:
                del alive[at]
            continue
        for neighbour in alive[max(0, at - 1) : at + 1]:
            if neighbour[0] < entry[1] and entry[0] < neighbour[1]:
                other = pieces[neighbour[2]][0]
                found.append(
                    _violation(
                        "overlap",
                        f"buffers '{ids[other]}' and '{ids[buffer]}' share address "
                        f"{max(entry[0], neighbour[0]):,} at time {time}",
                        buffer,
                        time,
                    )
                )
                break
        else:
            insort(alive, entry)
    return found


def _violation(rule: str, message: str, buffer: int, number: int) -> Violation:
    return Violation(rule, message, buffer, None, number)
