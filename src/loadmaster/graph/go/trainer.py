"""Batch mode: one policy for many graphs, by imitating good plans, by choosing among hints, by rewards.

All graphs of a size class lie on the accelerator; an update draws some of them, plans for each, times
the plans on all cores, and learns. A plan that beats the one imitated so far takes its place.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from loadmaster.clock import now
from loadmaster.graph import UNFIT, GraphOptimization
from loadmaster.graph.go.actions import Actions, padded, vectors_of
from loadmaster.graph.go.cases import Case, KnownPlan
from loadmaster.graph.go.graph import Graph, graph_of, padded_sizes
from loadmaster.graph.go.learner import (
    Batch,
    Learner,
    LossWeights,
    batch_logits,
    draw,
    hint_times,
    imitate_batch,
    learn_batch,
    learn_hint_choice,
    make_learner,
)
from loadmaster.graph.go.settings import Shape
from loadmaster.learn.backend import bucket
from loadmaster.learn.session import Report
from loadmaster.search.problem import Scores

Float64 = npt.NDArray[np.float64]
CLASSES = ((2_048, 16), (12_800, 4), (32_768, 2))
"""Nodes at most, and graphs per update."""
DEVICES = 8
REPORT_SECONDS = 15.0


@dataclass
class TrainingCase:
    """A case with its best plan so far and its running reward."""

    case: Case
    best: Actions
    value: int
    reference: int
    hinted: npt.NDArray[np.int32]
    mean: float = 0.0
    square: float = 0.0
    weight: float = 0.0

    @cached_property
    def problem(self) -> GraphOptimization:
        return self.case.load()

    def advantages(self, rewards: Float64, decay: float, bound: float) -> Float64:
        """Rewards less the running mean, over the running deviation."""
        self.mean = decay * self.mean + (1 - decay) * float(rewards.mean())
        self.square = decay * self.square + (1 - decay) * float((rewards**2).mean())
        self.weight = decay * self.weight + 1 - decay
        mean = self.mean / self.weight
        deviation = np.sqrt(max(0.0, self.square / self.weight - mean**2))
        gain: Float64 = np.clip((rewards - mean) / (deviation + 1e-6), -bound, bound)
        return gain


@dataclass
class SizeClass:
    """Graphs of one size: on the accelerator, stacked."""

    cases: list[TrainingCase]
    graphs: Graph
    best: Actions
    batch: int

    def take(self, rows: npt.NDArray[np.int64]) -> Graph:
        graphs: Graph = _taken(self.graphs, jnp.asarray(rows))
        return graphs


@eqx.filter_jit  # type: ignore[untyped-decorator]
def _taken(tree: Any, rows: Any) -> Any:
    return jax.tree.map(lambda part: part[rows], tree)


@dataclass
class Trainer:
    """Everything that training over many graphs needs and changes."""

    shape: Shape
    learner: Learner
    classes: list[SizeClass]
    rng: np.random.Generator
    threads: int
    samples: int = 32
    epochs: int = 2
    report: Report = print
    curve: list[dict[str, float]] = field(default_factory=list)

    def learn_hints(self, seed: int) -> None:
        """Learn which hint a graph should follow, from the measured times of all of them."""
        rows = []
        for each in self.classes:
            for row, case in enumerate(each.cases):
                times = (
                    hint_times(case.problem, case.hinted, self.threads)
                    if "placement" in case.case.tasks
                    else None
                )
                if times is not None:
                    rows.append(
                        (np.asarray(each.graphs.stats[row]), np.asarray(each.graphs.about[row]), times)
                    )
        if not rows:
            return
        network = jax.tree.map(np.asarray, self.learner.network)
        network, worse = learn_hint_choice(network, rows, self.shape, seed)
        self.learner = make_learner(network)
        self.report(f"chose among hints of {len(rows)} graphs: {worse - 1:.1%} behind the best of each")

    def imitate(self, seconds: float, rate: float, rate_end: float) -> None:
        """Steps towards the best known plans, as many as there is time for."""
        started = reported = now()
        losses, steps = [], 0
        while (passed := now() - started) < seconds:
            chosen = self._choose()
            rows = self.rng.integers(len(chosen.cases), size=chosen.batch)
            current = rate * (rate_end / rate) ** min(1.0, passed / seconds)
            actions = _taken(chosen.best, jnp.asarray(rows))
            self.learner, loss = imitate_batch(
                self.learner, chosen.take(rows), actions, make_weights(current), self.shape
            )
            losses.append(loss)
            steps += 1
            if steps % 50 == 0:
                jax.block_until_ready(loss)  # the queue must not run ahead of the clock
            if now() - reported > REPORT_SECONDS:
                reported = now()
                mean = float(jnp.stack(losses[-100:]).mean())
                self.curve.append({"seconds": passed, "steps": steps, "loss": mean})
                self.report(f"imitate {passed:.0f} s, {steps} steps, loss {mean:.4f}")

    def reinforce(
        self,
        seconds: float,
        rate: float,
        rate_end: float,
        entropy: float,
        imitation: float,
        decay: float = 0.9,
    ) -> None:
        """Updates of PPO, as many as there is time for."""
        started = reported = now()
        updates, beaten, means = 0, 0, []
        while (passed := now() - started) < seconds:
            current = rate * (rate_end / rate) ** min(1.0, passed / seconds)
            gain, better = self._update(make_weights(current, entropy, imitation), decay)
            means.append(gain)
            beaten += better
            updates += 1
            if now() - reported > REPORT_SECONDS:
                reported = now()
                mean = float(np.mean(means[-100:]))
                self.curve.append({"seconds": passed, "updates": updates, "reward": mean})
                self.report(
                    f"ppo {passed:.0f} s, {updates} updates, mean reward {mean:.4f}, {beaten} plans beaten"
                )

    def _update(self, weights: LossWeights, decay: float) -> tuple[float, int]:
        chosen = self._choose()
        rows = self.rng.integers(len(chosen.cases), size=chosen.batch)
        graphs = chosen.take(rows)
        key = jax.random.key(int(self.rng.integers(2**31)))
        actions, log_prob = _draw_batch(self.learner.network, graphs, key, self.samples, self.shape)
        host = jax.tree.map(np.asarray, actions)
        advantages, rewards, better = [], [], 0
        threads = max(1, self.threads // len(rows))

        def score(place: int) -> tuple[Actions, Scores]:
            problem = chosen.cases[int(rows[place])].problem
            drawn = Actions(*(part[place] for part in host))
            return drawn, problem.score(vectors_of(problem, drawn), threads=threads)

        with ThreadPoolExecutor(len(rows)) as pool:
            found = list(pool.map(score, range(len(rows))))
        for (drawn, scores), row in zip(found, rows.tolist(), strict=True):
            case = chosen.cases[row]
            better += self._keep(chosen, row, drawn, scores.value)
            advantages.append(case.advantages(scores.reward, decay, 5.0))
            rewards.append(float(scores.reward.mean()))
        best = _taken(chosen.best, jnp.asarray(rows))
        batch = Batch(actions, log_prob, jnp.asarray(np.stack(advantages), jnp.float32), best)
        for _ in range(self.epochs):
            self.learner, _ = learn_batch(self.learner, graphs, batch, weights, self.shape, True)
        return float(np.mean(rewards)), better

    def _keep(self, chosen: SizeClass, row: int, drawn: Actions, values: npt.NDArray[np.int64]) -> int:
        """A plan that beats the best known is imitated from now on."""
        case = chosen.cases[row]
        values = np.where(values < 0, np.iinfo(np.int64).max, values)
        first = int(values.argmin())
        if int(values[first]) >= case.value:
            return 0
        case.value = int(values[first])
        case.best = Actions(*(part[first] for part in drawn))
        chosen.best = Actions(
            *(part.at[row].set(new) for part, new in zip(chosen.best, case.best, strict=True))
        )
        return 1

    def compile(self, imitation: bool = True) -> None:
        """Everything for all sizes at once: compilers use one core each."""
        key = jax.random.key(0)

        def one(each: SizeClass) -> None:
            graphs = each.take(np.zeros(each.batch, dtype=np.int64))
            actions, log_prob = _draw_batch(self.learner.network, graphs, key, self.samples, self.shape)
            best = _taken(each.best, jnp.zeros(each.batch, dtype=jnp.int32))
            batch = Batch(actions, log_prob, jnp.zeros(log_prob.device.shape[:2]), best)
            learn_batch(self.learner, graphs, batch, make_weights(0.0), self.shape, True)

        def other(each: SizeClass) -> None:
            graphs = each.take(np.zeros(each.batch, dtype=np.int64))
            if imitation:
                best = _taken(each.best, jnp.zeros(each.batch, dtype=jnp.int32))
                imitate_batch(self.learner, graphs, best, make_weights(0.0), self.shape)
            batch_logits(self.learner.network, graphs, self.shape)

        with ThreadPoolExecutor(2 * len(self.classes)) as pool:
            waiting = [pool.submit(job, each) for each in self.classes for job in (one, other)]
            for job in waiting:
                job.result()

    def _choose(self) -> SizeClass:
        """Classes by the number of their graphs, large ones less often than that."""
        shares = np.array([len(each.cases) ** 0.7 for each in self.classes])
        return self.classes[int(self.rng.choice(len(self.classes), p=shares / shares.sum()))]


@eqx.filter_jit  # type: ignore[untyped-decorator]
def _draw_batch(network: Any, graphs: Graph, key: Any, plans: int, shape: Shape) -> tuple[Actions, Actions]:
    logits = batch_logits(network, graphs, shape)
    keys = jax.random.split(key, len(graphs.kind))
    drawn: tuple[Actions, Actions] = jax.vmap(lambda each, k: draw(each, k, plans))(logits, keys)
    return drawn


def make_weights(rate: float, entropy: float = 0.0, imitation: float = 0.0) -> LossWeights:
    """With the clip ratio and the gradient's bound of training over many graphs."""
    return LossWeights(*(jnp.float32(x) for x in (rate, entropy, imitation, 0.2, 1.0)))


