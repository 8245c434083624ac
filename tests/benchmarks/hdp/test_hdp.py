"""HDP: its settings, what it sees, its networks, and that it learns."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from benchmarks.peers.hdp.agent import Hdp
from benchmarks.peers.hdp.network import Settings, features_of
from loadmaster.errors import LoadmasterError
from loadmaster.graph import UNFIT, Base, GraphOptimization
from loadmaster.machine import load_machine
from loadmaster.program.build import Builder
from loadmaster.program.program import Program
from loadmaster.search.solver import Budget, Meter, Observer, State, solve
from search.conformance import conforms

jax = pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("optax")

SMALL: dict[str, Any] = {"hidden": 16, "grouper": 8, "groups": 8}
"""Too small to be good, and quick."""
LEARNING = SMALL | {"groups": 4, "rate": 0.01, "noise": 0.0, "tanh": 4.0, "failure": 1.0}
"""Published numbers are for long runs of large graphs; with these it learns a toy at once."""


def chains(count: int = 3, length: int = 6) -> Program:
    """Independent chains with costly links: whoever tears one apart pays for it."""
    build = Builder("chains")
    for chain in range(count):
        last = build.tensor(f"in{chain}", shape=(4,), bytes=2**22, dtype="f32", kind="input")
        for step in range(length):
            kind = "output" if step == length - 1 else "activation"
            made = build.tensor(f"t{chain}.{step}", shape=(4,), bytes=2**22, dtype="f32", kind=kind)
            build.op(f"op{chain}.{step}", "matmul", reads=[last], writes=[made], matrix=10**9 * (1 + chain))
            last = made
    return build.build()


def problem(program: Program | None = None, **more: Any) -> GraphOptimization:
    more = {"tasks": ("placement",), "groups": "op", "base": Base("none", "single", "fifo")} | more
    machine = load_machine("toy2")
    return GraphOptimization(program or chains(), machine, **more)


class Costs(Observer):
    """Remembers what every plan cost, and the last state."""

    def __init__(self) -> None:
        super().__init__()
        self.costs: list[float] = []
        self.states: list[tuple[int, State]] = []

    def progress(self, meter: Meter, metrics: Any) -> None:
        self.costs.append(metrics["cost"])

    def checkpoint(self, meter: Meter, state: State) -> None:
        self.states.append((meter.evaluations, state))


def test_the_published_numbers_are_the_defaults() -> None:
    settings = Settings()
    assert (settings.hidden, settings.grouper, settings.rate, settings.noise) == (512, 64, 0.1, 0.5)
    assert [settings.groups_for(devices) for devices in (2, 4, 8, 16)] == [40, 80, 160, 256]
    rates = [settings.rate_at(step) for step in (0, 449, 450, 500)]
    assert rates == pytest.approx([0.1, 0.1, 0.095, 0.09025])


@pytest.mark.parametrize(
    "wrong",
    [
        {"hidden": 7},
        {"rate": -1.0},
        {"decay": 2.0},
        {"groups": -1},
        {"failure": 0.0},
        {"noise": float("nan")},
        {"grouper": 2.5},
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(LoadmasterError, match="HDP can't work with"):
        Hdp(**wrong)


def test_it_sees_kinds_shapes_and_neighbours() -> None:
    settings = Settings(neighbours=6, results=2, dimensions=3)
    features = features_of(problem(chains(2, 3)), settings)
    first, middle = features.ops[0], features.ops[1]
    assert features.ops.shape == (6, 1 + 6 + 6)
    assert first[1:7].tolist() == [4, -1, -1, -1, -1, -1]
    assert first[7:].tolist() == [1, 1, 0, 0, 0, 0]
    assert middle[7:].tolist() == [0, -1, 2, 1, 0, 0]


def test_rows_of_groups_count_edges_both_ways() -> None:
    features = features_of(problem(chains(2, 3)), Settings(results=1, dimensions=1))
    grouping = np.array([0, 0, 1, 2, 2, 2], dtype=np.int32)
    rows = features.group_rows(grouping, 4)
    assert rows.shape == (4, features.width(4)) == (4, 8 + 1 + 1)
    scale = 2 * 4 + 1  # the largest number of group 0's row is the sum of its shapes
    assert rows[0] * scale == pytest.approx([1, 1, 0, 0, 1, 0, 0, 0, 2, 2 * 4])
    assert rows[3].tolist() == [0] * 10


def test_the_gradient_of_an_lstm_is_the_plain_one() -> None:
    from benchmarks.peers.hdp.network import _lstm, _unrolled

    jnp = jax.numpy
    keys = jax.random.split(jax.random.key(1), 4)
    signals, weights = jax.random.normal(keys[0], (9, 24)), jax.random.normal(keys[1], (6, 24))
    carry = (jax.random.normal(keys[2], (6,)), jax.random.normal(keys[3], (6,)))

    def plain(signals: Any, carry: Any, weights: Any, forget: Any) -> Any:
        states = []
        for signal in signals:
            carry = _lstm(signal + carry[1] @ weights, carry[0], forget)
            states.append(carry[1])
        return jnp.stack(states), carry

    def gradients(run: Any) -> Any:
        def loss(*inputs: Any) -> Any:
            return sum(jnp.sin(leaf).sum() for leaf in jax.tree.leaves(run(*inputs)))

        slopes = jax.jit(jax.grad(loss, (0, 1, 2, 3)))(signals, carry, weights, 1.0)
        return jax.tree.leaves(slopes)

    for ours, true in zip(gradients(_unrolled), gradients(plain), strict=True):
        assert np.asarray(ours) == pytest.approx(np.asarray(true), abs=1e-5)


def test_drawn_devices_are_as_likely_as_it_says() -> None:
    """exp(log-probability) summed over all placements is 1, and draws agree with it."""
    from benchmarks.peers.hdp.network import Noise, draw_places, log_probability, make_network

    settings = Settings(hidden=4, grouper=2, groups=2)
    network = make_network(jax.random.key(3), 5, 6, 2, 2, settings)
    groups, share = jax.random.normal(jax.random.key(4), (2, 6)), jax.numpy.float32(0)

    @jax.jit
    def draw(key: Any) -> Any:
        return draw_places(network, groups, Noise.of(key, 2, 2), share, settings)

    @jax.jit
    def probability_of(places: Any) -> Any:
        noise = Noise.of(jax.random.key(5), 2, 2)
        return jax.numpy.exp(log_probability(network, groups, places, noise, share, settings))

    every = [(a, b) for a in range(2) for b in range(2)]
    probability = [float(probability_of(jax.numpy.array(places))) for places in every]
    assert sum(probability) == pytest.approx(1, abs=1e-5)
    drawn = np.asarray(jax.vmap(draw)(jax.random.split(jax.random.key(6), 4000)))
    for places, expected in zip(every, probability, strict=True):
        assert (drawn == places).all(axis=1).mean() == pytest.approx(expected, abs=0.03)


def test_it_learns_and_beats_random_plans() -> None:
    """Of equal numbers of plans: HDP's best beats the mean of random search's bests."""
    case, evaluations = problem(), 400
    rng = np.random.default_rng(0)
    random = rng.integers(0, case.devices, (20 * evaluations, case.groups)).astype(np.float64)
    bests = case.score(random).value.reshape(20, evaluations).min(axis=1)
    found = []
    for seed in range(3):
        watch = Costs()
        solution = solve(Hdp(**LEARNING), case, Budget(evaluations=evaluations), seed, watch)
        assert solution.value is not None
        found.append(solution.value)
        early, late = np.mean(watch.costs[:50]), np.mean(watch.costs[-50:])
        assert late < early, "what it draws gets better"
    assert np.mean(found) < bests.mean()


def test_a_run_goes_on_as_if_it_had_never_stopped() -> None:
    case, watch = problem(), Costs()
    whole = solve(Hdp(**SMALL), case, Budget(evaluations=24), 1, watch)
    at, state = watch.states[9]
    assert at == 10
    rest = Costs()
    meter = Meter(case, Budget(evaluations=24), rest, evaluations=at)
    Hdp(**SMALL).run(meter, 1, state)
    assert rest.costs == watch.costs[10:]
    assert whole.evaluations == meter.evaluations == 24


def test_after_sampling_stops_groups_stay_where_they_are() -> None:
    case, watch = problem(), Costs()
    solve(Hdp(**SMALL, sampling_until=5), case, Budget(evaluations=9), 0, watch)
    devices = [state["devices"] for _, state in watch.states]
    assert all(np.array_equal(a, b) for a, b in pairwise(devices[4:]))
    assert any(not np.array_equal(a, b) for a, b in pairwise(devices[:5]))


def test_plans_that_do_not_fit_cost_the_failure_and_are_never_reported() -> None:
    program = chains()
    size = int(program.tensor_bytes.sum())
    machine = load_machine("toy2").with_capacity("hbm0", size // 64).with_capacity("hbm1", size // 64)
    case = GraphOptimization(program, machine, tasks=("placement",), groups="op")
    values = case.score(np.zeros((1, case.width))).value
    assert values[0] >= UNFIT
    watch = Costs()
    solution = solve(Hdp(**SMALL), case, Budget(evaluations=12), 0, watch)
    assert solution.decision is None
    assert watch.costs == [10.0] * 12


def test_without_a_placement_to_decide_it_takes_the_base_plan() -> None:
    case = problem(tasks=("schedule",))
    solution = solve(Hdp(**SMALL), case, Budget(evaluations=5))
    assert solution.evaluations == 1
    assert solution.value == case.evaluate(case.vector())


def test_other_tasks_are_left_to_the_base_plan() -> None:
    case = problem(tasks=("placement", "fusion", "schedule"))
    solution = solve(Hdp(**SMALL), case, Budget(evaluations=6))
    assert solution.decision is not None
    base, ours = case.split(case.vector()), case.split(solution.decision)
    assert np.array_equal(base[0], ours[0]) and np.array_equal(base[2], ours[2])


def test_it_conforms() -> None:
    case = problem()
    solve(Hdp(**SMALL), case, Budget(evaluations=2))  # compiled first: no part of its budget
    conforms(lambda: Hdp(**SMALL), case, evaluations=(1, 2, 20), seeds=(0,))


def test_what_cost_less_than_expected_gets_likelier() -> None:
    from benchmarks.peers.hdp.network import (
        Batch,
        draw_devices,
        draw_grouping,
        group_logits,
        improve,
        make_learner,
        step_key,
    )

    settings, noise, key = Settings(hidden=16, grouper=8), jax.numpy.float32(0), step_key(0, 0)
    ops, rows = jax.random.normal(key, (18, 46)), jax.random.normal(key, (8, 30))
    learner = make_learner(0, 46, 30, 8, 2, settings)
    grouping = draw_grouping(learner.network, ops, key, noise)
    devices = draw_devices(learner.network, rows, key, noise, settings)

    def likelihood(network: Any) -> float:
        log_prob = jax.nn.log_softmax(group_logits(network, ops, key, noise))
        return float(jax.numpy.take_along_axis(log_prob, grouping[:, None], axis=1).sum())

    before = likelihood(learner.network)
    for excess in (-1.0, 1.0):
        batch = Batch(ops, grouping, rows, devices, key, noise, jax.numpy.float32(excess))
        after = improve(learner, batch, jax.numpy.float32(0.003), settings)
        assert (likelihood(after.network) - before) * excess < 0
