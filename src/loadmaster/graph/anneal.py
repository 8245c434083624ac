"""Annealing over fusion, placement and schedule, in one chain or several. Proposals are drawn here and
judged natively, one after another, each by what it changes; the meter evaluates every new best in full.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from loadmaster import _core
from loadmaster.arrays import Bool, Float64, Int8, Int64
from loadmaster.graph import UNFIT, GraphOptimization
from loadmaster.graph.decoder import alike
from loadmaster.graph.large_neighbourhood import LargeNeighbourhood, make_progress
from loadmaster.graph.moves import Changes, FittedMoves, Moves, first_rows
from loadmaster.graph.pipeline import WORST, Candidates, batch_size, constructive, graph_of
from loadmaster.graph.search import check_start, starts
from loadmaster.host import cores
from loadmaster.search.solver import (
    Meter,
    Solution,
    Solver,
    State,
    check_option,
    generator_state,
    restore_generator,
)

Rng = np.random.Generator

ACCEPTED_AT_FIRST = 0.3
"""Share of the proposals for the worse that the first temperature takes."""
COOLEST = 1e-3
"""The last temperature over the first."""
TOLERATED = 1.02
"""So much worse may a start be that leaves the order to the rule for ties."""
_MOST_TRIALS = 50


class Anneal(Solver):
    """`start`: 'base' or 'seeds' (the best of the constructive solvers). `length`: proposals from the
    first temperature to the last; without it, the budget's evaluations, or else its seconds."""

    name, problem_kind = "anneal", "graph"
    summary = "simulated annealing over groups, runs of groups and keys, evaluated incrementally"
    deterministic = scheduled = True

    def __init__(self, start: str = "base", length: int | None = None) -> None:
        self.start, self.length = check_start(start, ("base", "seeds")), length
        self.options = {"start": start, "length": length}

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = graph_of(meter)
        if state is None and not meter.exhausted:
            state = self._begin(meter, problem, seed)
        if state is not None and not meter.exhausted:
            self._anneal(meter, problem, state)
        return meter.solution()

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
            changes, drawn = moves.draw(rng, size), rng.exponential(size=size)
            rest = size if meter.evaluations_left is None else min(size, meter.evaluations_left)
            done = self._progress(meter, length) + np.arange(rest) / (length or np.inf)
            slack = heat * COOLEST ** np.minimum(1.0, done) * drawn[:rest]
            (total, over, fault), accepted = climb.run(*first_rows(changes, rest), slack, True)
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
            meter.progress(temperature=float(slack[-1] / drawn[rest - 1]), accepted=float(accepted.mean()))

    def _progress(self, meter: Meter, length: int) -> float:
        if length:
            return meter.evaluations / length
        if meter.budget.seconds:
            return meter.seconds / meter.budget.seconds
        return min(1.0, meter.evaluations / 10_000)


def _fitting(values: Int64) -> Int64:
    """What does not fit can't be the best: the meter counts it alone."""
    return np.where(values < UNFIT, values, -1)


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
MOST_CROSSED = 2**20
"""Numbers of a vector: to evaluate a batch of longer ones takes a gigabyte beside what the chains remember."""


@dataclass
class Chain:
    """One walk: where it stands, its best, its random generator."""

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
    found: tuple[tuple[Int64, Int64, Int64], Int8] | None = None


