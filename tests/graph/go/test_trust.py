"""Choosing among hints: it learns what the measured times say, and the choice is the network's."""

from __future__ import annotations

import numpy as np

from loadmaster.graph import UNFIT, GraphOptimization
from loadmaster.graph.go.actions import Actions, actions_of, leaves, vectors_of
from loadmaster.graph.go.cases import synthetic_case
from loadmaster.graph.go.graph import ABOUT, HINTS, STATS, graph_of, hint_stats, hinted_devices, padded_sizes
from loadmaster.graph.go.learner import WORST, hint_times, learn_hint_choice
from loadmaster.graph.go.network import FUSED, LATER, TRUSTED, make_network, trusted
from loadmaster.graph.go.settings import Shape
from loadmaster.machine import load_machine

SHAPE = Shape(width=16, inner=16, heads=2, segment=16)


def small() -> GraphOptimization:
    program, machine = synthetic_case("layered", 2)
    return GraphOptimization(program, machine)


def test_the_hint_that_the_numbers_tell_is_chosen() -> None:
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(60):
        stats = rng.uniform(-1, 1, (len(HINTS), STATS)).astype(np.float32)
        times = np.minimum(WORST, 1 + stats[:, 0] - stats[:, 0].min()).astype(np.float32)
        rows.append((stats, np.zeros(ABOUT, np.float32), times))
    network, behind = learn_hint_choice(make_network(0, SHAPE), rows, SHAPE, 0)
    assert behind < 1.05
    stats = np.zeros((len(HINTS), STATS), np.float32)
    stats[:, 0] = 0.5
    stats[3, 0] = -1.0

    class Seen:
        pass

    seen = Seen()
    seen.stats, seen.about = stats, np.zeros(ABOUT, np.float32)  # type: ignore[attr-defined]
    shares = trusted(network, seen, np)  # type: ignore[arg-type]
    assert shares.argmax() == 3
    assert np.isclose(shares.sum(), TRUSTED)
    assert not network.follow.bias.any()


def test_times_are_those_of_the_plans_that_follow_each_hint() -> None:
    problem = small()
    hinted = hinted_devices(problem)
    times = hint_times(problem, hinted, 1)
    assert times is not None
    assert times.min() == 1.0
    values = []
    for row in hinted:
        level = np.ones(problem.nodes, np.int8)
        vector = vectors_of(problem, Actions(FUSED * level, row.astype(np.int8), LATER * level))
        values.append(problem.evaluate(vector))
    fitting = [value for value in values if value is not None and value < UNFIT]
    for value, ratio in zip(values, times, strict=True):
        fits = value is not None and value < UNFIT
        assert ratio == (np.float32(min(WORST, value / min(fitting))) if fits else WORST)


def test_numbers_of_hints_say_what_they_say() -> None:
    problem = small()
    hinted = hinted_devices(problem)
    stats = hint_stats(problem, hinted)
    single, spread = HINTS.index("single"), HINTS.index("round-robin")
    assert stats[single, 4] == 1 / problem.devices
    assert stats[spread, 4] == 1.0
    assert stats[single, 2] == np.float32(stats[:, 2].min()) < stats[spread, 2]
    assert abs(stats[single, 1]) < 1e-3  # one device has all of the work
    graph = graph_of(problem, padded_sizes(problem, SHAPE.segment), hinted)
    assert np.array_equal(graph.stats, stats)
    alone = GraphOptimization(problem.program, load_machine("p100x4"), tasks=("schedule",))
    assert not hint_stats(alone, hinted_devices(alone)).any()


def test_from_level_eight_on_nothing_is_fused_into_another_device() -> None:
    problem = small()
    rng = np.random.default_rng(1)
    device = rng.integers(problem.devices, size=(3, problem.groups)).astype(np.int8)
    level = rng.integers(16, size=(3, problem.nodes)).astype(np.int8)
    vectors = vectors_of(problem, Actions(level, device, np.zeros_like(level)))
    keys = vectors[:, problem.part("fusion")]
    for row in range(3):
        far = np.zeros(problem.nodes, dtype=bool)
        for producer, reader in problem.edges.T.tolist():
            if device[row, problem.node_group[producer]] != device[row, problem.node_group[reader]]:
                far[producer] = True
        assert np.array_equal(far, leaves(problem, device[row]))
        assert np.array_equal(keys[row] == 0, (level[row] == 0) | ((level[row] >= 8) & far))


def test_a_plan_fitted_to_its_devices_is_kept_by_its_levels() -> None:
    problem = small()
    level = np.full(problem.nodes, FUSED, np.int8)
    device = (np.arange(problem.groups) % problem.devices).astype(np.int8)
    vector = vectors_of(problem, Actions(level, device, np.full(problem.nodes, LATER, np.int8)))
    zeros = vector.copy()
    zeros[problem.part("schedule")] = 0.0
    again = vectors_of(problem, actions_of(problem, zeros))
    assert problem.evaluate(again) == problem.evaluate(vector)
