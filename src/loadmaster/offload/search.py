"""Searches over gaps: annealing and ageing evolution, from the plans that follow rules.

A decision is repaired before it is changed, so a change is one of the plan and not of what was given up.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from loadmaster.machine.machine import Machine
from loadmaster.offload.heuristics import Belady, Spread, Static, Stream
from loadmaster.offload.model import Int8, Int64
from loadmaster.offload.problem import GENES, LEADS, Offload, is_vector, options_of
from loadmaster.offload.residencies import plan_of, repaired
from loadmaster.search import metaheuristics
from loadmaster.search.auto import Auto, Stage
from loadmaster.search.metaheuristics import Rng, Search, Walk
from loadmaster.search.problem import Bound, Decision, Problem
from loadmaster.search.solver import Budget, Meter, PartMeter, Solution, Solver, State, generator_state
from loadmaster.simulate.simulator import get_simulator

MOST_SQUEEZE = 40
PATIENCE = 4
"""So many plans without offsets, and more room is left unused."""


class _Search(Search[Offload]):
    problem_kind = "offload"
    starts: Sequence[Decision] = ()
    """Vectors to begin with, beside those of rules."""

    def seed(self, meter: Meter, problem: Offload) -> list[tuple[int, Int8]]:
        """Values and vectors of the rules' plans."""
        known: list[tuple[int, Int8]] = []
        rules = (Belady(), Static(), Stream(), Spread())
        made = (decision for rule in rules for decision in rule.make(problem))
        for decision in chain(self.starts, made):
            if meter.exhausted:
                break
            value = meter.evaluate(decision)
            if value is not None:
                known.append((value, np.asarray(decision, dtype=np.int8)))
        return known if problem.gaps and not meter.exhausted else []


class Anneal(_Search, metaheuristics.Annealing[Offload]):
    """One change at a time; slower plans are taken with a probability that falls with the temperature."""

    name = "anneal"
    summary = "simulated annealing over what stays when"
    scheduled = True
    stored, checkpoint_every = ("current", "value"), 64

    def __init__(self, temperature: float = 0.001, last: float = 1e-5) -> None:
        if not 0 < last <= temperature <= 1:
            raise ValueError("temperatures must be in (0, 1] and fall")
        self.temperature, self.last_share = temperature, last / temperature
        self.options = {"temperature": temperature, "last": last}

    def begin(self, meter: Meter, problem: Offload) -> Walk | None:
        known = self.seed(meter, problem)
        if not known:
            return None
        value, current = packable(meter, *min(known, key=lambda row: row[0]))
        return Walk(current, value, {"misses": np.array(0)})

    def neighbourhood(self, problem: Offload) -> Change:
        return Change(problem)

    def scale(self, problem: Offload) -> float:
        return -max(1, problem.bound().value)

    def share_cooled(self, meter: Meter, length: int) -> float:
        clock = meter.seconds / meter.budget.seconds if meter.budget.seconds else 0.0
        return max(meter.evaluations / length, clock)

    def evaluate(self, meter: Meter, walk: Walk, trial: Decision) -> float | None:
        before, value = meter.unpackable, meter.evaluate(trial)
        if meter.unpackable == before:
            return value
        # It would have been the best, and has no offsets.
        walk.also["misses"] = misses = walk.also["misses"] + 1
        if misses % PATIENCE == 0 and int(walk.decision[-1]) < MOST_SQUEEZE:
            walk.decision = walk.decision.copy()
            walk.decision[-1] += 1
            walk.score = meter.evaluate(walk.decision) or walk.score
        return None


def packable(meter: Meter, value: int, decision: Int8) -> tuple[int, Int8]:
    """The decision with as much room left unused as it takes to find offsets, and its value."""
    problem = meter.problem
    assert isinstance(problem, Offload)
    trial = decision.copy()
    while not meter.exhausted and not problem.admits(trial) and int(trial[-1]) < MOST_SQUEEZE:
        trial[-1] += 2
    if trial[-1] != decision[-1] and not meter.exhausted:
        value = meter.evaluate(trial) or value
    return value, trial


