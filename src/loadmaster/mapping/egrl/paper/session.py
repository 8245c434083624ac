"""One run of published EGRL: its gradient learner, and what `PaperEgrl.run` does from its first generation, or
a checkpoint, to the end.

The learner is a discrete soft actor-critic on one-step episodes. The critic learns y = 5 (reward + 1) of stored
maps; the actor climbs the critic with a straight-through one-hot of its most likely map, and an entropy bonus.
What the population found reaches it through the buffer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array
from jax.flatten_util import ravel_pytree

from loadmaster.arrays import Float32, Float64, Int8, Int64
from loadmaster.learn import session as learn
from loadmaster.learn.checkpoints import restore_tree, tree_arrays
from loadmaster.learn.session import Ring
from loadmaster.mapping.egrl.paper import Settings
from loadmaster.mapping.egrl.paper.network import Actor, Critic, Graph, make_graph
from loadmaster.mapping.egrl.paper.population import (
    Chromosomes,
    breed,
    breed_chromosomes,
    choose,
    draw,
    find_shapes,
    first_chromosomes,
)
from loadmaster.mapping.problem import Mapping
from loadmaster.search.solver import Meter, Solution, State, generator_state, restore_generator

SCALE, SHIFT = 5.0, 1.0


class Learner(NamedTuple):
    """Parameters and the optimisers' states: all that training changes."""

    actor: Actor
    critic: Critic
    slow: Critic | None
    """The target critic; only with `target = "bootstrap"`."""
    actor_optimizer_state: Any
    critic_optimizer_state: Any


def optimizers(settings: Settings) -> tuple[optax.GradientTransformation, ...]:
    """The actor's and the critic's: clipped after the gradient exists, then Adam."""
    return tuple(
        optax.chain(optax.clip_by_global_norm(settings.gradient_clip), optax.adam(rate))
        for rate in (settings.actor_rate, settings.critic_rate)
    )


def first_learner(actor: Actor, critic: Critic, settings: Settings) -> Learner:
    """A learner that has learned nothing."""
    for_actor, for_critic = optimizers(settings)
    slow = critic if settings.target == "bootstrap" else None
    return Learner(
        actor,
        critic,
        slow,
        for_actor.init(eqx.filter(actor, eqx.is_array)),
        for_critic.init(eqx.filter(critic, eqx.is_array)),
    )


def improve(
    key: Array, learner: Learner, graph: Graph, maps: Array, rewards: Array, count: Array, settings: Settings
) -> tuple[Learner, Array]:
    """The first `count` of the updates that maps int8[U, batch, 2, n] and rewards [U, batch] hold: one compiled
    loop, whatever the count.

    Returns:
      The learner and the last critic loss.
    """
    arrays, rest = eqx.partition(learner, eqx.is_array)

    def body(number: Array, carry: tuple[Any, Array]) -> tuple[Any, Array]:
        now = eqx.combine(carry[0], rest)
        fresh = jax.random.fold_in(key, number)
        after, loss = _update(fresh, now, graph, maps[number], rewards[number], settings)
        return eqx.filter(after, eqx.is_array), loss

    arrays, loss = jax.lax.fori_loop(0, count, body, (arrays, jnp.float32(0)))
    return eqx.combine(arrays, rest), loss


