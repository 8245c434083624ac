"""Evolution of the order in which memory space assignment takes the tensors.

An individual is one random number per tensor: sorted, they permute the assignment's own order. Of
each generation the best stay, pairs of one of the best and one of the others have children that
take each number from the better parent with a fixed likelihood, and the rest is drawn anew.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.host import cores
from loadmaster.problems.malloc_game.problem import MallocGame
from loadmaster.solvers.heuristic.msa import Assigner, submit
from loadmaster.solvers.heuristic.msa_switches import switches_of
from loadmaster.solvers.solver import Meter, Solution, State
from loadmaster.solvers.state import generator_state, restore_generator

Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Rng = np.random.Generator

_ELITE, _MUTANTS, _BIAS = 0.2, 0.15, 0.7


class MsaOrder:
    """`style` and switches as of `msa`; half of the first generation are its own order, shaken. What
    is refined, is so once, before the evolution."""

    name = "msa-order"
    problem_kind = "malloc-game"
    deterministic = True
    summary = "evolution of the order of memory space assignment (white box)"

    def __init__(
        self, style: str | int = "refined", population: int = 64, threads: int | None = None, **switches: Any
    ) -> None:
        if population < 8:
            raise ValueError("population must be at least 8")
        self.chosen = switches_of(style, switches)
        self.switches = {"style": str(style), "population": population, **asdict(self.chosen)}
        self.population = population
        self.threads = threads or cores()

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = meter.problem
        assert isinstance(problem, MallocGame)
        if meter.exhausted:
            return meter.solution(white_box=True)
        if state is None:
            rng = np.random.default_rng(seed)
            assigner, refined = submit(meter, problem, self.chosen)
            keys = self._first(rng, assigner.tensors)
            values = self._scored(meter, assigner, keys)
        else:
            rng, keys = restore_generator(state["rng"]), np.array(state["keys"])
            values, refined = np.array(state["values"]), int(state["refined"])
            assigner = Assigner(problem.program, problem.machine, problem.model, self.chosen)
            for _ in range(refined):
                assigner = assigner.refined()
        while not meter.exhausted and assigner.tensors > 1:
            best_first = np.argsort(values, kind="stable")
            keys, values = keys[best_first], values[best_first]
            meter.checkpoint(
                {"rng": generator_state(rng), "keys": keys, "values": values, "refined": np.array(refined)}
            )
            meter.progress(mean_ps=float(values.mean()))
            elite = round(_ELITE * self.population)
            keys[elite:] = self._next(rng, keys, elite)
            values[elite:] = self._scored(meter, assigner, keys[elite:])
        return meter.solution(white_box=True)

    def _first(self, rng: Rng, tensors: int) -> Float64:
        """Its own order, that order more and more shaken, and orders at random."""
        own = (np.arange(tensors) + 0.5) / max(1, tensors)
        keys = rng.random((self.population, tensors))
        shaken = self.population // 2
        strength = np.linspace(0.0, 0.5, shaken)[:, None]
        keys[:shaken] = own + strength * (keys[:shaken] - 0.5)
        return keys

    def _next(self, rng: Rng, keys: Float64, elite: int) -> Float64:
        """All but the elite of the next generation; `keys` are sorted, the best first."""
        children = self.population - elite - round(_MUTANTS * self.population)
        better = keys[rng.integers(0, elite, children)]
        other = keys[rng.integers(elite, self.population, children)]
        crossed = np.where(rng.random(better.shape) < _BIAS, better, other)
        mutants = rng.random((self.population - elite - children, keys.shape[1]))
        return np.concatenate([crossed, mutants])

    def _scored(self, meter: Meter, assigner: Assigner, keys: Float64) -> Int64:
        """[K] times; those beyond the budget are left out of the count."""
        orders: Int32 = np.argsort(keys, axis=1, kind="stable").astype(np.int32)
        values = assigner.totals(orders, self.threads)
        problem = meter.problem
        meter.take_many(values, lambda row: problem.decision(assigner.plan(orders[row])))
        return values
