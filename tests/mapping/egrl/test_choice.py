"""The policy of a run: the best network in training, and on models that it was only tried on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("equinox")

from loadmaster.machine import load_machine
from loadmaster.mapping.egrl.session import PolicyChoice
from loadmaster.mapping.problem import Mapping
from loadmaster.program.models import load_model
from mapping.egrl.small import chain_problem


def stack(count: int) -> np.ndarray:
    return np.arange(count, dtype=np.float32)[:, None] * np.ones(3, dtype=np.float32)


def never(*_: Any) -> Any:
    raise AssertionError("nothing is to be tried")


def test_the_best_network_that_ever_fitted_is_kept() -> None:
    choice = PolicyChoice(chain_problem(), "", never)
    choice.consider(stack(3), np.array([-0.5, -0.1, -1.0]))
    assert choice.weights is None  # none of them fitted
    choice.consider(stack(3), np.array([0.4, 0.9, -1.0]))
    choice.consider(stack(2) + 10, np.array([0.8, 0.2]))  # worse than before
    assert choice.weights is not None and choice.weights[0] == 1
    other = PolicyChoice(chain_problem(), "", never)
    other.restore(choice.arrays())
    assert np.array_equal(other.weights, choice.weights) and other.fitness == choice.fitness


def test_models_that_it_is_only_tried_on_count_as_much() -> None:
    machine = load_machine("nnp-i")
    tried = Mapping(load_model("resnet50"), machine)
    maps = np.stack([tried.all_slowest(), np.zeros(2 * tried.nodes, dtype=np.int8)])

    def forward(networks: np.ndarray, graph: Any) -> tuple[np.ndarray, None]:
        assert len(networks) == 2
        return maps, None

    choice = PolicyChoice(Mapping(load_model("resnet50"), machine), "resnet50", forward)
    choice.consider(stack(2), np.array([1.0, 0.7]))
    # The second earns less in training, and its map is seven times as fast where it is tried.
    assert choice.weights is not None and choice.weights[0] == 1
    expected = np.log(0.7) / 2 + np.log(tried.compiler_ps / tried.rectify(maps)[0][1])
    assert choice.fitness == pytest.approx(float(expected))
