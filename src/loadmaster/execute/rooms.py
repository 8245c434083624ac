"""What a plan leaves to an allocator step by step: where results go, and which room nobody has then."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from loadmaster.execute.script import Script

Int64 = npt.NDArray[np.int64]


def room_columns(
    script: Script, offsets: Sequence[int], sizes: Sequence[int], capacity: int
) -> tuple[dict[str, Int64], dict[int, int]]:
    """Columns of `_core.rooms` by name, and the number of the result that begins a stay. `offsets` by stay,
    `sizes` (bytes of the storage) by tensor."""
    stays, start = script.stays, [0]
    number: dict[int, int] = {}
    results: list[tuple[int, int, int]] = []
    for step in script.steps:
        for stay in step.stays:
            if stay >= 0 and stay not in number:
                number[stay] = len(results)
                results.append((sizes[stays[stay].tensor], stays[stay].bytes, offsets[stay]))
        start.append(len(results))
    table = np.array(results, dtype=np.int64).reshape(-1, 3)
    free = free_ranges(script, offsets, capacity)
    columns = {
        "result_start": np.array(start, dtype=np.int64),
        "result_bytes": table[:, 0].copy(),
        "result_room": table[:, 1].copy(),
        "result_offset": table[:, 2].copy(),
    }
    columns["free_start"] = np.cumsum([0, *(len(each) for each in free)]).astype(np.int64)
    every = np.concatenate([*free, np.zeros((0, 2), dtype=np.int64)])
    return columns | {"free_low": every[:, 0].copy(), "free_high": every[:, 1].copy()}, number


def free_ranges(script: Script, offsets: Sequence[int], capacity: int) -> list[Int64]:
    """[steps] of rows (low, high), ascending: what no stay has while the step runs."""
    rows = [
        (max(0, stay.first), stay.last, offset, offset + stay.bytes)
        for stay, offset in zip(script.stays, offsets, strict=True)
    ]
    table = np.array(rows, dtype=np.int64).reshape(-1, 4)
    table = table[np.lexsort((table[:, 3], table[:, 2]))]
    found = []
    for step in range(len(script.steps)):
        there = table[(table[:, 0] <= step) & (step <= table[:, 1])]
        low = np.concatenate([[0], np.maximum.accumulate(there[:, 3])])
        high = np.concatenate([there[:, 2], [capacity]])
        gaps = np.stack([low, high], axis=1)
        found.append(gaps[high > low])
    return found


def held_bytes(script: Script) -> Int64:
    """[steps] bytes of the stays that are there."""
    change = np.zeros(len(script.steps) + 1, dtype=np.int64)
    for stay in script.stays:
        change[max(0, stay.first)] += stay.bytes
        change[stay.last + 1] -= stay.bytes
    held: Int64 = np.cumsum(change)[:-1]
    return held
