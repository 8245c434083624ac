"""One run of EGRL: what `Egrl.run` does from its first generation, or a checkpoint, to the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax import Array
from jax.flatten_util import ravel_pytree

from loadmaster.learn import session as learn
from loadmaster.learn.checkpoints import restore_tree, tree_arrays
from loadmaster.learn.policies import policy_arrays
from loadmaster.learn.session import Ring
from loadmaster.mapping.egrl.graph import Graph, make_graph
from loadmaster.mapping.egrl.learner import Learner, first_learner, improve
from loadmaster.mapping.egrl.network import Actor, Critic
from loadmaster.mapping.egrl.population import (
    Chromosomes,
    Proposals,
    breed,
    breed_chromosomes,
    choose,
    chromosomes_around,
    draw,
    find_shapes,
    first_chromosomes,
    mutants,
    settle,
)
from loadmaster.mapping.egrl.screen import LinearCritic
from loadmaster.mapping.egrl.settings import Settings
from loadmaster.mapping.features import node_features
from loadmaster.mapping.problem import Mapping
from loadmaster.program.models import load_model
from loadmaster.search.solver import Meter, Solution, State, generator_state, restore_generator

# Which of the many networks of a run becomes its policy: the one that decides best on the workload
# that it was trained on and, if there are any, on workloads that it was only tried on.
#
# Nothing flows back: neither training nor the search for maps knows of these trials, and they are not
# counted as evaluations.

Float32 = npt.NDArray[np.float32]
EVERY = 10
"""Generations between two looks."""


class PolicyChoice:
    """Keeps the best network so far. `validate` names models, separated by semicolons."""

    def __init__(self, problem: Mapping, validate: str, forward: Callable[..., Any]) -> None:
        self.problem, self.forward = problem, forward
        names = validate.split(";") if validate else []
        self.others = [Mapping(load_model(name), problem.machine) for name in names]
        self.graphs = [make_graph(other) for other in self.others]
        self.weights: Float32 | None = None
        self.fitness = -np.inf

    def consider(self, stack: Float32, rewards: npt.NDArray[np.float64]) -> None:
        """Networks [G, W] and what their maps earned in training: > 0 where they fitted."""
        # Speed-ups over the compiler as logarithms, so that no workload outweighs another.
        fitness = np.where(rewards > 0, np.log(np.maximum(rewards, 1e-9)) / self.problem.power, -np.inf)
        if not np.isfinite(fitness).any():
            return
        for other, graph in zip(self.others, self.graphs, strict=True):
            maps = np.asarray(self.forward(stack, graph)[0])
            fitness = fitness + np.log(other.compiler_ps / other.rectify(maps)[0])
        best = int(np.argmax(fitness))
        if fitness[best] > self.fitness:
            self.weights, self.fitness = np.array(stack[best]), float(fitness[best])

    def arrays(self) -> State:
        """For a checkpoint."""
        if self.weights is None:
            return {}
        return {"choice.weights": self.weights, "choice.worth": np.array(self.fitness)}

    def restore(self, state: State) -> None:
        if "choice.weights" in state:
            self.weights, self.fitness = (np.array(state["choice.weights"]), float(state["choice.worth"]))


KINDS = ("gnn", "boltzmann", "learner", "none")
_STORED = ("prior", "temperature", "anchor", "worth")
"""Names of the fields of `Chromosomes` in checkpoints, as they always were."""


@dataclass
class Progress:
    """Everything that changes while EGRL runs."""

    rng: np.random.Generator
    stack: npt.NDArray[np.float32]
    """[G, W] the weights of the GNNs"""
    chromosomes: Chromosomes
    learner: Learner
    maps: npt.NDArray[np.int8]
    """[replay, 2N] the replay buffer. Its size does not depend on the budget, which may be another one
    when a run is resumed."""
    rewards: npt.NDArray[np.float64]
    """[replay]"""
    ring: Ring
    learned: int = 0
    """Of those, how many an update has been made for."""
    generation: int = 0
    champion: int = KINDS.index("none")
    invalid: int = 0
    first_valid: int = -1
    place: dict[bytes, int] = field(default_factory=dict)
    """Where each map was stored last; the ring may hold another one there by now."""

    def store(self, maps: npt.NDArray[np.int8], rewards: npt.NDArray[np.float64]) -> None:
        """Append transitions to the replay buffer."""
        self._index(self.ring.store(len(maps), (self.maps, maps), (self.rewards, rewards)))

    def _index(self, places: npt.NDArray[np.int64]) -> None:
        self.place |= {self.maps[place].tobytes(): place for place in places.tolist()}

    def recall(self, decision: npt.NDArray[np.int8]) -> float:
        """The reward of a map that the buffer holds; NaN: it does not."""
        place = self.place.get(decision.tobytes())
        if place is None or not np.array_equal(self.maps[place], decision):
            return float("nan")
        return float(self.rewards[place])

    def arrays(self) -> State:
        filled, kept = self.ring.filled, self.chromosomes._asdict().values()
        counters = [
            self.ring.stored,
            self.learned,
            self.generation,
            self.champion,
            self.invalid,
            self.first_valid,
        ]
        return {
            "rng": generator_state(self.rng),
            "counters": np.array(counters, dtype=np.int64),
            "stack": self.stack,
            **{f"chromosomes.{name}": array for name, array in zip(_STORED, kept, strict=True)},
            "maps": self.maps[:filled],
            "rewards": self.rewards[:filled],
            **tree_arrays(self.learner),
        }

    def restore(self, state: State) -> None:
        """Go on from `arrays`; this object gives the shapes."""
        self.learner = restore_tree(self.learner, state)
        self.stack = np.array(state["stack"])
        self.chromosomes = Chromosomes(*(np.array(state[f"chromosomes.{name}"]) for name in _STORED))
        self.rng = restore_generator(state["rng"])
        (self.ring.stored, self.learned, self.generation, self.champion, self.invalid, self.first_valid) = (
            int(x) for x in state["counters"]
        )
        count = len(state["rewards"])
        self.maps[:count], self.rewards[:count] = state["maps"], state["rewards"]
        self._index(self.ring.oldest_first())


Maps = npt.NDArray[np.int8]
MOST_SCREENED = 4_000_000
"""Entries of all draws of a generation together: large programs have fewer draws to pick from."""


class Session(learn.Session):
    """A meter, a graph, and the compiled parts that work on them."""

    def __init__(
        self, meter: Meter, seed: int, settings: Settings, init: str | None, state: State | None
    ) -> None:
        assert isinstance(meter.problem, Mapping)
        super().__init__(meter, "evaluate", "forward", "gradient", "screen", "evolve")
        self.settings, self.problem = settings, meter.problem
        self.graph = make_graph(self.problem)
        self.budget = meter.budget.evaluations or settings.horizon
        self.key = jax.random.key(seed)
        self.live = np.flatnonzero(self.problem.live)
        like = Actor(len(self.problem.memories), settings, self.key)
        self.unravel = ravel_pytree(like)[1]
        self.shapes = find_shapes([leaf.shape for leaf in jax.tree.leaves(like)])
        self.forward = _forward(settings.compiled, len(self.problem.memories))
        self.gradient = _gradient(settings.compiled)
        self.now = self._first(seed, init)
        self.critic = LinearCritic(node_features(self.problem), self.problem.live, len(self.problem.memories))
        self.choice = PolicyChoice(self.problem, settings.validate, self.forward)
        if state is not None:
            for part in (self.now, self.critic, self.choice):
                part.restore(state)
        self.repeatable = self.problem.repeatable

    def _first(self, seed: int, init: str | None) -> Progress:
        settings, memories = self.settings, len(self.problem.memories)
        keys = jax.random.split(self.key, 3)
        rng = np.random.default_rng(seed)
        # One after another: a batch would compile every initialiser once more.
        each = jax.random.split(keys[0], max(1, settings.gnns))
        stack = np.stack([ravel_pytree(Actor(memories, settings, key))[0] for key in each])
        actor, entries = Actor(memories, settings, keys[1]), 2 * self.problem.nodes
        chromosomes = first_chromosomes(rng, settings.chromosomes, entries, memories)
        if init is not None:
            from loadmaster.mapping.egrl.agent import load_policy

            actor, half = load_policy(init, actor), (len(stack) + 1) // 2
            stack[:half] = ravel_pytree(actor)[0]
            stack[1:half] = mutants(rng, stack[1:half], self.shapes)
            found, likely = (np.asarray(x)[0] for x in self.forward(stack[:1], self.graph))
            chromosomes = chromosomes_around(rng, settings.chromosomes, self._canonical(found), likely)
        return Progress(
            rng=rng,
            stack=stack[: settings.gnns],
            chromosomes=chromosomes,
            learner=first_learner(actor, Critic(memories, settings, keys[2]), settings),
            maps=np.zeros((settings.replay, entries), dtype=np.int8),
            rewards=np.zeros(settings.replay),
            ring=Ring(settings.replay),
        )

    def begin(self, decision: Maps) -> None:
        """Score a map that is known from elsewhere; the first chromosome stays around it."""
        reward = self._submit(decision[None], np.array([1]))
        if self.settings.chromosomes and self.settings.anchor:
            self.now.chromosomes = settle(self.now.chromosomes, np.array([0]), decision[None], reward)

    def run(self) -> Solution:
        meter = self.meter
        while not meter.exhausted:
            self._generation()
            self.offer_checkpoint()
            meter.progress(generation=self.now.generation, **self.seconds)
        share = self.now.invalid / max(1, meter.evaluations)
        return meter.solution(
            champion_kind=KINDS[self.now.champion],
            invalid_fraction=share,
            first_valid_at=None if self.now.first_valid < 0 else self.now.first_valid,
            unpackable=meter.unpackable,
            seconds_split=dict(self.seconds),
            generations=self.now.generation,
            policy=self._policy(),
        )

    def _generation(self) -> None:
        now, settings = self.now, self.settings
        now.generation += 1
        stack, proposed = now.stack, None
        if settings.population:
            fitness, proposed = self._population()
        if settings.learner and not self.meter.exhausted:
            self._learn()
            actor = np.asarray(ravel_pytree(now.learner.actor)[0])[None]
            mine = self._rollouts(actor)
            if proposed is not None:
                stack = np.concatenate([stack, actor])
                proposed = proposed.join(mine)
            elif now.generation % EVERY == 1:
                self.choice.consider(actor, mine.rewards)
        if proposed is not None and (now.generation % EVERY == 1 or self.meter.exhausted):
            self.choice.consider(stack[: len(proposed.rewards)], proposed.rewards)
        if proposed is not None and not self.meter.exhausted:
            with self.timed("evolve"):
                plan = choose(now.rng, fitness, settings)
                now.stack = breed(now.rng, stack, self.shapes, plan)
                if settings.chromosomes:
                    now.chromosomes = breed_chromosomes(now.rng, proposed, now.chromosomes, plan, settings)

    def _population(self) -> tuple[npt.NDArray[np.float64], Proposals]:
        """(fitness of each slot, what the GNNs proposed)"""
        now, settings = self.now, self.settings
        gnns, members = settings.gnns, np.arange(settings.chromosomes)
        with self.timed("forward"):
            found, probabilities = (np.asarray(x)[:gnns] for x in self.forward(now.stack, self.graph))
            found = self._canonical(found)
        known = self._recall(found)
        new = np.flatnonzero(np.isnan(known))
        # What is known already need not be evaluated again: chromosomes have those evaluations.
        rivals = now.rng.integers(0, max(1, len(members)), (gnns - len(new), 2))
        compared = now.chromosomes.fitness[rivals] if len(members) else np.empty((0, 2))
        drawn_by = np.concatenate([members, rivals[np.arange(len(compared)), compared.argmax(1)]])
        with self.timed("screen"):
            drawn = self._drawn(drawn_by)
        maps = np.concatenate([found[new], drawn])
        rewards = np.full(len(maps), -np.inf)
        scored = self._submit(maps, np.repeat([0, 1], [len(new), len(drawn)]))
        rewards[: len(scored)] = scored
        fitness = np.concatenate([known, rewards[len(new) :][: len(members)]])
        fitness[new] = rewards[: len(new)]
        if settings.anchor:
            now.chromosomes = settle(now.chromosomes, drawn_by, drawn, rewards[len(new) :])
            fitness[gnns:] = now.chromosomes.fitness
        return fitness, Proposals(found, probabilities, fitness[:gnns])

    def _drawn(self, members: npt.NDArray[np.int64]) -> Maps:
        """A map from each of these chromosomes: the one that the linear critic likes best."""
        now, settings = self.now, self.settings
        each_draw = max(1, len(members)) * len(self.live)
        many = min(settings.screen, max(1, MOST_SCREENED // each_draw)) if settings.learner else 1
        each = now.chromosomes.take(np.repeat(members, many))
        maps = draw(now.rng, each, self.live, settings).reshape(len(members), many, 2 * self.problem.nodes)
        maps = self._canonical(maps)
        if many == 1 or not len(members):
            return maps[:, 0]
        half = many // 2
        anchor = np.repeat(now.chromosomes.anchor[members], half, axis=0)
        swapped = self.critic.exchange(now.rng, anchor).reshape(len(members), half, -1)
        anchored = np.isfinite(now.chromosomes.fitness[members])[:, None, None]
        maps[:, half:] = np.where(anchored, swapped, maps[:, half:])
        return self.critic.pick(now.rng, maps)

    def _recall(self, maps: Maps) -> npt.NDArray[np.float64]:
        """The rewards of maps that were scored before; NaN for the others."""
        if (
            not (self.settings.recall and self.settings.anchor and self.settings.chromosomes)
            or not self.repeatable
        ):
            return np.full(len(maps), np.nan)
        return np.array([self.now.recall(row) for row in maps])

    def _rollouts(self, actor: npt.NDArray[np.float32]) -> Proposals:
        """The learner's two maps, one noisy and one greedy, scored."""
        with self.timed("forward"):
            greedy, mine = (np.asarray(x) for x in self.forward(actor, self.graph))
        both = np.concatenate([self._explored(greedy[0])[None], greedy])
        rewards = self._submit(both, np.array([2, 2]))
        return Proposals(greedy, mine, rewards[1:] if len(rewards) > 1 else np.array([-np.inf]))

    def _submit(self, maps: Maps, kinds: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Have maps scored, remember them, and see who found the best."""
        now, before, start = self.now, self.meter.best_value, self.meter.evaluations
        maps = self._canonical(maps)
        with self.timed("evaluate"):
            scores = self.meter.evaluate_many(maps)
        count = len(scores.reward)
        kept = np.ones(count, dtype=np.bool_) if scores.failed is None else ~scores.failed
        now.store(maps[:count][kept], scores.reward[kept])
        if self.settings.learner and self.settings.screen > 1:
            with self.timed("screen"):
                self.critic.learn(maps[:count][kept], scores.value[kept])
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
        known = self.meter.best if settings.imitation else None
        best = np.full(2 * self.problem.nodes, -1) if known is None else known
        best = best.astype(np.int8).reshape(2, self.problem.nodes)
        with self.timed("gradient"):
            for begin in range(0, updates, chunk):
                # As an array: a plain number would be compiled in, once for each.
                count = np.array(min(chunk, updates - begin))
                rows = now.rng.integers(0, now.ring.filled, (chunk, settings.batch))
                maps = now.maps[rows].reshape(chunk, settings.batch, 2, self.problem.nodes)
                now.learner, _ = self.gradient(
                    jax.random.fold_in(key, begin),
                    now.learner,
                    self.graph,
                    maps,
                    now.rewards[rows].astype(np.float32),
                    best,
                    count,
                )
            jax.block_until_ready(now.learner.actor)

    def _explored(self, greedy: Maps) -> Maps:
        """The greedy map with entries replaced at random: all of them at first, few at the end."""
        rng, live = self.now.rng, self.live
        share = 0.05 + 0.95 * np.exp(-self.meter.evaluations / (0.1 * self.budget))
        noisy = greedy.copy()
        changed = live[rng.random(len(live)) < share]
        noisy[changed] = rng.integers(0, len(self.problem.memories), len(changed))
        return noisy

    def _policy(self) -> dict[str, npt.NDArray[Any]]:
        """The network that decided best; the actor, if none ever decided on a map that fits."""
        best = self.choice.weights
        return policy_arrays(self.now.learner.actor if best is None else self.unravel(best))

    def _canonical(self, maps: Maps) -> Maps:
        """With entries that decide nothing as the problem writes them."""
        return np.where(self.problem.live, maps, np.int8(self.problem.slowest)).astype(np.int8)

    def arrays(self) -> State:
        """All that changes."""
        return {**self.now.arrays(), **self.critic.arrays(), **self.choice.arrays()}


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
