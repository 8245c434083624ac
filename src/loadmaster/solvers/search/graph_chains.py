"""Several annealing chains from different plans: those that lag are stopped, the best are crossed, and
who is left gets the time. What chains do depends neither on the number of threads nor on which is
faster."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from loadmaster import _core
from loadmaster.host import cores
from loadmaster.problems.graph import UNFIT, GraphOptimization
from loadmaster.solvers.search.graph_candidates import WORST, Candidates, children
from loadmaster.solvers.search.graph_start import batch_size
from loadmaster.solvers.search.graph_steered import Changes, SteeredMoves
from loadmaster.solvers.solver import Meter, State
from loadmaster.solvers.state import generator_state, restore_generator

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
Rng = np.random.Generator

HEAT = 1e-3
"""The first temperature of each rung, as a share of the best time."""
HABITS = ((1.0, 0.06), (4.0, 0.15), (0.3, 0.06), (12.0, 0.03), (2.0, 0.25))
"""Chains differ in temperature and in the share of fusion: nobody knows what is right for a graph."""
COLDEST = 1e-5
RUNGS = (0.12, 0.26, 0.48, 1.0)
"""Where rungs end, as shares of the search; after each, half of the chains go on."""
BEHIND = (0.05, 0.02, 0.01)
"""After each rung: who is so much worse than the best gives way to a copy of it with other habits."""
CHILDREN = 3
"""At the end of a rung, for each chain: crossings that may take the place of a chain."""


@dataclass
class Chain:
    """One walk: where it stands, its best, its chance."""

    number: int
    rng: Rng
    standing: Float64
    best: Float64
    value: int
    climb: _core.GraphClimb | None = field(default=None, repr=False)


@dataclass
class Work:
    """Proposals for one chain, and what came of them."""

    chain: Chain
    changes: Changes
    slack: Float64
    found: tuple[tuple[Int64, Int64, Int64], npt.NDArray[np.int8]] | None = None


class Chains:
    """`progress` tells how much of the search is over, from 0 to 1. `alike`: devices may be renamed."""

    def __init__(
        self,
        meter: Meter,
        problem: GraphOptimization,
        moves: SteeredMoves,
        seed: int,
        progress: Callable[[], float],
        alike: bool,
        threads: int | None = None,
    ) -> None:
        self.meter, self.problem, self.moves, self.progress = meter, problem, moves, progress
        self.seed, self.alike = seed, alike
        self.threads, self.size = threads or cores(), batch_size(problem, 64)
        self.live: list[Chain] = []
        self.rung, self.made = 0, 0
        # Where the clock decides anyway, no core is left idle.
        self.least = self.threads if meter.budget.evaluations is None else 1

    def begin(self, vectors: Float64, values: Int64) -> None:
        """A chain from each vector."""
        for vector, value in zip(vectors, values.tolist(), strict=True):
            self.live.append(self._chain(vector, value))
        self._stand()

    def _chain(self, vector: Float64, value: int) -> Chain:
        self.made += 1
        rng = np.random.default_rng([self.seed, self.made])
        return Chain(self.made - 1, rng, vector.copy(), vector.copy(), value)

    def run(self, also: Callable[[], State]) -> None:
        """Until the budget is spent; `also`: what else belongs into a checkpoint."""
        with ThreadPoolExecutor(self.threads) as pool:
            while not self.meter.exhausted and self.live:
                done = self.progress()
                while self.rung < len(RUNGS) - 1 and done >= RUNGS[self.rung]:
                    self._next_rung()
                whole = self._round(done, pool)
                if whole and self.meter.observer.wants_checkpoint(self.meter):
                    self.meter.checkpoint({**self.state(), **also()})
                self.meter.progress(chains=float(len(self.live)), temperature=self._heat(done, 0))

    def _next_rung(self) -> None:
        """The better half goes on from its best plans, crossings among them."""
        count, most = max(self.least, len(self.live) // 2), 1 + BEHIND[self.rung]
        self.rung += 1
        order = sorted([*self.live, *self._crossed()], key=lambda chain: (chain.value, chain.number))
        best = order[0]
        self.live = [chain for chain in order[:count] if chain.value <= most * best.value]
        while len(self.live) < count:
            self.live.append(self._chain(best.best, best.value))
        for chain in self.live:
            chain.standing = chain.best.copy()
        self._stand()

    def _crossed(self) -> list[Chain]:
        """Chains that begin between two others, if that is better than both."""
        if len(self.live) < 2:
            return []
        rng = np.random.default_rng([self.seed, self.rung, len(self.live), 7])
        parents = np.stack([chain.best for chain in self.live])
        found = Candidates(parents, np.array([chain.value for chain in self.live]))
        known = len(parents)
        found.add(self.meter, children(self.problem, rng, parents, CHILDREN * known, self.alike))
        better = np.flatnonzero(found.values[known:] < found.values[:known].min()) + known
        return [self._chain(found.vectors[row], int(found.values[row])) for row in better.tolist()]

    def _stand(self) -> None:
        for chain in self.live:
            chain.climb = chain.climb or self.problem.climb()
            chain.climb.start(chain.standing)

    def _heat(self, done: float, number: int) -> float:
        first = HEAT * HABITS[number % len(HABITS)][0]
        begin = RUNGS[self.rung - 1] if self.rung else 0.0
        share = min(1.0, max(0.0, (done - begin) / (RUNGS[self.rung] - begin)))
        return float(first * (COLDEST / first) ** share)

    def _round(self, done: float, pool: ThreadPoolExecutor) -> bool:
        """A batch of proposals for every chain; whether all were within the budget."""
        works, left = [], self.meter.evaluations_left
        for chain in self.live:
            assert chain.climb is not None
            share = HABITS[chain.number % len(HABITS)][1]
            changes = self.moves.draw_for(chain.standing, chain.rng, self.size, share)
            scale = chain.value / max(1, self.problem.reference_ps) if chain.value < UNFIT else 1.0
            slack = chain.rng.exponential(size=self.size) * scale * self._heat(done, chain.number)
            count = self.size if left is None else min(self.size, left)
            left = None if left is None else left - count
            if count:
                works.append(Work(chain, first_rows(changes, count), slack[:count]))
        if self.threads > 1 and len(works) > 1:
            list(pool.map(_judge, works))
        else:
            for work in works:
                _judge(work)
        for work in works:
            self._take(work)
        return left is None or left > 0

    def _take(self, work: Work) -> None:
        chain = work.chain
        assert work.found is not None and chain.climb is not None
        values = self.problem.values(*work.found[0])
        self.meter.take_many(np.where(values < UNFIT, values, -1), chain.climb.vector)
        ranked = np.where(values < 0, WORST, values)
        row = int(ranked.argmin())
        if ranked[row] < chain.value:
            chain.value, chain.best = int(ranked[row]), chain.climb.vector(row)
        chain.standing = chain.climb.vector()

    def state(self) -> dict[str, npt.NDArray[np.generic]]:
        """What `restore` needs."""
        found: dict[str, npt.NDArray[np.generic]] = {
            "rung": np.array([self.rung, self.made]),
            "numbers": np.array([chain.number for chain in self.live]),
            "values": np.array([chain.value for chain in self.live], dtype=np.int64),
            "standing": np.stack([chain.standing for chain in self.live]),
            "bests": np.stack([chain.best for chain in self.live]),
        }
        for place, chain in enumerate(self.live):
            found[f"rng{place}"] = generator_state(chain.rng)
        return found

    def restore(self, state: State) -> None:
        self.rung, self.made = state["rung"].tolist()
        self.live = [
            Chain(
                number,
                restore_generator(state[f"rng{place}"]),
                np.array(state["standing"][place]),
                np.array(state["bests"][place]),
                int(state["values"][place]),
            )
            for place, number in enumerate(state["numbers"].tolist())
        ]
        self._stand()


def _judge(work: Work) -> None:
    assert work.chain.climb is not None
    work.found = work.chain.climb.run(*work.changes, work.slack, True)


def first_rows(changes: Changes, count: int) -> Changes:
    """The first proposals of some."""
    rows, index, source, value = changes
    end = int(rows[count])
    return rows[: count + 1], index[:end], source[:end], value[:end]
