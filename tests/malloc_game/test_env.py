"""`Loadmaster/MallocGame-v0`: the library's contract, and what a game shows and earns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from loadmaster.errors import LoadmasterError
from loadmaster.machine import load_machine
from loadmaster.malloc_game.games import MOST, SHAPES, Games
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.plan.check import check
from loadmaster.program.models import load_model
from loadmaster.simulate.simulator import simulate

gymnasium = pytest.importorskip("gymnasium")
import loadmaster.envs  # noqa: E402, F401 (registers the environments)

NAME = "Loadmaster/MallocGame-v0"


@pytest.fixture(scope="module")
def problem() -> MallocGame:
    return MallocGame(load_model("resnet50"), load_machine("tpu-v4i-8m"))


@pytest.mark.parametrize(
    "options",
    [
        {"model": "resnet50", "machine": "tpu-v4i-8m"},
        {"model": "resnet50", "machine": "tpu-v4i-4m", "profile": "paper"},
        {"model": "resnet50", "machine": "h200-zero-copy:hbm=8MiB", "reward": "judged"},
    ],
)
def test_the_checker_of_gymnasium_is_content(options: dict[str, Any]) -> None:
    from gymnasium.utils.env_checker import check_env

    check_env(gymnasium.make(NAME, **options).unwrapped)  # a warning is an error here


@pytest.mark.parametrize("reward", ["telescoping", "judged"])
def test_rewards_add_up_to_the_judged_share(reward: str) -> None:
    """Backups paid: where offsets are final, games run into dead ends."""
    env = gymnasium.make(NAME, machine="tpu-v4i-4m", reward=reward, repack=0).unwrapped
    problem = env.problem
    rng = np.random.default_rng(5)
    seen, _ = env.reset(seed=0)
    total, ended, count, info = 0.0, False, 0, {}
    while not ended:
        assert seen["action_mask"].any() and (seen["action_mask"] == env.action_masks()).all()
        wanted = int(rng.choice([0, 1, 1, 1, 2]))
        legal = bool(seen["action_mask"][wanted])
        seen, earned, ended, cut, info = env.step(wanted)
        assert info["legal"] == legal == (info["action"] == wanted) and not cut
        total, count = total + earned, count + 1
    assert count == problem.moves and not seen["action_mask"].any() and info["backups"] > 0
    plan = env.plan()
    timeline = simulate(problem.program, problem.machine, plan)
    assert check(problem.program, problem.machine, plan, timeline) == []
    assert info["time_s"] == timeline.total_ps / 1e12 and info["stall_s"] > 0
    assert total == pytest.approx((problem.all_slow_ps - timeline.total_ps) / problem.scale_ps)
    with pytest.raises(LoadmasterError, match="over"):
        env.step(2)


def test_nothing_to_decide_is_said() -> None:
    with pytest.raises(LoadmasterError, match="nothing to decide"):
        gymnasium.make(NAME, machine="tpu-v4i:cmem=512B")


def play_some(problem: MallocGame, count: int, moves: int, seed: int) -> Games:
    games, rng = problem.games(count), np.random.default_rng(seed)
    for _ in range(moves):
        games.step_towards(rng.integers(0, problem.actions, count, dtype=np.int16))
    return games


@pytest.mark.parametrize("moves", [0, 1, 60, 183, 184])
def test_observations_have_their_shapes_and_ranges(problem: MallocGame, moves: int) -> None:
    games = play_some(problem, 5, moves, moves)
    seen = games.observe()
    for name, (shape, kind) in SHAPES.items():
        places = (problem.actions,) if name == "mask" else shape
        assert seen[name].shape == (5, *places) and seen[name].dtype == kind
        if kind is np.float32:
            assert np.isfinite(seen[name]).all() and np.abs(seen[name]).max() <= MOST
    assert (seen["mask"] == games.masks()).all()
    assert seen["globals"][:, 0] == pytest.approx(moves / problem.moves)


def test_the_picture_shows_what_is_held(problem: MallocGame) -> None:
    """The newest past columns are one step each: cell by cell against the placement."""
    games = play_some(problem, 4, 120, 7)
    model, grid, series = problem.model, games.observe()["grid"], games.observe()["series"]
    step = int(model.site_step[120])
    row_bytes = model.capacity / 64
    for game in range(4):
        stays, _, _ = games.native.placement(game)
        held = np.zeros((model.steps, model.capacity // model.alignment), dtype=bool)
        for tensor, offset, first, last in stays.tolist():
            cells = slice(
                offset // model.alignment, (offset + int(model.tensors.size[tensor])) // model.alignment
            )
            held[first : last + 1, cells] = True
        for column in range(48, 96):
            at = step - 95 + column
            if at < 0:
                assert not grid[game, column, :, 0].any()
                continue
            wanted = held[at].reshape(64, -1).mean(axis=1)
            assert grid[game, column, :, 0] / 255 == pytest.approx(wanted, abs=0.02)
            assert series[game, column, 3] == pytest.approx(held[at].mean(), abs=1e-3)
            free = np.flatnonzero(np.diff(np.concatenate([[1], wanted > 0, [1]]).astype(int)))
            gaps = (free[1::2] - free[::2]) if len(free) else [0]
            assert series[game, column, 4] * 64 == pytest.approx(max(gaps))
        assert grid[game].sum() > 0
    assert row_bytes == int(row_bytes)


def test_the_picture_shows_where_moves_would_put_it(problem: MallocGame) -> None:
    games = play_some(problem, 1, 0, 0)
    rng, drawn = np.random.default_rng(5), np.zeros(2)
    for _ in range(problem.moves):
        seen = games.observe()
        copy, keep = seen["grid"][0, :, :, 2], seen["grid"][0, :, :, 3]
        mask = seen["mask"][0]
        assert bool(copy.any()) == bool(mask[0]) and bool(keep.any()) == bool(mask[1])
        drawn += (mask[0], mask[1])
        games.step_towards(rng.integers(0, 6, 1, dtype=np.int16))
    assert (drawn > 20).all()


def test_batches_threads_and_replays_see_the_same(problem: MallocGame) -> None:
    rng = np.random.default_rng(11)
    actions = problem.play(rng.integers(0, 6, (9, problem.moves), dtype=np.int16)).actions[:, :100]
    many, alone = problem.games(9, threads=3), problem.games(1, threads=1)
    many.replay(actions)
    together = {name: array.copy() for name, array in many.observe().items()}
    many.step_towards(np.full(9, 2, dtype=np.int16))
    many.undo()
    for name, array in many.observe().items():
        assert (array == together[name]).all(), name
    for game in range(9):
        alone.replay(actions[game : game + 1])
        for name, array in alone.observe().items():
            assert (array[0] == together[name][game]).all(), name
