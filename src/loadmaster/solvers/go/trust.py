"""Learning which constructive placement a whole graph should follow, from times that were measured.

Each training graph is timed once per hint. The few numbers that are known of a hint without a
simulation, and of the graph, must tell which will be fast: the expected time is made small.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax

from loadmaster.problems.graph import UNFIT, GraphOptimization
from loadmaster.solvers.go.actions import Actions, vectors_of
from loadmaster.solvers.go.network import FUSED, LATER, Network, make_network
from loadmaster.solvers.go.settings import Shape

Float32 = npt.NDArray[np.float32]

WORST = 3.0
"""Times the best hint's time; what does not fit counts so."""
STEPS, RATE, DECAY, WEIGHT = 4_000, 3e-3, 0.3, 1e-3
NOISE = 0.02
"""On what is known of a hint: it is an estimate."""


def hint_times(problem: GraphOptimization, hinted: npt.NDArray[np.int32], threads: int) -> Float32 | None:
    """[hints] the time of the plan that follows each hint, over the best of them; None: none fits."""
    hints = len(hinted)
    level = np.ones((hints, problem.nodes), np.int8)
    actions = Actions(FUSED * level, hinted.astype(np.int8), LATER * level)
    values = problem.score(vectors_of(problem, actions), threads=threads).value
    fits = (values >= 0) & (values < UNFIT)
    if not fits.any():
        return None
    return np.where(fits, np.minimum(values / values[fits].min(), WORST), WORST).astype(np.float32)


def learn_trust(
    network: Network, rows: Sequence[tuple[Float32, Float32, Float32]], shape: Shape, seed: int
) -> tuple[Network, float]:
    """(network, mean time of the chosen hint over the best) of rows (stats, about, times). What the
    network knew of single groups is forgotten: groups that decide for themselves make no plan."""
    known = jnp.stack([_inputs(stats, about) for stats, about, _ in rows])
    times = jnp.asarray(np.stack([times for _, _, times in rows]))
    fresh = make_network(seed, shape)
    follow = fresh.follow._replace(bias=np.zeros_like(fresh.follow.bias))
    start = (fresh.weigh._replace(gate=np.zeros(0)), fresh.trust._replace(gate=np.zeros(0)))
    parts = jax.tree.map(jnp.asarray, start)
    adam = optax.adam(optax.exponential_decay(RATE, STEPS // 3, DECAY))
    estimated = jnp.arange(known.shape[-1]) < rows[0][0].shape[1]

    def scores(parts: Any, known: Any) -> Any:
        weigh, trust = parts
        hidden = jnp.maximum(known @ weigh.weight + weigh.bias, 0)
        return (hidden @ trust.weight + trust.bias)[..., 0]

    def loss(parts: Any, key: Any) -> Any:
        seen = known + NOISE * jax.random.normal(key, known.shape) * estimated
        expected = (jax.nn.softmax(scores(parts, seen)) * times).sum(axis=1).mean()
        return expected + WEIGHT * sum((leaf**2).sum() for leaf in jax.tree.leaves(parts))

    @jax.jit  # type: ignore[untyped-decorator]
    def learn(parts: Any, moments: Any, key: Any) -> Any:
        def step(carry: Any, key: Any) -> Any:
            parts, moments = carry
            change, moments = adam.update(jax.grad(loss)(parts, key), moments)
            return (optax.apply_updates(parts, change), moments), None

        return jax.lax.scan(step, (parts, moments), jax.random.split(key, STEPS))[0]

    (weigh, trust), _ = learn(parts, adam.init(parts), jax.random.key(seed))
    chosen = np.asarray(scores((weigh, trust), known)).argmax(axis=1)
    network = network._replace(
        group=fresh.group,
        follow=follow,
        weigh=fresh.weigh._replace(weight=np.asarray(weigh.weight), bias=np.asarray(weigh.bias)),
        trust=fresh.trust._replace(weight=np.asarray(trust.weight), bias=np.asarray(trust.bias)),
    )
    return network, float(np.asarray(times)[np.arange(len(chosen)), chosen].mean())


def _inputs(stats: Float32, about: Float32) -> Any:
    hints = len(stats)
    return jnp.concatenate([stats, jnp.broadcast_to(about, (hints, len(about))), jnp.eye(hints)], axis=1)
