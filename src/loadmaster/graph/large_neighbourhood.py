"""Large-neighbourhood search: free some groups of the plan in hand, and let a list scheduler put them again.

Destroy operators free a few groups, a window of the program, a ball of the graph, some layers, or all; one
more changes single devices and keys without the scheduler. A bandit chooses among them by what they gained.
Repair is the list scheduler of `graph/decoder.py` with parameters and biases that are drawn anew each time.
Of every round's candidates the best is taken by the rule of Metropolis; a plan that does not fit is above all
that do, so that memory is a hard limit. Between rounds there are stretches of annealing, one small change after
another, each far cheaper than a candidate: by what both gained for what they cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from loadmaster.arrays import Bool, Float64, Int32, Int64
from loadmaster.graph.decoder import Decoder, FusionMode, fusion_modes, hinted_devices, leaves, partitions
from loadmaster.graph.list_placers import Heft, MEtf
from loadmaster.graph.moves import Changes, FittedMoves, Moves, first_rows
from loadmaster.graph.pipeline import WORST, batch_size, graph_of, vector_key
from loadmaster.graph.placers import Expert, Places, find_clusters
from loadmaster.graph.problem import UNFIT, GraphOptimization
from loadmaster.search.solver import (
    Budget,
    Meter,
    Solution,
    Solver,
    State,
    check_option,
    generator_state,
    restore_generator,
)

Rng = np.random.Generator

OPERATORS = ("move", "few", "window", "ball", "layer", "all")
MEAN = np.log([1.0, 0.3, 0.05, 1.0, 0.95])
DEVIATION = np.array([0.7, 1.2, 1.5, 1.0, 0.15])
"""Of the logarithms of the scheduler's parameters; of the wait, of half the logit."""
ORDER_SHARES = (0.25, 0.5, 0.25)
HOLDS = (0.0, 0.0, 1.5, 5.0, 20.0)
"""By how many times the mean work of a group the device in hand is preferred."""
NOISES = (0.1, 1.0, 5.0)
MOST_FEW = 16
NEIGHBOURS = 6
"""Of a group that a ball takes in, at most."""
DECAY, EXPLORED = 0.98, 0.2
"""Of what the bandit remembers; and the share of draws that does not depend on it."""
FIRST_HEAT, LAST_HEAT = 4e-3, 4e-5
"""Of Metropolis, as shares of the best time."""
SCREEN_NOISE = 0.02
"""Of the logarithm of what the scheduler reckons."""
STRETCH, LONG_STRETCH = 32, 256
"""Proposals of a stretch of annealing: at least, and where the budget is large."""
COOLER = (1.0, 0.3, 0.1)
"""Shares of the heat at which a stretch is run."""
STRETCHED, STRETCH_COST = 0.03, 0.05
"""The least share of rounds that are stretches, or that are not; and the time of a proposal over that of a candidate."""
STRETCH_DECAY, STRETCH_GAIN = 0.8, 1e-5
"""Of what is remembered of gains, each round; and what a round without one counts."""
TIED, PATHS = 0.05, 0.1
"""How often a repaired plan leaves its order to the rule for ties, and to the longest paths with transfers."""
FUSED_OTHERWISE = 3
"""Placements that are tried with every fusion."""
CONSTRUCTED, CONSTRUCTED_ONE_IN, CONSTRUCTED_SHARE = 16, 32, 0.2
"""Constructive placements that are evaluated, of those that the scheduler reckons best, and at most one in so many of
all evaluations; none are made when so much of the time is over."""
ORDERED = 2
"""Placements that are tried with the order of longest paths."""
UNLIMITED = 20_000
"""Evaluations until it is cold where nothing limits it."""
LATE = 0.5
"""By how much the share of seconds must be ahead of that of evaluations to count in its place."""


@dataclass
class Standing:
    """A plan in hand: its vector with fusion keys as they are before the devices cut them, and its value."""

    vector: Float64
    within: bool
    """Whether nothing is fused from one device into another."""
    value: int


