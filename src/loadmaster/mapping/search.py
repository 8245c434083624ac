"""Black-box searches of the Mapping problem: they see nothing of a map but its reward.

Each can be stopped and resumed with the identical continuation, so a checkpoint is made only after
batches that were scored whole.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from itertools import product

import numpy as np

from loadmaster.arrays import Int8, Int64
from loadmaster.mapping.problem import Mapping
from loadmaster.search.solver import Meter, Solution, Solver, State, generator_state, restore_generator

Rng = np.random.Generator
_CHECKPOINT_EVERY = 50


class _Search(Solver):
    """What the searches share."""

    problem_kind = "mapping"
    deterministic = True
    start: Int8 | None = None
    """A map to begin with, should one be known; only `annealing` and `ageing-evolution` use it."""

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, Mapping)
        if meter.exhausted:
            return meter.solution()
        if not problem.live.any():  # nothing to decide
            meter.evaluate_many(problem.all_slowest()[None])
            return meter.solution()
        rng = np.random.default_rng(seed) if state is None else restore_generator(state["rng"])
        self.search(meter, problem, rng, state)
        return meter.solution()

    @abstractmethod
    def search(self, meter: Meter, problem: Mapping, rng: Rng, state: State | None) -> None:
        """Go on until the meter is exhausted; `rng` is as it was at `state`."""


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


class RandomMaps(_Search):
    """Maps of which the shares of the memories are drawn first, apart for activations and weights,
    from a flat Dirichlet distribution; `uniform`: every memory is as likely everywhere."""

    name = "random"
    summary = "best of random maps"
    batch = 64

    def __init__(self, uniform: bool = False) -> None:
        self.uniform = uniform

    def search(self, meter: Meter, problem: Mapping, rng: Rng, state: State | None) -> None:
        memories = problem.slowest + 1
        while not meter.exhausted:
            if self.uniform:
                maps = _uniform_maps(problem, rng, self.batch)
            else:
                shares = rng.dirichlet(np.ones(memories), size=(self.batch, 2))
                edges = shares.cumsum(axis=2)[:, :, None, :-1]  # [batch, 2, 1, M - 1]
                drawn = rng.random((self.batch, 2, problem.nodes, 1))
                maps = _canonical(problem, (drawn >= edges).sum(axis=3).reshape(self.batch, -1))
            if len(meter.evaluate_many(maps).reward) < self.batch:
                return
            meter.checkpoint({"rng": generator_state(rng)})
            meter.progress()


class Annealing(_Search):
    """Simulated annealing on rewards from all-slowest: one entry to another memory, or two entries
    swap theirs; the temperature falls geometrically over the evaluations of the budget."""

    name = "annealing"
    summary = "simulated annealing on rewards"
    scheduled = True
    first_temperature, last_temperature = 0.05, 1e-4
    default_length = 4_000
    """Evaluations of a run that has no such limit; after them the temperature is constant."""
    swaps = 0.2

    def search(self, meter: Meter, problem: Mapping, rng: Rng, state: State | None) -> None:
        if state is None:
            decision = problem.all_slowest() if self.start is None else self.start
            length = meter.budget.evaluations or self.default_length
            reward = _reward(meter, decision)
        else:
            decision, length = np.array(state["decision"]), int(state["length"])
            reward = float(state["reward"])
        while not meter.exhausted:
            moved = self._moved(problem, rng, decision)
            temperature = self._temperature(meter.evaluations / length)
            new = _reward(meter, moved)
            if new >= reward or rng.random() < math.exp((new - reward) / temperature):
                decision, reward = moved, new
            if meter.evaluations % _CHECKPOINT_EVERY == 0:
                meter.checkpoint(
                    {
                        "rng": generator_state(rng),
                        "decision": decision,
                        "reward": np.array(reward),
                        "length": np.array(length),
                    }
                )
                meter.progress(temperature=temperature, reward=reward)

    def _temperature(self, done: float) -> float:
        ratio = self.last_temperature / self.first_temperature
        return float(self.first_temperature * ratio ** min(1.0, done))

    def _moved(self, problem: Mapping, rng: Rng, decision: Int8) -> Int8:
        if rng.random() >= self.swaps:
            return _reassigned(problem, rng, decision)
        entry = int(rng.choice(np.flatnonzero(problem.live)))
        elsewhere = np.flatnonzero(problem.live & (decision != decision[entry]))
        if not len(elsewhere):  # all in one memory: no swap would change anything
            return _reassigned(problem, rng, decision)
        other, moved = int(rng.choice(elsewhere)), decision.copy()
        moved[[entry, other]] = decision[[other, entry]]
        return moved


class AgeingEvolution(_Search):
    """A population of uniform maps; the best of a random few has a child, in which one entry goes
    to another memory; the child comes in and the oldest goes (AutoScratch, MLSys 2023)."""

    name = "ageing-evolution"
    summary = "evolution in which the oldest go, one change per child"

    def __init__(self, population: int = 100, sample: int = 25) -> None:
        if not 1 <= sample <= population:
            raise ValueError("sample must be between 1 and the population")
        self.population, self.sample = population, sample

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
            if meter.evaluations % _CHECKPOINT_EVERY == 0:
                meter.checkpoint(
                    {"rng": generator_state(rng), "maps": maps, "reward": reward, "oldest": np.array(oldest)}
                )
                meter.progress(mean_reward=float(reward.mean()))


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
