"""Several annealing chains from different plans: those that lag are stopped, the best are crossed, and
who is left gets the time. What chains do depends neither on the number of threads nor on which is
faster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from loadmaster import _core
from loadmaster.graph import UNFIT, GraphOptimization
from loadmaster.graph.anneal import Moves, batch_size, starts
from loadmaster.graph.base import fixed_keys
from loadmaster.graph.go.actions import leaves
from loadmaster.graph.go.prior import Prior
from loadmaster.graph.pipeline import Classical
from loadmaster.graph.placers import Vectors
from loadmaster.host import cores
from loadmaster.search.solver import Meter, State, generator_state, restore_generator

# ----------------------------------------------------------------------------
# Plans from which a search of GraphOptimization may begin: the constructive ones and others, each with
# fusion fitted to its devices. A cluster runs on one device, so fusion that was made before the
# placement takes ops to where nobody wanted them.

Float64 = npt.NDArray[np.float64]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

WORST = np.iinfo(np.int64).max
"""The value of what can't run."""
FITTED = 16
"""Placements of which variants are made: the best ones."""
CLASSICAL, SHARE = 0.3, 0.4
"""Of the time, at most: for constructive plans, and for all plans before the search itself."""


@dataclass
class Candidates:
    """Vectors [B, V] and their values [B], `WORST` for what can't run."""

    vectors: Float64
    values: Int64

    def best_placements(self, problem: GraphOptimization, count: int) -> list[int]:
        """Rows: the best of each placement, the best of them first."""
        rows, seen, at = [], set(), problem.part("device")
        for row in np.argsort(self.values, kind="stable").tolist():
            key = self.vectors[row, at].tobytes()
            if key not in seen and self.values[row] < WORST:
                seen.add(key)
                rows.append(row)
            if len(rows) == count:
                break
        return rows

    def add(self, meter: Meter, vectors: Iterable[Float64], share: float = 1.0) -> None:
        """Evaluate those that are new, as far as the budget goes, or a share of its time."""
        known = {vector.tobytes() for vector in self.vectors}
        new = list({v.tobytes(): v for v in vectors if v.tobytes() not in known}.values())
        problem = meter.problem
        assert isinstance(problem, GraphOptimization)
        size, limit = batch_size(problem, 64), meter.budget.seconds
        for first in range(0, len(new), size):
            late = limit is not None and len(self.values) and meter.seconds > share * limit
            if meter.exhausted or late:
                return
            batch = np.stack(new[first : first + size])
            found = meter.evaluate_many(batch).value
            self.vectors = np.concatenate([self.vectors, batch[: len(found)]])
            self.values = np.concatenate([self.values, np.where(found < 0, WORST, found)])

    def follow(self, meter: Meter, maker: Vectors, share: float) -> None:
        """Evaluate what a constructive solver makes, which is told each value, in a share of the
        time."""
        known = {v.tobytes(): value for v, value in zip(self.vectors, self.values.tolist(), strict=True)}
        new: list[Float64] = []
        value: int | None = None
        limit = meter.budget.seconds
        while not meter.exhausted and (limit is None or meter.seconds < share * limit):
            try:
                vector = maker.send(value)
            except StopIteration:
                break
            key = vector.tobytes()
            if key not in known:
                found = meter.evaluate(vector)
                known[key] = WORST if found is None else found
                new.append(vector)
            value = None if known[key] == WORST else known[key]
        values = [known[vector.tobytes()] for vector in new]
        self.vectors = np.concatenate([self.vectors, np.array(new).reshape(-1, self.vectors.shape[1])])
        self.values = np.concatenate([self.values, np.array(values, dtype=np.int64)])


def constructive(meter: Meter, problem: GraphOptimization) -> Candidates:
    """What the meter knows already, the base plan, every constructive plan, and the best placements
    with fusion that fits them."""
    found = Candidates(np.zeros((0, problem.width)), np.zeros(0, dtype=np.int64))
    if meter.best is not None and meter.best_value is not None:
        found = Candidates(meter.best[None].copy(), np.array([meter.best_value], dtype=np.int64))
    found.add(meter, starts(meter, "base"))
    found.follow(meter, Classical().make(problem), CLASSICAL)
    rows = found.best_placements(problem, FITTED)
    found.add(meter, variants(problem, found.vectors[rows]), SHARE)
    return found