class Evolution(_Search):
    """Ageing evolution: the best of a few is changed, and the oldest dies."""

    name = "evolution"
    summary = "ageing evolution over what stays when"

    def __init__(self, population: int = 48, tournament: int = 8) -> None:
        if not 1 <= tournament <= population:
            raise ValueError("the tournament must be within the population")
        self.population, self.tournament = population, tournament
        self.options = {"population": population, "tournament": tournament}

    def search(self, meter: Meter, problem: Offload, rng: Rng, state: State | None) -> None:
        alive: deque[tuple[int, Int8]] = deque(maxlen=self.population)
        if state is None:
            alive.extend(sorted(self.seed(meter, problem), key=lambda row: -row[0]))
            if not alive:
                return
            alive.append(packable(meter, *alive[-1]))
        else:
            alive.extend(zip(state["values"].tolist(), state["decisions"], strict=True))
        change, tries = Change(problem), 0
        while not meter.exhausted:
            few = rng.integers(0, len(alive), self.tournament)
            parent = min((alive[int(row)] for row in few), key=lambda row: row[0])
            child, before = change(rng, parent[1]), meter.unpackable
            value = meter.evaluate(child)
            tries += 1
            if value is not None and meter.unpackable == before:
                alive.append((value, child))
            if tries % 64 == 0:
                meter.checkpoint(
                    {
                        "rng": generator_state(rng),
                        "values": np.array([v for v, _ in alive]),
                        "decisions": np.stack([d for _, d in alive]),
                    }
                )
                meter.progress(mean=float(np.mean([v for v, _ in alive])) / 10**12)


class Change:
    """Small changes: gaps flip, two change places, or copies are issued earlier or later."""

    def __init__(self, problem: Offload) -> None:
        self.problem = problem
        model = problem.model
        self.share = model.size[model.gap_item] / max(1, int(model.size[model.gap_item].sum()))
        self.by_time: Int64 = np.argsort(model.gap_to, kind="stable")
        self.place = np.empty(model.gaps, dtype=np.int64)
        self.place[self.by_time] = np.arange(model.gaps)

    def __call__(self, rng: Rng, decision: Int8) -> Int8:
        problem = self.problem
        trial = np.array(decision, dtype=np.int8)
        room = problem.capacity_of(int(trial[-1]))
        trial[:-GENES] = repaired(problem.model, trial[:-GENES] != 0, room)
        kind = rng.random()
        if kind < 0.1:
            trial[-2] = rng.integers(0, len(LEADS))
        elif kind < 0.13:
            trial[-1] = np.clip(int(trial[-1]) + rng.integers(-2, 3), 0, MOST_SQUEEZE)
        elif kind < 0.55:
            self._swap(rng, trial)
        else:
            for gap in self._some(rng):
                trial[gap] ^= 1
        return trial

    def _some(self, rng: Rng) -> Int64:
        """One gap, larger ones more often, or a few that end near each other."""
        gap = int(rng.choice(len(self.share), p=self.share))
        if rng.random() < 0.6:
            return np.array([gap])
        begin = int(self.place[gap])
        return self.by_time[begin : begin + int(rng.integers(2, 9))]

    def _swap(self, rng: Rng, trial: Int8) -> None:
        """One that stays leaves for one that did not."""
        kept = np.flatnonzero(trial[:-GENES] != 0)
        gone = np.flatnonzero(trial[:-GENES] == 0)
        if len(kept) and len(gone):
            out = int(rng.choice(kept, p=_normed(self.share[kept])))
            size = self.share[gone]
            near = np.exp(-np.abs(np.log((size + 1e-12) / (self.share[out] + 1e-12))))
            trial[out], trial[int(rng.choice(gone, p=_normed(near)))] = 0, 1


