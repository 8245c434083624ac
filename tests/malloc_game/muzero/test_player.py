"""The player on the board: where it begins, what it is never worse than, and what it is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.errors import LoadmasterError
from loadmaster.learn.policies import BadPolicy, save_policy
from loadmaster.malloc_game.muzero.board import first_board
from loadmaster.malloc_game.muzero.scores import (
    CHANGES,
    FEATURES,
    LinearScore,
    load_policy,
    make_features,
    pack_policy,
    untrained,
)
from loadmaster.malloc_game.muzero.search import MuZero
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, Solution, solve
from malloc_game.test_msa_order import game
from search.conformance import conforms

ONE = np.zeros(1, dtype=np.int64)


def refined(problem: MallocGame) -> Solution:
    return solve(make_labelled("malloc-game", "msa", {"style": "refined"}), problem, Budget(5))


def features_of(problem: MallocGame) -> Any:
    board = first_board(problem)
    return board, make_features(board, board.place(board.own[None], ONE))


@pytest.mark.parametrize("options", [{}, {"init": "none"}, {"init": "none", "openings": 0}])
def test_it_conforms(options: dict[str, Any]) -> None:
    conforms(lambda: MuZero(**options), game(), evaluations=(1, 5, 6, 30, 150), seeds=(0, 1))


def test_the_bare_policy_conforms() -> None:
    bare = {"lift": 0.0, "score": 0.0, "cross": 0.0, "setting": 0.0, "init": "none"}
    conforms(lambda: MuZero(**bare), game(), evaluations=(1, 7, 60), seeds=(0,))


def test_weights_of_zero_are_the_refined_plan() -> None:
    """And none is ever worse."""
    for seed in range(4):
        problem = game(seed)
        board, features = features_of(problem)
        linear = LinearScore(features.mean(axis=0), features.std(axis=0) + np.float32(1e-3))
        scores = linear.score(linear.normalise(features), np.zeros((1, linear.features)))
        assert not scores.any()
        plan = board.plan((board.own + scores)[0], 0)
        found = refined(problem)
        assert problem.evaluate(problem.decision(plan)) == found.value
        alone = solve(MuZero(init="none"), problem, Budget(5), seed)
        assert alone.value == found.value and np.array_equal(alone.decision, found.decision)
        assert solve(MuZero(), problem, Budget(40), seed).value <= found.value


def test_it_improves_where_there_is_something_to_gain() -> None:
    before, after = [], []
    for seed in range(6):
        problem = game(seed)
        before.append(refined(problem).value)
        found = solve(MuZero(init="none"), problem, Budget(150), 0)
        assert found.decision is not None and not problem.violations(problem.plan(found.decision))
        after.append(found.value)
    assert sum(after) < 0.99 * sum(before)


def test_features_are_finite_and_those_of_the_tensors_whatever_their_rows() -> None:
    board, features = features_of(game())
    assert features.shape == (board.tensors, FEATURES) and np.isfinite(features).all()
    ranks = features[:, :16]
    assert ranks.min() >= -0.5 and ranks.max() <= 0.5


def test_the_shipped_policy_was_trained_and_says_how() -> None:
    policy = load_policy("pretrained:board")
    assert policy.weights.any() and policy.heads.any()
    from loadmaster.learn.policies import read_policy
    from loadmaster.malloc_game.muzero.cases import FOLDS, HELD_OUT

    about = read_policy("pretrained:board", "muzero")[1]
    assert about["held_out"] == list(HELD_OUT) and "command" in about and about["training"]["curve"]
    assert not set(about["trained_on"]["programs"]) & set(HELD_OUT)
    assert {name: tuple(each) for name, each in about["folds"].items()} == FOLDS


def test_policies_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    good = pack_policy(untrained(6, ({},)))
    about: dict[str, Any] = {"changes": [{}]}
    wrong: list[tuple[dict[str, Any], dict[str, Any]]] = [
        ({**good, "parameters": np.zeros(7)}, about),
        ({**good, "deviation": np.zeros(6)}, about),
        ({**good, "heads": np.full((1, 6), np.nan)}, about),
        (good, {**about, "changes": [{"colour": 1}]}),
        (good, {**about, "changes": []}),
        ({**good, "settings": np.array([2])}, about),
        ({name: good[name] for name in good if name != "heads"}, about),
    ]
    path = tmp_path / "right.npz"
    save_policy(path, good, about)
    assert load_policy(str(path)).changes == ({},)
    for number, (arrays, header) in enumerate(wrong):
        path = tmp_path / f"{number}.npz"
        save_policy(path, arrays, header)
        with pytest.raises(BadPolicy, match="no score for the board"):
            load_policy(str(path))


def test_a_policy_of_the_other_profile_is_called_so(tmp_path: Path) -> None:
    """Both are files of `train muzero`: to train again, or to give other sizes, would not help."""
    path = tmp_path / "p.npz"
    save_policy(path, {"grid": np.zeros(2)}, {"network": "width = 256"})
    with pytest.raises(BadPolicy, match=r"muzero as published.*: give --set profile=paper"):
        load_policy(str(path))
    pytest.importorskip("jax")
    from loadmaster.malloc_game.muzero import paper

    with pytest.raises(BadPolicy, match=r"is a score for the board.*: leave --set profile out"):
        paper.load_policy("pretrained:board", None)  # type: ignore[arg-type]


def test_settings_that_make_no_sense_are_refused() -> None:
    for options in ({"batch": 0}, {"elites": 0}, {"feedback": 2.0}, {"colour": 1}, {"init": ""}):
        with pytest.raises(LoadmasterError):
            MuZero(**options)


def test_the_untrained_player_knows_settings_alone() -> None:
    policy = untrained(5)
    assert policy.changes == CHANGES and not policy.heads.any() and not policy.weights.any()


def test_a_file_that_is_no_policy_is_refused_before_there_is_a_run(tmp_path: Path) -> None:
    with pytest.raises(BadPolicy, match="nothere"):
        MuZero(init=str(tmp_path / "nothere.npz"))
