"""EGRL on scores: evolution of score functions and of scores beside a policy-gradient learner.

The population is mixed, as published, but its members rank (tensor, memory) pairs and a decoder makes the
map, so that every map fits. A member is scores [E, S] and the feature weights that went into them:

- *network* children move the weights of the policy's features: all tensors that look alike move together;
- *Boltzmann* children add noise to the scores of single tensors, at temperatures drawn anew each time;
- *crossover* takes each tensor's scores from one of two members;
- the *learner* follows the policy gradient over feature weights, from all that anybody has evaluated.

All begin from the trained policy, greedy by density and the compiler's map. Maps that were evaluated before
are not evaluated again, unless values are noisy: then the best are, and a member's value is their mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from loadmaster.arrays import Bool, Float32, Float64, Int8, Int64
from loadmaster.learn.session import Session, check_settings, free_settings, make_settings
from loadmaster.mapping.egrl.scores import VIEWS, View
from loadmaster.mapping.egrl.training import SHIPPED, load_policy
from loadmaster.mapping.problem import Mapping
from loadmaster.search.champion import Leaders
from loadmaster.search.solver import Meter, Solution, Solver, State, generator_state, restore_generator

UNTRAINED = "none"
COMPILER_BIAS = 3.0
"""By which the compiler's choices are put before others, where the search begins from its map."""
SHARES = (1.0, 0.3, 0.1, 0.03)
TEMPERATURES = (0.1, 0.3, 1.0, 2.0)
FEATURE_SHARES = (0.05, 0.2, 1.0)
STALE_ROUNDS = 30
"""So many rounds in a row without a new map, and the search is over."""
PRIOR = 10.0
"""Children that an operator is taken to have had, all of them members, before it had any."""
_SURE = 6
"""Measurements of a map after which it is not measured again."""


OPERATORS = ("network", "boltzmann", "crossover", "learner")


@dataclass(frozen=True)
class Settings:
    """Parts are switched off by 0 or 'none'; each is one ablation."""

    view: str = "nominal"
    """What is known of the machine: 'nominal' (its description, which may be wrong) or 'strict' (capacities)."""
    init: str = SHIPPED
    """A trained policy: the shipped one, a file of `train`, or 'none'."""
    population: int = 5
    """Members that have children."""
    batch: int = 10
    """Children a round."""
    network: float = 1.0
    boltzmann: float = 0.0
    crossover: float = 0.0
    learner: float = 0.0
    """Weights of the operators: how many children each has, before any of them has shown more success."""
    adaptive: bool = True
    """Operators have more children the more of theirs became members; False: as many as their weights say."""
    learning_rate: float = 0.5
    repeat: float = 0.3
    """Share of evaluations that measure the best again, where values are noisy."""

    def __post_init__(self) -> None:
        check_settings("EGRL", self, self._rules, counts=("population", "batch"), shares=("repeat",))

    def _rules(self) -> dict[str, bool]:
        return {
            "view": self.view in VIEWS,
            "network": sum(getattr(self, name) for name in OPERATORS) > 0,
            "init": bool(self.init),
        }


_COLUMNS = ("value", "scores", "weights", "linear", "view", "operator", "key")


