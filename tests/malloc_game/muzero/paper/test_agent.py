"""Whole runs of mallocMuZero: budgets, checkpoints, many programs, and that playing pays."""

from __future__ import annotations

import hashlib
import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("equinox")
pytest.importorskip("optax")
pytest.importorskip("mctx")

import jax

from loadmaster.errors import LoadmasterError
from loadmaster.learn.policies import BadPolicy
from loadmaster.machine import load_machine
from loadmaster.malloc_game.muzero.paper import (
    PaperMuZero,
    PaperProd,
    PolicyOnly,
    Settings,
    baseline_of,
    save_small,
)
from loadmaster.malloc_game.muzero.paper.selfplay import buckets
from loadmaster.malloc_game.muzero.paper.session import Session
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.program.zoo.synthetic import synthetic
from loadmaster.runs.folder import RunFolder
from loadmaster.runs.resume import describe, identity, open_to_resume
from loadmaster.search.registry import make_labelled, make_solver
from loadmaster.search.solver import Budget, Meter, Observer, solve
from malloc_game.muzero.paper.small import SMALL, Recording, four_lives
from malloc_game.muzero.paper.tiny import made_up
from search.conformance import Outcome, watched


def small(**changes: Any) -> PaperMuZero:
    return PaperMuZero(**{"init": "scratch", **SMALL, **changes})


BARE = {name: value for name, value in SMALL.items() if name not in PolicyOnly.fixed}
BUDGET = 44
"""1 game to begin in, 8, 8 and two of combine_gains windows, 4 careful ones, 8 and another one, 8, the rest."""


def recording(number: int = 9) -> Recording:
    return Recording(synthetic(number), load_machine("tpu-v4i:cmem=1MiB"), starts="hidden")


@pytest.fixture(scope="module")
def whole() -> tuple[Outcome, list[np.ndarray]]:
    """A run, and all games that it had scored."""
    problem = recording()
    outcome = watched(small, problem, Budget(evaluations=BUDGET))
    return outcome, problem.asked


def test_the_budget_is_kept_to_the_game(whole: tuple[Outcome, list[np.ndarray]]) -> None:
    outcome, asked = whole
    assert len(asked) == outcome.solution.evaluations == BUDGET
    # What is submitted is what was played: every move was legal.
    problem = recording()
    assert np.array_equal(problem.play(np.array(asked)).actions, asked)
    assert outcome.solution.value == problem.play(np.array(asked)).total.min()
    for budget in (1, 9):
        problem = recording()
        assert solve(small(), problem, Budget(evaluations=budget)).evaluations == budget
        assert np.array_equal(problem.asked, asked[:budget])


def test_it_goes_on_from_every_checkpoint_as_if_it_had_not_stopped(
    whole: tuple[Outcome, list[np.ndarray]],
) -> None:
    first, asked = whole
    moments = first.watcher.moments
    counts = [moment.evaluations for moment in moments]
    assert counts[::2] == counts[1::2] and counts[::2] == [9, 19, 32, 40], counts
    for moment in (moments[0], moments[3], moments[6]):
        problem = recording()
        rest = watched(small, problem, Budget(evaluations=BUDGET), moment=moment)
        assert np.array_equal(problem.asked, asked[moment.evaluations :])
        for name in ("iterations", "gradient_steps"):
            assert rest.solution.metrics[name] == first.solution.metrics[name]
        for name, value in first.solution.policy.items():
            assert np.array_equal(value, rest.solution.policy[name]), name


def test_it_learns_while_it_plays(whole: tuple[Outcome, list[np.ndarray]]) -> None:
    extra = whole[0].solution.metrics
    assert extra["gradient_steps"] == 12 and extra["iterations"] == 5
    assert {"mean_reward", "careful_reward", "policy_loss"} <= set(extra["metrics"])
    states = [moment.state for moment in whole[0].watcher.moments]
    changed = [
        name
        for name in states[0]
        if name.startswith("leaf") and not np.array_equal(states[0][name], states[-1][name])
    ]
    assert len(changed) > 50