def variants(problem: GraphOptimization, vectors: Float64) -> list[Float64]:
    """With the placement of each vector: the order left to the rule for ties, and fusion as it is,
    within devices alone, and within groups alone."""
    fitting, zeros, made = Fitting(problem), np.zeros(problem.nodes), []
    for vector in vectors:
        fusion, device, _ = problem.split(vector)
        made.append(problem.vector(fusion, device, zeros))
        if "fusion" in problem.tasks:
            made += [
                problem.vector(fitting.keys(device), device, zeros),
                problem.vector(fitting.apart, device, zeros),
            ]
    return made


class Fitting:
    """Fusion keys that follow devices."""

    def __init__(self, problem: GraphOptimization) -> None:
        self._problem, self.plain = problem, fixed_keys(problem.nodes)
        self.apart = self.keys(np.arange(problem.groups))
        """[n] keys with which every group stays by itself."""

    def keys(self, device: npt.NDArray[np.generic]) -> Float64:
        """[n] as the fixed pass, but nothing is fused from one device into another; devices [G]."""
        return np.where(leaves(self._problem, device), 0.0, self.plain)


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


def children(
    problem: GraphOptimization, rng: np.random.Generator, parents: Float64, count: int, alike: bool
) -> Float64:
    """[count, V] each of two parents: by a run of groups, by groups at random, or by tasks."""
    made, at = [], problem.part("device")
    for _ in range(count):
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
        made.append(child)
    return np.array(made).reshape(len(made), problem.width)


def _chosen(problem: GraphOptimization, rng: np.random.Generator, run: bool) -> npt.NDArray[np.bool_]:
    """[G] the groups that the other parent decides."""
    if not run:
        return rng.random(problem.groups) < rng.uniform(0.1, 0.5)
    first, last = np.sort(rng.integers(0, problem.groups + 1, size=2))
    chosen = np.zeros(problem.groups, dtype=np.bool_)
    chosen[first:last] = True
    return chosen


def _mix(problem: GraphOptimization, child: Float64, other: Float64, groups: npt.NDArray[np.bool_]) -> None:
    nodes = groups[problem.node_group]
    for name, chosen in (("fusion", nodes), ("device", groups), ("schedule", nodes)):
        at = problem.part(name)
        if at.stop > at.start:
            child[at] = np.where(chosen, other[at], child[at])


# ----------------------------------------------------------------------------
# Changes of a vector that know more than `Moves`: fusion that follows the devices, and decisions
# drawn from a prior.

Rng = np.random.Generator
Changes = tuple[Int64, Int64, Int64, Float64]

FUSION_SHARE = 0.06
"""Of all proposals: to fuse again takes ten times as long as anything else."""
_SHARES = {"device": 0.55, "schedule": 0.45, "fusion": 0.0}
"""Of the others."""


