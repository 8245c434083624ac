"""Parts of memory space assignment: the ledger of copies and the picker of starts, with the numbers of
XLA's own tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loadmaster import _core

SECOND = 10**12


# --- the copy resource -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slots", "copies", "left"),
    [
        (
            [2, 3, 1, 6, 7, 1, 7, 2, 2, 4],
            [(-1, 3, 5, True), (1, 4, 4, True), (5, 9, 10, True), (4, 9, 3, False), (4, 8, 2, True)],
            None,
        ),
        (
            [2] * 10,
            [
                *((s, s + 4, 2, True) for s in (6, 5, 4, 3, 2, 1)),
                (0, 4, 3, True),
                (0, 4, 3, True),
                (0, 4, 1, False),
            ],
            [2, *[0] * 9],
        ),
        ([2] * 10, [(5, 10, 2, True), (4, 7, 2, True), (4, 8, 4, True), (3, 6, 4, False)], None),
        ([2] * 5, [(1, 3, 2, True), (0, 4, 4, False)], None),
    ],
)
def test_copy_resource_vectors(slots: list[int], copies: list[Any], left: list[int] | None) -> None:
    resource = _core.Ledger(slots)
    for number, (start, end, need, fits) in enumerate(copies):
        assert resource.fits(start, end, need) == fits, (start, end, need)
        if fits:
            resource.add(number, start, end, need)
    if left is not None:
        assert resource.left() == left


def _is_on_time(slots: list[int], copies: list[tuple[int, int, int]]) -> bool:
    """One pass over all copies in order of issue, a unit of need at a time."""
    at, used = 0, 0
    for start, end, need in sorted(copies, key=lambda copy: copy[0]):
        if start + 1 > at:
            at, used = start + 1, 0
        for _ in range(need):
            while at < end and used == slots[at]:
                at, used = at + 1, 0
            if at >= end:
                return False
            used += 1
    return True


def test_copy_resource_is_one_pass_in_order_of_issue() -> None:
    rng = np.random.default_rng(5)
    answers = [0, 0]
    for _ in range(300):
        slots = rng.integers(0, 5, int(rng.integers(1, 12))).tolist()
        resource = _core.Ledger(slots)
        held: dict[int, tuple[int, int, int]] = {}
        for number in range(int(rng.integers(1, 15))):
            if held and rng.random() < 0.2:
                gone = int(rng.choice(list(held)))
                resource.remove(gone)
                del held[gone]
            start = int(rng.integers(-1, len(slots)))
            copy = (start, int(rng.integers(start + 1, len(slots) + 1)), int(rng.integers(0, 7)))
            fits = resource.fits(*copy)
            assert fits == _is_on_time(slots, [*held.values(), copy])
            answers[fits] += 1
            if fits:
                resource.add(number, *copy)
                held[number] = copy
        assert sum(resource.left()) == sum(slots) - sum(need for _, _, need in held.values())
    assert min(answers) > 500


# --- the interval picker ---------------------------------------------------------------------


def test_picker_tries_the_preferred_start_first() -> None:
    elapsed = [0, *[SECOND] * 21, 0]

    def starts(begin: int) -> list[int]:
        return _core.copy_starts(
            elapsed, [-1] * 23, [0] * 23, [1, 2, 4, 5], 3 * SECOND, begin, 22, 3 * SECOND
        )

    assert starts(0) == [15, 16, 14, 17, 13, 18, 12, 11, 10, 9]
    assert starts(19) == []


def test_picker_does_not_start_inside_a_loop() -> None:
    inside = [19 <= step <= 24 for step in range(32)]
    elapsed = [0 if step in (0, 25) else SECOND for step in range(32)]
    found = _core.copy_starts(
        elapsed,
        [0 if i else -1 for i in inside],
        [int(i) for i in inside],
        [1, 2, 12, 5],
        3 * SECOND,
        0,
        31,
        3 * SECOND,
    )
    assert found == [25, 26, 18, 27, 17]
