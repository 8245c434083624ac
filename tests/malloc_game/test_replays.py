"""Plans of memory space assignment played as moves: they take their own times, to the picosecond."""

from __future__ import annotations

import numpy as np
import pytest

from generate_game import random_game
from loadmaster.machine import load_machine
from loadmaster.malloc_game.msa import Assigner, make_options
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.program.models import load_model
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, solve

SOLVERS = [("msa", {"style": "refined"}), ("msa-order", {})]


@pytest.mark.parametrize(("solver", "options"), SOLVERS, ids=["msa", "msa-order"])
@pytest.mark.parametrize("model", ["resnet50", "bert:layers=1", "alexnet-inf"])
@pytest.mark.parametrize("machine", ["tpu-v4i-8m", "h200-zero-copy:hbm=8MiB"])
def test_models_take_the_time_of_their_plans(
    solver: str, options: dict[str, str], model: str, machine: str
) -> None:
    problem = MallocGame(load_model(model), load_machine(machine))
    found = solve(make_labelled("malloc-game", solver, options), problem, Budget(70), 3)
    assert found.decision is not None
    plan = problem.plan(found.decision)
    played = problem.replay(plan)
    assert (played.total[0], played.backups[0]) == (found.value, 0)
    assert np.array_equal(played.actions[0], problem.moves_of(plan))


def test_any_order_of_any_program_without_loops_can_be_played() -> None:
    copies, tied = 0, 0
    for seed in range(300):
        rng = np.random.default_rng([seed, 9])
        program, machine = random_game(rng, (6, 30))
        problem = MallocGame(program, machine)
        if (problem.model.loop >= 0).any() or not problem.moves:
            continue
        style = str(rng.choice(["2023", "test", "refined"]))
        assigner = Assigner(program, machine, problem.model, make_options(style, {}))
        for order in (None, rng.permutation(assigner.tensors).astype(np.int32)):
            plan = assigner.plan(order)
            played = problem.replay(plan)
            assert played.total[0] == problem.evaluate(problem.decision(plan)), f"seed {seed}"
            assert played.backups[0] == 0, f"seed {seed}"
            copies += len(plan.copy_rows)
        tied += int((problem.model.tensors.over >= 0).sum())
    assert copies > 300 and tied > 20


def test_a_plan_of_the_published_moves_alone_is_played_as_near_as_can_be() -> None:
    problem = MallocGame(load_model("resnet50"), load_machine("tpu-v4i-8m")).published()
    plan = Assigner(problem.program, problem.machine, problem.model, make_options("2023", {})).plan()
    moves = problem.moves_of(plan)
    assert set(moves.tolist()) == {0, 1, 2}
    assert problem.replay(plan).total[0] < problem.all_slow_ps