class SteeredMoves(Moves):
    """`standing` is the vector to which proposals will be applied, or one like it."""

    def __init__(self, problem: GraphOptimization, prior: Prior | None = None) -> None:
        super().__init__(problem)
        self.problem, self.prior, self.standing = problem, prior, problem.vector()
        self.fitting = Fitting(problem)
        self._near: dict[int, tuple[Int64, Int64, Int64]] = {}
        self.device_part, self.fuses = problem.part("device"), "fusion" in problem.tasks
        order = np.argsort(problem.edges[0], kind="stable")
        self._out = problem.edges[:, order]
        self._starts = np.searchsorted(self._out[0], np.arange(problem.nodes + 1))
        into = np.argsort(problem.edges[1], kind="stable")
        self._in = problem.edges[:, into]
        self._in_starts = np.searchsorted(self._in[1], np.arange(problem.nodes + 1))
        self._entropy = np.zeros(0)
        placed = "placement" in problem.tasks and self.devices > 1 and self.groups > 0
        extra: dict[str, list[Callable[[Rng], None]]] = {"device": [], "schedule": [], "fusion": []}
        if prior is not None and placed and len(prior.device):
            doubt = prior.uncertainty + 0.05
            self._entropy = np.cumsum(doubt / doubt.sum())
            extra["device"] += [self._likely_group, self._likely_group, self._likely_run]
        if prior is not None and len(prior.schedule):
            extra["schedule"] += [self._likely_keys]
        if self.fuses and len(self.fusible) and self.groups:
            extra["fusion"] += [self._fit_group, self._fit_group, self._part_group]
            if placed:
                extra["fusion"] += [self._move_fitted, self._move_fitted]
            if prior is not None and len(prior.fusion):
                extra["fusion"] += [self._likely_fusion]
        decided = {
            "device": placed,
            "schedule": "schedule" in problem.tasks and self.nodes > 0,
            "fusion": self.fuses and len(self.fusible) > 0,
        }
        self.parts = [name for name in _SHARES if decided[name]]
        for name, makers in zip(self.parts, self.makers, strict=True):
            makers += extra[name]

    def draw_for(
        self, standing: Float64, rng: Rng, count: int, fusion_share: float = FUSION_SHARE
    ) -> Changes:
        """Proposals for a vector, so many of them about fusion."""
        self.standing = standing
        shares = np.array([_SHARES[name] for name in self.parts])
        shares = shares * (1 - fusion_share) / max(1e-9, shares.sum())
        if "fusion" in self.parts:
            shares[self.parts.index("fusion")] = 1 - shares.sum()
        self.shares = np.cumsum(shares / shares.sum())
        return self.draw(rng, count)

    # --- fusion that follows the devices -----------------------------------------------------

    def _around(self, group: int) -> tuple[Int64, Int64, Int64]:
        """(nodes of a group and what it reads, and of their results: which of them, the reader's
        group)."""
        if group not in self._near:
            members = self.members[group]
            rows = [self._in[0, self._in_starts[i] : self._in_starts[i + 1]] for i in members.tolist()]
            feeds = np.concatenate([members[:0], *rows])
            nodes = np.unique(np.concatenate([members, feeds]))
            out = [np.arange(self._starts[i], self._starts[i + 1]) for i in nodes.tolist()]
            which = np.repeat(np.arange(len(nodes)), [len(row) for row in out])
            readers = self._out[1, np.concatenate(out)] if out else members[:0]
            self._near[group] = nodes, which, self.problem.node_group[readers].astype(np.int64)
        return self._near[group]

    def _fitted(self, group: int, device: Float64) -> None:
        """Keys around a group as devices [G] want them."""
        nodes, which, reader = self._around(group)
        own = self.problem.node_group[nodes]
        keys = self.fitting.plain[nodes].copy()
        keys[which[device[reader] != device[own[which]]]] = 0.0
        self._set_each("fusion", nodes, keys)

    def _set_each(self, part: str, entries: npt.NDArray[np.integer], values: Float64) -> None:
        self._index += (entries + self.at[part]).tolist()
        self._source += [-1] * len(entries)
        self._value += values.tolist()

    def _devices(self) -> Float64:
        return (
            self.standing[self.device_part]
            if len(self.standing[self.device_part])
            else (self.problem.split(self.standing)[1].astype(np.float64))
        )

    def _fit_group(self, rng: Rng) -> None:
        self._fitted(int(rng.integers(self.groups)), self._devices())

    def _part_group(self, rng: Rng) -> None:
        """Nothing of a group is fused with others, or all that may be."""
        nodes, which, reader = self._around(int(rng.integers(self.groups)))
        keys = self.fitting.plain[nodes].copy()
        if rng.random() < 0.5:
            keys[which[reader != self.problem.node_group[nodes][which]]] = 0.0
        self._set_each("fusion", nodes, keys)

    def _move_fitted(self, rng: Rng) -> None:
        """A group to another device, and fusion around it follows."""
        group, device = int(rng.integers(self.groups)), self._devices().copy()
        device[group] = (device[group] + rng.integers(1, self.devices)) % self.devices
        self._set_each("device", np.array([group]), device[group : group + 1])
        self._fitted(group, device)

    # --- decisions from the prior --------------------------------------------------------------

    def _likely_group(self, rng: Rng) -> None:
        """A group about which the prior is in doubt."""
        group = min(int(np.searchsorted(self._entropy, rng.random())), self.groups - 1)
        self._draw("device", np.array([group]), rng)

    def _likely_run(self, rng: Rng) -> None:
        length = int(2 * max(1, self.groups // 16) ** rng.random())
        first = int(rng.integers(self.groups))
        self._draw("device", np.arange(first, min(self.groups, first + length)), rng)

    def _likely_keys(self, rng: Rng) -> None:
        self._draw("schedule", self.members[int(rng.integers(self.groups))], rng)

    def _likely_fusion(self, rng: Rng) -> None:
        self._draw("fusion", self.members[int(rng.integers(self.groups))], rng)

    def _draw(self, part: str, entries: npt.NDArray[np.integer], rng: Rng) -> None:
        assert self.prior is not None
        self._set_each(part, entries, self.prior.draw_part(part, entries.astype(np.int64), rng))


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
