"""Evolution strategies: a time limit covers the last validation, too."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from clocks import Ticking
from loadmaster.arrays import Float64
from loadmaster.learn.evolution_strategies import VALIDATION_SEED, Task, begin, evolve
from loadmaster.mapping.egrl.evolution_strategies import Options

GENERATION, VALIDATION = 2.0, 7.0
"""Seconds."""


def _train(seconds: float | None, generations: int = 10**6) -> tuple[Float64, list[int], float]:
    """(parameters, generations that were validated, seconds that it took)"""
    clock = Ticking()

    def fitness(parameters: Float64, tasks: Sequence[Task]) -> Float64:
        ((seed, numbers),) = tasks
        clock.advance(VALIDATION if seed == VALIDATION_SEED else GENERATION)
        return np.repeat((parameters**2).sum(axis=1)[:, None], len(numbers), axis=1)

    options = Options(cases=4, validation=2, pairs=2, batch=4, validate_every=25, generations=generations)
    progress = begin(np.ones(3), np.random.default_rng(0))
    for _ in evolve(options, progress, fitness, seconds=seconds, clock=clock):
        pass
    return progress.parameters, [at for at, _ in progress.curve], clock.time


@pytest.mark.parametrize("seconds", [17.0, 30.0, 100.0, 300.0])
def test_it_ends_within_a_generation_of_its_limit(seconds: float) -> None:
    _, validated, took = _train(seconds)
    assert validated and seconds - GENERATION <= took <= seconds + GENERATION


@pytest.mark.parametrize("seconds", [-1.0, 0.0, 5.0])
def test_without_time_for_a_validation_nothing_is_learned(seconds: float) -> None:
    parameters, validated, took = _train(seconds)
    assert not validated and took <= VALIDATION and np.array_equal(parameters, np.ones(3))


def test_the_look_ahead_draws_nothing() -> None:
    """With time for all generations it is what it would be without a limit, but for the rate that falls with the time."""
    _, validated, took = _train(1e9, generations=3)
    assert validated == _train(None, generations=3)[1] == [3]
    assert took == 2 * VALIDATION + 3 * GENERATION
    assert np.allclose(_train(1e9, generations=3)[0], _train(None, generations=3)[0])
