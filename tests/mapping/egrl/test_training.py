"""Training by evolution strategies: the same wherever it is computed, and gone on with as if unbroken."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loadmaster.errors import LoadmasterError
from loadmaster.learn.evolution_strategies import evolve
from loadmaster.learn.policies import read_policy
from loadmaster.machine import load_machine
from loadmaster.mapping.egrl.evolution_strategies import Judge, Options, begin, measure_features
from loadmaster.mapping.egrl.scores import VIEWS, Network
from loadmaster.mapping.egrl.training import SHIPPED, load_policy, train
from loadmaster.program.models import load_model
from loadmaster.runs.workers import distribute_function

TINY: dict[str, Any] = {
    "cases": 12,
    "validation": 6,
    "generations": 4,
    "pairs": 3,
    "batch": 6,
    "hidden": 4,
    "validate_every": 2,
}


class Stopped(Exception):
    """In place of a kill."""


def weights(path: Path) -> dict[str, Any]:
    return {name: array for name, array in read_policy(path, "egrl")[0].items() if "parameters" in name}


def test_a_training_that_was_stopped_goes_on_as_if_it_had_not(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole.npz", tmp_path / "broken.npz"
    rows = train(out=whole, options=TINY)
    lines: list[str] = []

    def stop(line: str) -> None:
        lines.append(line)
        if len(lines) == 4:  # in the second view, before its last state is written
            raise Stopped

    with pytest.raises(Stopped):
        train(out=broken, options=TINY, report=stop)
    resumed = train(out=broken, options=TINY, resume=tmp_path / "broken.state.npz")
    assert [row["curve"] for row in resumed] == [row["curve"] for row in rows]
    for name, array in weights(whole).items():
        assert np.array_equal(array, weights(broken)[name])
    with pytest.raises(LoadmasterError, match="other options, or another seed"):
        train(out=broken, options=TINY, seed=1, resume=tmp_path / "broken.state.npz")


def test_workers_give_the_same_policy(tmp_path: Path) -> None:
    own = [(load_model("bert:layers=1"), load_machine("nnp-i"))]
    alone, shared = tmp_path / "alone.npz", tmp_path / "shared.npz"
    options = {**TINY, "view": "strict", "generations": 2}
    train(out=alone, options=options, own=own)
    train(out=shared, options=options, own=own, workers=partial(distribute_function, workers="local:2"))
    assert np.array_equal(weights(alone)["strict.parameters"], weights(shared)["strict.parameters"])


def test_it_learns_what_it_is_shown() -> None:
    """On a handful of cases, looked at again and again, maps get faster than those of greedy by density."""
    options = Options(cases=6, validation=2, generations=30, pairs=6, batch=6, hidden=4, validate_every=30)
    network = Network(*measure_features("strict", 6), 4)
    judge, progress = Judge(network, "strict"), begin(network, 0)
    for _ in evolve(options, progress, judge, logs=1):
        pass
    shown = [(0, range(6))]
    assert judge(progress.mean[None], shown).mean() < judge(begin(network, 0).mean[None], shown).mean()


@pytest.mark.parametrize("view", VIEWS)
def test_the_shipped_weights_were_moved_by_training(view: str) -> None:
    policy = load_policy(SHIPPED, view)
    first = policy.network.start(np.random.default_rng(0))
    assert not np.isclose(policy.parameters, first).any()
    about = read_policy(SHIPPED, "egrl")[1]
    assert {"command", "seed", "settings", "held_out", "trained_on"} <= set(about)
    assert all(row["validation"] < 0 and row["curve"] for row in about["views"])
