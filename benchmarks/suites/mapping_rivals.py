"""Plain searches on EGRL's action space, for a fair comparison: scores in, the nominal decoder makes the map.

Both begin from scores 0, which is greedy by density, and change scores as EGRL's Boltzmann operator does:
noise on some tensors at one temperature. They know neither a network nor the compiler's map, and are no
part of the package.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import numpy as np

from loadmaster.arrays import Float64
from loadmaster.mapping.decoder import Decoder
from loadmaster.mapping.egrl.search import SHARES, TEMPERATURES
from loadmaster.mapping.problem import Mapping
from loadmaster.search.solver import Meter, Solution, Solver, State

Rng = np.random.Generator


class _ScoreSearch(Solver):
    """What both share. They can't be resumed."""

    problem_kind = "mapping"
    deterministic = True

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        assert isinstance(meter.problem, Mapping)
        self.meter, self.problem = meter, meter.problem
        self.decoder = Decoder(self.problem)
        self.rng = np.random.default_rng(seed)
        if not meter.exhausted:
            self.search(np.zeros(self.decoder.shape))
        return meter.solution()

    @abstractmethod
    def search(self, start: Float64) -> None:
        """Go on from scores [E, S] until the meter is exhausted."""

    def reward(self, scores: Float64) -> float:
        """Of the map that scores [E, S] stand for: one evaluation."""
        maps = self.decoder.decode(scores[None])
        return float(self.meter.evaluate_many(maps).reward[0])

    def moved(self, scores: Float64) -> Float64:
        """With noise on some tensors."""
        rng, (entries, faster) = self.rng, self.decoder.shape
        chosen = rng.random(entries) < rng.choice(SHARES)
        if not chosen.any():
            chosen[rng.integers(entries)] = True
        noise = rng.normal(size=(entries, 1 if rng.random() < 0.5 else faster)) * np.ones((1, faster))
        found: Float64 = scores + rng.choice(TEMPERATURES) * chosen[:, None] * noise
        return found


class ScoreAnnealing(_ScoreSearch):
    """Simulated annealing on rewards; the temperature falls as in `annealing` on maps."""

    name = "scores-annealing"
    summary = "simulated annealing of scores"
    scheduled = True
    first_temperature, last_temperature = 0.05, 1e-4
    default_length = 1_000

    def search(self, start: Float64) -> None:
        length = self.meter.budget.evaluations or self.default_length
        scores, reward = start, self.reward(start)
        ratio = self.last_temperature / self.first_temperature
        while not self.meter.exhausted:
            temperature = self.first_temperature * ratio ** min(1.0, self.meter.evaluations / length)
            tried = self.moved(scores)
            new = self.reward(tried)
            if new >= reward or self.rng.random() < math.exp((new - reward) / temperature):
                scores, reward = tried, new


class ScoreAgeing(_ScoreSearch):
    """Ageing evolution: the best of a random few has a child; the child comes in and the oldest goes."""

    name = "scores-ageing-evolution"
    summary = "evolution of scores in which the oldest go"
    population, sample = 20, 5

    def search(self, start: Float64) -> None:
        members, rewards = [start], [self.reward(start)]
        while not self.meter.exhausted:
            few = self.rng.choice(len(members), min(self.sample, len(members)), replace=False).tolist()
            parent = start if len(members) < self.population else members[max(few, key=lambda i: rewards[i])]
            child = self.moved(parent)
            members.append(child)
            rewards.append(self.reward(child))
            if len(members) > self.population:
                members.pop(0), rewards.pop(0)


RIVALS: dict[str, type[_ScoreSearch]] = {each.name: each for each in (ScoreAnnealing, ScoreAgeing)}