class Space:
    """Between plans in hand and vectors."""

    def __init__(self, problem: GraphOptimization) -> None:
        self.problem, self.modes = problem, fusion_modes(problem)
        self.device, self.fusion = problem.part("device"), problem.part("fusion")

    def devices(self, vectors: Float64) -> Int32:
        """[..., G]"""
        return self.problem.split(vectors)[1]

    def vectors(self, plain: Float64, within: Bool) -> Float64:
        """[B, V] what is evaluated: fusion keys [B, n] that leave their device are 0 where `within` [B]."""
        cut = np.flatnonzero(within)
        if not len(cut) or self.fusion.stop == self.fusion.start:
            return plain
        made = plain.copy()
        away = leaves(self.problem, self.devices(plain[cut]))
        made[cut, self.fusion] = np.where(away, 0.0, plain[cut, self.fusion])
        return made

    def plain(self, device: Int32, mode: FusionMode, paths: bool = False) -> Float64:
        """[V] with this mode's keys, the order left to the rule for ties or by longest `paths` with transfers."""
        problem = self.problem
        plain = problem.vector(mode.keys, device, np.zeros(problem.nodes))
        at = problem.part("schedule")
        if paths and at.stop > at.start:
            keys = problem.split(self.vectors(plain[None], np.array([mode.within])))[0][0]
            plain[at] = Places(problem, find_clusters(problem, keys)).keys(device, moves=True)
        return plain


