"""Learning: the clipped objective of PPO with a ratio per decision, and imitation of known plans.

An episode is one step, so one forward pass serves all plans that are drawn. A graph that is too long
for one gradient is learned from in minibatches of segments: what the segment before held is cached
from the pass that drew the plans, so that the loss of a segment needs no other segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
from jax import Array

from loadmaster.graph import UNFIT, GraphOptimization
from loadmaster.graph.go.actions import Actions, vectors_of
from loadmaster.graph.go.graph import Graph
from loadmaster.graph.go.network import (
    FUSED,
    LATER,
    Logits,
    Memory,
    Network,
    apply,
    attend,
    context_of,
    embed,
    make_network,
    norm,
    place,
    run,
)
from loadmaster.graph.go.settings import Shape
from loadmaster.learn.backend import JaxBackend

BACKEND = JaxBackend()
SHARES = (0.3, 1.0, 0.3)
"""How much fusion, placement and schedule count: what a key is matters least."""


class Learner(NamedTuple):
    """What learning changes."""

    network: Network
    optimizer_state: Any


class Batch(NamedTuple):
    """Plans that were drawn for a graph, how likely each decision was, and how good they were."""

    actions: Actions
    """[plans, …]"""
    log_prob: Actions
    """[plans, …] float32 when they were drawn"""
    advantage: Array
    """[plans]"""
    best: Actions
    """[…] the best plan so far, or anything where `imitation` is 0"""


class LossWeights(NamedTuple):
    """Coefficients of one update; traced, so that a schedule does not recompile."""

    learning_rate: Array
    entropy: Array
    imitation: Array
    clip_ratio: Array
    max_grad_norm: Array


class Metrics(NamedTuple):
    """Of one update, for the log."""

    loss: Array
    kl: Array
    entropy: Array


def make_learner(network: Network) -> Learner:
    """A network with a fresh state of its optimizer."""
    network = jax.tree.map(jnp.asarray, network)
    return Learner(network, optax.scale_by_adam().init(network))


def masks(graph: Graph) -> Actions:
    """Which decisions can have an effect."""
    return Actions(
        graph.real & graph.fusible & graph.decided[0],
        graph.group_real & graph.decided[1],
        graph.real & graph.decided[2],
    )


@partial(eqx.filter_jit)
def logits_of(network: Network, graph: Graph, shape: Shape) -> tuple[Logits, Memory]:
    """The policy of one graph, and what later segments attend to."""
    return run(network, graph, shape, BACKEND)


@partial(eqx.filter_jit)
def batch_logits(network: Network, graphs: Graph, shape: Shape) -> Logits:
    """Of graphs of one size, stacked."""
    logits: Logits = jax.vmap(lambda graph: run(network, graph, shape, BACKEND)[0])(graphs)
    return logits


def log_probs(logits: Logits, actions: Actions) -> Actions:
    """[plans, …] of each decision."""

    def one(logit: Array, action: Array) -> Array:
        log_prob = jax.nn.log_softmax(logit)
        return jnp.take_along_axis(log_prob[None], action[..., None].astype(jnp.int32), axis=2)[..., 0]

    return Actions(*(one(a, b) for a, b in zip(logits, actions, strict=True)))


@partial(eqx.filter_jit)
def draw(logits: Logits, key: Array, plans: int) -> tuple[Actions, Actions]:
    """(actions, their log-probabilities) of so many plans; every node for itself."""
    keys = jax.random.split(key, 3)
    actions = Actions(
        *(
            jax.random.categorical(k, logit, shape=(plans, logit.shape[0])).astype(jnp.int8)
            for k, logit in zip(keys, logits, strict=True)
        )
    )
    return actions, log_probs(logits, actions)


def _mean(values: Array, mask: Array) -> Array:
    """Over what is masked in; 0 where nothing is."""
    return jnp.where(mask, values, 0).sum() / jnp.maximum(1, jnp.broadcast_to(mask, values.shape).sum())


def ppo_loss(
    logits: Logits, batch: Batch, mask: Actions, weights: LossWeights, per_node: bool
) -> tuple[Array, Metrics]:
    """Clipped surrogate over every decision of a plan: each task's mean over its decisions, added up.

    Args:
      logits: per task [decisions, choices].
      batch: `actions` and `log_prob` [plans, decisions] at draw time, `advantage` [plans].
      mask: per task [decisions], which can have an effect.
      per_node: a ratio per decision; else one for a whole plan.
    """
    new, gain = log_probs(logits, batch.actions), batch.advantage[:, None]
    steps = [jnp.where(m, a - b, 0) for a, b, m in zip(new, batch.log_prob, mask, strict=True)]
    if not per_node:  # one ratio for a whole plan
        whole = sum(step.sum(axis=1, keepdims=True) for step in steps)
        steps = [jnp.broadcast_to(whole, step.shape) for step in steps]
    total = kl = mean_entropy = jnp.float32(0)
    for share, step, logit, best, m in zip(SHARES, steps, logits, batch.best, mask, strict=True):
        ratio = jnp.exp(jnp.clip(step, -20, 20))
        clipped = jnp.clip(ratio, 1 - weights.clip_ratio, 1 + weights.clip_ratio)
        log_prob = jax.nn.log_softmax(logit)
        entropy = _mean(-(jnp.exp(log_prob) * jnp.where(jnp.isfinite(log_prob), log_prob, 0)).sum(axis=1), m)
        likely = jnp.take_along_axis(log_prob, best[:, None].astype(jnp.int32), axis=1)[:, 0]
        total -= share * _mean(jnp.minimum(ratio * gain, clipped * gain), m[None])
        total -= share * (weights.entropy * entropy + weights.imitation * _mean(likely, m))
        kl += _mean(-step, m[None]) / 3
        mean_entropy += entropy / 3
    return total, Metrics(total, kl, mean_entropy)


def imitation_loss(logits: Logits, actions: Actions, mask: Actions) -> Array:
    """The mean over each task's decisions of minus the likelihood of one plan's, added up."""
    known = log_probs(logits, Actions(*(part[None] for part in actions)))
    parts = zip(SHARES, known, mask, strict=True)
    return -sum((share * _mean(log_prob[0], m) for share, log_prob, m in parts), jnp.float32(0))


def _apply_gradient(learner: Learner, gradient: Any, weights: LossWeights) -> Learner:
    """One step of Adam on a clipped gradient; one that is not finite changes nothing but Adam's state.

    By hand: `optax.clip_by_global_norm` divides before it multiplies, so that trained policies would differ
    in the last bits, and it passes infinite gradients on.
    """
    size = jnp.sqrt(sum(jnp.sum(each**2) for each in jax.tree.leaves(gradient)))
    scale = jnp.where(
        jnp.isfinite(size), jnp.minimum(1.0, weights.max_grad_norm / jnp.maximum(size, 1e-9)), 0.0
    )
    bounded = jax.tree.map(lambda each: jnp.where(scale > 0, each * scale, 0), gradient)
    direction, state = optax.scale_by_adam().update(bounded, learner.optimizer_state)
    steps = jax.tree.map(lambda each: -weights.learning_rate * each, direction)
    return Learner(optax.apply_updates(learner.network, steps), state)


@partial(eqx.filter_jit)
def learn_batch(
    learner: Learner, graphs: Graph, batches: Batch, weights: LossWeights, shape: Shape, per_node: bool
) -> tuple[Learner, Metrics]:
    """One step on whole graphs of one size, stacked."""

    def loss(network: Network) -> tuple[Array, Metrics]:
        def one(graph: Graph, batch: Batch) -> tuple[Array, Metrics]:
            logits = run(network, graph, shape, BACKEND)[0]
            return ppo_loss(logits, batch, masks(graph), weights, per_node)

        losses, metrics = jax.vmap(one)(graphs, batches)
        return losses.mean(), Metrics(*(part.mean() for part in metrics))

    gradient, metrics = jax.grad(loss, has_aux=True)(learner.network)
    return _apply_gradient(learner, gradient, weights), metrics


@partial(eqx.filter_jit)
def imitate_batch(
    learner: Learner, graphs: Graph, actions: Actions, weights: LossWeights, shape: Shape
) -> tuple[Learner, Array]:
    """One step towards known plans of stacked graphs."""

    def loss(network: Network) -> Array:
        def one(graph: Graph, plan: Actions) -> Array:
            return imitation_loss(run(network, graph, shape, BACKEND)[0], plan, masks(graph))

        return jax.vmap(one)(graphs, actions).mean()

    value, gradient = jax.value_and_grad(loss)(learner.network)
    return _apply_gradient(learner, gradient, weights), value


def segment_logits(
    network: Network, graph: Graph, memory: Memory, pick: Array, shape: Shape
) -> tuple[Logits, Actions]:
    """(logits, masks) of the segments `pick` [m] alone; groups count where their first node is in
    one of them. `memory` is what `run` returned, of this network or the one before."""
    xp, s, width = jnp, shape.segment, shape.width
    embedded = embed(network, graph, shape, BACKEND)
    context = context_of(embedded, graph, BACKEND)
    x, real = embedded.reshape(-1, s, width)[pick], graph.real.reshape(-1, s)[pick]
    begins = (pick == 0)[:, None]
    before = jnp.maximum(pick - 1, 0)
    real_before = graph.real.reshape(-1, s)[before] & ~begins
    layers = network.layers if shape.attention else ()
    seen = tuple(
        jnp.stack(
            [
                jnp.where(begins[..., None], 0, jax.lax.stop_gradient(memory[task][number][before]))
                for task in range(3)
            ]
        )
        for number in range(len(layers))
    )

    def pass_of(out: Array, given: tuple[Array, tuple[Array, ...]]) -> tuple[Array, Array]:
        task, kept = given
        out = out + x + task
        for layer, of_layer in zip(layers, kept, strict=True):
            out = attend(layer, context, out, of_layer, real, real_before, shape, BACKEND)
        return out, out

    # A loop over the tasks: half the time of the three passes written out, and less to compile.
    _, passes = jax.lax.scan(pass_of, xp.zeros_like(x), (network.task, seen))
    outputs = [each.reshape(-1, width) for each in passes]
    row = jnp.full(len(graph.kind) // s, -1).at[pick].set(jnp.arange(len(pick)))[graph.first // s]
    first = norm(xp, outputs[1][jnp.maximum(row, 0) * s + graph.first % s])
    device = place(network, graph, context, embedded, first, shape, BACKEND)
    fusion = apply(network.fusion, norm(xp, outputs[0]), context, shape, xp)
    schedule = apply(network.schedule, norm(xp, outputs[2]), context, shape, xp)
    nodes = picked_nodes(pick, s)
    whole = masks(graph)
    mask = Actions(whole.fusion[nodes], whole.device & (row >= 0), whole.schedule[nodes])
    return Logits(fusion, device, schedule), mask


def picked_nodes(pick: Array, s: int) -> Array:
    """int[P · s]: the nodes of the picked segments, `s` of them each."""
    return (pick[:, None] * s + jnp.arange(s)).ravel()


def _picked(batch: Batch, nodes: Array) -> Batch:
    def part(actions: Actions) -> Actions:
        return Actions(actions.fusion[..., nodes], actions.device, actions.schedule[..., nodes])

    return Batch(part(batch.actions), part(batch.log_prob), batch.advantage, part(batch.best))


@partial(eqx.filter_jit)
def learn_segments(
    learner: Learner,
    graph: Graph,
    memory: Memory,
    pick: Array,
    batch: Batch,
    weights: LossWeights,
    shape: Shape,
    per_node: bool,
) -> tuple[Learner, Metrics]:
    """One step on some segments of one graph."""

    def loss(network: Network) -> tuple[Array, Metrics]:
        logits, mask = segment_logits(network, graph, memory, pick, shape)
        return ppo_loss(logits, _picked(batch, picked_nodes(pick, shape.segment)), mask, weights, per_node)

    gradient, metrics = jax.grad(loss, has_aux=True)(learner.network)
    return _apply_gradient(learner, gradient, weights), metrics


@partial(eqx.filter_jit)
def imitate_segments(
    learner: Learner,
    graph: Graph,
    memory: Memory,
    pick: Array,
    actions: Actions,
    weights: LossWeights,
    shape: Shape,
) -> tuple[Learner, Array]:
    """One step towards a known plan, on some segments of one graph."""

    def loss(network: Network) -> Array:
        logits, mask = segment_logits(network, graph, memory, pick, shape)
        nodes = picked_nodes(pick, shape.segment)
        plan = Actions(actions.fusion[nodes], actions.device, actions.schedule[nodes])
        return imitation_loss(logits, plan, mask)

    value, gradient = jax.value_and_grad(loss)(learner.network)
    return _apply_gradient(learner, gradient, weights), value


# Learning which constructive placement a whole graph should follow, from times that were measured.
#
# Each training graph is timed once per hint. The few numbers that are known of a hint without a
# simulation, and of the graph, must tell which will be fast: the expected time is made small.

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


def learn_hint_choice(
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
    def learn(parts: Any, state: Any, key: Any) -> Any:
        def step(carry: Any, key: Any) -> Any:
            parts, state = carry
            change, state = adam.update(jax.grad(loss)(parts, key), state)
            return (optax.apply_updates(parts, change), state), None

        return jax.lax.scan(step, (parts, state), jax.random.split(key, STEPS))[0]

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
