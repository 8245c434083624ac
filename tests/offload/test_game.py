"""Players of the MallocGame plan for runs that follow each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from generate_training import random_training
from loadmaster.errors import BadMachine
from loadmaster.malloc_game.games import NO_COPY
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.offload.gaps import gaps_of_plan
from loadmaster.offload.model import BEFORE_USE
from loadmaster.offload.problem import Offload
from loadmaster.offload.streamed import Streamed
from loadmaster.plan.plan import BEFORE, Plan
from loadmaster.program.repeats import twice
from loadmaster.search.registry import make_solver
from loadmaster.search.solver import Budget, Meter, Observer, Solution, State, solve
from offload_stack import gpu, stack

SMALL: dict[str, Any] = {
    "init": "scratch",
    "width": 16,
    "channels": 2,
    "grid_blocks": 0,
    "dynamics_blocks": 1,
    "prediction_blocks": 1,
    "bins": 11,
    "games": 4,
    "eval_games": 2,
    "replay_games": 50,
    "simulations": 2,
    "eval_simulations": 2,
    "batch": 4,
    "updates": 1,
    "unroll": 2,
}


@pytest.fixture(scope="module")
def half() -> Offload:
    """A third of the weights fit beside what streams."""
    program = stack(layers=8)
    return Offload(program, gpu(Offload(program, gpu(2**40)).model.needed // 2))


def played(problem: Offload, name: str = "game", budget: Budget | None = None, **options: Any) -> Solution:
    found = solve(make_solver("offload", name, options), problem, budget or Budget(300, 30.0))
    assert found.decision is not None and found.value is not None
    assert not problem.violations(problem.plan(found.decision))
    assert found.value >= problem.bound().value
    return found


def test_a_game_over_two_runs_says_what_stays_between_them(half: Offload) -> None:
    greedy = played(half, solver="greedy-order", evaluations=10)
    stays = [row for row in half.plan(greedy.decision).residency_rows if row.first == BEFORE]
    assert stays and greedy.extra["games"] == 1
    game = MallocGame(twice(half.program), half.machine.with_reach("all"))
    plan = game.plan(solve(make_solver("malloc-game", "greedy-order"), game, Budget()).decision)
    keep = gaps_of_plan(half.model, plan, half.program.n_ops)
    assert np.array_equal(keep, slow_gaps(half, plan)) and keep[half.model.gap_kind == BEFORE_USE].any()
    assert not gaps_of_plan(half.model, plan)[half.model.gap_kind == BEFORE_USE].any()


def slow_gaps(problem: Offload, plan: Plan) -> list[bool]:
    """Use by use: a gap is kept if one stay covers the ops at both of its ends."""
    model, run = problem.model, problem.program.n_ops
    kept = []
    for gap in range(model.gaps):
        item = int(model.gap_item[gap])
        uses = [
            int(model.step_op[step])
            for step in model.use_step[model.use_start[item] : model.use_start[item + 1]]
        ]
        if model.gap_kind[gap] == BEFORE_USE:
            ends = (uses[-1], uses[0] + run)
        else:
            after = int(model.gap_to[gap])
            ends = (int(model.step_op[model.gap_from[gap]]), int(model.step_op[min(after, model.steps - 1)]))
        kept.append(
            any(
                row.memory == model.fast
                and row.tensor == model.root[item]
                and row.first <= ends[0]
                and ends[1] <= row.last
                for row in plan.residency_rows
            )
        )
    return kept


def test_more_games_are_never_worse(half: Offload) -> None:
    few, many = (played(half, budget=Budget(), evaluations=count) for count in (50, 1_000))
    assert many.value <= few.value and many.extra["games"] <= 1_000
    assert many.value <= played(half, "msa").value * 1.2


class _Keeps(Observer):
    """Stops at the first checkpoint after so many games."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after, self.state = after, None

    def checkpoint(self, meter: Meter, state: State) -> None:
        if self.state is None and int(state["games_played"]) >= self.after:
            self.state, self.at, self.best, self.stop = dict(state), meter.evaluations, meter.best, True


def test_a_search_goes_on_as_if_it_had_not_stopped(half: Offload) -> None:
    make = lambda: make_solver("offload", "game", {"evaluations": 500})  # noqa: E731
    whole, watch = solve(make(), half, Budget(), seed=3), _Keeps(100)
    solve(make(), half, Budget(), seed=3, observer=watch)
    assert watch.state is not None
    meter = Meter(half, Budget(), evaluations=watch.at)
    meter.restore(watch.best)
    again = make().run(meter, 3, watch.state)
    assert again.value == whole.value and np.array_equal(again.decision, whole.decision)
    assert again.extra["games"] == whole.extra["games"] and again.evaluations == whole.evaluations


def test_games_are_judged_by_their_plans(half: Offload) -> None:
    game = Streamed(half)
    rng = np.random.default_rng(0)
    moves = rng.integers(0, 3, (6, game.moves)).astype(np.int8)
    scores = game.score(moves)
    for row, total in zip(moves, scores.value.tolist(), strict=True):
        assert total == 2 * half.evaluate(half.vector(game.kept(row))) >= game.bound().value
    assert len(set(scores.value.tolist())) > 1
    assert np.allclose(scores.reward, (game.all_slow_ps - scores.value) / game.scale_ps)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_moves_tell_what_their_plan_keeps(seed: int) -> None:
    rng = np.random.default_rng(seed)
    program = random_training(rng)
    needed = Offload(program, gpu(2**40)).model.needed
    try:
        problem = Offload(program, gpu(int(needed * rng.uniform(0.4, 1.0))))
    except BadMachine:  # one op needs more
        return
    game = Streamed(problem)
    for share in (0.05, 0.4, 1.0):
        moves = np.where(rng.random(game.moves) < share, rng.integers(0, 3, game.moves), NO_COPY).astype(
            np.int8
        )
        kept, plan = game.kept(moves), game.plan(moves)
        held = gaps_of_plan(problem.model, plan, program.n_ops)
        assert np.array_equal(held, slow_gaps(problem, plan))
        # What a game takes back, since it could not be written to slow memory in time, a plan can do.
        undone = game.play(moves[None]).backups[0] > 0
        assert np.array_equal(kept, held) or (undone and (kept | ~held).all())


@pytest.mark.parametrize("limit", [1, 2, 4, 33])
def test_games_and_plans_keep_to_the_budget(half: Offload, limit: int) -> None:
    found = played(half, budget=Budget(evaluations=limit), evaluations=100_000)
    assert found.extra["games"] <= found.evaluations <= limit


def test_a_game_is_refused_without_games() -> None:
    with pytest.raises(ValueError, match="above 0"):
        make_solver("offload", "game", {"evaluations": 0})


@pytest.mark.usefixtures("quickly_compiled")
def test_the_learned_player_plans_too() -> None:
    pytest.importorskip("mctx")
    program = stack(layers=2)
    problem = Offload(program, gpu(Offload(program, gpu(2**40)).model.needed * 3 // 4))
    found = played(problem, "muzero", evaluations=12, **SMALL)
    assert 0 < found.extra["games"] <= 12 and found.evaluations >= 1
    solver = make_solver("offload", "muzero", {"evaluations": 12, **SMALL})
    assert "solver" not in solver.options and solver.options["evaluations"] == 12