class Neighbourhoods:
    """Which groups are freed."""

    def __init__(self, problem: GraphOptimization, decoder: Decoder, moves: Moves) -> None:
        self.groups, self.layers = problem.groups, moves.layers
        _, step_group, _, _ = decoder.places.table
        first = np.full(self.groups, len(step_group))
        np.minimum.at(first, step_group, np.arange(len(step_group)))
        self.order = np.argsort(first, kind="stable")
        """Groups by their first steps."""
        pairs = np.concatenate([moves.pairs, moves.pairs[::-1]], axis=1).astype(np.int64)
        pairs = pairs[:, np.argsort(pairs[0], kind="stable")]
        self.near, self.starts = pairs[1], np.searchsorted(pairs[0], np.arange(self.groups + 1))

    def free(self, rng: Rng, operator: str) -> Bool:
        """[G] the groups that an operator frees."""
        groups = self.groups
        free = np.zeros(groups, dtype=np.bool_)
        size = int(np.clip(np.exp(rng.uniform(np.log(2), np.log(max(3, groups / 3)))), 1, groups))
        if operator == "few":
            free[rng.integers(groups, size=min(size, MOST_FEW))] = True
        elif operator == "window":
            begin = int(rng.integers(-size // 2, groups))
            free[self.order[max(0, begin) : begin + size]] = True
        elif operator == "ball":
            self._ball(rng, free, int(rng.integers(groups, size=1)[0]), size)
        elif operator == "layer":
            for _ in range(int(rng.integers(1, 4))):
                free[self.layers[int(rng.integers(len(self.layers)))]] = True
        else:
            free[:] = True
        return free

    def _ball(self, rng: Rng, free: Bool, centre: int, size: int) -> None:
        free[centre] = True
        reached = [centre]
        for group in reached:  # grows while it is walked
            near = self.near[self.starts[group] : self.starts[group + 1]]
            for other in rng.permutation(near)[:NEIGHBOURS].tolist():
                if len(reached) < size and not free[other]:
                    free[other] = True
                    reached.append(other)
            if len(reached) >= size:
                return


@dataclass
class Candidates:
    """Changes of a plan in hand that may be evaluated."""

    plain: Float64
    """[K, V]"""
    operator: Int64
    parameters: Float64
    """[K, 5] what was drawn, in logarithms; of 'move' not a number."""

    def __len__(self) -> int:
        return len(self.plain)

    def take(self, rows: Int64) -> Candidates:
        return Candidates(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


class Bandit:
    """Operators and parameters by what they have gained."""

    def __init__(self, operators: Sequence[str]) -> None:
        self.operators = tuple(operators)
        self.gained, self.tried = np.ones(len(operators)), np.full(len(operators), 2.0)
        self.mean = MEAN.copy()
        self.rounds = np.array([[0.01, 0.01], [16.0, 16.0]])
        """[2, 2] what rounds of candidates and stretches of annealing gained, and their evaluations."""

    def draw(self, rng: Rng, count: int) -> Int64:
        rate = self.gained / self.tried
        share = (1 - EXPLORED) * rate / rate.sum() + EXPLORED / len(rate)
        return rng.choice(len(share), size=count, p=share / share.sum())

    def learn(self, candidates: Candidates, values: Int64, before: int) -> None:
        better = values < before
        for operator, gain in zip(candidates.operator.tolist(), better.tolist(), strict=True):
            self.tried[operator] += 1
            self.gained[operator] += gain
        self.gained = np.maximum(self.gained * DECAY, 0.02)
        self.tried = np.maximum(self.tried * DECAY, 1.0)
        best = int(values.argmin())
        if better[best] and np.isfinite(candidates.parameters[best]).all():
            self.mean = 0.9 * self.mean + 0.1 * candidates.parameters[best]

    def stretches(self, rng: Rng, size: Float64, cost: Float64) -> bool:
        """Whether a stretch of annealing comes next and not a round of candidates: by what both have gained for what
        they cost. Evaluations in each [2], and the cost of one [2]."""
        gained, evaluations = self.rounds
        share = (gained / (evaluations * cost)) ** 2 / (size * cost)
        return bool(rng.random() < np.clip(share[1] / share.sum(), STRETCHED, 1 - STRETCHED))

    def learn_round(self, stretched: bool, evaluations: int, before: int | None, after: int | None) -> None:
        """From the best value before and after a round."""
        gain = 0.0
        if after is not None and before != after:
            gain = 1.0 if before is None else float(np.log(before / max(1, after)))
        self.rounds[:, int(stretched)] *= STRETCH_DECAY
        self.rounds[:, int(stretched)] += gain + STRETCH_GAIN, evaluations

    def arrays(self) -> State:
        return {"bandit": np.stack([self.gained, self.tried]), "mean": self.mean, "gains": self.rounds}

    def restore(self, state: State) -> None:
        self.gained, self.tried = (np.array(row) for row in state["bandit"])
        self.mean, self.rounds = np.array(state["mean"]), np.array(state["gains"])


def natural(drawn: Float64) -> Float64:
    """[..., 5] parameters of drawn ones."""
    found = np.exp(np.clip(drawn, -9, 4))
    found[..., 3] = 1 / (1 + np.exp(-2 * np.clip(drawn[..., 3], -9, 9)))
    found[..., 4] = np.minimum(1.0, found[..., 4])
    return found


class Proposer:
    """Draws candidates around a plan in hand."""

    def __init__(self, problem: GraphOptimization, threads: int | None = None) -> None:
        self.problem, self.space, self.moves = problem, Space(problem), Moves(problem)
        self.decoder = Decoder(problem, threads)
        placed = "placement" in problem.tasks and problem.devices > 1 and problem.groups > 1
        operators = [name for name in OPERATORS if (self.moves if name == "move" else placed)]
        self.neighbourhoods = Neighbourhoods(problem, self.decoder, self.moves) if placed else None
        self.bandit = Bandit(operators)
        self.unit = float(self.decoder.work.mean()) if problem.groups else 0.0

    @cached_property
    def starts(self) -> list[Int32]:
        """Placements [G] to begin with: hints and partitions."""
        if self.neighbourhoods is None:
            return [self.space.devices(self.problem.vector())]
        return [*hinted_devices(self.problem), *self.partitions]

    @cached_property
    def partitions(self) -> Int32:
        """[2 or 0, G]"""
        return partitions(self.problem)

    def draw_parameters(self, rng: Rng, count: int) -> tuple[Float64, Int64]:
        """([count, 5] in logarithms, [count] orders)"""
        drawn = self.bandit.mean + DEVIATION * rng.normal(size=(count, len(MEAN)))
        return drawn, rng.choice(len(ORDER_SHARES), size=count, p=ORDER_SHARES)

    def portfolio(self, drawn: Float64, order: Int64) -> Int32:
        """[K, G] everything put anew with drawn parameters [K, 5] and orders [K]."""
        free = np.full((len(drawn), self.problem.groups), -1)
        return self.decoder.repair(free, natural(drawn), order)[0]

    def draw(self, rng: Rng, standing: Standing, count: int) -> Candidates:
        """So many changes."""
        problem, bandit = self.problem, self.bandit
        operator = bandit.draw(rng, count)
        plain = np.repeat(standing.vector[None], count, axis=0)
        parameters, order = self.draw_parameters(rng, count)
        moved = np.flatnonzero([bandit.operators[number] == "move" for number in operator])
        if len(moved):
            plain[moved] = apply_changes(problem, standing.vector, *self.moves.draw(rng, len(moved)))
            parameters[moved] = np.nan
        rows = np.setdiff1d(np.arange(count), moved)
        if len(rows):
            here = self.space.devices(standing.vector)
            given, bias = self._repairs(rng, here, [bandit.operators[n] for n in operator[rows].tolist()])
            device, _ = self.decoder.repair(given, natural(parameters[rows]), order[rows], bias)
            plain[rows, self.space.device] = device
            self._order(rng, plain, rows, device)
        return Candidates(plain, operator, parameters)

    def _order(self, rng: Rng, plain: Float64, rows: Int64, device: Int32) -> None:
        """Some of the rows get an order made for their devices."""
        at = self.problem.part("schedule")
        if at.stop == at.start:
            return
        drawn = rng.random(len(rows))
        plain[rows[drawn < TIED], at] = 0.0
        for row in np.flatnonzero(drawn > 1 - PATHS).tolist():
            plain[rows[row], at] = self.decoder.places.keys(device[row], moves=True)

    def _repairs(self, rng: Rng, here: Int32, operators: list[str]) -> tuple[Int32, Float64]:
        """(devices [K, G] with freed groups -1, biases [K, G, D])"""
        assert self.neighbourhoods is not None
        groups, devices = self.problem.groups, self.problem.devices
        given = np.repeat(here[None].astype(np.int32), len(operators), axis=0)
        bias = np.zeros((len(operators), groups, devices))
        for row, operator in enumerate(operators):
            freed = np.flatnonzero(self.neighbourhoods.free(rng, operator))
            given[row, freed] = -1
            bias[row, freed, here[freed]] += float(rng.choice(HOLDS)) * self.unit
            if len(freed) < 64 or rng.random() < 0.5:
                noise = rng.normal(size=(len(freed), devices)) * (rng.random((len(freed), 1)) < 0.5)
                bias[row, freed] += noise * self.unit * float(rng.choice(NOISES))
        return given, bias


def apply_changes(
    problem: GraphOptimization, vector: Float64, rows: Int64, index: Int64, source: Int64, value: Float64
) -> Float64:
    """[count, V] the vector with each row of changes, as the native climber would make them."""
    made = np.repeat(vector[None], len(rows) - 1, axis=0)
    at = problem.part("device")
    for row in range(len(made)):
        for change in range(int(rows[row]), int(rows[row + 1])):
            place, origin, new = int(index[change]), int(source[change]), float(value[change])
            if origin >= 0:
                new += vector[origin]
                if at.start <= place < at.stop:
                    new %= problem.devices
                else:
                    new = min(1.0, max(0.0, new))
            made[row, place] = new
    return made


class Stretch:
    """A stretch of annealing from the plan in hand: small changes one after another, judged natively."""

    def __init__(self, proposer: Proposer, begun: float, budget: Budget) -> None:
        self.problem, self.space = proposer.problem, proposer.space
        self.moves, self.climb = FittedMoves(self.problem), self.problem.climb()
        left = (budget.evaluations or UNLIMITED) - begun
        self.size = int(np.clip(left // 16, STRETCH, batch_size(self.problem, LONG_STRETCH)))
        self.cost = np.array([1.0, STRETCH_COST if budget.evaluations is None else 1.0])
        """Of a candidate and of a proposal; where evaluations are counted, they are the same."""

    def run(self, meter: Meter, rng: Rng, standing: Standing, heat: float) -> Standing:
        """Where the stretch ended."""
        start = self.space.vectors(standing.vector[None], np.array([standing.within]))[0]
        count = self.size if meter.evaluations_left is None else min(self.size, meter.evaluations_left)
        self.climb.start(start)
        changes = self.draw(rng, standing, start)
        scale = standing.value / max(1, self.problem.reference_ps) if standing.value < UNFIT else 1.0
        slack = rng.exponential(size=self.size) * scale * heat * float(rng.choice(COOLER))
        judged, accepted = self.climb.run(*first_rows(changes, count), slack[:count], True)
        values = self.problem.values(*judged)
        values = np.where((values < 0) | (accepted == 0), WORST, values)
        meter.take_many(np.where(values < UNFIT, values, -1), self.climb.vector)
        taken = np.flatnonzero(accepted)
        if not len(taken):
            return standing
        return self._back(meter, standing, start, self.climb.vector(), int(values[taken[-1]]))

    def draw(self, rng: Rng, standing: Standing, start: Float64) -> Changes:
        """`size` proposals for the plan in hand, of which `start` is the vector that the climb stands on."""
        return self.moves.draw_for(start, rng, self.size)

    def _back(self, meter: Meter, standing: Standing, start: Float64, found: Float64, value: int) -> Standing:
        """The plan with keys as they are before the devices cut them, if it is as good with them."""
        if not standing.within:
            return Standing(found, False, value)
        plain, at = found.copy(), self.space.fusion
        plain[at] = np.where(found[at] == start[at], standing.vector[at], found[at])
        fitted = self.space.vectors(plain[None], np.array([True]))[0]
        if not np.array_equal(fitted, found):
            again = None if meter.exhausted else meter.evaluate(fitted)
            if again is None or again > value:
                return Standing(found, False, value)
            value = again
        return Standing(plain, True, value)


class LargeNeighbourhood(Solver):
    """`batch`: candidates that are evaluated in a round. `screen`: so many times as many are made, and the
    scheduler's own reckoning says which are evaluated; 1: all are. `portfolio`: plans that the scheduler makes
    with random parameters before the search. `threads`: all cores where it is not given; the answer does not
    depend on it."""

    name = "large-neighbourhood"
    problem_kind = "graph"
    summary = "frees groups and lets a list scheduler put them again; a bandit chooses which"
    deterministic = scheduled = True
    least_options = MappingProxyType({"batch": 1, "screen": 1})

    def __init__(
        self, batch: int = 8, screen: int = 4, portfolio: int = 16, threads: int | None = None
    ) -> None:
        for name, number in (("batch", batch), ("screen", screen), ("portfolio", portfolio)):
            check_option(self.name, name, number, "int", self.least_options.get(name, 0))
        self.batch, self.screen, self.portfolio, self.threads = batch, screen, portfolio, threads
        self.options: dict[str, Any] = {
            "batch": batch,
            "screen": screen,
            "portfolio": portfolio,
            "threads": threads,
        }

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        if meter.exhausted:
            return meter.solution()
        proposer, rng = Proposer(graph_of(meter), self.threads), np.random.default_rng([seed, 17])
        if state is None:
            standing = self.begin(meter, proposer, rng)
            begun = (float(meter.evaluations), meter.seconds)
        else:
            begun = (float(state["begun"][0]), float(state["begun"][1]))
            rng = restore_generator(state["rng"])
            proposer.bandit.restore(state)
            self.restore(state, proposer)
            standing = Standing(np.array(state["standing"]), bool(state["about"][0]), int(state["about"][1]))
        bandit = proposer.bandit
        if standing is not None:
            self.search(meter, proposer, rng, standing, begun)
        return meter.solution(gained=dict(zip(bandit.operators, bandit.gained.tolist(), strict=True)))

    def improve(self, meter: Meter, seed: int, evaluations: int, share: float) -> None:
        """A part of another search: at most so many evaluations more, and until a share of its seconds is over.
        Checkpoints are the other's."""
        whole, end = meter.budget, meter.evaluations + evaluations
        most = end if whole.evaluations is None else min(end, whole.evaluations)
        meter.budget = Budget(most, None if whole.seconds is None else share * whole.seconds)
        try:
            proposer, rng = Proposer(graph_of(meter), self.threads), np.random.default_rng([seed, 17])
            if not meter.exhausted and (standing := self.begin(meter, proposer, rng)) is not None:
                begun = (float(meter.evaluations), meter.seconds)
                self.search(meter, proposer, rng, standing, begun, checkpoints=False)
        finally:
            meter.budget = whole

    def begin(self, meter: Meter, proposer: Proposer, rng: Rng) -> Standing | None:
        """The best of what is known, of hints and partitions, of the best three of them with other fusions, of what
        the scheduler makes of everything, and of constructive pipelines."""
        problem, (first, *others) = proposer.problem, proposer.space.modes
        found = Starts(meter, proposer.space)
        self.look_first(proposer, rng, found)
        found.add([*found.elsewhere, *proposer.starts], first)
        placements = found.best_devices(FUSED_OTHERWISE)
        for mode in others:
            found.add(placements, mode)
        found.add_vector(problem.vector())
        if self.portfolio and proposer.neighbourhoods is not None and not meter.exhausted:
            anew = proposer.portfolio(*proposer.draw_parameters(rng, self.portfolio))
            found.add(list(anew), found.best_mode())
        self.construct(meter, proposer, found)
        return found.best()

    def look_first(self, proposer: Proposer, rng: Rng, found: Starts) -> None:
        """Plans that come before all others."""

    def construct(self, meter: Meter, proposer: Proposer, found: Starts) -> None:
        """Hints and constructive placements that the scheduler reckons best, unless somebody has tried them before;
        then some of them, and the best of all, with every fusion and with the order of longest paths with transfers."""
        limit = meter.budget.seconds

        def late() -> bool:
            return meter.exhausted or (limit is not None and meter.seconds > CONSTRUCTED_SHARE * limit)

        if late():
            return
        space = proposer.space
        if proposer.neighbourhoods is not None and not found.given:
            more = constructive_devices(proposer.problem, late)
            more = np.unique(np.concatenate([np.stack(proposer.starts), more]), axis=0)
            more = more[np.argsort(reckon_time(proposer, more), kind="stable")]
            most = min(CONSTRUCTED, (meter.budget.evaluations or UNLIMITED) // CONSTRUCTED_ONE_IN)
            found.add(list(more[:most]), found.best_mode())
            for mode in space.modes[1:3]:  # as pipelines have it, fusion that knows no devices
                found.add(list(more[: most // 4]), mode, paths=True)
        placements = found.best_devices(ORDERED)
        for mode in space.modes:
            found.add(placements, mode)
            found.add(placements, mode, paths=True)

    def search(
        self,
        meter: Meter,
        proposer: Proposer,
        rng: Rng,
        standing: Standing,
        begun: tuple[float, float],
        checkpoints: bool = True,
    ) -> None:
        """Rounds of candidates and stretches of annealing until the budget is spent; `begun`: evaluations and seconds
        before the first."""
        if not proposer.bandit.operators:
            return
        bandit, stretch = proposer.bandit, self.make_stretch(proposer, begun[0], meter.budget)
        progress = make_progress(meter, *begun)
        while not meter.exhausted:
            heat = FIRST_HEAT * (LAST_HEAT / FIRST_HEAT) ** min(1.0, progress())
            before, used, whole = meter.best_value, meter.evaluations, True
            stretched = bandit.stretches(rng, np.array([self.batch, stretch.size]), stretch.cost)
            if stretched:
                standing = stretch.run(meter, rng, standing, heat)
            else:
                standing, whole = self._round(meter, proposer, rng, standing, heat)
            bandit.learn_round(stretched, meter.evaluations - used, before, meter.best_value)
            if checkpoints and whole and not meter.exhausted and meter.observer.wants_checkpoint(meter):
                meter.checkpoint(
                    {
                        "rng": generator_state(rng),
                        "standing": standing.vector,
                        "about": np.array([standing.within, standing.value], dtype=np.int64),
                        "begun": np.array(begun),
                        **bandit.arrays(),
                        **self.arrays(proposer),
                    }
                )
            meter.progress(temperature=heat)

    def make_stretch(self, proposer: Proposer, begun: float, budget: Budget) -> Stretch:
        """How this search anneals."""
        return Stretch(proposer, begun, budget)

    def _round(
        self, meter: Meter, proposer: Proposer, rng: Rng, standing: Standing, heat: float
    ) -> tuple[Standing, bool]:
        """(the plan in hand after candidates were evaluated, whether all of them were)"""
        candidates = self.propose(proposer, rng, standing)
        vectors = proposer.space.vectors(candidates.plain, np.full(len(candidates), standing.within))
        found = meter.evaluate_many(vectors).value
        values = np.where(found < 0, WORST, found)
        whole = len(values) == len(candidates)
        candidates = candidates.take(np.arange(len(values)))
        proposer.bandit.learn(candidates, values, standing.value)
        self.evaluated(standing, values)
        best = int(values.argmin())
        slack = int(rng.exponential() * heat * min(standing.value, UNFIT - 1))
        if values[best] <= standing.value + (slack if standing.value < UNFIT else 0):
            standing = Standing(candidates.plain[best].copy(), standing.within, int(values[best]))
        return standing, whole

    def arrays(self, proposer: Proposer) -> State:
        """What else a checkpoint holds."""
        return {}

    def restore(self, state: State, proposer: Proposer) -> None:
        """The inverse of `arrays`."""

    def evaluated(self, standing: Standing, values: Int64) -> None:
        """Called with the values of a round's candidates, before one of them takes the place of the plan in hand."""

    def propose(self, proposer: Proposer, rng: Rng, standing: Standing) -> Candidates:
        """What a round evaluates."""
        drawn = proposer.draw(rng, standing, self.batch * self.screen)
        if self.screen == 1:
            return drawn
        score = reckon_time(proposer, proposer.space.devices(drawn.plain)) * np.exp(
            SCREEN_NOISE * rng.normal(size=len(drawn))
        )
        chosen = np.argsort(score, kind="stable")[: self.batch]
        chosen[-1] = rng.integers(len(drawn))  # the reckoning may be wrong
        return drawn.take(chosen)


def reckon_time(proposer: Proposer, device: Int32) -> Float64:
    """[K] ps that the scheduler reckons of devices [K, G], more where expected bytes are above a capacity."""
    problem, places = proposer.problem, proposer.decoder.places
    time = proposer.decoder.reckon(device)[:, 0].astype(np.float64)
    capacity = places.capacity[np.array(problem.machine.home)].astype(np.float64)
    held = np.zeros((len(device), problem.devices))
    np.add.at(held, (np.arange(len(device))[:, None], device), places.bytes.astype(np.float64))
    over: Float64 = np.maximum(0.0, held / np.maximum(1.0, capacity) - 1.0).max(axis=1, initial=0.0)
    return time * (1 + 10 * over)


def constructive_devices(problem: GraphOptimization, late: Callable[[], bool]) -> Int32:
    """[K, G] an expert's placement, and what list placers make with every outlook, of the base's steps and of a cost
    model's; fewer where it is `late`."""
    found: list[Int32] = []
    for fusion in (None, problem.cost_model_keys()) if "fusion" in problem.tasks else (None,):
        places = Places(problem, find_clusters(problem, fusion))
        for placer in (Expert(), Heft(), MEtf()):
            for device in placer.place(places):
                found.append(device)
                if late():
                    break
    return np.unique(np.array(found, dtype=np.int32).reshape(-1, problem.groups), axis=0)


class Starts:
    """Plans to begin with, each evaluated once."""

    def __init__(self, meter: Meter, space: Space) -> None:
        self.meter, self.space = meter, space
        self.found: list[tuple[Standing, FusionMode | None]] = []
        self._seen: set[bytes] = set()
        self.elsewhere = [] if meter.start is None else [space.devices(np.asarray(meter.start))]
        """Placements of a plan that came from elsewhere: its fusion and its order were made for other sizes."""
        best, value = meter.best, meter.best_value
        foreign = best is not None and meter.start is not None and np.array_equal(best, meter.start)
        if best is not None and value is not None and not foreign:
            self.found.append((Standing(best.copy(), False, value), None))
        self.given = bool(self.found)
        """Whether a search before this one has left a plan."""

    def add(self, devices: Sequence[Int32], mode: FusionMode, paths: bool = False) -> None:
        """Placements with a fusion, the order left to the rule for ties or by longest `paths` with transfers."""
        self.add_pairs([(device, mode) for device in devices], paths)

    def add_pairs(self, pairs: Sequence[tuple[Int32, FusionMode]], paths: bool = False) -> None:
        """Placements, each with its fusion."""
        if self.meter.exhausted:
            return
        plain = [(self.space.plain(device, mode, paths), mode.within, mode) for device, mode in pairs]
        self._evaluate([each for each in plain if self._new(*each[:2])])

    def add_vector(self, vector: Float64) -> None:
        if self._new(vector, False):
            self._evaluate([(vector, False, None)])

    def _new(self, vector: Float64, within: bool) -> bool:
        key = vector_key(vector) + bytes([within])
        known = key in self._seen
        self._seen.add(key)
        return not known

    def _evaluate(self, plain: list[tuple[Float64, bool, FusionMode | None]]) -> None:
        size = batch_size(self.space.problem, 64)
        for begin in range(0, len(plain), size):
            if self.meter.exhausted:
                return
            batch = plain[begin : begin + size]
            vectors = np.stack([vector for vector, _, _ in batch])
            within = np.array([within for _, within, _ in batch])
            values = self.meter.evaluate_many(self.space.vectors(vectors, within)).value.tolist()
            for (vector, inside, mode), value in zip(batch, values, strict=False):
                self.found.append((Standing(vector, inside, WORST if value < 0 else value), mode))

    def _ranked(self) -> list[tuple[Standing, FusionMode | None]]:
        return sorted(self.found, key=lambda each: each[0].value)

    def best_devices(self, count: int) -> list[Int32]:
        """The best placements, each once."""
        ranked = [self.space.devices(standing.vector) for standing, mode in self._ranked() if mode]
        return list({device.tobytes(): device for device in ranked}.values())[:count]

    def best_mode(self) -> FusionMode:
        return next((mode for _, mode in self._ranked() if mode), self.space.modes[0])

    def best(self) -> Standing | None:
        """None: nothing can run."""
        ranked = self._ranked()
        return ranked[0][0] if ranked and ranked[0][0].value < WORST else None


def make_progress(
    meter: Meter, evaluations: float | None = None, seconds: float | None = None
) -> Callable[[], float]:
    """How much is over of what was left of the budget after so many evaluations and seconds, else now: of
    evaluations, or of seconds where there is no other limit or they will clearly be spent first."""
    first = float(meter.evaluations) if evaluations is None else evaluations
    start = meter.seconds if seconds is None else seconds
    whole, limit = meter.budget.evaluations, meter.budget.seconds

    def over() -> float:
        share = (meter.evaluations - first) / max(1.0, (whole or UNLIMITED) - first)
        if limit is None:
            return share
        late = (meter.seconds - start) / max(1e-9, limit - start)
        return late if whole is None or late > share + LATE else share

    return over
