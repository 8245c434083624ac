"""A slice of the standing test, and that it can fail. `python -m tests.law` runs it at full size."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from law.cases import CASES, Case, Claim, GameCase, MappingCase
from law.run import main
from law.search import Outcome, beaten, run_instance, told
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.mapping.problem import Mapping
from loadmaster.plan.check import Violation
from loadmaster.plan.plan import Plan

INSTANCES, MOVES = 25, 80
KINDS = list(CASES)


@cache
def outcomes(kind: str) -> list[Outcome]:
    """The first instances of a problem."""
    found = [run_instance(CASES[kind], seed, MOVES) for seed in range(INSTANCES)]
    return [outcome for outcome in found if outcome is not None]


# One problem after another: the two tests of each share its outcomes, in whatever process they run.
each_kind = pytest.mark.parametrize("kind", KINDS, scope="module")


@each_kind
def test_one_law(kind: str) -> None:
    assert len(outcomes(kind)) >= INSTANCES * 9 // 10
    findings = [told(finding) for outcome in outcomes(kind) for finding in outcome.findings]
    assert not findings, "\n".join(findings)


@each_kind
def test_the_search_gets_to_where_claims_are_tested(kind: str) -> None:
    """Claims that are 5 % too high would be found out, and proven optima are often reached."""
    found = [outcome for outcome in outcomes(kind) if outcome.best is not None]
    assert len(found) >= len(outcomes(kind)) * 3 // 4
    caught = sum(bool(beaten(outcome, [_raised(claim) for claim in outcome.claims])) for outcome in found)
    assert caught >= len(found) // 2
    known = [outcome for outcome in found if outcome.optimum is not None]
    reached = sum(outcome.best == outcome.optimum for outcome in known)
    alone = sum(outcome.own == outcome.optimum for outcome in known)
    assert reached >= len(known) // 2
    assert alone >= len(known) // 4
    if kind == "malloc-game":  # from what it began with, without a solver: half of the games get faster
        better = [
            outcome
            for outcome in outcomes(kind)
            if outcome.own is not None and outcome.first is not None and outcome.own < outcome.first
        ]
        assert len(better) >= len(outcomes(kind)) // 3


def _raised(claim: Claim) -> Claim:
    return claim._replace(value=claim.value + claim.value // 20 + 1)


class _Forgetful(MallocGame):
    """Does not mind what lies over what."""

    def violations(self, plan: Plan) -> list[Violation]:
        return [each for each in super().violations(plan) if each.rule != "overlap"]


class _Shy(MallocGame):
    """Knows no copies."""

    def evaluate(self, decision: Any) -> int | None:
        rows = np.asarray(decision)
        return None if rows.ndim == 2 and (rows[:, 5] != -2).any() else super().evaluate(decision)


class _Strict(MallocGame):
    """Refuses what is neither against the law nor outside."""

    def violations(self, plan: Plan) -> list[Violation]:
        found = super().violations(plan)
        many = len(plan.residency_rows) > 1
        return [Violation("game", "one is enough")] if not found and many else found


class _Hasty(MallocGame):
    """Says less than it takes."""

    def evaluate(self, decision: Any) -> int | None:
        value = super().evaluate(decision)
        return None if value is None else value - 1


class _Bold(Mapping):
    """Claims more than it knows."""

    def bound(self) -> Any:
        bound = super().bound()
        return replace(bound, value=int(self.score(self.all_slowest()[None]).value[0]))


@pytest.mark.parametrize(
    ("case", "problem", "rule"),
    [
        (GameCase(), _Forgetful, "scope"),
        (GameCase(), _Strict, "scope"),
        (GameCase(), _Shy, "judge"),
        (GameCase(), _Hasty, "value"),
        (MappingCase(), _Bold, "bound"),
    ],
)
def test_a_problem_with_a_law_of_its_own_is_found_out(
    case: Case, problem: Any, rule: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("law.cases.MallocGame" if problem is not _Bold else "law.cases.MapProblem", problem)
    monkeypatch.setattr("law.cases.has_exact", lambda: False)
    rules = set()
    for seed in range(10):
        outcome = run_instance(case, seed, MOVES // 2)
        rules |= {finding.rule.split(" ")[0] for finding in outcome.findings} if outcome else set()
    assert rule in rules


def test_the_script(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "law.json"
    assert main(["--problem", "order", "--instances", "3", "--moves", "20", "--json", str(out)]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("0 findings")
    about = json.loads(out.read_text(encoding="utf-8"))
    assert about["counts"]["order"]["instances"] == 3 and about["findings"] == []
