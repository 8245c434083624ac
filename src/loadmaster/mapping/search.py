"""Black-box searches of the Mapping problem: they see nothing of a map but its reward."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

import numpy as np

from loadmaster.arrays import Int8, Int64
from loadmaster.mapping.problem import Mapping
from loadmaster.search import metaheuristics
from loadmaster.search.metaheuristics import Rng, Search, Walk
from loadmaster.search.problem import Decision
from loadmaster.search.solver import Meter, State, generator_state


class _Search(Search[Mapping]):
    problem_kind = "mapping"
    start: Int8 | None = None
    """A map to begin with, should one be known; only `annealing` and `ageing-evolution` use it."""

    def only_decision(self, problem: Mapping) -> Decision | None:
        return None if problem.live.any() else problem.all_slowest()


class GreedyDp(_Search):
    """From all-slowest, node by node: all pairs of memories for its activation and its weights with
    the rest fixed, the best is kept; passes until one changes nothing."""

    name = "greedy-dp"
    summary = "node by node, the best pair of memories with the rest fixed"

    def search(self, meter: Meter, problem: Mapping, rng: Rng, state: State | None) -> None:
        decision, node, changed = problem.all_slowest(), 0, False
        if state is not None:
            decision, node = np.array(state["decision"]), int(state["node"])
            changed = bool(state["changed"])
        while not meter.exhausted:
            tried = self._choices(problem, decision, node)
            reward = meter.evaluate_many(tried).reward
            if len(reward) < len(tried):
                return
            if len(reward) and not np.array_equal(tried[best := int(reward.argmax())], decision):
                decision, changed = tried[best], True
            node += 1
            if node == problem.nodes:
                if not changed:
                    return
                node, changed = 0, False
            meter.checkpoint(
                {
                    "rng": generator_state(rng),
                    "decision": decision,
                    "node": np.array(node),
                    "changed": np.array(changed),
                }
            )
            meter.progress()

    def _choices(self, problem: Mapping, decision: Int8, node: int) -> Int8:
        """The map as it is first, so that it is kept where nothing is better; then the others."""
        entries = [entry for entry in (node, problem.nodes + node) if problem.live[entry]]
        pairs = list(product(range(problem.slowest + 1), repeat=len(entries))) if entries else []
        tried = np.repeat(decision[None], len(pairs), axis=0)
        tried[:, entries] = np.array(pairs, dtype=np.int8).reshape(len(pairs), len(entries))
        return tried[np.argsort((tried != decision).any(axis=1), kind="stable")]


class RandomMaps(_Search, metaheuristics.RandomBest[Mapping]):
    """Maps of which the shares of the memories are drawn first, apart for activations and weights,
    from a flat Dirichlet distribution; `uniform`: every memory is as likely everywhere."""

    name = "random"
    summary = "best of random maps"

    def __init__(self, uniform: bool = False) -> None:
        self.uniform = uniform
        self.options = {"uniform": uniform}

    def draw(self, problem: Mapping, rng: Rng, count: int) -> Int8:
        if self.uniform:
            return _uniform_maps(problem, rng, count)
        shares = rng.dirichlet(np.ones(problem.slowest + 1), size=(count, 2))
        edges = shares.cumsum(axis=2)[:, :, None, :-1]  # [count, 2, 1, M - 1]
        drawn = rng.random((count, 2, problem.nodes, 1))
        return _canonical(problem, (drawn >= edges).sum(axis=3).reshape(count, -1))


class Annealing(_Search, metaheuristics.Annealing[Mapping]):
    """Simulated annealing on rewards from all-slowest: one entry to another memory, or two entries
    swap theirs; the temperature falls geometrically over the evaluations of the budget."""

    name = "annealing"
    summary = "simulated annealing on rewards"
    scheduled = True
    temperature, last_share = 0.05, 1e-4 / 0.05

    def begin(self, meter: Meter, problem: Mapping) -> Walk:
        decision = problem.all_slowest() if self.start is None else self.start
        return Walk(decision, _reward(meter, decision))

    def neighbourhood(self, problem: Mapping) -> Callable[[Rng, Int8], Int8]:
        return partial(_moved, problem)


class AgeingEvolution(_Search):
    """A population of uniform maps; the best of a random few has a child, in which one entry goes
    to another memory; the child comes in and the oldest goes (AutoScratch, MLSys 2023)."""

    name = "ageing-evolution"
    summary = "evolution in which the oldest go, one change per child"

    def __init__(self, population: int = 100, sample: int = 25) -> None:
        if not 1 <= sample <= population:
            raise ValueError("sample must be between 1 and the population")
        self.population, self.sample = population, sample
        self.options = {"population": population, "sample": sample}

    def search(self, meter: Meter, problem: Mapping, rng: Rng, state: State | None) -> None:
        if state is None:
            maps, oldest = _uniform_maps(problem, rng, self.population), 0
            if self.start is not None:
                maps[0] = self.start
            reward = meter.evaluate_many(maps).reward
            if len(reward) < self.population:
                return
        else:
            maps, reward = np.array(state["maps"]), np.array(state["reward"])
            oldest = int(state["oldest"])
        while not meter.exhausted:
            few = rng.choice(len(maps), self.sample, replace=False)
            child = _reassigned(problem, rng, maps[few[reward[few].argmax()]])
            maps[oldest], reward[oldest] = child, _reward(meter, child)
            oldest = (oldest + 1) % len(maps)
            if meter.evaluations % 50 == 0:
                meter.checkpoint(
                    {"rng": generator_state(rng), "maps": maps, "reward": reward, "oldest": np.array(oldest)}
                )
                meter.progress(mean_reward=float(reward.mean()))


SWAPS = 0.2
"""Of annealing's changes."""


def _moved(problem: Mapping, rng: Rng, decision: Int8) -> Int8:
    """One entry elsewhere, or two that have swapped."""
    if rng.random() >= SWAPS:
        return _reassigned(problem, rng, decision)
    entry = int(rng.choice(np.flatnonzero(problem.live)))
    elsewhere = np.flatnonzero(problem.live & (decision != decision[entry]))
    if not len(elsewhere):  # all in one memory: no swap would change anything
        return _reassigned(problem, rng, decision)
    other, moved = int(rng.choice(elsewhere)), decision.copy()
    moved[[entry, other]] = decision[[other, entry]]
    return moved


def _reward(meter: Meter, decision: Int8) -> float:
    return float(meter.evaluate_many(decision[None]).reward[0])


def _canonical(problem: Mapping, maps: Int64) -> Int8:
    """Entries that decide nothing name the slowest memory."""
    return np.where(problem.live, maps, problem.slowest).astype(np.int8)


def _uniform_maps(problem: Mapping, rng: Rng, count: int) -> Int8:
    size = (count, 2 * problem.nodes)
    return _canonical(problem, rng.integers(0, problem.slowest + 1, size, dtype=np.int64))


def _reassigned(problem: Mapping, rng: Rng, decision: Int8) -> Int8:
    """One live entry in another memory than before."""
    moved, entry = decision.copy(), int(rng.choice(np.flatnonzero(problem.live)))
    step = int(rng.integers(1, problem.slowest + 1))
    moved[entry] = (int(decision[entry]) + step) % (problem.slowest + 1)
    return moved
