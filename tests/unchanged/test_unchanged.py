"""Programs, solvers, commands, policies and old files give what they gave before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from unchanged import commands
from unchanged.entries import SECTIONS, changes, compute, recorded, skipped
from unchanged.normal import differences, normal

for _package in ("jax", "onnx", "ortools", "pymetis"):
    pytest.importorskip(_package)
RECORDED = recorded()


@pytest.fixture(scope="module", autouse=True)
def _no_leftovers() -> Iterator[None]:
    yield
    commands.clear()


@pytest.mark.parametrize("entry", RECORDED)
def test_it_gives_what_it_gave(entry: str) -> None:
    before = RECORDED[entry]
    reason = skipped(entry, before)
    if reason:
        pytest.skip(reason)
    lines = changes(entry, before, compute(entry))
    assert not lines, "\n".join([f"{entry} is not what it was:", *lines])


def test_every_section_is_recorded() -> None:
    assert {entry.partition("/")[0] for entry in RECORDED} == set(SECTIONS)


@pytest.mark.parametrize(
    ("before", "now", "line"),
    [
        ({"a": 1}, {"a": 2}, ".a: was 1, is 2"),
        ({"a": [1, 2]}, {"a": [1, 3]}, ".a[1]: was 2, is 3"),
        ({"a": 1}, {}, ".a: is gone"),
        ({}, {"a": 1}, ".a: is new"),
        ([1], [1, 2], "all of it: 1 entries are now 2"),
        (0.5, 0.5001, "all of it: was 0.5, is 0.5001"),
        (10**15, 10**15 + 1, f"all of it: was {10**15}, is {10**15 + 1}"),
        (None, 0, "all of it: was None, is 0"),
        (True, 1, "all of it: was True, is 1"),
    ],
)
def test_a_difference_is_found_and_named(before: Any, now: Any, line: str) -> None:
    assert differences(before, now) == [line]
    assert differences(before, before) == []


def test_what_changes_by_itself_is_left_out() -> None:
    made = normal({"took_seconds": 1.5, "run": "/x/runs/20261116-175854-a", "n": list(range(99))}, "/x")
    assert made["run"] == "FOLDER/runs/DATE-a" and set(made) == {"run", "n"} and made["n"]["long"] == 99
    assert normal(list(range(99))) != normal(list(range(1, 100)))
