"""Learning: the clipped objective of PPO with a ratio per decision; and one run that learns.

An episode is one step, so one forward pass serves all plans that are drawn. A graph that is too long
for one gradient is learned from in minibatches of segments: what the segment before held is cached
from the pass that drew the plans, so that the loss of a segment needs no other segment.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
from jax import Array

from loadmaster.graph import GraphOptimization
from loadmaster.graph.go.paper.actions import Actions, draw, joined, likeliest, padded, vectors_of
from loadmaster.graph.go.paper.graph import Graph
from loadmaster.graph.go.paper.network import (
    Logits,
    Memory,
    Network,
    apply,
    attend,
    context_of,
    embed,
    norm,
    place,
    run,
)
from loadmaster.graph.go.paper.settings import Settings, Shape
from loadmaster.graph.pipeline import batch_size
from loadmaster.learn import session as learn
from loadmaster.learn.backend import JaxBackend
from loadmaster.learn.checkpoints import restore_tree, tree_arrays
from loadmaster.search.solver import Meter, Solution, State, generator_state, restore_generator

Rng = np.random.Generator
Int32 = npt.NDArray[np.int32]

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


class LossWeights(NamedTuple):
    """Coefficients of one update; traced, so that a schedule does not recompile."""

    learning_rate: Array
    entropy: Array
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


def log_probs(logits: Logits, actions: Actions) -> Actions:
    """[plans, …] of each decision."""

    def one(logit: Array, action: Array) -> Array:
        log_prob = jax.nn.log_softmax(logit)
        return jnp.take_along_axis(log_prob[None], action[..., None].astype(jnp.int32), axis=2)[..., 0]

    return Actions(*(one(a, b) for a, b in zip(logits, actions, strict=True)))


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
    for share, step, logit, m in zip(SHARES, steps, logits, mask, strict=True):
        ratio = jnp.exp(jnp.clip(step, -20, 20))
        clipped = jnp.clip(ratio, 1 - weights.clip_ratio, 1 + weights.clip_ratio)
        log_prob = jax.nn.log_softmax(logit)
        entropy = _mean(-(jnp.exp(log_prob) * jnp.where(jnp.isfinite(log_prob), log_prob, 0)).sum(axis=1), m)
        total -= share * _mean(jnp.minimum(ratio * gain, clipped * gain), m[None])
        total -= share * weights.entropy * entropy
        kl += _mean(-step, m[None]) / 3
        mean_entropy += entropy / 3
    return total, Metrics(total, kl, mean_entropy)


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

    return Batch(part(batch.actions), part(batch.log_prob), batch.advantage)


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


HORIZON = 200
"""Updates over which rates fall where no budget says when it ends."""


class Rewards(NamedTuple):
    """The running mean and deviation of a graph's rewards."""

    mean: float = 0.0
    deviation: float = 0.0
    seen: bool = False

    def after(self, rewards: npt.NDArray[np.float64], decay: float) -> Rewards:
        keep = decay if self.seen else 0.0
        mean = keep * self.mean + (1 - keep) * float(rewards.mean())
        deviation = keep * self.deviation + (1 - keep) * float(rewards.std())
        return Rewards(mean, deviation, True)

    def advantage(self, rewards: npt.NDArray[np.float64], bound: float) -> npt.NDArray[np.float32]:
        scaled = (rewards - self.mean) / max(self.deviation, 1e-6)
        return np.clip(scaled, -bound, bound).astype(np.float32)


