"""The rows that a trained network has in the malloc suite, and how fast it plays; tiny networks."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.suites import malloc_selfplay
from benchmarks.suites.malloc_cells import GAMES
from loadmaster.malloc_game.muzero.paper import Settings

pytestmark = pytest.mark.usefixtures("quickly_compiled")

for package in ("jax", "equinox", "optax", "mctx"):
    pytest.importorskip(package)

TINY: dict[str, Any] = {
    "width": 16,
    "channels": 2,
    "grid_blocks": 0,
    "dynamics_blocks": 1,
    "prediction_blocks": 1,
    "bins": 11,
    "games": 4,
    "simulations": 2,
    "eval_simulations": 2,
    "batch": 8,
    "unroll": 1,
    "window": 4,
}
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "muzero_runs.py"
CELLS = ("synthetic-09", "synthetic-36")


def rows(monkeypatch: pytest.MonkeyPatch, out: Path, *more: str) -> list[dict[str, Any]]:
    """What the script writes for two cells."""
    spec = importlib.util.spec_from_file_location("muzero_runs", SCRIPT)
    assert spec is not None and spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    options = [f"{name}={value}" for name, value in TINY.items()]
    words = [
        "muzero_runs",
        "--cells",
        *CELLS,
        "--init",
        "scratch",
        "--out",
        str(out),
        *more,
        "--set",
        *options,
    ]
    monkeypatch.setattr(sys, "argv", words)
    assert script.main() == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert all(line["made"]["versions"] for line in lines)
    return [row for line in lines for row in line["rows"]]


def test_rows_of_cells_that_are_played_together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = rows(monkeypatch, tmp_path / "a.jsonl", "--budget", "7")
    assert [(row["case"], row["solver"]) for row in found] == [
        (case, solver) for case in CELLS for solver in ("paper", "paper-prod")
    ]
    for mine, better in zip(found[::2], found[1::2], strict=True):
        assert mine["evaluations"] == 7 and better["evaluations"] == 8
        assert better["value"] == min(mine["value"], mine["baseline"])
        assert mine["value"] >= mine["bound"] and mine["extra"]["together"] == 2
        problem = GAMES[mine["case"]].load()
        assert problem.bound().value == mine["bound"] and mine["value"] <= problem.all_slow_ps


def test_zero_shot_rows_learn_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import jax

    from loadmaster.learn.policies import policy_arrays
    from loadmaster.malloc_game.muzero.paper import save_small
    from loadmaster.malloc_game.muzero.paper.network import make_network

    settings, policy = Settings(**TINY), tmp_path / "policy.npz"
    save_small(policy, policy_arrays(make_network(jax.random.key(0), settings)), {}, settings)
    asked = (
        "--budget",
        "4",
        "--zero-shot",
        "--label",
        "bare",
        "--init",
        str(policy),
        "--game",
        "backup=none",
    )
    found = rows(monkeypatch, tmp_path / "a.jsonl", *asked)
    assert [row["solver"] for row in found] == ["bare", "bare"]
    assert all(row["extra"]["zero_shot"] and row["evaluations"] == 4 for row in found)
    assert all(row["extra"]["rules"] == {"backup": "none"} for row in found)
    with pytest.raises(SystemExit, match="no cell is named so"):
        rows(monkeypatch, tmp_path / "a.jsonl", "--but", "synthetic-*")


def test_the_speed_of_self_play(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(malloc_selfplay, "Settings", lambda: Settings(**TINY))
    (row,) = malloc_selfplay.self_play(3, 0)
    assert row.case == "speed/self-play" and row.unit == "moves/s" and row.evaluations == 4
    assert row.extra["platform"] == "cpu" and row.extra["target"] == ">= 500 moves/s"
    assert row.status == ("met" if row.value >= 500 else "missed")
    parts = [row.extra[f"ms_{part}"] for part in ("observe", "transfer", "look", "search", "step")]
    assert all(part > 0 for part in parts) and row.extra["ms_search"] > 0
