"""`climb`: what it counts, that it stops at summits only, and that it goes on from there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loadmaster.machine import load_machine
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.malloc_game.search import Change, Climb, together
from loadmaster.program.models import load_model
from loadmaster.program.zoo.synthetic import COUNT, synthetic
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, Meter, Observer, solve

MACHINE = "tpu-v4i:cmem=1MiB"


def made_up(number: int, **switches: Any) -> MallocGame:
    return MallocGame(synthetic(number), load_machine(MACHINE), **switches)


class Tries(Observer):
    """Remembers where the climb stood after each step."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[dict[str, Any]] = []

    def checkpoint(self, meter: Meter, state: Any) -> None:
        self.steps.append({"evaluations": meter.evaluations, **state})


def alternatives(problem: MallocGame, game: Any) -> Any:
    """Times of all other legal moves."""
    totals = problem.try_all(game[None])[0]
    totals[np.arange(problem.moves), game] = -1
    return totals[totals >= 0]


def test_it_climbs_to_summits_and_counts_every_try() -> None:
    climbed = 0
    for number in range(0, COUNT, 5):
        problem, seen = made_up(number), Tries()
        first = problem.play(np.ones((1, problem.moves), np.int8))
        solution = solve(Climb(), problem, Budget(evaluations=1500), observer=seen)
        here, value, at, rounds = first.actions[0], int(first.total[0]), 1, 0
        for step in seen.steps:
            tried = alternatives(problem, here)
            is_summit = not len(tried) or tried.min() >= value
            assert int(step["rounds"]) == rounds + is_summit
            if not is_summit:  # the best single change is among those that are made
                assert int(step["value"]) <= tried.min()
                climbed += 1
            assert at + len(tried) < step["evaluations"] <= at + len(tried) + 20
            here, value = step["game"], int(step["value"])
            at, rounds = step["evaluations"], int(step["rounds"])
            assert problem.play(here[None]).total[0] == value
            assert np.array_equal(problem.play(here[None]).actions[0], here)
            assert int(step["top_value"]) <= int(first.total[0])
        assert solution.value is not None and solution.value <= first.total[0]
        assert solution.evaluations == 1500 or solution.value == problem.bound().value
    assert climbed > 10


def test_the_best_changes_are_tried_together() -> None:
    game = np.ones(40, np.int8)
    changes = Change(np.arange(39, 26, -1), np.zeros(13, np.int8))
    tried = together(game, changes)
    assert [int((row == 0).sum()) for row in tried] == [1, 2, 3, 4, 6, 8, 12, 13]
    for row in tried:
        count = int((row == 0).sum())
        assert (row[40 - count :] == 0).all() and (row[: 40 - count] == 1).all()
    assert len(together(game, Change(changes.site[:1], changes.move[:1]))) == 1


@pytest.mark.parametrize("budget", [1, 2, 100, 255, 1000])
def test_budgets_are_kept_to_the_try(budget: int) -> None:
    problem = MallocGame(load_model("alexnet-train"), load_machine("tpu-v4i-16m"))
    solution = solve(Climb(), problem, Budget(evaluations=budget))
    assert solution.evaluations == budget
    longer = solve(Climb(), problem, Budget(evaluations=2 * budget))
    assert solution.value is not None and longer.value is not None
    assert longer.value <= solution.value


def test_shaking_finds_more_than_the_first_summit() -> None:
    better = 0
    for number in range(0, COUNT, 6):
        seen = Tries()
        solution = solve(Climb(), made_up(number), Budget(evaluations=3000), observer=seen)
        summit = next((step["top_value"] for step in seen.steps if step["rounds"]), None)
        better += summit is not None and solution.value < int(summit)  # type: ignore[operator]
    assert better >= 2


def test_it_reaches_a_bound_from_either_start() -> None:
    problem = MallocGame(load_model("bert-base"), load_machine("tpu-v4i-16m"))
    found = solve(make_labelled("malloc-game", "climb"), problem, Budget(evaluations=4000))
    assert found.value == found.bound.value and found.evaluations < 4000
    warm = solve(make_labelled("malloc-game", "climb", {"start": "msa"}), problem, Budget(evaluations=1))
    msa = solve(make_labelled("malloc-game", "msa"), problem, Budget())
    assert warm.value == problem.evaluate(problem.moves_of(problem.plan(msa.decision)))  # type: ignore[arg-type]


def test_it_climbs_games_that_can_be_lost_or_rewind() -> None:
    for backup in ("none", "rewind"):
        problem = made_up(24, backup=backup)
        solution = solve(Climb(), problem, Budget(evaluations=300))
        assert solution.value is not None and solution.value < problem.all_slow_ps
    for wrong in ({"start": "luck"}, {"least": 0.0}, {"least": 0.5, "most": 0.1}):
        with pytest.raises(ValueError, match="must be"):
            Climb(**wrong)  # type: ignore[arg-type]
