"""Training the player: the same wherever it is computed, gone on with as if unbroken, and never on what is held out."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clocks import Ticking
from loadmaster.clock import reading
from loadmaster.errors import LoadmasterError
from loadmaster.learn.policies import read_policy
from loadmaster.machine import load_machine
from loadmaster.malloc_game.muzero import cases
from loadmaster.malloc_game.muzero.scores import choose_openings, load_policy
from loadmaster.malloc_game.muzero.training import train
from loadmaster.program.models import load_model
from loadmaster.runs.workers import distribute_function

TINY: dict[str, Any] = {
    "cases": 4,
    "validation": 2,
    "generations": 4,
    "pairs": 2,
    "batch": 3,
    "validate_every": 2,
    "openings": 3,
    "search_cases": 2,
    "opening_cases": 3,
}


@pytest.fixture(autouse=True)
def small_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "MOST_TENSORS", 120)


class Stopped(Exception):
    """In place of a kill."""


def test_a_training_that_was_stopped_goes_on_as_if_it_had_not(tmp_path: Path) -> None:
    whole, broken = tmp_path / "whole.npz", tmp_path / "broken.npz"
    row = train(out=whole, options=TINY)
    lines: list[str] = []

    def stop(line: str) -> None:
        lines.append(line)
        if len(lines) == 2:  # before its state is written
            raise Stopped

    with pytest.raises(Stopped):
        train(out=broken, options=TINY, report=stop)
    again = train(out=broken, options=TINY, resume=tmp_path / "broken.state.npz")
    assert again["curve"] == row["curve"] and again["openings"] == row["openings"]
    arrays, about = read_policy(whole, "muzero")
    for name, array in read_policy(broken, "muzero")[0].items():
        assert np.array_equal(array, arrays[name])
    assert about["held_out"] == list(cases.HELD_OUT) and about["training"]["generations"] == 4
    with pytest.raises(LoadmasterError, match="other options, or another seed"):
        train(out=broken, options=TINY, seed=1, resume=tmp_path / "broken.state.npz")


def test_a_training_may_start_from_a_policy(tmp_path: Path) -> None:
    before, after = tmp_path / "before.npz", tmp_path / "after.npz"
    train(out=before, options=TINY | {"generations": 2})
    train(out=after, options=TINY | {"generations": 2}, init=str(before))
    first, second = load_policy(str(before)), load_policy(str(after))
    assert np.array_equal(first.linear.mean, second.linear.mean)
    assert not np.array_equal(first.weights, second.weights)


def test_workers_give_the_same_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()  # workers make cells as they are
    own = [(load_model("alexnet-train"), load_machine("tpu-v4i-16m"))]
    options = TINY | {"generations": 1, "cases": 2, "validation": 1, "batch": 2, "opening_cases": 2}
    alone, shared = tmp_path / "alone.npz", tmp_path / "shared.npz"
    train(out=alone, options=options, own=own)
    train(out=shared, options=options, own=own, workers=partial(distribute_function, workers="local:2"))
    for name, array in read_policy(alone, "muzero")[0].items():
        assert np.array_equal(array, read_policy(shared, "muzero")[0][name])


def test_where_time_is_short_openings_are_of_fewer_cells(tmp_path: Path) -> None:
    lines: list[str] = []
    clock = Ticking(1.0)
    options = TINY | {"generations": 1, "search_cases": 20, "opening_cases": 50}
    with reading(clock):
        row = train(out=tmp_path / "p.npz", seconds=40.0, options=options, report=lines.append)
    told = [line for line in lines if "there was time for" in line]
    assert len(told) == 2 and row["openings"] and clock.time < 45
    assert load_policy(str(tmp_path / "p.npz")).weights.any()


def test_what_is_held_out_is_in_no_cell() -> None:
    assert not set(cases.HELD_OUT) & set(cases.PROGRAMS)
    assert len(cases.PROGRAMS) == len(set(cases.PROGRAMS)) == 13
    for fold, programs in cases.FOLDS.items():
        assert cases.left_out(fold) == cases.HELD_OUT + programs
    seen = set()
    rng = np.random.default_rng(0)
    without = cases.left_out("transformers")
    for _ in range(100):
        seen.add(cases._random_program(rng, without).name.rsplit("-x", 1)[0])
    assert not seen & set(without) and len(seen & set(cases.PROGRAMS)) > 4
    assert {"convnet-train", "transformer-train"} <= seen


def test_a_cell_is_made_from_its_number() -> None:
    one, same, other = cases.make_case(3), cases.make_case(3), cases.make_case(4)
    zero = np.zeros(1, dtype=np.int64)
    totals = [board.place(board.own[None], zero).total[0] for board in (one, same, other)]
    assert totals[0] == totals[1] != totals[2]


def test_folds_and_options_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    for options in ({"fold": "birds"}, {"sigma": 0.0}, {"colour": 1}):
        with pytest.raises(LoadmasterError):
            train(out=tmp_path / "p.npz", options=options)


def test_openings_are_those_that_cover_most() -> None:
    gains = np.array([[0.03, 0.0, 0.02, -1.0], [0.0, 0.03, 0.02, -1.0], [0.0, 0.0, 0.0, 0.5]])
    chosen, means = choose_openings(gains, 3)
    assert chosen == [3, 2, 0] and np.allclose(means, [0.05, 0.19 / 3, 0.2 / 3])
