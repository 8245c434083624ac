"""GO's network and its gradients: padding, masks, segments, and NumPy beside JAX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from graph.go.small import SHAPE, chain, problem_of, random_problem
from loadmaster.graph import GraphOptimization
from loadmaster.graph.go.paper.actions import Actions, draw, padded
from loadmaster.graph.go.paper.graph import Graph, graph_of, padded_sizes
from loadmaster.graph.go.paper.network import Logits, Network, make_network, run
from loadmaster.graph.go.paper.settings import Shape
from loadmaster.learn.backend import NumpyBackend
from loadmaster.learn.policies import fill_policy, policy_arrays

pytestmark = pytest.mark.usefixtures("quickly_compiled")


def busy_network(shape: Shape = SHAPE) -> Network:
    """Every weight random, the gates and biases too: nothing is hidden behind a zero."""
    rng = np.random.default_rng(3)
    plain = make_network(1, shape)
    arrays = {
        name: array + rng.normal(0, 0.2, array.shape).astype(np.float32)
        for name, array in policy_arrays(plain).items()
    }
    return fill_policy("test", plain, arrays)  # type: ignore[no-any-return]


def forward(network: Network, given: Graph, shape: Shape) -> Logits:
    """With NumPy alone."""
    return run(network, given, shape, NumpyBackend(1))[0]


def graph(problem: GraphOptimization, shape: Shape = SHAPE) -> Graph:
    return graph_of(problem, padded_sizes(problem, shape.segment))


def own(problem: GraphOptimization, logits: Logits) -> list[Any]:
    n, groups, devices = problem.nodes, problem.groups, problem.devices
    return [
        np.asarray(logits.fusion)[:n],
        np.asarray(logits.device)[:groups, :devices],
        np.asarray(logits.schedule)[:n],
    ]


def different(network: Network, problem: GraphOptimization, more: tuple[int, int, int, int]) -> float:
    """By how much logits differ with so much more padding."""
    sizes = padded_sizes(problem, SHAPE.segment)
    wider = tuple(a + b for a, b in zip(sizes, more, strict=True))
    tight = own(problem, forward(network, graph_of(problem, sizes), SHAPE))
    loose = own(problem, forward(network, graph_of(problem, wider), SHAPE))  # type: ignore[arg-type]
    return max(float(np.abs(a - b).max(initial=0)) for a, b in zip(tight, loose, strict=True))


def test_padding_changes_no_logit() -> None:
    network, rng = busy_network(), np.random.default_rng(0)
    for seed in range(25):
        more = (
            16 * int(rng.integers(0, 4)),
            int(rng.integers(0, 300)),
            int(rng.integers(0, 40)),
            int(rng.integers(0, 3)),
        )
        assert different(network, random_problem(seed), more) < 1e-5
    for ops in (1, 2, 3):
        assert different(network, problem_of(chain(ops, edges=ops != 3)), (32, 256, 16, 2)) < 1e-5


@pytest.mark.parametrize("change", [{"attention": False}, {"modulation": False}, {"rounds": 0}])
def test_every_switch_changes_the_logits(change: dict[str, Any]) -> None:
    problem = random_problem(4)
    shape = Shape(**({"width": 16, "heads": 2, "inner": 16, "segment": 16, "rounds": 2} | change))
    whole = Shape(width=16, heads=2, inner=16, segment=16, rounds=2)
    a, b = (own(problem, forward(busy_network(each), graph(problem), each)) for each in (shape, whole))
    assert any(not np.allclose(x, y, atol=1e-4) for x, y in zip(a, b, strict=True))


def test_every_weight_has_a_say() -> None:
    """Gates too: what nothing reads is not there."""
    problem = random_problem(4)
    given, network = graph(problem), busy_network()
    before, arrays = own(problem, forward(network, given, SHAPE)), policy_arrays(network)
    for name, array in arrays.items():
        changed = fill_policy("test", network, {**arrays, name: array + np.float32(0.5)})
        after = own(problem, forward(changed, given, SHAPE))
        assert any(not np.array_equal(x, y) for x, y in zip(before, after, strict=True)), name


# --- with JAX --------------------------------------------------------------------------------

jax = pytest.importorskip("jax")
pytest.importorskip("equinox")
pytest.importorskip("optax")


def lesson_of(problem: GraphOptimization, given: Graph, logits: Logits, plans: int = 6) -> Any:
    from loadmaster.graph.go.paper.learner import Batch

    rng = np.random.default_rng(2)
    drawn = draw(problem, logits, rng, plans)
    sizes = given.sizes[0], given.sizes[2]
    old = Actions(*(part + rng.normal(0, 0.1, part.shape).astype(np.float32) for part in drawn.log_prob))
    return Batch(
        padded(drawn.actions, *sizes), padded(old, *sizes), rng.normal(size=plans).astype(np.float32)
    )


def weights() -> Any:
    from loadmaster.graph.go.paper.learner import LossWeights

    return LossWeights(*(jax.numpy.float32(x) for x in (1e-3, 1e-2, 0.2, 1.0)))


def test_numpy_and_jax_agree() -> None:
    from loadmaster.graph.go.paper.learner import logits_of

    network, problem = busy_network(), random_problem(11)
    given = graph(problem)
    ours, theirs = own(problem, forward(network, given, SHAPE)), logits_of(network, given, SHAPE)[0]
    for a, b in zip(ours, own(problem, theirs), strict=True):
        assert a == pytest.approx(b, abs=1e-4)


def test_segments_together_give_the_gradient_of_the_whole_graph() -> None:
    from loadmaster.graph.go.paper.learner import (
        BACKEND,
        _picked,
        logits_of,
        masks,
        picked_nodes,
        ppo_loss,
        segment_logits,
    )

    problem, shape = random_problem(21, 60), Shape(width=8, heads=2, inner=8, layers=2, rounds=1, segment=16)
    given, network = jax.tree.map(jax.numpy.asarray, (graph(problem, shape), busy_network(shape)))
    segments = given.sizes[0] // shape.segment
    assert problem.nodes > 2 * shape.segment, "several segments, one of them with padding"
    logits, memory = logits_of(network, given, shape)
    batch = jax.tree.map(jax.numpy.asarray, lesson_of(problem, given, logits))
    pick = np.random.default_rng(1).permutation(segments).astype(np.int32)

    def whole(network: Network) -> Any:
        return ppo_loss(run(network, given, shape, BACKEND)[0], batch, masks(given), weights(), True)[0]

    def parts(network: Network) -> Any:
        found, mask = segment_logits(network, given, memory, pick, shape)
        return ppo_loss(found, _picked(batch, picked_nodes(pick, shape.segment)), mask, weights(), True)[0]

    full, ours = (jax.jit(jax.value_and_grad(loss))(network) for loss in (whole, parts))
    assert float(full[0]) == pytest.approx(float(ours[0]), rel=1e-5)
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(full[1])]
    largest = max(float(np.abs(leaf).max()) for leaf in leaves)
    assert largest > 1e-3
    for a, b in zip(leaves, jax.tree.leaves(ours[1]), strict=True):
        assert np.abs(a - np.asarray(b)).max() <= 1e-5 * largest


@pytest.mark.parametrize("tasks", [("placement",), ("fusion", "schedule")])
@pytest.mark.parametrize("per_node", [True, False])
def test_what_has_no_effect_gets_no_gradient(tasks: tuple[str, ...], per_node: bool) -> None:
    from loadmaster.graph.go.paper.learner import masks, ppo_loss

    problem = random_problem(31, tasks=tasks)
    given = graph(problem)
    logits = forward(busy_network(), given, SHAPE)
    batch, mask = lesson_of(problem, given, logits), masks(given)
    decided = [name in tasks for name in ("fusion", "placement", "schedule")]

    def clipped(logits: Logits) -> Any:
        return ppo_loss(logits, batch, mask, weights(), per_node)[0]

    slopes = jax.grad(clipped)(Logits(*(jax.numpy.asarray(part) for part in logits)))
    for slope, kept, wanted in zip(slopes, mask, decided, strict=True):
        assert np.isfinite(np.asarray(slope)).all()
        assert not np.asarray(slope)[~np.asarray(kept)].any()
        assert bool(np.asarray(slope).any()) == (wanted and bool(np.asarray(kept).any()))


def test_good_plans_get_likelier_and_bad_ones_less_likely() -> None:
    from loadmaster.graph.go.paper.learner import learn_segments, log_probs, logits_of, make_learner, masks

    problem = random_problem(21, 60)
    given: Graph = jax.tree.map(jax.numpy.asarray, graph(problem))
    learner = make_learner(busy_network())
    logits, memory = logits_of(learner.network, given, SHAPE)
    batch = jax.tree.map(jax.numpy.asarray, lesson_of(problem, given, logits))
    mask = masks(given)
    pick = np.arange(1, dtype=np.int32)

    def likelihood(network: Network) -> float:
        chances = log_probs(logits_of(network, given, SHAPE)[0], batch.actions)
        return sum(float(np.asarray(c)[0, np.asarray(m)].sum()) for c, m in zip(chances, mask, strict=True))

    calm = weights()._replace(entropy=jax.numpy.float32(0))
    before = likelihood(learner.network)
    for gain in (1.0, -1.0):
        told = batch._replace(advantage=gain * np.eye(6, dtype=np.float32)[0])
        after, report = learn_segments(learner, given, memory, pick, told, calm, SHAPE, True)
        assert (likelihood(after.network) - before) * gain > 0
        assert np.isfinite([float(x) for x in report]).all()