class Chains:
    """Several annealing chains from different plans: those that lag are stopped, the best are crossed,
    and who is left gets the time. What chains do depends neither on the number of threads nor on which
    is faster.

    Args:
      progress: how much of the search is over, from 0 to 1.
      alike: whether devices may be renamed.
    """

    def __init__(
        self,
        meter: Meter,
        problem: GraphOptimization,
        moves: FittedMoves,
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
        if len(self.live) < 2 or self.problem.width > MOST_CROSSED:
            return []
        rng = np.random.default_rng([self.seed, self.rung, len(self.live), 7])
        parents = np.stack([chain.best for chain in self.live])
        found = Candidates(parents, np.array([chain.value for chain in self.live]))
        known = len(parents)
        found.add(self.meter, make_children(self.problem, rng, parents, CHILDREN * known, self.alike))
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
            list(pool.map(_evaluate, works))
        else:
            for work in works:
                _evaluate(work)
        for work in works:
            self._take(work)
        return left is None or left > 0

    def _take(self, work: Work) -> None:
        chain = work.chain
        assert work.found is not None and chain.climb is not None
        values = self.problem.values(*work.found[0])
        self.meter.take_many(_fitting(values), chain.climb.vector)
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


MOST_CHAINS, LEAST_CHAINS = 10, 2
PER_GROUP = 4
"""Proposals for each group that a chain should have, or else there are fewer chains."""
FASTER = 6
"""A change is evaluated about so much faster than a whole plan."""
NEIGHBOURHOODS, NEIGHBOURHOODS_SHARE = 1_024, 0.6
"""Evaluations of the large-neighbourhood search before the chains; it ends when so much of the time is over."""


class AnnealingChains(Solver):
    """`chains`: how many at first; without it, by the budget. `neighbourhoods`: evaluations of the
    large-neighbourhood search before them. `threads`: all cores where it is not given; the answer does not
    depend on it."""

    name, problem_kind = "annealing-chains", "graph"
    summary = "constructive plans, large neighbourhoods of the best, then chains of annealing"
    deterministic = scheduled = True
    least_options = MappingProxyType({"chains": 1})

    def __init__(
        self, chains: int | None = None, neighbourhoods: int = NEIGHBOURHOODS, threads: int | None = None
    ) -> None:
        check_option(self.name, "chains", chains, "int | None", 1)
        check_option(self.name, "neighbourhoods", neighbourhoods, "int")
        self.chains, self.neighbourhoods, self.threads = chains, neighbourhoods, threads
        self.options = {"chains": chains, "neighbourhoods": neighbourhoods, "threads": threads}

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem = graph_of(meter)
        if state is not None:
            self._anneal(meter, problem, seed, np.array(state["begun"]), None, state)
        elif not meter.exhausted:
            plans = constructive(meter, problem)
            pace = meter.seconds / max(1, len(plans.values))
            if self.neighbourhoods and not meter.exhausted:
                search = LargeNeighbourhood(threads=self.threads)
                search.improve(meter, seed, self.neighbourhoods, NEIGHBOURHOODS_SHARE)
                if meter.best is not None:
                    plans.add(meter, [meter.best])
            rows = plans.best_placements(problem, self._count(meter, problem, pace))
            starts = Candidates(plans.vectors[rows], plans.values[rows])
            begun = np.array([meter.evaluations, meter.seconds])
            del plans  # of a million ops each has 16 MiB
            if not meter.exhausted and rows:
                self._anneal(meter, problem, seed, begun, starts, {})
        return meter.solution()

    def _anneal(
        self,
        meter: Meter,
        problem: GraphOptimization,
        seed: int,
        begun: Float64,
        starts: Candidates | None,
        state: State,
    ) -> None:
        progress = make_progress(meter, float(begun[0]), float(begun[1]))
        moves = FittedMoves(problem)
        chains = Chains(meter, problem, moves, seed, progress, alike(problem), self.threads)
        if starts is not None:
            chains.begin(starts.vectors, starts.values)
        else:
            chains.restore(state)
        if moves:
            chains.run(lambda: {"begun": begun})

    def _count(self, meter: Meter, problem: GraphOptimization, pace: float) -> int:
        """Chains that the budget can feed."""
        if self.chains is not None:
            return self.chains
        room = meter.evaluations_left
        if room is None:
            threads = self.threads or cores()
            room = int((meter.seconds_left or 10.0) * FASTER * threads / max(1e-6, pace))
        return int(np.clip(room // (PER_GROUP * max(1, problem.groups)), LEAST_CHAINS, MOST_CHAINS))


def _evaluate(work: Work) -> None:
    assert work.chain.climb is not None
    work.found = work.chain.climb.run(*work.changes, work.slack, True)


def renamed(device: npt.NDArray[np.generic], like: npt.NDArray[np.generic]) -> Int64:
    """Devices [G] renamed so that they agree most with weights [G, D], largest agreement first."""
    now, count = device.astype(np.int64), like.shape[1]
    agrees = np.zeros((count, count))
    np.add.at(agrees, now, like)
    names = np.zeros(count, dtype=np.int64)
    for _ in range(count):
        old, new = np.unravel_index(int(agrees.argmax()), agrees.shape)
        names[old] = new
        agrees[old, :] = agrees[:, new] = -1.0
    return names[now]


def make_children(
    problem: GraphOptimization, rng: np.random.Generator, parents: Float64, count: int, alike: bool
) -> Float64:
    """[count, V] each of two parents: by a run of groups, by groups at random, or by tasks."""
    made, at = np.empty((count, problem.width)), problem.part("device")
    for row in range(count):
        a, b = rng.choice(len(parents), size=2, replace=False).tolist()
        child, other = parents[a].copy(), parents[b].copy()
        if alike and at.stop > at.start:
            other[at] = renamed(other[at], np.eye(problem.devices)[child[at].astype(np.int64)])
        kind = rng.random()
        if kind < 0.25:  # one task of the other
            part = problem.part(("fusion", "device", "schedule")[int(rng.integers(3))])
            child[part] = other[part]
        else:
            _mix(problem, child, other, _chosen(problem, rng, kind < 0.6))
        made[row] = child
    return made


def _chosen(problem: GraphOptimization, rng: np.random.Generator, run: bool) -> Bool:
    """[G] the groups that the other parent decides."""
    if not run:
        return rng.random(problem.groups) < rng.uniform(0.1, 0.5)
    first, last = np.sort(rng.integers(0, problem.groups + 1, size=2))
    chosen = np.zeros(problem.groups, dtype=np.bool_)
    chosen[first:last] = True
    return chosen


def _mix(problem: GraphOptimization, child: Float64, other: Float64, groups: Bool) -> None:
    nodes = groups[problem.node_group]
    for name, chosen in (("fusion", nodes), ("device", groups), ("schedule", nodes)):
        at = problem.part(name)
        if at.stop > at.start:
            child[at] = np.where(chosen, other[at], child[at])
