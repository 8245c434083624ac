"""What the driver says that a process has, by a library that plays it."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from loadmaster.execute import nvml

MINE = os.getpid()


def driver(rows: list[tuple[int, int]], status: int = 0) -> Any:
    """NVML on a device with these processes; `status`: what it answers."""

    def ask(handle: Any, count: Any, table: Any) -> int:
        count._obj.value = len(rows)
        if table is None:
            return status or (7 if rows else 0)
        for at, (pid, size) in enumerate(rows):
            table[at].pid, table[at].bytes = pid, size
        return status

    return SimpleNamespace(nvmlDeviceGetComputeRunningProcesses_v3=ask)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([(MINE, 5), (MINE + 1, 7)], 5),
        ([(MINE + 1, 7)], None),  # a container that has its own process numbers
        ([], None),
        ([(MINE, 2**64 - 1)], None),
    ],
)
def test_only_this_process_counts(
    monkeypatch: pytest.MonkeyPatch, rows: list[tuple[int, int]], expected: int | None
) -> None:
    monkeypatch.setattr(nvml, "_uuid", str)
    monkeypatch.setattr(nvml, "_handle", lambda uuid: None)
    monkeypatch.setattr(nvml, "_library", lambda: driver(rows))
    assert nvml.process_bytes(0) == expected


def test_a_driver_that_fails_or_is_not_there_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Any:
        raise OSError("there is no NVML")

    monkeypatch.setattr(nvml, "_uuid", str)
    monkeypatch.setattr(nvml, "_library", missing)
    assert nvml.process_bytes(0) is None
    monkeypatch.setattr(nvml, "_handle", lambda uuid: None)
    monkeypatch.setattr(nvml, "_library", lambda: driver([(MINE, 5)], status=999))
    assert nvml.process_bytes(0) is None
