"""Searches of GraphOptimization that evaluate whole batches: random vectors, and a biased random-key
genetic algorithm; where searches begin; and `auto`, which runs the best of all in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from loadmaster.arrays import Float32, Float64, Int64
from loadmaster.errors import LoadmasterError
from loadmaster.graph import GraphOptimization
from loadmaster.graph.pipeline import WORST, base_vectors, batch_size, graph_of, seeds
from loadmaster.graph.placers import Constructive, Vectors
from loadmaster.search import metaheuristics
from loadmaster.search.auto import Auto, Stage
from loadmaster.search.metaheuristics import Rng, Search
from loadmaster.search.problem import Problem
from loadmaster.search.solver import Meter, State, generator_state

STARTS = ("base", "seeds", "random")
"""The base plan, the constructive solvers' plans beside it, or nothing."""


SEED_SHARE = 0.3
"""Of the time, at most, for making seeds."""


def check_start(start: str, known: tuple[str, ...] = STARTS) -> str:
    """The name, if it is one."""
    if start not in known:
        raise LoadmasterError(
            f"there is no start '{start}'", object="start", remedy=f"use one of {', '.join(known)}"
        )
    return start


def starts(meter: Meter, start: str) -> list[Float64]:
    """Vectors to begin with: the base plan as it is and with the order left to the rule for ties,
    and, of 'seeds', what constructive solvers make in a part of the time."""
    if start == "random":
        return []
    problem, left = graph_of(meter), meter.seconds_left
    vectors = base_vectors(problem)
    if start == "seeds":
        seconds = None if left is None else SEED_SHARE * left
        vectors += [vector for _, vector in seeds(problem, seconds)]
    return vectors


def random_vectors(problem: GraphOptimization, rng: Rng, count: int) -> Float64:
    """[count, V] uniform keys and devices."""
    vectors = rng.random((count, problem.width))
    at = problem.part("device")
    vectors[:, at] = np.floor(vectors[:, at] * problem.devices)
    return vectors


Fresh = Callable[[Rng, int], Float32]
"""So many chromosomes out of nothing."""


class RandomBest(metaheuristics.RandomBest[GraphOptimization]):
    """Uniform devices and keys."""

    name, problem_kind = "random-best", "graph"
    summary = "best of random vectors"

    def __init__(self, vectors: int | None = None) -> None:
        self.vectors = vectors
        """At most so many; None: until the budget is spent (2,000 where there is none)."""
        self.options = {"vectors": vectors}

    def evaluations_at_most(self, meter: Meter) -> float:
        free = meter.budget.evaluations is None and meter.budget.seconds is None
        return self.vectors or (2_000 if free else np.inf)

    def search(self, meter: Meter, problem: GraphOptimization, rng: Rng, state: State | None) -> None:
        self.batch = batch_size(problem, 64)
        super().search(meter, problem, rng, state)

    def draw(self, problem: GraphOptimization, rng: Rng, count: int) -> Float64:
        return random_vectors(problem, rng, count)


class Brkga(Search[GraphOptimization]):
    """Chromosomes of keys in [0, 1]: per group one for each device, of which the largest is chosen,
    and the fusion and schedule keys as they are. Each generation keeps the elite, takes up mutants
    and fills up with children of an elite and another parent. `start`: 'base', 'seeds' or 'random'
    for what is in the first population beside random ones."""

    name, problem_kind = "brkga", "graph"
    summary = "biased random-key genetic algorithm over devices and keys"

    def __init__(
        self,
        start: str = "base",
        population: int = 100,
        elite: float = 0.2,
        mutants: float = 0.15,
        inheritance: float = 0.7,
    ) -> None:
        self.start, self.population = check_start(start), int(population)
        self.elite = max(1, round(elite * self.population))
        self.mutants = round(mutants * self.population)
        self.inheritance = inheritance
        self.options = {
            "start": start,
            "population": population,
            "elite": elite,
            "mutants": mutants,
            "inheritance": inheritance,
        }
        if self.elite + self.mutants >= self.population:
            raise LoadmasterError(
                f"a population of {population} has no room for children",
                object="population",
                number=self.population,
                remedy="lower elite or mutants",
            )

    def search(self, meter: Meter, problem: GraphOptimization, rng: Rng, state: State | None) -> None:
        genes = Genes(problem)
        if state is None:
            first = starts(meter, self.start)
            keys, values = self.first(meter, genes, rng, first, uniform(genes))
        else:
            keys, values = np.array(state["keys"]), np.array(state["values"])
        self.evolve(meter, genes, rng, keys, values, uniform(genes), dict, lambda: False)

    def first(
        self, meter: Meter, genes: Genes, rng: Rng, vectors: Sequence[Float64], fresh: Fresh
    ) -> tuple[Float32, Int64]:
        """A population of known vectors and fresh ones, and its values."""
        keys = fresh(rng, self.population)
        for row, vector in enumerate(vectors[: self.population]):
            keys[row] = genes.encoded(vector, keys[row])
        return keys, _scored(meter, genes, keys)

    def evolve(
        self,
        meter: Meter,
        genes: Genes,
        rng: Rng,
        keys: Float32,
        values: Int64,
        fresh: Fresh,
        also: Callable[[], State],
        enough: Callable[[], bool],
    ) -> tuple[Float32, Int64]:
        """Generations until the budget is spent or it is enough; `also` belongs into a checkpoint."""
        while not meter.exhausted and genes.width and not enough():
            order = np.argsort(values, kind="stable")
            keys, values = keys[order], values[order]
            new = self._next(rng, keys, fresh)
            values = np.concatenate([values[: self.elite], _scored(meter, genes, new)])
            keys = np.concatenate([keys[: self.elite], new])
            if not meter.exhausted and meter.observer.wants_checkpoint(meter):
                meter.checkpoint({"rng": generator_state(rng), "keys": keys, "values": values, **also()})
            meter.progress(mean=float(np.minimum(values, 2**60).mean()))
        return keys, values

    def _next(self, rng: Rng, keys: Float32, fresh: Fresh) -> Float32:
        """Mutants, then children."""
        children, width = self.population - self.elite - self.mutants, keys.shape[1]
        mutants = fresh(rng, self.mutants)
        elite = keys[rng.integers(self.elite, size=children)]
        other = keys[rng.integers(self.elite, self.population, size=children)]
        of_elite = rng.random((children, width), dtype=np.float32) < self.inheritance
        return np.concatenate([mutants, np.where(of_elite, elite, other)])