def test_another_seed_plays_other_games(whole: tuple[Outcome, list[np.ndarray]]) -> None:
    problem = recording()
    solve(small(), problem, Budget(evaluations=25), seed=1)
    assert not np.array_equal(problem.asked, whole[1][:25])


class Impatient(Observer):
    """Asks it to stop at the first question about a checkpoint, or before anything is found."""

    def __init__(self, at_once: bool) -> None:
        super().__init__()
        self.left = 3 if at_once else 10**9

    @property  # type: ignore[override]
    def stop(self) -> bool:
        self.left -= 1
        return self.left < 0

    @stop.setter
    def stop(self, value: bool) -> None:
        self.left = 0 if value else 10**9


@pytest.mark.parametrize(("window", "games"), [(0, SMALL["games"]), (6, 1)])
def test_a_run_that_is_stopped_within_its_first_game_has_an_answer(window: int, games: int) -> None:
    solver = small(window=window)
    solution = solve(solver, made_up(9), Budget(), observer=Impatient(at_once=True))
    assert solution.decision is not None and solution.evaluations == games
    assert solution.metrics["gradient_steps"] == 0


def test_prod_is_never_worse_than_its_baseline() -> None:
    for number, budget in ((9, 1), (36, 12)):
        problem = recording(number)
        assert baseline_of(problem) == "msa"
        baseline = solve(make_labelled("malloc-game", "msa"), problem, Budget())
        outcome = watched(partial(PaperProd, init="scratch", **SMALL), problem, Budget(evaluations=budget))
        solution = outcome.solution
        assert solution.value is not None and baseline.value is not None
        assert solution.value <= baseline.value and solution.evaluations == budget
        assert solution.metrics["baseline"] == "msa"
        assert outcome.watcher.improvements[0][0] == baseline.value
        if outcome.watcher.moments:  # the baseline is not asked for again
            moment = outcome.watcher.moments[0]
            rest = watched(
                partial(PaperProd, init="scratch", **SMALL),
                problem,
                Budget(evaluations=budget),
                moment=moment,
            )
            assert rest.solution.value == solution.value
            assert rest.solution.evaluations == budget


def together(problems: list[Recording], games: int, **changes: Any) -> tuple[Session, list[Meter]]:
    meters = [Meter(problem, Budget(evaluations=games)) for problem in problems]
    state = changes.pop("state", None)
    return Session(meters, 0, Settings(**SMALL | changes), None, state), meters


@pytest.mark.parametrize(("window", "buckets"), [(6, [[0, 1]]), (0, [[1, 0]])])
def test_one_network_plays_programs_of_different_lengths(window: int, buckets: Any) -> None:
    problems = [recording(36), recording(9)]
    session, meters = together(problems, 18, window=window)
    assert session.buckets == buckets
    session.run()
    assert [meter.evaluations for meter in meters] == [18, 18]
    for problem, meter, program in zip(problems, meters, session.replay.programs, strict=True):
        assert np.array_equal(problem.play(np.array(problem.asked)).actions, problem.asked)
        assert program.stored == 18 and program.best_times[0] == meter.best_value


def test_a_light_state_goes_on() -> None:
    problems = [recording(36), recording(9)]
    session, _ = together(problems, 13)
    session.run()
    light = session.arrays(full=False)
    assert (
        sum(array.nbytes for array in light.values())
        < sum(array.nbytes for array in session.arrays().values()) / 2
    )
    again, meters = together(problems, 16, state=light)
    assert again.steps == session.steps > 0 and again.iteration == session.iteration
    for mine, its in zip(again.replay.programs, session.replay.programs, strict=True):
        assert mine.filled == 0 and np.array_equal(mine.best.actions, its.best.actions)
    networks = (jax.tree.leaves(each.learner.network) for each in (again, session))
    assert all(map(np.array_equal, *networks))
    rates = [leaf for leaf in jax.tree.leaves(again.learner.optimizer_state) if leaf.dtype.kind == "i"]
    assert rates and all(int(leaf) == session.steps for leaf in rates)
    again.run()
    assert [meter.evaluations for meter in meters] == [16, 16] and again.steps > session.steps
    for problem, program in zip(problems, again.replay.programs, strict=True):
        assert np.array_equal(problem.play(np.array(problem.asked)).actions, problem.asked)
        assert program.best_times[0] == problem.play(np.array(problem.asked)).total.min()


