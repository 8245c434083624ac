"""Annealing over fusion, placement and schedule. Proposals are drawn here and judged natively, one
after another, each by what it changes; the meter evaluates every new best in full."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from loadmaster.problems.graph import UNFIT, GraphOptimization
from loadmaster.solvers.search.graph_moves import Moves
from loadmaster.solvers.search.graph_start import batch_size, check_start, graph_of, starts
from loadmaster.solvers.solver import Meter, Solution, State
from loadmaster.solvers.state import generator_state, restore_generator

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
Rng = np.random.Generator

ACCEPTED_AT_FIRST = 0.3
"""Share of the proposals for the worse that the first temperature takes."""
COOLEST = 1e-3
"""The last temperature over the first."""
TOLERATED = 1.02
"""So much worse may a start be that leaves the order to the rule for ties."""
_MOST_TRIALS = 50


class Anneal:
    """`start`: 'base' or 'seeds' (the best of the constructive solvers). `length`: proposals from the
    first temperature to the last; without it, the budget's evaluations, or else its seconds."""

    name, problem_kind = "anneal", "graph"
    summary = "simulated annealing over groups, runs of groups and keys, evaluated incrementally"
    deterministic = scheduled = True

    def __init__(self, start: str = "base", length: int | None = None) -> None:
        self.start, self.length = check_start(start, ("base", "seeds")), length
        self.switches = {"start": start, "length": length}

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = graph_of(meter)
        if state is None and not meter.exhausted:
            state = self._begin(meter, problem, seed)
        if state is not None and not meter.exhausted:
            self._anneal(meter, problem, state)
        return meter.solution(white_box=True)

    def _begin(self, meter: Meter, problem: GraphOptimization, seed: int) -> State | None:
        """The best start, and the temperature at which its neighbours are taken as they should."""
        rng, moves = np.random.default_rng(seed), Moves(problem)
        vector, value = meter.best, meter.best_value
        if vector is None or value is None:  # else somebody has been here before
            vectors = np.stack(starts(meter, self.start))
            values = meter.evaluate_many(vectors).value
            legal = np.flatnonzero(values >= 0)
            if not len(legal):
                return None
            best = legal[values[legal].argmin()]
            vector, value = vectors[best], int(values[best])
            vector, value = self._untied(meter, problem, vector, value)
        if meter.exhausted or not moves:
            return None
        climb, length = problem.climb(), self.length or meter.budget.evaluations or 0
        climb.start(vector)
        trials = int(np.clip((length or 1_000) // 20, 1, _MOST_TRIALS))
        if meter.evaluations_left is not None:
            trials = min(trials, meter.evaluations_left)
        (total, over, fault), _ = climb.run(*moves.draw(rng, trials), np.full(trials, -np.inf))
        found = problem.values(total, over, fault)
        meter.take_many(_fitting(found), climb.vector)
        heat = _first_temperature(found, value, problem.reference_ps)
        return {
            "rng": generator_state(rng),
            "vector": vector,
            "heat": np.array(heat),
            "length": np.array(length),
        }

    def _untied(
        self, meter: Meter, problem: GraphOptimization, vector: Float64, value: int
    ) -> tuple[Float64, int]:
        """The same with all keys equal, if that is nearly as good: where the rule for ties decides, a
        single key is a small change."""
        plain, at = vector.copy(), problem.part("schedule")
        plain[at] = 0.0
        if meter.exhausted or np.array_equal(plain, vector):
            return vector, value
        found = meter.evaluate(plain)
        return (plain, found) if found is not None and found <= TOLERATED * value else (vector, value)

    def _anneal(self, meter: Meter, problem: GraphOptimization, state: State) -> None:
        rng, moves, climb = restore_generator(state["rng"]), Moves(problem), problem.climb()
        heat, length = float(state["heat"]), int(state["length"])
        climb.start(np.ascontiguousarray(state["vector"], dtype=np.float64))
        size = batch_size(problem, 64)
        while not meter.exhausted:
            changes, chance = moves.draw(rng, size), rng.exponential(size=size)
            rest = size if meter.evaluations_left is None else min(size, meter.evaluations_left)
            done = (
                self._progress(meter, length) + np.arange(rest) / length
                if length
                else (np.full(rest, self._progress(meter, length)))
            )
            slack = heat * COOLEST ** np.minimum(1.0, done) * chance[:rest]
            (total, over, fault), accepted = climb.run(*_first_rows(changes, rest), slack, True)
            meter.take_many(_fitting(problem.values(total, over, fault)), climb.vector)
            if rest == size and meter.observer.wants_checkpoint(meter):
                meter.checkpoint(
                    {
                        "rng": generator_state(rng),
                        "vector": climb.vector(),
                        "heat": state["heat"],
                        "length": state["length"],
                    }
                )
            meter.progress(temperature=float(slack[-1] / chance[rest - 1]), accepted=float(accepted.mean()))

    def _progress(self, meter: Meter, length: int) -> float:
        if length:
            return meter.evaluations / length
        if meter.budget.seconds:
            return meter.seconds / meter.budget.seconds
        return min(1.0, meter.evaluations / 10_000)


def _fitting(values: Int64) -> Int64:
    """What does not fit can't be the best: the meter counts it alone."""
    return np.where(values < UNFIT, values, -1)


def _first_rows(
    changes: tuple[Int64, Int64, Int64, Float64], count: int
) -> tuple[Int64, Int64, Int64, Float64]:
    rows, index, source, value = changes
    end = int(rows[count])
    return rows[: count + 1], index[:end], source[:end], value[:end]


def _first_temperature(values: Int64, standing: int, reference: int) -> float:
    """In reference times: the mean of exp(-loss / temperature) over the losses is what it should be."""
    losses = (values[(values > standing) & (values < UNFIT)] - standing) / max(1, reference)
    if standing >= UNFIT or not len(losses):
        return 1e-3
    low, high = float(losses.min()) / 100, float(losses.max()) * 100
    for _ in range(60):
        middle = float(np.sqrt(low * high))
        if np.exp(-losses / middle).mean() < ACCEPTED_AT_FIRST:
            low = middle
        else:
            high = middle
    return low
