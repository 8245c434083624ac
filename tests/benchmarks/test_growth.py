"""The benchmark of growth: its families of lives, its rows and its page."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks import growth


@pytest.mark.parametrize("family", growth.FAMILIES)
def test_families_are_what_they_are_called(family: str) -> None:
    buffers = growth.make_buffers(family, 300)
    lower, upper = buffers.lower, buffers.upper
    assert len(buffers) == 300 and (buffers.size >= 64).all()
    crossing = (lower[:, None] < lower) & (lower < upper[:, None]) & (upper[:, None] < upper)
    if family == "nested":
        assert not crossing[np.abs(lower[:, None] - lower) > 1].any()
    elif family == "chains":
        assert (upper - lower).max() <= 3
    else:
        assert crossing.any() and (upper - lower).max() > 50


def test_a_row_is_measured() -> None:
    (row,) = growth.measure("check-buffers", "random", 200)
    assert row["status"] == "0 violations" and row["cpu_seconds"] >= 0
    stages = growth.measure("graph", "layers", 110)
    assert [row["what"] for row in stages] == list(growth.STAGES)
    assert stages[4]["status"] == "0 violations" and stages[5]["value"] > 10_000


def test_the_page_is_made_of_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "RESULTS", tmp_path)
    common = {"what": "first-fit", "family": "random", "peak_mib": 10, "value": 110, "bound": 100}
    growth.write_page(
        [
            {**common, "size": 50_000, "version": "now", "cpu_seconds": 1.0},
            {**common, "size": 100_000, "version": "now", "cpu_seconds": 2.1},
            {"what": "first-fit", "family": "random", "size": 100_000, "version": "before", "status": "no"},
        ]
    )
    lines = (tmp_path / "growth.md").read_text().splitlines()
    assert lines[-len(growth.LEFT) :] == list(growth.LEFT)
    assert lines[-2 - len(growth.LEFT) : -len(growth.LEFT)] == [
        "| first-fit, random | 50,000 | – | 1.00 s |  | 10 MiB | 10.00% above the bound |",
        "| first-fit, random | 100,000 | no | 2.10 s | 2.10 | 10 MiB | 10.00% above the bound |",
    ]