def uniform(genes: Genes) -> Fresh:
    """Draws genes `[count, width]` uniformly from [0, 1)."""
    return lambda rng, count: rng.random((count, genes.width), dtype=np.float32)


class Genes:
    """Between keys and vectors."""

    def __init__(self, problem: GraphOptimization) -> None:
        self.problem, self.device = problem, problem.part("device")
        self.groups = self.device.stop - self.device.start
        self.width = problem.width + self.groups * (problem.devices - 1)
        self.affinities = slice(self.device.start, self.device.start + self.groups * problem.devices)

    def decoded(self, keys: Float32) -> Float64:
        """[B, V] vectors of keys [B, width]."""
        vectors = np.empty((len(keys), self.problem.width))
        vectors[:, : self.device.start] = keys[:, : self.affinities.start]
        shape = (len(keys), self.groups, self.problem.devices)
        vectors[:, self.device] = keys[:, self.affinities].reshape(shape).argmax(axis=2)
        vectors[:, self.device.stop :] = keys[:, self.affinities.stop :]
        return vectors

    def encoded(self, vector: Float64, keys: Float32) -> Float32:
        """Keys that give a vector; the affinities keep the order of `keys` below the chosen one."""
        found = keys.copy()
        found[: self.affinities.start] = vector[: self.device.start]
        shape = (self.groups, self.problem.devices)
        affinity = found[self.affinities].reshape(shape) / 2
        affinity[np.arange(self.groups), vector[self.device].astype(np.int64)] += 0.5
        found[self.affinities] = affinity.ravel()
        found[self.affinities.stop :] = vector[self.device.stop :]
        return found


def _scored(meter: Meter, genes: Genes, keys: Float32) -> Int64:
    """Values in batches that leave time to stop; what was not scored or can't run is the worst."""
    values, size = np.full(len(keys), WORST), batch_size(genes.problem, 64)
    for first in range(0, len(keys), size):
        if meter.exhausted:
            break
        found = meter.evaluate_many(genes.decoded(keys[first : first + size])).value
        values[first : first + len(found)] = np.where(found < 0, WORST, found)
    return values


PLACERS = ("single", "expert", "round-robin", "metis", "m-topo", "m-etf", "m-sct", "heft")
FUSERS = ("fusion-none", "fusion-fixed", "cost-model")
SCHEDULERS = ("fifo", "critical-path")
CONSTRUCTIVE = (*PLACERS, *FUSERS, *SCHEDULERS, "classical")
"""They make a plan, or a few, instead of trying many; nothing in them is random."""
SEARCHES = ("random-best", "anneal", "brkga")
BY_CLOCK = ("auto", "cp-sat")
_KNOWN = {"placement": ("heft", "m-etf"), "fusion": ("cost-model",), "schedule": SCHEDULERS}
"""What is tried before the pipelines of them all."""
_SHARE = 0.1
"""Of the time, at most so much for them."""


def make_auto() -> Auto:
    """Some constructive methods by themselves; then `annealing-chains`, which begins with the pipelines of them
    all and with large neighbourhoods of the best. Never worse than any of them."""
    summary = "every constructive method, large neighbourhoods of the best, then chains of annealing"
    return Auto("graph", _schedule, summary=summary, scheduled=True)


def _schedule(problem: Problem) -> list[Stage]:
    assert isinstance(problem, GraphOptimization)
    known = [name for task in problem.tasks for name in _KNOWN[task]]
    return [
        Stage(_BasePlan()),
        *(Stage(name, seconds_share=_SHARE, optional=True) for name in known),
        Stage("annealing-chains", resumes=True),
    ]


class _BasePlan(Constructive):
    name = "base"
    summary = "the base plan, as it is and with its order left to the rule for ties"

    def make(self, problem: GraphOptimization, seconds: float | None = None) -> Vectors:
        yield problem.vector()
        yield problem.vector(schedule=np.zeros(problem.nodes))
