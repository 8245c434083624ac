"""Searches that know nothing of a problem but how its decisions are drawn or changed: the best of random
ones, and simulated annealing. A problem's package gives that, where to begin, and the constants.

Each can be stopped and resumed with the identical continuation, so a checkpoint is made only after
batches that were scored whole.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar, cast

import numpy as np
import numpy.typing as npt

from loadmaster.search.problem import Decision, Problem
from loadmaster.search.solver import Meter, Solution, Solver, State, generator_state, restore_generator

P = TypeVar("P", bound=Problem)
Rng = np.random.Generator


class Search(Solver, Generic[P]):
    """A search with one random generator, which its checkpoints hold under 'rng'."""

    deterministic = True

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = cast(P, meter.problem)
        if meter.exhausted:
            return meter.solution()
        if (only := self.only_decision(problem)) is not None:
            meter.evaluate_many(only[None])
            return meter.solution()
        rng = np.random.default_rng(seed) if state is None else restore_generator(state["rng"])
        self.search(meter, problem, rng, state)
        return meter.solution()

    def only_decision(self, problem: P) -> Decision | None:
        """Of a problem in which there is nothing to decide."""
        return None

    @abstractmethod
    def search(self, meter: Meter, problem: P, rng: Rng, state: State | None) -> None:
        """Go on until the meter is exhausted; `rng` is as it was at `state`."""

    def evaluations_at_most(self, meter: Meter) -> float:
        """A limit of the search's own, beside the budget."""
        return math.inf


class RandomBest(Search[P]):
    """Random decisions, of which the meter keeps the best."""

    batch = 64

    @abstractmethod
    def draw(self, problem: P, rng: Rng, count: int) -> Decision:
        """[count, ...] random decisions."""

    def search(self, meter: Meter, problem: P, rng: Rng, state: State | None) -> None:
        most = self.evaluations_at_most(meter)
        while not meter.exhausted and meter.evaluations < most:
            drawn = self.draw(problem, rng, self.batch)
            drawn = drawn[: int(min(self.batch, most - meter.evaluations))]
            if len(meter.evaluate_many(drawn).value) == self.batch:
                meter.checkpoint({"rng": generator_state(rng)})
            meter.progress()


@dataclass
class Walk:
    """Where annealing stands."""

    decision: Decision
    score: float
    also: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    """What else its checkpoints hold."""


class Annealing(Search[P]):
    """Simulated annealing: a change for the worse is taken with a probability that falls with the loss and
    with the temperature; that falls geometrically, by default over the evaluations of the budget."""

    temperature: float
    """The first, in units of `scale`."""
    last_share: float
    """The last temperature over the first."""
    default_length = 4_000
    """Evaluations of a run that has no such limit; after them the temperature is constant."""
    checkpoint_every = 50
    """Evaluations."""
    stored = ("decision", "reward")
    """What checkpoints call the decision and its score."""

    @abstractmethod
    def begin(self, meter: Meter, problem: P) -> Walk | None:
        """The first decision, evaluated; None: there is nothing to go on from."""

    @abstractmethod
    def neighbourhood(self, problem: P) -> Callable[[Rng, Any], Decision]:
        """What changes a decision a little, in a copy."""

    def evaluate(self, meter: Meter, walk: Walk, trial: Decision) -> float | None:
        """The score of a change, which is its reward or its value; None: it can't be taken."""
        return float(meter.evaluate_many(trial[None]).reward[0])

    def scale(self, problem: P) -> float:
        """Gains are differences of scores over this: below 0 where a smaller score is better."""
        return 1.0

    def share_cooled(self, meter: Meter, length: int) -> float:
        """Before a change is evaluated, how much of the cooling is over; from 1 on, all of it."""
        return meter.evaluations / length

    def accepts(self, rng: Rng, gain: float, temperature: float) -> bool:
        """Whether a change is taken."""
        return gain >= 0 or rng.random() < math.exp(gain / temperature)

    def adjust(self, meter: Meter, walk: Walk, length: int) -> None:
        """Called when a change was taken or not."""

    def search(self, meter: Meter, problem: P, rng: Rng, state: State | None) -> None:
        length = meter.budget.evaluations or self.default_length
        if state is None:
            walk = self.begin(meter, problem)
            if walk is not None and meter.start is not None and not meter.exhausted:
                score = self.evaluate(meter, walk, meter.start)
                if score is not None and (score - walk.score) / self.scale(problem) > 0:
                    walk.decision, walk.score = np.array(meter.start), score
        else:
            also = {name: array for name, array in state.items() if name != "rng"}
            length = int(also.pop("length", length))
            walk = Walk(np.array(also.pop(self.stored[0])), also.pop(self.stored[1]).item(), also)
        if walk is None:
            return
        change, scale, most = (
            self.neighbourhood(problem),
            self.scale(problem),
            self.evaluations_at_most(meter),
        )
        while not meter.exhausted and meter.evaluations < most:
            trial = change(rng, walk.decision)
            temperature = self.temperature * self.last_share ** min(1.0, self.share_cooled(meter, length))
            score = self.evaluate(meter, walk, trial)
            if score is not None and self.accepts(rng, (score - walk.score) / scale, temperature):
                walk.decision, walk.score = trial, score
            self.adjust(meter, walk, length)
            if meter.evaluations % self.checkpoint_every == 0:
                known = {"rng": generator_state(rng), "length": np.array(length)}
                stands = dict(zip(self.stored, (walk.decision, np.array(walk.score)), strict=True))
                meter.checkpoint({**walk.also, **known, **stands})
                meter.progress(**{"temperature": temperature, self.stored[1]: walk.score})
