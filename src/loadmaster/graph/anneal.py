"""Annealing over fusion, placement and schedule. Proposals are drawn here and judged natively, one
after another, each by what it changes; the meter evaluates every new best in full.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from loadmaster.errors import LoadmasterError
from loadmaster.graph import UNFIT, GraphOptimization
from loadmaster.graph.pipeline import seeds
from loadmaster.search.solver import Meter, Solution, Solver, State, generator_state, restore_generator

# ----------------------------------------------------------------------------
# What the searches of GraphOptimization share: where they begin, and random vectors.

Float64 = npt.NDArray[np.float64]
Rng = np.random.Generator

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


def graph_of(meter: Meter) -> GraphOptimization:
    problem = meter.problem
    assert isinstance(problem, GraphOptimization)
    return problem


def starts(meter: Meter, start: str) -> list[Float64]:
    """Vectors to begin with: the base plan as it is and with the order left to the rule for ties,
    and, of 'seeds', what constructive solvers make in a part of the time."""
    problem, left = graph_of(meter), meter.seconds_left
    seconds = None if left is None else SEED_SHARE * left
    if start == "random":
        return []
    vectors = [problem.vector()]
    if "schedule" in problem.tasks:
        vectors.append(problem.vector(schedule=np.zeros(problem.nodes)))
    if start == "seeds":
        vectors += [vector for _, vector in seeds(problem, seconds)]
    return vectors


def random_vectors(problem: GraphOptimization, rng: Rng, count: int) -> Float64:
    """[count, V] uniform keys and devices."""
    vectors = rng.random((count, problem.width))
    at = problem.part("device")
    vectors[:, at] = np.floor(vectors[:, at] * problem.devices)
    return vectors


def batch_size(problem: GraphOptimization, most: int) -> int:
    """So many vectors that a batch takes well below a second; the same on every machine."""
    return int(np.clip(300_000 // max(1, problem.nodes), 4, most))


# ----------------------------------------------------------------------------
# Small changes of a vector of GraphOptimization, as rows that the native loop understands.

Int64 = npt.NDArray[np.int64]

_SHARES = {"device": 0.5, "schedule": 0.35, "fusion": 0.15}
"""How often a part is changed; where it is not decided, the others share it."""


class Moves:
    """Proposals: each changes the devices of some groups, some schedule keys or a fusion key."""

    def __init__(self, problem: GraphOptimization) -> None:
        self.nodes, self.groups, self.devices = problem.nodes, problem.groups, problem.devices
        self.at = {name: problem.part(name).start for name in _SHARES}
        order = np.argsort(problem.node_group, kind="stable")
        cuts = np.cumsum(np.bincount(problem.node_group, minlength=self.groups))[:-1]
        self.members = np.split(order, cuts)
        """[G] nodes of each group."""
        pairs = np.unique(problem.node_group[problem.edges], axis=1)
        self.pairs = pairs[:, pairs[0] != pairs[1]]
        """[2, P] groups of which one reads the other's results."""
        self.layers = _layers(problem)
        self.fusible = np.flatnonzero(problem.touched[problem.node_op])
        makers: dict[str, list[Callable[[Rng], None]]] = {"device": [], "schedule": [], "fusion": []}
        if "placement" in problem.tasks and self.devices > 1 and self.groups:
            makers["device"] = [self._group, self._group, self._run, self._layer, self._swap]
            if self.pairs.size:
                makers["device"] += [self._join, self._join]
        if "schedule" in problem.tasks and self.nodes:
            makers["schedule"] = [
                self._key,
                self._shift_key,
                self._plain_key,
                self._swap_keys,
                self._group_keys,
            ]
        if "fusion" in problem.tasks and len(self.fusible):
            makers["fusion"] = [self._never_fuse, self._fusion_key]
        kept = {name: made for name, made in makers.items() if made}
        self.makers = list(kept.values())
        shares = np.array([_SHARES[name] for name in kept])
        self.shares = np.cumsum(shares / shares.sum()) if kept else shares

    def __bool__(self) -> bool:
        return bool(self.makers)

    def draw(self, rng: Rng, count: int) -> tuple[Int64, Int64, Int64, Float64]:
        """(rows [count + 1], index, source or -1, value) of so many proposals; see climb.hpp."""
        self._index: list[int] = []
        self._source: list[int] = []
        self._value: list[float] = []
        rows = [0]
        for pick in np.searchsorted(self.shares, rng.random(count)).tolist():
            makers = self.makers[min(pick, len(self.makers) - 1)]
            makers[int(rng.integers(len(makers)))](rng)
            rows.append(len(self._index))
        return (
            np.array(rows, dtype=np.int64),
            np.array(self._index, dtype=np.int64),
            np.array(self._source, dtype=np.int64),
            np.array(self._value),
        )

    def _set(self, part: str, entries: npt.NDArray[np.integer], value: float) -> None:
        self._index += (entries + self.at[part]).tolist()
        self._source += [-1] * len(entries)
        self._value += [value] * len(entries)

    def _copy(self, part: str, entry: int, source: int, plus: float = 0.0) -> None:
        self._index.append(self.at[part] + entry)
        self._source.append(self.at[part] + source)
        self._value.append(plus)

    def _group(self, rng: Rng) -> None:
        """To another device than where it is."""
        group = int(rng.integers(self.groups))
        self._copy("device", group, group, float(rng.integers(1, self.devices)))

    def _run(self, rng: Rng) -> None:
        """Groups that follow one another in the program, of every length up to an eighth."""
        most = max(2, self.groups // 8)
        length = int(2 * (most / 2) ** rng.random())
        first = int(rng.integers(self.groups))
        groups = np.arange(first, min(self.groups, first + length))
        self._set("device", groups, float(rng.integers(self.devices)))

    def _layer(self, rng: Rng) -> None:
        groups = self.layers[int(rng.integers(len(self.layers)))]
        first = int(rng.integers(len(groups))) if rng.random() < 0.5 else 0
        self._set("device", groups[first:], float(rng.integers(self.devices)))

    def _swap(self, rng: Rng) -> None:
        a, b = rng.integers(self.groups, size=2).tolist()
        self._copy("device", a, b)
        self._copy("device", b, a)

    def _join(self, rng: Rng) -> None:
        """A group goes where a neighbour is."""
        pair = self.pairs[:, int(rng.integers(self.pairs.shape[1]))].tolist()
        a, b = pair if rng.random() < 0.5 else pair[::-1]
        self._copy("device", a, b)

    def _key(self, rng: Rng) -> None:
        self._set("schedule", rng.integers(self.nodes, size=1), float(rng.random()))

    def _shift_key(self, rng: Rng) -> None:
        """A little earlier or later, by any order of magnitude."""
        node = int(rng.integers(self.nodes))
        far = float(10 ** rng.uniform(-4, -0.5))
        self._copy("schedule", node, node, far if rng.random() < 0.5 else -far)

    def _plain_key(self, rng: Rng) -> None:
        """Back to the rule for ties."""
        self._set("schedule", rng.integers(self.nodes, size=1), 0.0)

    def _swap_keys(self, rng: Rng) -> None:
        a, b = rng.integers(self.nodes, size=2).tolist()
        self._copy("schedule", a, b)
        self._copy("schedule", b, a)

    def _group_keys(self, rng: Rng) -> None:
        key = float(rng.random()) if rng.random() < 0.7 else 0.0
        self._set("schedule", self.members[int(rng.integers(self.groups))], key)

    def _never_fuse(self, rng: Rng) -> None:
        self._set("fusion", rng.choice(self.fusible, size=1), 0.0)

    def _fusion_key(self, rng: Rng) -> None:
        self._set("fusion", rng.choice(self.fusible, size=1), float(rng.random()))


def _layers(problem: GraphOptimization) -> list[Int64]:
    """Groups whose first ops share the outermost scope; without scopes each is alone."""
    scope = problem.program.op_scope
    _, first = np.unique(problem.node_group, return_index=True)
    codes = scope.codes[problem.node_op[first]].tolist()
    layers: dict[str, list[int]] = {}
    for group, code in enumerate(codes):
        name = scope.values[code].split("/")[0] or f"/{group}"
        layers.setdefault(name, []).append(group)
    return [np.array(groups, dtype=np.int64) for groups in layers.values()]


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