def size_classes(
    plans: Mapping[Case, KnownPlan], shape: Shape, processes: int = 1, method: str = "spawn"
) -> list[SizeClass]:
    """Cases sorted into size classes, each padded to its largest. Reading a graph takes longer than
    learning from it once, so several processes read."""
    cases = [case for case, plan in plans.items() if plan.value < UNFIT]
    with multiprocessing.get_context(method).Pool(processes) as pool:
        sizes = pool.starmap(_sizes, [(case, shape) for case in cases], chunksize=4)
        sorted_: dict[int, list[int]] = {}
        for row, (nodes, *_) in enumerate(sizes):
            number = next(
                (n for n, (most, _) in enumerate(CLASSES) if nodes <= bucket(most, shape.segment)), None
            )
            if number is not None:
                sorted_.setdefault(number, []).append(row)
        classes = []
        for number, rows in sorted(sorted_.items()):
            top = np.array([sizes[row] for row in rows]).max(axis=0)
            common = (int(top[0]), int(top[1]), int(top[2]), DEVICES)
            jobs = [(cases[row], common, plans[cases[row]].hinted) for row in rows]
            graphs = pool.starmap(_graph, jobs, chunksize=4)
            members = [(cases[row], plans[cases[row]]) for row in rows]
            classes.append(_class(members, graphs, common, CLASSES[number][1]))
    return classes