def test_buckets_hold_games_of_about_one_length() -> None:
    assert buckets([14, 21, 60]) == [[0, 1, 2]]
    assert buckets([700, 14, 500, 100, 900, 130]) == [[1], [3, 5], [2, 0], [4]]


def test_the_policy_alone_learns_nothing_and_begins_with_its_likeliest_moves(tmp_path: Path) -> None:
    taught = solve(small(), made_up(9), Budget(evaluations=16)).policy
    save_small(tmp_path / "policy.npz", taught, {"seed": 0}, Settings(**SMALL))
    runs = []
    for seed in (0, 1):
        problem = recording()
        solver = PolicyOnly(init=str(tmp_path / "policy.npz"), **BARE)
        solution = solve(solver, problem, Budget(evaluations=20), seed=seed)
        assert solution.metrics["gradient_steps"] == 0
        for name, value in taught.items():
            assert np.array_equal(solution.policy[name], value.astype(np.float16)), name
        runs.append(np.array(problem.asked))
    assert np.array_equal(runs[0][0], runs[1][0]) and not np.array_equal(runs[0], runs[1])
    with pytest.raises(BadPolicy, match="width = 16"):
        solve(PaperMuZero(init=str(tmp_path / "policy.npz")), made_up(9), Budget(evaluations=1))
    with pytest.raises(BadPolicy, match="no pretrained policy 'nothing'"):
        solve(small(init="pretrained:nothing"), made_up(9), Budget(evaluations=1))


def test_a_warm_start_begins_with_known_games() -> None:
    problem = recording(36)
    solve(small(warm_start=40), problem, Budget(evaluations=12))
    msa = solve(make_labelled("malloc-game", "msa", {"style": "2023"}), problem, Budget())
    plan = problem.plan(msa.decision)  # type: ignore[arg-type]
    games = problem.asked[40:]  # after those of the evolution
    assert np.array_equal(games[0], problem.play(problem.moves_of(plan)[None]).actions[0])
    evolved = solve(make_labelled("malloc-game", "es-moves", {"start": "msa"}), problem, Budget(40))
    assert problem.play(games[2][None]).total[0] == evolved.value
    assert len(games) == 12


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": "muzero", "reanalyse": False, "prioritised": False},
        {"model": "true", "simulations": 2, "eval_every": 99, "window": 2},
        {"simulations": 0, "best": 0.0, "reanalysed": 0.0, "window": 0},
        {"imitated": 1.0, "prioritised": False},
    ],
)
def test_switches(changes: dict[str, Any]) -> None:
    problem = recording()
    solution = solve(small(**changes), problem, Budget(evaluations=20))  # 8 and 8 are learned from
    assert solution.metrics["gradient_steps"] == 6 and solution.evaluations == 20, solution.metrics
    assert np.array_equal(problem.play(np.array(problem.asked)).actions, problem.asked)


def test_a_game_that_can_be_lost_is_of_the_same_length() -> None:
    """The ablation without backups."""
    machine = load_machine("tpu-v4i:cmem=1MiB")
    problem = Recording(synthetic(9), machine, backup="none", starts="hidden", repack=0)
    solution = solve(small(), problem, Budget(evaluations=BUDGET))
    games = problem.play(np.array(problem.asked))
    assert len(problem.asked) == BUDGET and np.array_equal(games.actions, problem.asked)
    lost = games.backups > 0
    assert lost.any() and (games.total[lost] == problem.all_slow_ps).all()
    assert solution.value is not None and solution.value < problem.all_slow_ps


