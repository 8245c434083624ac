"""Searches of the Mapping problem, and `auto`.

Black box: they see nothing of a map but its reward. Grey box (`Probe`): sizes, lives and capacities too, so
that whatever it evaluates fits; how fast anything is it learns from evaluations alone. Which solvers are white
boxes, and read the program's and the machine's times, is said here once: the kinds are never ranked against
each other unlabelled.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from itertools import product

import numpy as np

from loadmaster.arrays import Float64, Int8, Int64
from loadmaster.mapping.decoder import NEVER, Decoder
from loadmaster.mapping.features import COLUMNS, node_features
from loadmaster.mapping.problem import Mapping
from loadmaster.search import metaheuristics
from loadmaster.search.auto import Auto, Stage
from loadmaster.search.metaheuristics import Rng, Search, Walk
from loadmaster.search.problem import Decision, Problem
from loadmaster.search.solver import Meter, Solution, Solver, State, generator_state, restore_generator


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


# Measured density.

_POSITION = [COLUMNS.index(name) for name in ("n_ops_left", "n_w_left", "placed_activation", "placed_weight")]
BATCH = 10
STALE_BATCHES = 50
"""So many batches in a row without a new map, and the search is over."""


class Probe(Solver):
    """One tensor per kind and memory first, then greedy by measured density, then noise on both."""

    name = "probe"
    problem_kind = "mapping"
    summary = "times one tensor of each kind, then greedy by measured density and local search (grey box)"
    deterministic = True

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        assert isinstance(meter.problem, Mapping)
        if meter.exhausted or not meter.problem.live.any():
            if not meter.exhausted:
                meter.evaluate(meter.problem.all_slowest())
            return meter.solution()
        search = _Probing(meter, seed)
        if state is None:
            search.measure()
        else:
            search.restore(state)
        search.improve()
        return meter.solution(kinds=search.kinds, legality_checks=search.checked)


class _Probing:
    def __init__(self, meter: Meter, seed: int) -> None:
        assert isinstance(meter.problem, Mapping)
        self.meter, self.problem = meter, meter.problem
        self.decoder = Decoder(self.problem)
        self.rng = np.random.default_rng(seed)
        live = self.decoder.live
        self.kind, self.kinds = _kinds(self.problem, live)
        entries = self.problem.entries
        life = entries.piece_last.astype(np.float64) - entries.piece_first + 1
        owner = np.repeat(np.arange(len(live)), np.diff(entries.piece_start)[live])
        volume = np.zeros((len(live), entries.piece_size.shape[1]))
        np.add.at(volume, owner, entries.piece_size * life[:, None])
        self.log_volume: Float64 = np.log(np.maximum(1.0, volume[:, :-1]))
        self.scores = np.full(self.decoder.shape, NEVER)
        self.best = np.inf
        self.seen: set[bytes] = set()
        self.stale = self.checked = 0

    def measure(self) -> None:
        """Everything slow, then one tensor of each kind alone in each memory; the heaviest kinds first."""
        entries, faster = self.decoder.shape
        slow = self._evaluate(self.problem.all_slowest()[None])
        if not len(slow):
            return
        traffic = np.bincount(self.kind, self.problem.entries.bytes[self.decoder.live], self.kinds)
        # Half of the budget at most: a probe that nothing is made of is wasted.
        left = self.meter.evaluations_left
        most = self.kinds * faster if left is None else left // 2
        probes = [(kind, memory) for kind in np.argsort(-traffic).tolist() for memory in range(faster)][:most]
        maps, kept = [], []
        for kind, memory in probes:
            alone = np.full((1, entries, faster), NEVER)
            alone[0, np.flatnonzero((self.kind == kind) & (self.decoder.model.pinned < 0))[:1], memory] = 0.0
            found = self._decode(alone)[0]
            if not np.array_equal(found, self.problem.all_slowest()):  # it fits
                maps.append(found)
                kept.append((kind, memory))
        saved = np.zeros((self.kinds, faster))
        values = self._evaluate(np.array(maps)) if maps else np.empty(0)
        for (kind, memory), value in zip(kept, values.tolist(), strict=False):
            saved[kind, memory] = max(0.0, slow[0] - value)
        with np.errstate(divide="ignore"):
            self.scores = np.log(saved[self.kind]) - self.log_volume
        if not self.meter.exhausted:
            self._take(self.scores[None])

    def improve(self) -> None:
        """Noise on the measured savings, around the best so far."""
        while not self.meter.exhausted and self.stale < STALE_BATCHES:
            before = len(self.seen)
            self._take(np.stack([self._moved() for _ in range(BATCH)]))
            self.stale = 0 if len(self.seen) > before else self.stale + 1
            if self.meter.observer.wants_checkpoint(self.meter):
                self.meter.checkpoint(self.arrays())
            self.meter.progress(distinct_maps=float(len(self.seen)))

    def _moved(self) -> Float64:
        """[E, S] the best scores with some kinds, or some tensors, moved."""
        rng, (entries, faster) = self.rng, self.decoder.shape
        size = rng.choice([0.1, 0.3, 1.0, 2.0])
        noise = size * rng.normal(size=(entries, faster))
        moved = rng.random(entries) < rng.choice([1.0, 0.3, 0.1, 0.03])
        if rng.random() < 0.5:
            of_kind = rng.normal(size=(self.kinds, faster))
            noise, moved = size * of_kind[self.kind], (rng.random(self.kinds) < 0.3)[self.kind]
        if not moved.any():
            moved[rng.integers(entries)] = True
        floor = self.scores[np.isfinite(self.scores)].min(initial=0.0) - 1.0
        # Where nothing was saved alone, something may be together with others: at the end of the queue.
        scores: Float64 = np.maximum(self.scores, floor) + np.where(moved[:, None], noise, 0.0)
        return scores

    def _take(self, scores: Float64) -> None:
        maps = self._decode(scores)
        rows: list[int] = []
        for row, decision in enumerate(maps):
            if decision.tobytes() not in self.seen and len(rows) < (self.meter.evaluations_left or len(maps)):
                self.seen.add(decision.tobytes())
                rows.append(row)
        for row, value in zip(rows, self._evaluate(maps[rows]).tolist(), strict=False):
            if 0 <= value < self.best:
                self.best, self.scores = value, scores[row]

    def _decode(self, scores: Float64) -> Int8:
        self.checked += len(scores)
        return self.decoder.decode(scores, nominal=False)

    def _evaluate(self, maps: Int8) -> Float64:
        if not len(maps):
            return np.empty(0)
        values: Int64 = self.meter.evaluate_many(maps).value
        return values.astype(np.float64)

    def arrays(self) -> State:
        seen = np.frombuffer(b"".join(sorted(self.seen)), dtype=np.int8)
        return {
            "rng": generator_state(self.rng),
            "scores": self.scores,
            "best": np.array(self.best),
            "seen": seen.reshape(len(self.seen), -1),
            "counters": np.array([self.stale, self.checked]),
        }

    def restore(self, state: State) -> None:
        self.rng = restore_generator(state["rng"])
        self.scores, self.best = np.array(state["scores"]), float(state["best"])
        self.seen = {row.tobytes() for row in np.asarray(state["seen"], dtype=np.int8)}
        self.stale, self.checked = (int(each) for each in state["counters"])


def _kinds(problem: Mapping, live: Int64) -> tuple[Int64, int]:
    """([E] a number for tensors of layers with equal features, how many there are)"""
    rows = np.delete(node_features(problem), _POSITION, axis=1).round(6)
    node = np.unique(rows, axis=0, return_inverse=True)[1].reshape(-1)
    both = np.concatenate([2 * node, 2 * node + 1])[live]  # activations and weights apart
    found, number = np.unique(both, return_inverse=True)
    return number.reshape(-1).astype(np.int64), len(found)


# `auto`: the best map that can be had, with a proof where one can be had in time.

HEURISTICS = ("all-slowest", "role-split", "compiler", "density", "one-arena", "greedy-by-size")
WHITE_BOX = frozenset({"auto", "exact", *HEURISTICS})
GREY_BOX = frozenset({"egrl", "probe"})
EXACT_TENSORS = 3_000
"""Above so many decided tensors the exact solver is left out: its model is too large to gain."""
EGRL_TENSORS = 100_000
"""Above so many EGRL is left out: at 150,000 a generation takes seconds and the population a gigabyte."""


def make_auto() -> Auto:
    """Greedy by density first; then the exact solver from there if OR-tools is installed and the
    program is small enough, else EGRL. Measured problems have no model: EGRL searches them."""
    summary = "density, then exact with a proof, or EGRL where that is out of reach (white box)"
    # How far the exact solver gets depends on the clock.
    return Auto("mapping", _schedule, summary=summary, deterministic=False, scheduled=True)


def _schedule(problem: Problem) -> list[Stage]:
    assert isinstance(problem, Mapping)
    if int(problem.live.sum()) > EGRL_TENSORS:
        return [Stage("density"), *(Stage(name, when=_has_time) for name in ("compiler", "role-split"))]
    search = Stage("exact") if can_prove(problem) else Stage("egrl", resumes=True)
    return [Stage("density"), search]


def _has_time(meter: Meter) -> bool:
    """Whether another method can be followed: it takes about as long as what is kept back to check its plan."""
    left = meter.seconds_left
    return left is None or left >= meter.reserve


def can_prove(problem: Mapping) -> bool:
    """Whether the exact solver can be expected to gain here."""
    small = int(problem.live.sum()) <= EXACT_TENSORS
    return problem.repeatable and small and find_spec("ortools") is not None