def _sizes(case: Case, shape: Shape) -> tuple[int, int, int, int]:
    return padded_sizes(case.load(), shape.segment)


def _graph(case: Case, sizes: tuple[int, int, int, int], hinted: npt.NDArray[np.int32]) -> Graph:
    return graph_of(case.load(), sizes, hinted)


def _class(
    members: Sequence[tuple[Case, KnownPlan]],
    graphs: Sequence[Graph],
    sizes: tuple[int, int, int, int],
    batch: int,
) -> SizeClass:
    plans = [padded(plan.actions, sizes[0], sizes[2]) for _, plan in members]
    stacked = Graph(*(jnp.asarray(np.stack(part)) for part in zip(*graphs, strict=True)))
    best = Actions(*(jnp.asarray(np.stack(part)) for part in zip(*plans, strict=True)))
    cases = [
        TrainingCase(case, plan.actions, plan.value, plan.reference, plan.hinted) for case, plan in members
    ]
    return SizeClass(cases, stacked, best, min(batch, len(cases)))


def evaluate_policy(
    network: Any, classes: Sequence[SizeClass], shape: Shape, threads: int
) -> list[dict[str, Any]]:
    """Zero-shot: the likeliest plan of each case against its base plan and the best known."""
    rows = []
    for each in classes:
        for first in range(0, len(each.cases), each.batch):
            at = np.minimum(np.arange(first, first + each.batch), len(each.cases) - 1)
            logits = batch_logits(network, each.take(at), shape)
            likely = [np.asarray(part.argmax(axis=-1)) for part in logits]
            for place, row in enumerate(at[: len(each.cases) - first].tolist()):
                case = each.cases[row]
                vector = vectors_of(case.problem, Actions(*(part[place] for part in likely)))
                value = int(case.problem.score(vector[None], threads=threads).value[0])
                rows.append(
                    {"case": case.case.name, "value": value, "best": case.value, "reference": case.reference}
                )
    return rows


def mean_saved(rows: Sequence[Mapping[str, Any]]) -> float:
    """Of the base plan's time; a plan that does not fit counts as twice that time."""
    shares = [min(2.0, row["value"] / row["reference"]) if 0 <= row["value"] < UNFIT else 2.0 for row in rows]
    return 1 - float(np.mean(shares))