def _update(
    key: Array, learner: Learner, graph: Graph, maps: Array, rewards: Array, settings: Settings
) -> tuple[Learner, Array]:
    for_actor, for_critic = optimizers(settings)
    noise = settings.action_noise * jax.random.normal(key, (*maps.shape, graph.memories))
    actions = jnp.clip(jax.nn.one_hot(maps, graph.memories) + noise, 0, 1)
    target = SCALE * (rewards + SHIFT)
    if settings.target == "bootstrap":
        target = target + settings.discount * _later(learner, graph, settings)

    def critic_loss(critic: Critic) -> Array:
        values = jax.vmap(lambda action: critic(graph, action))(actions)  # [batch, 2]
        return ((values - target[:, None]) ** 2).mean(axis=0).sum()

    def actor_loss(actor: Actor) -> Array:
        p = jax.nn.softmax(actor(graph), axis=-1)
        hard = jax.nn.one_hot(p.argmax(-1), graph.memories)
        value = critic(graph, hard + p - jax.lax.stop_gradient(p)).min()
        return -(value + settings.entropy * _entropy(p, graph))

    loss, gradient = eqx.filter_value_and_grad(critic_loss)(learner.critic)
    change, critic_optimizer_state = for_critic.update(gradient, learner.critic_optimizer_state)
    critic = eqx.apply_updates(learner.critic, change)
    gradient = eqx.filter_grad(actor_loss)(learner.actor)
    change, actor_optimizer_state = for_actor.update(gradient, learner.actor_optimizer_state)
    actor = eqx.apply_updates(learner.actor, change)
    slow = learner.slow
    if slow is not None:
        slow = jax.tree.map(
            lambda old, new: old + settings.polyak * (new - old) if eqx.is_array(old) else old, slow, critic
        )
    return Learner(actor, critic, slow, actor_optimizer_state, critic_optimizer_state), loss


def _later(learner: Learner, graph: Graph, settings: Settings) -> Array:
    """The circulated bootstrap: the value of what the actor would do next."""
    assert learner.slow is not None
    p = jax.nn.softmax(learner.actor(graph), axis=-1)
    value = learner.slow(graph, p).min() + 0.2 * settings.entropy * _entropy(p, graph)
    return jax.lax.stop_gradient(value)


def _entropy(p: Array, graph: Graph) -> Array:
    """Summed over the two heads, the mean over entries that decide something."""
    each = -(p * jnp.log(p + 1e-9)).sum(-1)
    return (jnp.where(graph.live, each, 0).sum(-1) / jnp.maximum(graph.live.sum(-1), 1)).sum()


KINDS = ("gnn", "boltzmann", "learner", "none")
_COUNTERS = ("learned", "generation", "champion", "invalid", "first_valid")


@dataclass
class Progress:
    """Everything that changes while EGRL runs."""

    rng: np.random.Generator
    stack: Float32
    """[G, W] the weights of the GNNs"""
    chromosomes: Chromosomes
    learner: Learner
    maps: Int8
    """[replay, 2N] the replay buffer. Its size does not depend on the budget, which may be another one
    when a run is resumed."""
    rewards: Float64
    """[replay]"""
    ring: Ring
    learned: int = 0
    """Of what was stored, how much an update has been made for."""
    generation: int = 0
    champion: int = KINDS.index("none")
    invalid: int = 0
    first_valid: int = -1

    def store(self, maps: Int8, rewards: Float64) -> None:
        """Append transitions to the replay buffer."""
        self.ring.store(len(maps), (self.maps, maps), (self.rewards, rewards))

    def arrays(self) -> State:
        filled, counters = self.ring.filled, [getattr(self, name) for name in _COUNTERS]
        return {
            "rng": generator_state(self.rng),
            "counters": np.array([self.ring.stored, *counters], dtype=np.int64),
            "stack": self.stack,
            **{f"chromosomes.{name}": array for name, array in self.chromosomes._asdict().items()},
            "maps": self.maps[:filled],
            "rewards": self.rewards[:filled],
            **tree_arrays(self.learner),
        }

    def restore(self, state: State) -> None:
        """Go on from `arrays`; this object gives the shapes."""
        self.learner = restore_tree(self.learner, state)
        self.stack = np.array(state["stack"])
        self.chromosomes = Chromosomes(
            *(np.array(state[f"chromosomes.{name}"]) for name in Chromosomes._fields)
        )
        self.rng = restore_generator(state["rng"])
        self.ring.stored, *counters = state["counters"].tolist()
        for name, value in zip(_COUNTERS, counters, strict=True):
            setattr(self, name, value)
        count = len(state["rewards"])
        self.maps[:count], self.rewards[:count] = state["maps"], state["rewards"]