def _normed(
    weights: np.ndarray[tuple[int], np.dtype[np.float64]],
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    total = weights.sum()
    return weights / total if total > 0 else np.full(len(weights), 1 / len(weights))


# `auto`: all rules, then annealing, then a choice among the best: the plan that bears the most.
#
# Plans of nearly the same simulated time differ in how much they bear: with copies just in time every
# delay of a link is one of the run. So `auto` ends with the plan that is fastest where links are slower,
# of those that cost next to nothing as simulated.

PRICE = 0.002
"""Of the simulated time, that a steadier plan may cost."""
ENOUGH = PRICE / 4
"""Above the bound, that needs no search: what is left of the budget makes the plan steadier."""
SLOWER, LATER = 0.9, 2
"""Of a link's bandwidth and latency: plans that copy both ways take 5 to 12 % longer as CUDA graphs than
op by op."""
SHARE = 1 / 3
"""Of the budget."""
_LENGTH = 8_000
"""Evaluations, if the budget does not say."""
_PENALTY = 10
"""Times what a plan costs too much: it is no answer, and may be on the way to one."""
RULES = ("all-resident", "prefetch", "layerwise", "belady", "static", "stream", "msa")
"""Tried first, quickest first; annealing begins with those of `spread` as well."""
WHITE_BOX = frozenset({*RULES, "spread"})
QUICK_RULES = RULES[:3]
MANY_STEPS = 50_000
"""Above so many steps the quick rules are all: others look at every tensor for each that leaves, and overrun every time
limit."""


def make_auto() -> Auto:
    """Never worse than the best rule, but for the price of a steadier plan (`steady.PRICE`)."""
    summary = "all rules, then annealing, then the steadiest of the best plans"
    return Auto("offload", _schedule, summary=summary, scheduled=True)


def _schedule(problem: Problem) -> list[Stage]:
    if not problem.repeatable:  # nothing is left for a choice: what was measured is compared elsewhere
        return [*(Stage(name, optional=True) for name in RULES), Stage("anneal", resumes=True)]
    assert isinstance(problem, Offload)
    if problem.model.steps > MANY_STEPS:
        even = Stage("prefetch", {"resident": "even"}, when=_ends_in_time, enough=ENOUGH, optional=True)
        first, *others = (
            Stage(name, when=_ends_in_time, enough=ENOUGH, optional=True) for name in QUICK_RULES
        )
        return [first, even, *others]
    share = 1 - SHARE
    rules = [
        Stage(name, seconds_share=share, evaluations_share=share, enough=ENOUGH, optional=True)
        for name in RULES
    ]
    search = Stage("anneal", seconds_share=share, evaluations_share=share, enough=ENOUGH, resumes=True)
    return [*rules, search, Stage(ChooseSteady(), required=True)]


def _ends_in_time(meter: Meter) -> bool:
    """Whether a rule can be followed to its end as far as those before it tell; where none was, one is."""
    assert isinstance(meter.problem, Offload)
    left = meter.seconds_left
    return left is None or left >= meter.problem.rule_seconds


class Steady(Offload):
    """The same decisions and plans as those of a problem. The value is the time with slower links; of what takes
    over `most_ps` as simulated it is no better than the champion's, so that is never the answer."""

    def __init__(self, problem: Offload, champion: Decision, most_ps: int) -> None:
        super().__init__(problem.program, problem.machine, **options_of(problem))
        self.most_ps, self.slower = most_ps, slower(problem.machine)
        self._slow_bound = Offload(problem.program, self.slower, **options_of(problem)).bound()
        self.champion_ps = self._times(champion)[1]

    def evaluate(self, decision: Decision) -> int | None:
        nominal, slow = self._times(decision)
        if nominal <= self.most_ps:
            return slow
        return max(slow, self.champion_ps) + _PENALTY * (nominal - self.most_ps)

    def _times(self, decision: Decision) -> tuple[int, int]:
        """As simulated, and with slower links; offsets make no difference."""
        plan = (
            plan_of(self.model, self.program.n_ops, self.scheduled(decision))
            if is_vector(decision)
            else self.plan(decision)
        )
        return (
            int(get_simulator(self.program, self.machine).run(plan).total_ps),
            int(get_simulator(self.program, self.slower).run(plan).total_ps),
        )

    def bound(self) -> Bound:
        return self._slow_bound


def slower(machine: Machine) -> Machine:
    """The machine with slower links."""
    return replace(
        machine,
        links=tuple(
            replace(link, bandwidth=max(1, int(link.bandwidth * SLOWER)), latency=link.latency * LATER)
            for link in machine.links
        ),
    )


class ChooseSteady(Solver):
    """Lets the meter end with the steadiest plan that is found with the rest of its budget."""

    name, problem_kind = "steady", "offload"
    summary = "the steadiest of the best plans"
    deterministic = True

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem, best = meter.problem, meter.best
        assert isinstance(problem, Offload)
        left = meter.evaluations_left
        if best is None or meter.best_value is None or meter.spent or (left is not None and left < 3):
            return meter.solution()
        # One evaluation is for the choice itself.
        limits = Budget(_LENGTH if left is None else left - 1, meter.seconds_left)
        part = PartMeter(meter, Steady(problem, best, int(meter.best_value * (1 + PRICE))), limits)
        search = Anneal()
        if is_vector(best):
            search.starts = [best]
        else:
            part.evaluate(best)
        search.run(part, seed, None)
        if part.best is not None and not np.array_equal(part.best, best):
            meter.choose(part.best)
        return meter.solution()
