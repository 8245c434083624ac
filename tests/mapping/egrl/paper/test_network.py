"""The networks: three layouts of neighbours and batches give the same numbers."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("equinox")

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from loadmaster.mapping.egrl.paper import Settings
from loadmaster.mapping.egrl.paper.network import (
    MOST_DENSE,
    MOST_NEAR,
    Actor,
    Critic,
    Edges,
    Near,
    _apart,
    _edges,
    _near,
    attend,
    look,
    make_graph,
    mix,
)
from loadmaster.mapping.egrl.paper.session import _forward, decide
from loadmaster.mapping.features import edges
from loadmaster.mapping.problem import Mapping
from mapping.egrl.paper.small import SMALL, chain, chain_problem, roomy

KEY = jax.random.key(3)
TWO_LEVELS = Settings(**SMALL | {"depth": 2})


@pytest.fixture(scope="module")
def problem() -> Mapping:
    return chain_problem()


@pytest.fixture(scope="module")
def actor() -> Actor:
    return Actor(3, TWO_LEVELS, KEY)


@pytest.fixture(scope="module")
def logits() -> Any:
    return jax.jit(lambda actor, graph: actor(graph))


def random_pairs(rng: np.random.Generator, n: int) -> np.ndarray:
    """[2, E] (producer, consumer): each node reads up to three earlier ones."""
    made = [(int(i), j) for j in range(1, n) for i in set(rng.integers(0, j, rng.integers(0, 4)))]
    return np.array(made, dtype=np.int32).reshape(-1, 2).T


def normal(rng: np.random.Generator, *shape: int) -> jax.Array:
    return jnp.asarray(rng.normal(size=shape), dtype=jnp.float32)


def as_dense(pairs: np.ndarray, n: int) -> np.ndarray:
    near = np.eye(n, dtype=bool)
    near[pairs[0], pairs[1]] = near[pairs[1], pairs[0]] = True
    return near


def slow_attend(h: np.ndarray, to: np.ndarray, by: np.ndarray, near: np.ndarray) -> np.ndarray:
    """The formula, node by node and head by head."""
    n, heads = to.shape
    part = h.shape[1] // heads
    out = np.zeros_like(h)
    for i in range(n):
        around = np.flatnonzero(near[i])
        for head in range(heads):
            e = [to[i, head] + by[j, head] for j in around]
            e = [x if x > 0 else 0.2 * x for x in e]
            total = sum(math.exp(x) for x in e)
            columns = slice(head * part, (head + 1) * part)
            for j, x in zip(around, e, strict=True):
                out[i, columns] += math.exp(x) / total * h[j, columns]
    return out


@pytest.mark.parametrize("attention", [True, False])
def test_three_layouts_attend_alike_and_learn_alike(attention: bool) -> None:
    n, heads, width = 9, 2, 6

    @jax.jit
    @partial(jax.value_and_grad, argnums=(0, 1, 2), has_aux=True)
    def pulled(h: Any, to: Any, by: Any, around: Any, pull: Any) -> Any:
        out = attend(h, to, by, around, attention)
        return (out * pull).sum(), out

    for seed in range(2):
        rng = np.random.default_rng(seed)
        pairs = random_pairs(rng, n)
        h, to, by = (normal(rng, n, c) for c in (width, heads, heads))
        pull = normal(rng, n, width)
        near = _near(pairs, n)
        assert isinstance(near, Near)
        layouts = {"near": near, "edges": _edges(pairs, n), "dense": jnp.asarray(as_dense(pairs, n))}
        zero = attention * 1.0
        expected = slow_attend(*map(np.asarray, (h, zero * to, zero * by)), as_dense(pairs, n))
        gradients = {}
        for name, around in layouts.items():
            (_, found), gradients[name] = pulled(h, to, by, around, pull)
            np.testing.assert_allclose(found, expected, atol=1e-5, err_msg=name)
            for mine, other in zip(gradients[name], gradients["near"], strict=True):
                np.testing.assert_allclose(mine, other, atol=1e-5, err_msg=name)
        if not attention:  # the plain mean
            shares = as_dense(pairs, n) / as_dense(pairs, n).sum(1, keepdims=True)
            np.testing.assert_allclose(expected, shares @ h, atol=1e-5)
            assert not np.asarray(gradients["near"][1]).any()


def test_gradients_of_mix_and_look_are_those_of_plain_sums() -> None:
    rng = np.random.default_rng(0)
    near = _near(random_pairs(rng, 8), 8)
    assert isinstance(near, Near) and not bool(near.real.all())
    share = normal(rng, *near.node.shape, 2)
    share = share * near.real[..., None]  # as after a softmax: padding has no share
    h, x = normal(rng, 8, 6), normal(rng, 8, 2)

    def plain_mix(share: Any, h: Any) -> Any:
        return jnp.einsum("nkh,nkhc->nhc", share, h.reshape(8, 2, 3)[near.node]).reshape(8, 6)

    def both(function: Any, *given: Any) -> tuple[Any, Any]:
        out, back = jax.vjp(function, *given)
        return out, back(normal(np.random.default_rng(1), *out.shape))

    out, by = both(lambda share, h: mix(share, h, near), share, h)
    wanted, wanted_by = both(plain_mix, share, h)
    np.testing.assert_allclose(out, wanted, atol=1e-5)
    np.testing.assert_allclose(by[1], wanted_by[1], atol=1e-5)
    np.testing.assert_allclose(by[0], wanted_by[0], atol=1e-5)
    real = near.real[..., None]
    out, by = both(lambda x: jnp.where(real, look(x, near), 0), x)
    wanted, wanted_by = both(lambda x: jnp.where(real, x[near.node], 0), x)
    np.testing.assert_allclose(out, wanted, atol=1e-6)
    np.testing.assert_allclose(by[0], wanted_by[0], atol=1e-5)


def test_a_batch_decides_as_each_member_alone(problem: Mapping) -> None:
    graph = make_graph(problem)
    actors = [Actor(3, TWO_LEVELS, key) for key in jax.random.split(KEY, 4)]
    stack = np.stack([ravel_pytree(actor)[0] for actor in actors])
    maps, p = _forward(TWO_LEVELS, 3)(stack, graph)
    assert maps.shape == (4, 2 * problem.nodes) and maps.dtype == np.int8
    alone = jax.jit(decide)
    for number, actor in enumerate(actors):
        decided, chances = alone(actor, graph)
        np.testing.assert_allclose(p[number], chances, atol=1e-5)
        assert np.array_equal(maps[number], decided)
    assert np.abs(np.asarray(p[0]) - np.asarray(p[1])).max() > 1e-3  # they do differ


def test_parameters_do_not_grow_with_the_graph() -> None:
    def count(kind: Any) -> int:
        made = eqx.filter_eval_shape(partial(kind, 3, Settings()), KEY)
        return sum(math.prod(x.shape) for x in jax.tree.leaves(eqx.filter(made, _is_array)))

    assert count(Actor) == pytest.approx(175_000, rel=0.02)
    assert count(Critic) == pytest.approx(209_000, rel=0.02)


def _is_array(x: Any) -> bool:
    return hasattr(x, "shape")


def test_depth_zero_is_one_block(problem: Mapping, logits: Any) -> None:
    actor = Actor(3, Settings(**SMALL | {"depth": 0}), KEY)
    assert actor.body.down == [] and actor.body.score == []
    dense, listed = make_graph(problem), make_graph(problem, dense=False)
    out = logits(actor, dense)
    assert out.shape == (2, problem.nodes, 3) and np.isfinite(out).all()
    # Without pooling the variant for large graphs is the same network.
    np.testing.assert_allclose(logits(actor, listed), out, atol=1e-5)


def test_large_graphs_keep_edge_lists(actor: Actor, logits: Any) -> None:
    large = Mapping(chain(MOST_DENSE + 30), roomy())
    graph = make_graph(large)
    assert isinstance(graph.near, Edges) and graph.apart is None
    out = np.asarray(logits(actor, graph))
    assert out.shape == (2, MOST_DENSE + 30, 3) and np.isfinite(out).all() and np.ptp(out) > 0


def test_a_hub_has_an_edge_list_below_dense_levels(actor: Actor, logits: Any) -> None:
    problem = Mapping(chain(MOST_NEAR + 10, readers_of_first=MOST_NEAR + 5), roomy())
    graph = make_graph(problem)
    assert isinstance(graph.near, Edges) and graph.apart is not None
    dense = graph._replace(near=jnp.asarray(as_dense(edges(problem), problem.nodes)))
    np.testing.assert_allclose(logits(actor, graph), logits(actor, dense), atol=1e-5)


def test_pooled_neighbours_are_at_most_two_apart() -> None:
    for seed in range(5):
        pairs = random_pairs(np.random.default_rng(seed), 12)
        near = as_dense(pairs, 12)
        wanted = [[any(near[i, k] and near[k, j] for k in range(12)) for j in range(12)] for i in range(12)]
        assert np.array_equal(_apart(pairs, 12), wanted)


def test_a_graph_shows_what_the_problem_decides(problem: Mapping) -> None:
    graph = make_graph(problem)
    assert graph.memories == 3 and graph.nodes == problem.nodes
    assert np.array_equal(np.asarray(graph.live).reshape(-1), problem.live)
    assert not problem.live.all()
    assert np.asarray(graph.placed).sum() == 2 * problem.nodes