class Session(learn.Session):
    """A meter, a graph, and the compiled parts that work on them."""

    def __init__(self, meter: Meter, seed: int, settings: Settings, state: State | None) -> None:
        assert isinstance(meter.problem, Mapping)
        super().__init__(meter, "evaluate", "forward", "gradient", "evolve")
        self.settings, self.problem = settings, meter.problem
        self.graph = make_graph(self.problem)
        self.budget = meter.budget.evaluations or settings.horizon
        self.key = jax.random.key(seed)
        self.live = np.flatnonzero(self.problem.live)
        like = Actor(len(self.problem.memories), settings, self.key)
        self.shapes = find_shapes([leaf.shape for leaf in jax.tree.leaves(like)])
        self.forward = _forward(settings.compiled, len(self.problem.memories))
        self.gradient = _gradient(settings.compiled)
        self.now = self._first(seed)
        if state is not None:
            self.now.restore(state)

    def _first(self, seed: int) -> Progress:
        settings, memories, entries = self.settings, len(self.problem.memories), 2 * self.problem.nodes
        keys = jax.random.split(self.key, 3)
        rng = np.random.default_rng(seed)
        # One after another: a batch would compile every initialiser once more.
        each = jax.random.split(keys[0], max(1, settings.gnns))
        stack = np.stack([ravel_pytree(Actor(memories, settings, key))[0] for key in each])
        actor, critic = Actor(memories, settings, keys[1]), Critic(memories, settings, keys[2])
        return Progress(
            rng=rng,
            stack=stack[: settings.gnns],
            chromosomes=first_chromosomes(rng, settings.chromosomes, entries, memories),
            learner=first_learner(actor, critic, settings),
            maps=np.zeros((settings.replay, entries), dtype=np.int8),
            rewards=np.zeros(settings.replay),
            ring=Ring(settings.replay),
        )

    def arrays(self) -> State:
        return self.now.arrays()

    def run(self) -> Solution:
        meter, now = self.meter, self.now
        while not meter.exhausted:
            self._generation()
            self.offer_checkpoint()
            meter.progress(generation=now.generation, **self.seconds)
        return meter.solution(
            champion_kind=KINDS[now.champion],
            invalid_fraction=now.invalid / max(1, meter.evaluations),
            first_valid_at=None if now.first_valid < 0 else now.first_valid,
            unpackable=meter.unpackable,
            seconds_split=dict(self.seconds),
            generations=now.generation,
        )

    def _generation(self) -> None:
        now, settings = self.now, self.settings
        now.generation += 1
        stack, fitness = now.stack, np.empty(0)
        probabilities = np.empty((0, 2 * self.problem.nodes, len(self.problem.memories)), dtype=np.float32)
        if settings.population:
            fitness, probabilities = self._population()
        if settings.learner and not self.meter.exhausted:
            self._learn()
            actor = np.asarray(ravel_pytree(now.learner.actor)[0])[None]
            stack = np.concatenate([stack, actor])
            probabilities = np.concatenate([probabilities, self._rollouts(actor)])
        if settings.population and not self.meter.exhausted:
            with self.timed("evolve"):
                plan = choose(now.rng, fitness, settings)
                now.stack = breed(now.rng, stack, self.shapes, plan)
                if settings.chromosomes:
                    now.chromosomes = breed_chromosomes(now.rng, probabilities, now.chromosomes, plan)

    def _population(self) -> tuple[Float64, Float32]:
        """(fitness of each slot, probabilities of the GNNs)"""
        now, settings = self.now, self.settings
        with self.timed("forward"):
            found, probabilities = (
                np.asarray(x)[: settings.gnns] for x in self.forward(now.stack, self.graph)
            )
        maps = np.concatenate([found, draw(now.rng, now.chromosomes)])
        fitness = np.full(settings.population, -np.inf)
        scored = self._submit(maps, np.repeat([0, 1], [settings.gnns, settings.chromosomes]))
        fitness[: len(scored)] = scored
        return fitness, probabilities

    def _rollouts(self, actor: Float32) -> Float32:
        """[1, 2N, M]: probabilities of the learner, after its noisy and its greedy map were scored."""
        with self.timed("forward"):
            greedy, probabilities = (np.asarray(x) for x in self.forward(actor, self.graph))
        self._submit(np.concatenate([self._explored(greedy[0])[None], greedy]), np.array([2, 2]))
        return probabilities

    def _explored(self, greedy: Int8) -> Int8:
        """The greedy map with entries replaced at random: all of them at first, few at the end."""
        rng, live = self.now.rng, self.live
        share = 0.05 + 0.95 * np.exp(-self.meter.evaluations / (0.1 * self.budget))
        noisy = greedy.copy()
        changed = live[rng.random(len(live)) < share]
        noisy[changed] = rng.integers(0, len(self.problem.memories), len(changed))
        return noisy

    def _submit(self, maps: Int8, kinds: Int64) -> Float64:
        """Have maps scored, remember them, and see who found the best."""
        now, before, start = self.now, self.meter.best_value, self.meter.evaluations
        # Entries that decide nothing are as the problem writes them.
        maps = np.where(self.problem.live, maps, self.problem.all_slowest()).astype(np.int8)
        with self.timed("evaluate"):
            scores = self.meter.evaluate_many(maps)
        count = len(scores.reward)
        kept = np.ones(count, dtype=np.bool_) if scores.failed is None else ~scores.failed
        now.store(maps[:count][kept], scores.reward[kept])
        now.invalid += int((scores.value < 0).sum())
        if now.first_valid < 0 and (scores.value >= 0).any():
            now.first_valid = start + int(np.argmax(scores.value >= 0)) + 1
        if self.meter.best_value != before:
            now.champion = int(kinds[np.argmax(scores.value == self.meter.best_value)])
        return scores.reward

    def _learn(self) -> None:
        now, settings = self.now, self.settings
        key = jax.random.fold_in(self.key, now.generation)
        if now.ring.stored < settings.burn_in:
            now.learned = now.ring.stored  # what came before the burn-in is not made up for
            return
        updates = round(settings.updates * (now.ring.stored - now.learned))
        now.learned = now.ring.stored
        chunk = max(1, round(settings.updates * (settings.population + 2)))
        with self.timed("gradient"):
            for begin in range(0, updates, chunk):
                rows = now.rng.integers(0, now.ring.filled, (chunk, settings.batch))
                now.learner, _ = self.gradient(
                    jax.random.fold_in(key, begin),
                    now.learner,
                    self.graph,
                    now.maps[rows].reshape(chunk, settings.batch, 2, self.problem.nodes),
                    now.rewards[rows].astype(np.float32),
                    # As an array: a plain number would be compiled in, once for each.
                    np.array(min(chunk, updates - begin)),
                )
            jax.block_until_ready(now.learner.actor)


def decide(actor: Actor, graph: Graph) -> tuple[Array, Array]:
    """(the most likely map int8[2n], probabilities [2n, M]) of one actor."""
    p = jax.nn.softmax(actor(graph), axis=-1)
    return p.argmax(-1).astype(jnp.int8).reshape(-1), p.reshape(-1, graph.memories)


@lru_cache(maxsize=8)
def _forward(settings: Settings, memories: int) -> Any:
    """[G, W] -> (maps int8[G, 2n], probabilities [G, 2n, M]); kept, so that a second run of the same
    network does not compile again."""
    unravel = ravel_pytree(Actor(memories, settings, jax.random.key(0)))[1]
    return jax.jit(lambda stack, graph: jax.vmap(lambda flat: decide(unravel(flat), graph))(stack))


@lru_cache(maxsize=8)
def _gradient(settings: Settings) -> Any:
    return eqx.filter_jit(partial(improve, settings=settings))
