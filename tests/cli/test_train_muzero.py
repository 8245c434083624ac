"""`loadmaster train muzero --set profile=paper`: one network over several models, kept in a small file, and gone on with."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.runs.log import read_log

for package in ("jax", "equinox", "optax", "mctx"):
    pytest.importorskip(package)

SETTINGS = {
    "width": 16,
    "channels": 2,
    "grid_blocks": 0,
    "dynamics_blocks": 1,
    "prediction_blocks": 1,
    "bins": 11,
    "games": 4,
    "eval_games": 2,
    "simulations": 2,
    "eval_simulations": 2,
    "batch": 8,
    "updates": 2,
    "unroll": 1,
}
TINY = tuple(word for name, value in SETTINGS.items() for word in ("--set", f"{name}={value}"))
PAPER = ("--set", "profile=paper")
MODELS = ("alexnet-inf", "synthetic-09@tpu-v4i:cmem=1MiB")
CHIP = ("-m", "tpu-v4i-16m")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In another folder, and quickly compiled."""
    import jax

    monkeypatch.chdir(tmp_path)
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


def test_a_network_is_trained_on_several_models_and_gone_on_with(run_json: Any, run: Any) -> None:
    first = run_json("train", "muzero", *PAPER, *MODELS, *CHIP, "--budget", "4", "--out", "p.npz", *TINY)
    assert [row["evaluations"] for row in first["rows"]] == [4, 4] and first["gradient_steps"] == 2
    assert [row["model"] for row in first["rows"]] == list(MODELS)
    again = (
        "train",
        "muzero",
        *PAPER,
        *MODELS,
        *CHIP,
        "--budget",
        "8",
        "--resume",
        "p.state.npz",
        "--out",
        "q.npz",
        *TINY,
    )
    second = run_json(*again)
    assert [row["evaluations"] for row in second["rows"]] == [8, 8]
    for before, after in zip(first["rows"], second["rows"], strict=True):
        assert after["picoseconds"] <= before["picoseconds"]
    logs = [read_log(Path(name)).lines for name in ("p.log.jsonl", "q.log.jsonl")]
    assert first["log"] == "p.log.jsonl" and all(logs)
    for lines in logs:
        told = lines[-1]["metrics"]
        assert {
            "generation",
            "steps",
            "moves_per_s",
            "steps_per_s",
            "mean_reward",
            "policy_loss",
            "share_saved",
        } <= set(told)
        assert lines[-1]["event"] == "progress" and lines[-1]["gap"] is not None
    assert logs[0][-1]["evals"] == 8 and logs[1][-1]["evals"] == 16
    with np.load("p.npz") as old, np.load("q.npz") as new:
        assert old["policy.join.weight"].dtype == np.float16
        assert not np.array_equal(old["policy.join.weight"], new["policy.join.weight"])
    refused = run(*(word for word in again if word != MODELS[1]), "--overwrite")
    assert "give the same models" in refused.err
    assert "there already" in run("train", "muzero", *PAPER, *MODELS, "--budget", "4", "--out", "p.npz").err
    plan = run_json(
        "plan",
        MODELS[0],
        *CHIP,
        "--solver",
        "muzero",
        "--set",
        "profile=paper-prod",
        "--init",
        "q.npz",
        "--budget",
        "3",
        *TINY,
    )
    rows = {row["name"]: row["picoseconds"] for row in plan["rows"]}
    assert rows["paper-prod"] <= rows["production"]


def test_training_without_an_end_is_refused(run: Any) -> None:
    assert "training has no end" in run("train", "muzero", *PAPER, MODELS[0], *CHIP, "--out", "p.npz").err
    wrong = run(
        "train", "muzero", *PAPER, MODELS[0], *CHIP, "--budget", "4", "--resume", __file__, "--out", "p.npz"
    )
    assert "can't be resumed" in wrong.err


def test_the_lines_that_training_prints_can_be_typed(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a training that only takes down what it was asked for: the line goes on, with the same settings and an end."""
    from loadmaster.malloc_game.muzero.paper import training

    asked: list[tuple[list[str], dict[str, Any]]] = []

    def train(games: list[tuple[str, Any]], **given: Any) -> training.Trained:
        asked.append(([name for name, _ in games], given))
        given["out"].write_bytes(b"")
        return training.Trained([], 0, {})

    monkeypatch.setattr(training, "train", train)
    words = ("train", "muzero", *PAPER, *MODELS, *CHIP, "--budget", "4", "--out", "a p.npz", *TINY)
    printed = dict(re.findall(r"^(use it|go on): +loadmaster (.*)$", run(*words).out, re.MULTILINE))
    Path("a p.state.npz").write_bytes(b"")
    assert run(*shlex.split(printed["go on"])).exit == 0
    (names, first), (again, second) = asked
    assert names == again and first["options"] == second["options"] and first["seed"] == second["seed"]
    assert (second["evaluations"], second["resume"]) == (8, Path("a p.state.npz"))
    used = shlex.split(printed["use it"])
    assert used[:4] == ["plan", MODELS[0], "--machine", CHIP[1]] and used[-1] == "a p.npz"