class Members:
    """The best distinct maps so far: parents of the next round, best first."""

    def __init__(self, pairs: int, features: int) -> None:
        self.value = np.empty(0)
        self.scores = np.empty((0, pairs))
        self.weights = np.empty((0, features))
        """Feature weights that went into the scores."""
        self.linear = np.empty(0)
        self.view = np.empty(0, dtype=np.int64)
        """Which of the search's views decodes the scores."""
        self.operator = np.empty(0, dtype=np.int64)
        """Which of `OPERATORS` made it; -1: it was there at the start."""
        self.key = np.empty(0, dtype=np.uint64)
        """Of the maps."""

    def __len__(self) -> int:
        return len(self.value)

    def join(self, other: Members, most: int) -> None:
        """Take in others and keep the best, one of each value: equal times are nearly always equal maps."""
        for name in _COLUMNS:
            setattr(self, name, np.concatenate([getattr(self, name), getattr(other, name)]))
        self.sort(most)

    def sort(self, most: int) -> None:
        kept: list[int] = []
        for row in np.argsort(self.value, kind="stable").tolist():
            if len(kept) < most and self.value[row] not in self.value[kept] and np.isfinite(self.value[row]):
                kept.append(row)
        self._take(np.array(kept, dtype=np.int64))

    def _take(self, rows: Int64) -> None:
        for name in _COLUMNS:
            setattr(self, name, getattr(self, name)[rows])

    def arrays(self, prefix: str) -> State:
        return {f"{prefix}.{name}": getattr(self, name) for name in _COLUMNS}

    def restore(self, prefix: str, state: State) -> None:
        for name in _COLUMNS:
            setattr(self, name, np.array(state[f"{prefix}.{name}"]))


class Measured:
    """What each map took, by its key: sums, so that noisy values are means of several."""

    def __init__(self) -> None:
        self.count: dict[int, int] = {}
        self.total: dict[int, float] = {}
        self.freedom, self.scatter = 0, 0.0
        """Of maps measured more than once: measurements beyond the first, and the sum of their squared
        relative distances from the mean before them, scaled to have the variance of one measurement."""

    def add(self, key: int, value: float) -> None:
        count, total = self.count.get(key, 0), self.total.get(key, 0.0)
        if count and np.isfinite(total) and np.isfinite(value) and total:
            self.freedom += 1
            self.scatter += (value * count / total - 1) ** 2 * count / (count + 1)
        self.count[key], self.total[key] = count + 1, total + value

    def value(self, key: int) -> float:
        """The mean and its standard error: a map that was lucky once is no better than one that is known."""
        mean = self.total[key] / self.count[key]
        deviation = (self.scatter / self.freedom) ** 0.5 if self.freedom else 0.0
        return float(mean * (1 + deviation / self.count[key] ** 0.5))

    def arrays(self) -> State:
        return {
            "measured.key": np.fromiter(self.count, np.uint64, len(self.count)),
            "measured.count": np.fromiter(self.count.values(), np.int64, len(self.count)),
            "measured.total": np.fromiter(self.total.values(), np.float64, len(self.total)),
            "measured.scatter": np.array([self.freedom, self.scatter]),
        }

    def restore(self, state: State) -> None:
        keys = state["measured.key"].tolist()
        self.count = dict(zip(keys, state["measured.count"].tolist(), strict=True))
        self.total = dict(zip(keys, state["measured.total"].tolist(), strict=True))
        self.freedom, self.scatter = int(state["measured.scatter"][0]), float(state["measured.scatter"][1])


class Learner:
    """The policy gradient over feature weights: a Gaussian policy whose mean follows what was faster.

    Its replay is everything that was evaluated, by whomever: the weights of a map and its value. With
    advantages A and a baseline of the mean, the gradient of log N(w; mean, 1) is (w - mean) A.
    """

    def __init__(self, features: int, rate: float, replay: int = 256) -> None:
        self.mean = np.zeros(features)
        self.rate, self.replay = rate, replay
        self.weights = np.empty((0, features))
        self.values = np.empty(0)

    def learn(self, weights: Float64, values: Float64) -> None:
        fine = np.isfinite(values)
        self.weights = np.concatenate([self.weights, weights[fine]])[-self.replay :]
        self.values = np.concatenate([self.values, values[fine]])[-self.replay :]
        if len(self.values) < 8:
            return
        logs = np.log(np.maximum(self.values, 1.0))
        advantage = np.clip((logs.mean() - logs) / (logs.std() + 1e-9), -2, 2)
        gradient = advantage @ (self.weights - self.mean) / len(logs)
        self.mean = self.mean + self.rate * gradient

    def arrays(self) -> State:
        return {"learner.mean": self.mean, "learner.weights": self.weights, "learner.values": self.values}

    def restore(self, state: State) -> None:
        self.mean, self.weights, self.values = (
            np.array(state[f"learner.{name}"]) for name in ("mean", "weights", "values")
        )


