"""What changed between two plans, and what two runs needed to reach each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import toy
from generate import random_case
from loadmaster.plan import Copy, Plan, Residency, plan_to_json, save_plan
from loadmaster.runs import RunFolder, run_solver
from loadmaster.runs.compare import compare_keys, compare_plans, find_when_reached, read_side, score_alone
from loadmaster.runs.history import describe_run
from loadmaster.search.solver import Budget


def document(plan: Plan) -> dict[str, Any]:
    problem = toy.Toy()
    loaded: dict[str, Any] = json.loads(plan_to_json(plan, problem.program, problem.machine))
    return loaded


def test_a_plan_does_not_differ_from_itself() -> None:
    for seed in range(50):
        program, machine, plan = random_case(np.random.default_rng(seed), valid_only=True)
        one = json.loads(plan_to_json(plan, program, machine))
        assert compare_plans(one, one).is_empty


def test_each_kind_of_change() -> None:
    before = Plan.of(
        residencies=[Residency(1, 0, 0, 0, 5), Residency(2, 0, 64, 1, 5), Residency(3, 0, 0, 6, 9)],
        copies=[Copy(1, 0, 1, 2, 5), Copy(2, 1, 0, 1, 4)],
        order=range(40),
        device=[0] * 40,
    )
    after = Plan.of(
        residencies=[
            Residency(1, 1, 0, 0, 5),
            Residency(2, 0, 32, 1, 5),
            Residency(3, 0, 0, 6, 8),
            Residency(4, 0, 0, 3, 4),
        ],
        copies=[Copy(2, 1, 0, 1, 4), Copy(2, 1, 0, 1, 4), Copy(3, 1, 0, 1, 4, 0, 8)],
        order=[1, 0, *range(2, 40)],
        queue="fifo",
    )
    found = compare_plans(document(before), document(after))
    assert [(c.kind, c.name, c.before, c.after) for c in found.tensors] == [
        ("moved", "t0", "arena", "flash"),
        ("offset", "t1", "64", "32"),
        ("lifetime", "t2", "arena 6..9", "arena 6..8"),
        ("moved", "t3", "home", "arena"),
    ]
    assert [copy["tensor"] for copy in found.copies_gone] == [1]
    assert [(copy["tensor"], copy["bytes"]) for copy in found.copies_added] == [(2, "None"), (3, "[0, 8]")]
    assert found.ops == {"device": 40, "order": 2} and found.others == ["queue"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    parent = tmp_path_factory.mktemp("runs")
    solutions = [
        run_solver(solver, problem, Budget(count), 3, folder=parent)
        for solver, problem, count in (
            (toy.Climb(), toy.Toy(), 300),
            (toy.Plain(), toy.Toy(), 40),
            (toy.Plain(), toy.Toy(slack=1), 40),
        )
    ]
    return [solution.run for solution in solutions]


def test_two_runs(runs: list[Path]) -> None:
    a, b = read_side(runs[0]), read_side(runs[1])
    assert not compare_keys(a, b)
    assert a.value is not None and b.value is not None and a.value < b.value
    evaluations, seconds = find_when_reached(a, b)
    assert evaluations is not None and evaluations <= 300 and seconds is not None
    assert find_when_reached(b, a) == (None, None)
    assert compare_keys(a, read_side(runs[2])) == ["problem (slack)"]


def test_a_plan_alone_is_scored_by_the_other_sides_problem(runs: list[Path], tmp_path: Path) -> None:
    problem = toy.Toy()
    plan = problem.plan(problem.place(np.arange(len(problem.roots))))
    save_plan(plan, problem.program, problem.machine, tmp_path / "mine.json")
    a, b = read_side(runs[0]), read_side(tmp_path / "mine.json")
    score_alone(a, b)
    assert b.value == problem.evaluate(problem.decision(plan)) and b.gap is not None
    inside = read_side(runs[0] / "best.json")
    assert inside.value == a.value and compare_plans(inside.document or {}, a.document or {}).is_empty


def test_a_run_stands_for_the_plan_that_it_hands_over(tmp_path: Path) -> None:
    """A known method's, where that is better than all that the solver found; else the solver's own."""
    problem = toy.Toy()
    good = run_solver(toy.Climb(), problem, Budget(300), 3).decision
    assert good is not None
    value = problem.evaluate(good)
    little = run_solver(toy.Climb(), problem, Budget(3), 5, folder=tmp_path, baselines={"known": good})
    much = run_solver(toy.Climb(), problem, Budget(300), 3, folder=tmp_path)
    assert little.run is not None and much.run is not None
    known, own = read_side(little.run), read_side(much.run)
    assert (known.value, known.origin) == (value, "known") and (own.value, own.origin) == (value, "climb")
    assert known.document == own.document == document(problem.plan(good))
    assert find_when_reached(known, own)[0] == 0 and find_when_reached(own, known) == (
        own.history.find_when_reached(value)  # type: ignore[union-attr, arg-type]
    )
    row = describe_run(RunFolder.open(little.run), known.history)  # type: ignore[arg-type]
    assert (row["value"], row["origin"], row["gap"]) == (value, "known", known.gap)
    assert row["solver_value"] > row["value"] and row["plan"] == problem.plan(good).hash
    # In a run of an earlier version best.json is the solver's own, and so is what it handed over.
    RunFolder.open(little.run).set_best(known.history.result["plan"])  # type: ignore[union-attr, index]
    old = read_side(little.run)
    assert old.origin == "climb" and old.value == row["solver_value"]
    # An optimum that was found beside the search.
    save_plan(problem.plan(good), problem.program, problem.machine, little.run / "champion.json")
    beside = read_side(little.run)
    assert (beside.value, beside.origin, beside.document) == (value, "optimum", known.document)
