"""`loadmaster train go`: what is refused; a small policy, kept and planned with."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from clocks import Ticking
from loadmaster.clock import reading
from loadmaster.learn.policies import read_policy

MODEL = "alexnet-train"
TINY = {"graphs": 2, "evaluations": 160, "steps": 5, "batch": 16}
SMALL = tuple(word for name, value in TINY.items() for word in ("--set", f"{name}={value}"))


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--resume", "none.npz"), "can't be resumed"),
        (("--set", "colour=1"), "no option 'colour'"),
        (("--set", "graphs=0"), "graphs = 0"),
        (("--init", "none.npz"), "can't be read"),
    ],
)
def test_training_refuses_in_one_line(run: Any, words: tuple[str, ...], said: str) -> None:
    result = run("train", "go", *words, "--out", "p.npz")
    assert result.exit != 0 and said in result.error_line


def test_other_agents_need_models(run: Any) -> None:
    assert "give the models" in run("train", "muzero", "--set", "profile=paper", "--out", "p.npz").error_line


def test_a_policy_is_kept_and_planned_with(run_json: Any) -> None:
    trained = run_json("train", "go", f"{MODEL}@p100x2", "--budget", "1", "--out", "p.npz", *SMALL)
    assert [row["graphs"] for row in trained["rows"]] == [2]
    _, about = read_policy("p.npz", "go")
    assert about["agent"] == "go" and about["settings"]["rounds"] == 1
    answer = run_json(
        "plan",
        MODEL,
        "-m",
        "p100x2",
        "--tasks",
        "placement,fusion,schedule",
        "--solver",
        "go",
        "--init",
        "p.npz",
        "--budget",
        "30",
    )
    row = next(row for row in answer["rows"] if row["name"] == "go")
    assert row["picoseconds"] > 0


def test_an_interrupted_training_says_the_line_that_goes_on(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from loadmaster.graph.go import training

    asked: list[dict[str, Any]] = []

    def train(**given: Any) -> None:
        asked.append(given)
        if len(asked) > 1:
            Path("a p.state.npz").write_bytes(b"")
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "train", train)
    words = ("train", "go", f"{MODEL}@p100x2", "--budget", "1", "--out", "a p.npz", *SMALL)
    assert run(*words).error_line == "error: interrupted"  # before anything was kept
    stopped = run(*words)
    line = stopped.error_line.partition("go on with loadmaster ")[2]
    assert stopped.exit == 130 and run(*shlex.split(line)).exit == 130
    first, again = asked[1:]
    assert again.pop("resume") == Path("a p.state.npz") and first.pop("resume") is None
    for each in (first, again):
        assert [(program.name, machine.name) for program, machine in each.pop("own")] == [(MODEL, "p100x2")]
        each.pop("report")
    assert again == first


def test_what_is_printed_after_a_training_learns_more(run: Any) -> None:
    """A time limit is shared out over all rounds: a finished training has none left to go on with."""
    said = run("train", "go", f"{MODEL}@p100x2", "--time-limit", "60s", "--out", "p.npz", *SMALL).out
    assert "go on:" not in said
    line = said.partition("more:    loadmaster ")[2].partition("\n")[0]
    assert line == "train go --time-limit 60s --init p.npz --out p-more.npz"


def test_time_for_no_graph_to_learn_from_is_refused(run: Any) -> None:
    """Before the first graph, and after it: that one is left out of the fit."""
    with reading(Ticking(1.0)):
        refused = run("train", "go", "--time-limit", "1s", "--out", "p.npz", *SMALL)
    assert refused.exit == 2
    said = "no graph that may be learned from was finished in 1 s: give more --time-limit"
    assert refused.error_line == f"error: {said}"
    assert not list(Path().iterdir())
    refused = run("train", "go", "--out", "p.npz", *SMALL, "--set", "graphs=1")
    assert refused.exit == 2 and refused.err.endswith("give more graphs or evaluations\n")
    assert not list(Path().iterdir())


def test_a_round_is_told_in_a_line(run: Any) -> None:
    said = run("train", "go", f"{MODEL}@p100x2", "--budget", "1", "--out", "p.npz", *SMALL).err
    assert re.search(
        r"^round 1: 2 graphs, [\d,]+ placements, [\d,]+ small changes \([\d.]+ % for the better\)",
        said,
        re.MULTILINE,
    )


@pytest.mark.parametrize("agent", ["egrl", "muzero"])
def test_time_for_no_generation_is_refused(run: Any, agent: str) -> None:
    few = ("--set", "cases=2", "--set", "validation=2")
    with reading(Ticking(1.0)):
        refused = run("train", agent, "--time-limit", "1s", "--out", "p.npz", *few)
    assert refused.exit == 2 and "give more --time-limit" in refused.error_line
    assert not list(Path().iterdir())


@pytest.mark.parametrize("agent", ["egrl", "muzero", "go"])
def test_no_time_at_all_is_refused(run: Any, agent: str) -> None:
    refused = run("train", agent, "--time-limit", "0s", "--out", "p.npz")
    assert refused.exit == 2 and "nothing is learned in 0 s: give more time" in refused.error_line
