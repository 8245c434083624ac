"""Training EGRL as a library function, and what its policy decides as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("optax")

from loadmaster.learn.policies import read_policy
from loadmaster.learn.session import Unfinished
from loadmaster.mapping import egrl
from loadmaster.mapping.problem import Mapping
from loadmaster.search.solver import Budget, Meter, Solution, Solver, solve
from mapping.egrl.small import SMALL, chain, chain_problem, roomy


def test_each_problem_goes_on_from_the_policy_of_the_last(tmp_path: Path) -> None:
    out, starts = tmp_path / "p.npz", list[Any]()

    def run(solver: Any, problem: Mapping, budget: Budget, seed: int) -> Solution:
        starts.append(solver.init)
        return solve(solver, problem, budget, seed)

    problems = [("first", chain_problem()), ("second", Mapping(chain(8), roomy()))]
    rows = egrl.train(problems, out=out, agent="egrl", evaluations=14, options=SMALL, run_solver=run)
    assert starts == [None, str(out)]
    assert [(row["model"], row["evaluations"], row["run"]) for row in rows] == [
        ("first", 14, None),
        ("second", 14, None),
    ]
    _, about = read_policy(out, "egrl")
    assert [row["model"] for row in about["trained_on"]] == ["first", "second"]
    assert about["settings"] == SMALL and len(about["memories"]) == 3


def test_an_end_without_a_policy_is_said(tmp_path: Path) -> None:
    def run(solver: Solver, problem: Mapping, budget: Budget, seed: int) -> Solution:
        return Meter(problem, budget).solution()

    with pytest.raises(Unfinished, match="ended before there was a policy"):
        egrl.train([("chain", chain_problem())], out=tmp_path / "p.npz", options=SMALL, run_solver=run)
    assert not (tmp_path / "p.npz").exists()


def test_a_policy_is_tried_beside_its_controls() -> None:
    rows = egrl.transfer("pretrained:bert", [("chain", chain_problem())])
    assert [row["name"] for row in rows] == ["policy", "untrained", "random", "all-slowest", "compiler"]
    by_name = {row["name"]: row for row in rows}
    assert by_name["compiler"]["speedup"] == 1 and by_name["all-slowest"]["fits"]
    assert all(row["picoseconds"] > 0 and (row["epsilon"] > 0) != row["fits"] for row in rows)
