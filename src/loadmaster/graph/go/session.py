"""One run of GO that learns: draw plans, time them, make the better ones likelier."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from loadmaster.graph import GraphOptimization
from loadmaster.graph.go.actions import Actions, actions_of, draw, joined, likeliest, padded, row_of
from loadmaster.graph.go.agent import evaluated
from loadmaster.graph.go.graph import Graph
from loadmaster.graph.go.learner import (
    Batch,
    LossWeights,
    imitate_segments,
    learn_segments,
    logits_of,
    make_learner,
)
from loadmaster.graph.go.network import Logits, Memory, Network
from loadmaster.graph.go.settings import Settings
from loadmaster.graph.pipeline import seeds
from loadmaster.learn import session as learn
from loadmaster.learn.checkpoints import restore_tree, tree_arrays
from loadmaster.learn.policies import policy_arrays
from loadmaster.search.solver import Meter, Solution, State, generator_state, restore_generator

Rng = np.random.Generator
Int32 = npt.NDArray[np.int32]

WARM_SHARE = 0.3
"""Of the time that is left, at most, for known plans and for imitating the best of them."""
IMITATED = 8
"""Known plans that are tried in the policy's own levels."""
REFRESHED = 8
"""Steps of imitation after which what segments see of each other is made anew."""
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
    """Its state between updates is `learner`, `rewards`, `best`, `rng` and `update`."""

    def __init__(
        self,
        meter: Meter,
        settings: Settings,
        network: Network,
        graph: Graph,
        rng: Rng,
        best: Actions | None,
        state: State | None,
    ) -> None:
        assert isinstance(meter.problem, GraphOptimization)
        super().__init__(meter)
        self.problem, self.settings = meter.problem, settings
        self.sizes = (graph.sizes[0], graph.sizes[2])
        self.segments = graph.sizes[0] // settings.segment
        self.graph: Graph = jax.tree.map(jnp.asarray, graph)
        self.learner, self.rewards, self.rng, self.update = make_learner(network), Rewards(), rng, 0
        self.best = best
        self.resumed = state is not None
        if state is not None:
            self.learner, self.rng = restore_tree(self.learner, state), restore_generator(state["rng"])
            mean, deviation, seen = state["rewards"].tolist()
            self.rewards, self.update = Rewards(mean, deviation, bool(seen)), int(state["update"])
            kept = Actions(*(np.array(state[f"best.{name}"]) for name in Actions._fields))
            self.best = kept if state["known"] else None

    def run(self) -> Solution:
        settings = self.settings
        if not self.resumed:
            if settings.mode == "one" and settings.warm_start == "imitate":
                self._warm_start()
            self._offer()
        most = settings.updates if settings.mode == "fine-tune" else 0
        while not self.meter.exhausted and (most == 0 or self.update < most):
            if self._update():
                self._offer()
        network = jax.tree.map(np.asarray, self.learner.network)
        return self.meter.solution(updates=self.update, policy=policy_arrays(network))

    def _warm_start(self) -> None:
        """Imitate the best constructive plan, as the policy's own levels can say it."""
        left = self.meter.seconds_left
        until = None if left is None else self.meter.seconds + WARM_SHARE * left
        made = seeds(self.problem, None if left is None else WARM_SHARE * left / 2)
        known = np.stack([vector for _, vector in made])
        value = self.meter.evaluate_many(known).value
        if self.meter.exhausted:
            return
        order = np.argsort(np.where(value < 0, np.iinfo(np.int64).max, value), kind="stable")
        tried = _levels(self.problem, known[order[:IMITATED]])
        rewards, _ = evaluated(self.meter, tried)
        if not len(rewards):
            return
        self.best = row_of(tried, int(rewards.argmax()))
        plan = self._padded(self.best)
        memory: Memory = ()
        for step in range(self.settings.warm_steps):
            if self.meter.exhausted or (until is not None and self.meter.seconds > until):
                return
            if step % REFRESHED == 0:
                _, memory = logits_of(self.learner.network, self.graph, self.settings.shape)
            pick = picks(self.rng, self.segments, self.settings)[0]
            self.learner, _ = imitate_segments(
                self.learner, self.graph, memory, pick, plan, self._weights(), self.settings.shape
            )

    def _update(self) -> bool:
        """Whether it was a whole one: the budget may end it, and then nothing goes on from it."""
        settings, problem = self.settings, self.problem
        logits, memory = logits_of(self.learner.network, self.graph, settings.shape)
        logits = Logits(*(np.asarray(part) for part in logits))
        plans = settings.samples_for(problem.nodes)
        drawn = draw(problem, logits, self.rng, plans)
        rewards, best = evaluated(self.meter, joined(drawn.actions, likeliest(problem, logits)))
        self.best = best or self.best
        if self.meter.exhausted or len(rewards) <= plans:
            return False
        self.rewards = self.rewards.after(rewards[:plans], settings.decay)
        batch = Batch(
            self._padded(drawn.actions),
            self._padded(drawn.log_prob),
            jnp.asarray(self.rewards.advantage(rewards[:plans], settings.advantage)),
            self._padded(row_of(drawn.actions, 0) if self.best is None else self.best),
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

        tuned = settings.mode == "fine-tune"
        rate = settings.tuning_rate if tuned else between(settings.rate, settings.rate_end)
        imitation = 0.0 if self.best is None else settings.imitation
        numbers = (
            rate,
            between(settings.entropy, settings.entropy_end),
            imitation,
            settings.clip,
            settings.gradient_bound,
        )
        return LossWeights(*(jnp.float32(number) for number in numbers))

    def _share(self) -> float:
        """How much of the run is over; by the clock only where nothing else ends it, so that the
        same seed and evaluations give the same answer."""
        budget = self.meter.budget
        if self.settings.mode == "fine-tune" and self.settings.updates:
            return self.update / self.settings.updates
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
        best = self.best or Actions(*(np.zeros(0, np.int8) for _ in Actions._fields))
        return {
            "update": np.array(self.update),
            "rewards": np.array(self.rewards, dtype=np.float64),
            "rng": generator_state(self.rng),
            "known": np.array(self.best is not None),
            **{f"best.{name}": part for name, part in best._asdict().items()},
            **tree_arrays(self.learner),
        }


def picks(rng: Rng, segments: int, settings: Settings) -> list[Int32]:
    """Segments of each minibatch of an epoch, all of one size: one shape is compiled."""
    count = min(settings.most_minibatches, -(-segments // settings.minibatch))
    size = min(settings.minibatch, -(-segments // count))
    order = rng.permutation(segments).astype(np.int32)
    order = np.concatenate([order, order])  # the last one is filled up with the first segments
    return [order[at : at + size] for at in range(0, count * size, size)]


def _levels(problem: GraphOptimization, vectors: npt.NDArray[np.float64]) -> Actions:
    """[…] known plans in levels; and once more with the order left to the rule for ties."""
    if "schedule" in problem.tasks:
        plain = vectors.copy()
        plain[:, problem.part("schedule")] = 0.0
        vectors = np.concatenate([vectors, plain])
    return joined(*(Actions(*(part[None] for part in actions_of(problem, vector))) for vector in vectors))
