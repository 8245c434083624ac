"""Training mallocMuZero as a library function: one network over several games, gone on with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("optax")
pytest.importorskip("mctx")

from loadmaster.errors import LoadmasterError
from loadmaster.learn.checkpoints import BadState
from loadmaster.learn.policies import read_policy
from loadmaster.malloc_game.muzero.paper import training as muzero
from loadmaster.malloc_game.muzero.paper.training import Progress
from loadmaster.malloc_game.problem import MallocGame
from malloc_game.muzero.paper.small import SMALL, four_lives
from malloc_game.muzero.paper.tiny import made_up

OPTIONS: dict[str, Any] = SMALL | {
    "games": 4,
    "eval_games": 2,
    "simulations": 2,
    "eval_simulations": 2,
    "unroll": 1,
}


def test_a_network_is_trained_on_several_games(tmp_path: Path) -> None:
    """`tests/cli/test_train_muzero.py` goes on with one."""
    problems = [("lives", four_lives(18)), ("made-up", made_up(9))]
    out, logged = tmp_path / "p.npz", list[Progress]()
    trained = muzero.train(problems, out=out, evaluations=5, options=OPTIONS, log=logged.append)
    assert [row["evaluations"] for row in trained.rows] == [5, 5] and trained.gradient_steps > 0
    assert logged[-1].evaluations == 10 and logged[-1].gap is not None
    assert {"generation", "steps", "policy_loss", "share_saved"} <= set(logged[-1].metrics)
    arrays, about = read_policy(out, "muzero")
    assert arrays["join.weight"].dtype == np.float16 and len(about["sessions"]) == 1
    assert [row["model"] for row in about["trained_on"]] == about["models"] == ["lives", "made-up"]
    state = tmp_path / "p.state.npz"
    with pytest.raises(BadState, match="give the same models"):
        muzero.train(problems[:1], out=out, evaluations=9, options=OPTIONS, resume=state)
    with pytest.raises(BadState, match="give the same settings"):
        muzero.train(problems, out=out, evaluations=9, options=OPTIONS | {"games": 5}, resume=state)


def test_what_can_not_be_trained_on_is_refused(tmp_path: Path) -> None:
    out, game = tmp_path / "p.npz", made_up(9)
    with pytest.raises(LoadmasterError, match="training has no end"):
        muzero.train([("made-up", game)], out=out, options=OPTIONS)
    slow = game.machine.memories
    machine = replace(game.machine, memories=(replace(slow[0], capacity=1), *slow[1:]))
    with pytest.raises(LoadmasterError, match="nothing to gain by playing 'none'"):
        muzero.train([("none", MallocGame(game.program, machine))], out=out, evaluations=4)
    assert not out.exists()