class _Seen:
    """A view of the problem with its policy: features, scores to start from."""

    def __init__(self, problem: Mapping, kind: str, policy: str) -> None:
        trained = policy != UNTRAINED
        self.view = View(problem, kind)
        self.policy = load_policy(policy if trained else SHIPPED, kind)
        self.features: Float32 = self.policy.network.normalise(self.view)
        self.base = self.policy.score(self.view) if trained else np.zeros(len(self.features))
        self.linear = self.policy.linear if trained else 0.0


class Search(Session):
    """One run. What it goes on from: members, measured maps, operators' success, the learner, the generator."""

    def __init__(self, meter: Meter, seed: int, settings: Settings, state: State | None) -> None:
        super().__init__(meter, "propose", "decode", "evaluate")
        assert isinstance(meter.problem, Mapping)
        self.problem, self.settings = meter.problem, settings
        # Whoever knows the rates knows the rest too, and may look at it as if he did not.
        kinds = [settings.view] if settings.view == "strict" else ["nominal", "strict"]
        self.seen = [_Seen(self.problem, kind, settings.init) for kind in kinds]
        pairs, width = self.seen[0].features.shape
        self.rng = np.random.default_rng(seed)
        self.members, self.measured = Members(pairs, width), Measured()
        self.learner = Learner(width, settings.learning_rate)
        self.weights = np.array([float(getattr(settings, name)) for name in OPERATORS])
        self.tried, self.succeeded = np.zeros(len(OPERATORS)), np.zeros(len(OPERATORS))
        self.stale = self.repeated = self.decoded = 0
        """Rounds without a new map; evaluations of maps that were measured before; maps decoded."""
        if state is not None:
            self.rng = restore_generator(state["rng"])
            self.stale, self.repeated, self.decoded = (int(each) for each in state["counters"])
            self.tried, self.succeeded = np.array(state["tried"]), np.array(state["succeeded"])
            self.members.restore("members", state)
            self.measured.restore(state)
            self.learner.restore(state)

    def arrays(self) -> State:
        return {
            "rng": generator_state(self.rng),
            "counters": np.array([self.stale, self.repeated, self.decoded]),
            "tried": self.tried,
            "succeeded": self.succeeded,
            **self.members.arrays("members"),
            **self.measured.arrays(),
            **self.learner.arrays(),
        }

    def run(self, start: Int8 | None = None) -> Solution:
        """Search until the meter is exhausted; `start`: a map that is known from elsewhere."""
        if not self.measured.count:
            self._begin(start)
        while not self.meter.exhausted and self.stale < STALE_ROUNDS:
            self._round()
            self.offer_checkpoint()
            self.meter.progress(
                members=len(self.members), **dict(zip(OPERATORS, self.tried.tolist(), strict=True))
            )
        if not self.problem.repeatable:
            self._name_candidates()
        return self.meter.solution(
            view=self.settings.view,
            init=self.settings.init,
            distinct_maps=len(self.measured.count),
            legality_checks=self.decoded,
            measured_again=self.repeated,
            tried=dict(zip(OPERATORS, self.tried.tolist(), strict=True)),
            succeeded=dict(zip(OPERATORS, self.succeeded.tolist(), strict=True)),
            unpackable=self.meter.unpackable,
            seconds_split=dict(self.seconds),
        )

    def _name_candidates(self) -> None:
        """What is measured again at the end are the members, not the luckiest single measurements."""
        self.problem.leaders = Leaders()
        for decision, value in zip(self._decode(self.members), self.members.value.tolist(), strict=True):
            self.problem.recall(decision, round(value))

    def _begin(self, start: Int8 | None) -> None:
        """What is known from elsewhere; what the policy decides, greedy by density, the compiler's map; and,
        to search around, what is like the known ones with the room that they left filled."""
        if start is not None:
            self._evaluate(start[None])
        self._try(self._starts([(number, seen.base, seen.linear) for number, seen in enumerate(self.seen)]))
        self._try(self._starts([(number, 0 * seen.base, 0.0) for number, seen in enumerate(self.seen)]))
        for decision in [self.problem.make_legal(self.problem.compiler), *([] if start is None else [start])]:
            if not self.meter.exhausted and int(_keys(decision[None])[0]) not in self.measured.count:
                self._evaluate(decision[None])
            view = self.seen[0].view
            chosen = decision[view.decoder.live][:, None] == np.arange(view.shape[1])
            bias = np.where(chosen, COMPILER_BIAS, -COMPILER_BIAS).reshape(-1)
            if not self.meter.exhausted:
                self._try(self._starts([(0, bias, self.seen[0].linear)]))

    def _starts(self, rows: list[tuple[int, Float64, float]]) -> Members:
        """Members of (view, scores, linear)."""
        found = self._new(len(rows))
        found.view = np.array([view for view, _, _ in rows])
        found.scores = np.stack([scores for _, scores, _ in rows])
        found.linear = np.array([linear for _, _, linear in rows])
        return found

    def _new(self, count: int) -> Members:
        pairs, width = self.seen[0].features.shape
        found = Members(pairs, width)
        found.weights = np.zeros((count, width))
        found.operator = np.full(count, -1)
        return found

    def _round(self) -> None:
        settings = self.settings
        before = len(self.measured.count)
        if not self.problem.repeatable and self.repeated < settings.repeat * self.meter.evaluations:
            self._measure_again(settings.batch)
        if self.meter.exhausted:
            return
        with self.timed("propose"):
            children = self._children(settings.batch)
        self._try(children)
        self.stale = 0 if len(self.measured.count) > before else self.stale + 1

    def _children(self, count: int) -> Members:
        rng, members = self.rng, self.members
        ranks = np.minimum(len(members) - 1, rng.exponential(1.0, (2, count)).astype(np.int64))
        share = self.weights
        if self.settings.adaptive:
            share = self.weights * (self.succeeded + PRIOR) / (self.tried + PRIOR)
        operators = rng.choice(len(OPERATORS), count, p=share / share.sum())
        children = self._new(count)
        children.view, children.linear = members.view[ranks[0]], members.linear[ranks[0]]
        children.scores, children.weights = members.scores[ranks[0]].copy(), members.weights[ranks[0]].copy()
        children.operator = operators
        make = (self._network_child, self._boltzmann_child, self._crossed_child, self._learned_child)
        for row, operator in enumerate(operators.tolist()):
            make[operator](children, row, int(ranks[1, row]))
        return children

    def _network_child(self, children: Members, row: int, other: int) -> None:
        """Noise on some feature weights, scaled by what it does to the scores."""
        rng, features = self.rng, self.seen[children.view[row]].features
        width = features.shape[1]
        step = rng.normal(size=width) * (rng.random(width) < rng.choice(FEATURE_SHARES))
        change = features @ step.astype(np.float32)
        size = rng.choice(TEMPERATURES) / (float(change.std()) + 1e-9)
        children.scores[row] += size * change
        children.weights[row] += size * step

    def _boltzmann_child(self, children: Members, row: int, other: int) -> None:
        """Noise on the scores of some tensors, at one temperature."""
        rng, (entries, faster) = self.rng, self.seen[0].view.shape
        moved = rng.random(entries) < rng.choice(SHARES)
        if not moved.any():
            moved[rng.integers(entries)] = True
        noise = rng.normal(size=(entries, 1 if rng.random() < 0.5 else faster)) * np.ones((1, faster))
        children.scores[row] += (rng.choice(TEMPERATURES) * moved[:, None] * noise).reshape(-1)

    def _crossed_child(self, children: Members, row: int, other: int) -> None:
        """Each tensor's scores from one of two members."""
        entries, faster = self.seen[0].view.shape
        mine = np.repeat(self.rng.random(entries) < self.rng.choice([0.5, 0.9]), faster)
        children.scores[row] = np.where(mine, children.scores[row], self.members.scores[other])

    def _learned_child(self, children: Members, row: int, other: int) -> None:
        """The weights that the policy gradient has come to, and a little noise."""
        step = self.learner.mean - children.weights[row] + 0.3 * self.rng.normal(size=len(self.learner.mean))
        children.scores[row] += self.seen[children.view[row]].features @ step.astype(np.float32)
        children.weights[row] += step

    def _try(self, tried: Members) -> None:
        """Decode members, evaluate those whose map is new, and let the best have children."""
        maps = self._decode(tried)
        tried.key = _keys(maps)
        new = np.array([key not in self.measured.count for key in tried.key.tolist()])
        new &= np.isin(np.arange(len(maps)), np.unique(tried.key, return_index=True)[1])
        rows = np.flatnonzero(new)[: self.meter.evaluations_left]
        self._evaluate(maps[rows])
        known = self.measured
        tried.value = np.array(
            [known.value(key) if key in known.count else np.inf for key in tried.key.tolist()]
        )
        if self.settings.learner:
            self.learner.learn(tried.weights[rows], tried.value[rows])
        before = set(self.members.key.tolist())
        self.members.join(tried, self.settings.population)
        by = tried.operator[rows]
        np.add.at(self.tried, by[by >= 0], 1)
        came = [key not in before for key in self.members.key.tolist()]
        by = self.members.operator[came]
        np.add.at(self.succeeded, by[by >= 0], 1)

    def _decode(self, members: Members) -> Int8:
        maps = np.empty((len(members.scores), 2 * self.problem.nodes), dtype=np.int8)
        self.decoded += len(maps)
        with self.timed("decode"):
            for number, seen in enumerate(self.seen):
                rows = np.flatnonzero(members.view == number)
                if len(rows):
                    maps[rows] = seen.view.decode(members.scores[rows], members.linear[rows])
        return maps

    def _evaluate(self, maps: Int8) -> None:
        if not len(maps):
            return
        with self.timed("evaluate"):
            scores = self.meter.evaluate_many(maps)
        failed: Bool = scores.value < 0 if scores.failed is None else (scores.value < 0) | scores.failed
        for key, value, bad in zip(
            _keys(maps).tolist(), scores.value.tolist(), failed.tolist(), strict=False
        ):
            # A failure may be a broken board: the map is not tried again, and has no children.
            self.measured.add(key, np.inf if bad else float(value))

    def _measure_again(self, count: int) -> None:
        """Of the members, those measured least: a map that was lucky once falls back."""
        known = [self.measured.count[key] for key in self.members.key.tolist()]
        rows = [row for row in np.argsort(known, kind="stable").tolist() if known[row] < _SURE][:count]
        rows = rows[: self.meter.evaluations_left]
        if not rows:
            return
        members = self.members
        self.repeated += len(rows)
        self._evaluate(self._decode(members)[rows])
        members.value = np.array([self.measured.value(key) for key in members.key.tolist()])
        members.sort(self.settings.population)


def _keys(maps: Int8) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
    """[B] a number for each map."""
    digests = [blake2b(row.tobytes(), digest_size=8).digest() for row in maps]
    return np.frombuffer(b"".join(digests), dtype=np.uint64)


class Egrl(Solver):
    """Evolutionary graph reinforcement learning on scores. Options are the fields of `Settings`."""

    name = "egrl"
    problem_kind = "mapping"
    summary = (
        "scores ranked by a trained policy, decoded into maps that fit, and evolved; sees rewards, and the "
        "machine as it is described"
    )
    deterministic = True

    def __init__(self, **settings: Any) -> None:
        self.settings = make_settings(Settings, self.name, settings, {})
        self.options = free_settings(self.settings, {})
        self.start: Int8 | None = None
        """A map to begin with, should one be known."""

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        assert isinstance(meter.problem, Mapping)
        if not meter.problem.live.any():
            meter.evaluate(meter.problem.all_slowest())
            return meter.solution()
        return Search(meter, seed, self.settings, state).run(
            meter.start if self.start is None else self.start
        )