def test_a_game_with_more_moves_is_played_with_the_published_ones() -> None:
    """Its games are plans of the whole game's problem."""
    problem = MallocGame(synthetic(9), load_machine("tpu-v4i:cmem=1MiB"))
    own = problem.published()
    assert problem.actions == 6 and own.actions == 3 and own.published() is own
    solution = solve(small(), problem, Budget(evaluations=20))
    assert solution.evaluations == 20 and solution.decision is not None and solution.decision.ndim == 2
    assert problem.evaluate(solution.decision) == solution.value and problem.admits(solution.decision)
    assert solution.value is not None and solution.value < problem.all_slow_ps


def test_the_published_game_is_played() -> None:
    """Dead ends are rewound, and what is recorded of a game leads to its end again."""
    problem = Recording(synthetic(9), load_machine("tpu-v4i:cmem=1MiB"), profile="paper")
    solution = solve(small(), problem, Budget(evaluations=BUDGET))
    games = problem.play(np.array(problem.asked))
    assert len(problem.asked) == BUDGET and np.array_equal(games.actions, problem.asked)
    assert games.backups.any() and solution.value == games.total.min() < problem.all_slow_ps


def test_what_cannot_be_played_is_told() -> None:
    roomless = MallocGame(synthetic(0), load_machine("tpu-v4i:cmem=512B"))
    assert solve(small(), roomless, Budget(evaluations=5)).evaluations == 1
    for name, value in (
        ("games", 0),
        ("policy", "luck"),
        ("best", 0.7),
        ("width", 1.5),
        ("unroll", 0),
        ("discount", 1.5),
        ("pretrain_steps", -1),
    ):
        with pytest.raises(LoadmasterError, match=name):
            PaperMuZero(**{name: value})
    with pytest.raises(LoadmasterError, match="no option 'updates'"):
        PolicyOnly(updates=3)


def test_settings_that_are_open_depend_on_the_platform() -> None:
    here, there = Settings().on("cpu"), Settings(games=7).on("gpu")
    assert (here.simulations, here.games) == (8, 64) and (there.simulations, there.games) == (32, 7)
    assert here.on("gpu") == here and Settings().has_default_network
    assert make_solver("malloc-game", "muzero", {"profile": "paper", "games": 7}).options["games"] == 7


def test_options_are_read_as_the_first_runs_spelled_them(tmp_path: Path) -> None:
    solver = PaperMuZero(tutored=3, tutor_positions=5)
    assert (solver.settings.pretrain_steps, solver.settings.pretrain_positions) == (3, 5)
    problem = four_lives(18)
    about = describe(solver, problem, Budget(evaluations=1), 0, ["plan"])
    spelled = dict(zip(("pretrain_steps", "pretrain_positions"), ("tutored", "tutor_positions"), strict=True))
    old = {spelled.get(name, name): value for name, value in about["solver"]["options"].items()}
    name = about["solver"]["name"]
    first = [about["keys"], {"name": name, "switches": old}, 0]
    assert identity(about) == hashlib.sha256(json.dumps(first, sort_keys=True).encode()).hexdigest()
    run = RunFolder.create(tmp_path, problem, {**about, "solver": {"name": name, "options": old}})
    run.close()
    open_to_resume(run.path, about).close()


def test_it_beats_as_many_random_games_on_twelve_moves() -> None:
    problem, games = four_lives(18), 96
    assert problem.moves == 12
    options = {"updates": 8, "eval_every": 3, "replay_games": 100, "window": 4}
    mine = [solve(small(**options), problem, Budget(evaluations=games), seed=seed) for seed in range(3)]
    random = [
        solve(make_labelled("malloc-game", "random-best"), problem, Budget(evaluations=games), seed=seed)
        for seed in range(5)
    ]
    assert all(each.evaluations == games for each in mine)
    values = [np.median([float(each.value or 0) for each in runs]) for runs in (mine, random)]
    assert 0 < values[0] < values[1]