class Session(learn.Session):
    """Its state between updates is `learner`, `rewards`, `rng` and `update`."""

    def __init__(
        self, meter: Meter, settings: Settings, network: Network, graph: Graph, rng: Rng, state: State | None
    ) -> None:
        assert isinstance(meter.problem, GraphOptimization)
        super().__init__(meter)
        self.problem, self.settings = meter.problem, settings
        self.sizes = (graph.sizes[0], graph.sizes[2])
        self.segments = graph.sizes[0] // settings.segment
        self.graph: Graph = jax.tree.map(jnp.asarray, graph)
        self.learner, self.rewards, self.rng, self.update = make_learner(network), Rewards(), rng, 0
        self.resumed = state is not None
        if state is not None:
            self.learner, self.rng = restore_tree(self.learner, state), restore_generator(state["rng"])
            mean, deviation, seen = state["rewards"].tolist()
            self.rewards, self.update = Rewards(mean, deviation, bool(seen)), int(state["update"])

    def run(self) -> Solution:
        if not self.resumed:
            self._offer()
        while not self.meter.exhausted:
            if self._update():
                self._offer()
        return self.meter.solution(updates=self.update)

    def _update(self) -> bool:
        """Whether it was a whole one: the budget may end it, and then nothing goes on from it."""
        settings, problem = self.settings, self.problem
        logits, memory = logits_of(self.learner.network, self.graph, settings.shape)
        logits = Logits(*(np.asarray(part) for part in logits))
        plans = settings.samples_for(problem.nodes)
        drawn = draw(problem, logits, self.rng, plans)
        rewards = evaluated(self.meter, joined(drawn.actions, likeliest(problem, logits)))
        if self.meter.exhausted or len(rewards) <= plans:
            return False
        self.rewards = self.rewards.after(rewards[:plans], settings.decay)
        batch = Batch(
            self._padded(drawn.actions),
            self._padded(drawn.log_prob),
            jnp.asarray(self.rewards.advantage(rewards[:plans], settings.advantage)),
        )
        kl, entropy, done = self._learn(batch, memory)
        self.update += 1
        self.meter.progress(
            update=self.update,
            reward=float(rewards[:plans].mean()),
            likeliest=float(rewards[-1]),
            kl=kl,
            entropy=entropy,
        )
        return done

    def _learn(self, batch: Batch, memory: Memory) -> tuple[float, float, bool]:
        """(divergence, entropy, whether it came to its end)"""
        settings, weights = self.settings, self._weights()
        kl = entropy = 0.0
        for _ in range(settings.epochs_for(self.problem.nodes)):
            for pick in picks(self.rng, self.segments, settings):
                self.learner, metrics = learn_segments(
                    self.learner,
                    self.graph,
                    memory,
                    pick,
                    batch,
                    weights,
                    settings.shape,
                    settings.ratio == "node",
                )
                kl, entropy = float(metrics.kl), float(metrics.entropy)
                if self.meter.exhausted:
                    return kl, entropy, False
                if kl > settings.kl_stop:
                    return kl, entropy, True
        return kl, entropy, True

    def _weights(self) -> LossWeights:
        settings, share = self.settings, self._share()

        def between(first: float, last: float) -> float:
            return first + (last - first) * share

        numbers = (
            between(settings.rate, settings.rate_end),
            between(settings.entropy, settings.entropy_end),
            settings.clip,
            settings.gradient_bound,
        )
        return LossWeights(*(jnp.float32(number) for number in numbers))

    def _share(self) -> float:
        """How much of the run is over; by the clock only where nothing else ends it, so that the
        same seed and evaluations give the same answer."""
        budget = self.meter.budget
        if budget.evaluations is not None:
            return self.meter.evaluations / budget.evaluations
        if budget.seconds is not None:
            return min(1.0, self.meter.seconds / budget.seconds)
        return min(1.0, self.update / HORIZON)

    def _padded(self, actions: Actions) -> Actions:
        return Actions(*(jnp.asarray(part) for part in padded(actions, *self.sizes)))

    def _offer(self) -> None:
        if not self.meter.exhausted:
            self.offer_checkpoint()

    def arrays(self) -> State:
        """All that changes."""
        return {
            "update": np.array(self.update),
            "rewards": np.array(self.rewards, dtype=np.float64),
            "rng": generator_state(self.rng),
            **tree_arrays(self.learner),
        }


def picks(rng: Rng, segments: int, settings: Settings) -> list[Int32]:
    """Segments of each minibatch of an epoch, all of one size: one shape is compiled."""
    count = min(settings.most_minibatches, -(-segments // settings.minibatch))
    size = min(settings.minibatch, -(-segments // count))
    order = rng.permutation(segments).astype(np.int32)
    order = np.concatenate([order, order])  # the last one is filled up with the first segments
    return [order[at : at + size] for at in range(0, count * size, size)]


def evaluated(meter: Meter, actions: Actions) -> npt.NDArray[np.float64]:
    """Rewards of plans [plans, …], as far as the budget goes."""
    problem = meter.problem
    assert isinstance(problem, GraphOptimization)
    vectors, size = vectors_of(problem, actions), batch_size(problem, len(actions.device))
    reward = np.zeros(0)
    for at in range(0, len(vectors), size):  # large graphs a few at a time, so that time limits hold
        if not meter.exhausted:
            reward = np.concatenate([reward, meter.evaluate_many(vectors[at : at + size]).reward])
    return reward
