"""`loadmaster train go`: what is refused; a policy of one graph, kept and planned with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loadmaster.learn.policies import read_policy

jax = pytest.importorskip("jax")
for package in ("equinox", "optax"):
    pytest.importorskip(package)

MODEL = "bert:layers=2"
SIZES = {"width": 8, "heads": 1, "inner": 8, "layers": 1, "rounds": 1}
TINY = tuple(word for name, value in SIZES.items() for word in ("--set", f"{name}={value}"))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In another folder, and quickly compiled."""
    monkeypatch.chdir(tmp_path)
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--split", "train"), "has no end"),
        (("--time-limit", "5s"), "give models, or a split"),
        ((MODEL, "--split", "train", "--time-limit", "5s"), "give models, or a split"),
        (("--split", "held_out", "--time-limit", "5s"), "no split 'held_out' to train on"),
        ((MODEL, "--mode", "two"), "there is no --mode 'two'"),
        ((MODEL, MODEL, "--mode", "one", "--budget", "9"), "trains on one model"),
        ((MODEL, "--mode", "one"), "has no end"),
        ((f"{MODEL}@p100x2", "--time-limit", "5s", "--resume", "none.npz"), "can't be resumed"),
        ((f"{MODEL}@p100x2", "--time-limit", "5s", "--set", "colour=1"), "no option 'colour'"),
    ],
)
def test_training_refuses_in_one_line(run: Any, words: tuple[str, ...], said: str) -> None:
    result = run("train", "go", *words, "--out", "p.npz")
    assert result.exit != 0 and said in result.error_line


def test_other_agents_need_models(run: Any) -> None:
    assert "give the models" in run("train", "muzero", "--set", "profile=paper", "--out", "p.npz").error_line


def test_a_policy_of_one_graph_is_kept_and_planned_with(run_json: Any) -> None:
    learning = ("--set", "samples=4", "--set", "warm_start=none", "--set", "epochs=1")
    trained = run_json(
        "train",
        "go",
        f"{MODEL}@p100x2",
        "--mode",
        "one",
        "--budget",
        "12",
        "--out",
        "p.npz",
        *TINY,
        *learning,
    )
    assert [(row["evaluations"], row["updates"]) for row in trained["rows"]] == [(12, 2)]
    arrays, about = read_policy("p.npz", "go")
    assert about["agent"] == "go" and about["shape"]["width"] == 8 and about["mode"] == "one"
    assert arrays["enter.weight"].shape[1] == 8
    answer = run_json(
        "plan",
        MODEL,
        "-m",
        "p100x2",
        "--solver",
        "go",
        "--init",
        "p.npz",
        "--set",
        "mode=zero-shot",
        "--budget",
        "9",
        *TINY,
    )
    row = next(row for row in answer["rows"] if row["name"] == "go")
    assert row["picoseconds"] > 0
