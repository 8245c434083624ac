"""GO as a prior for search: its probabilities give plans to begin with and steer what is tried."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.errors import LoadmasterError
from loadmaster.graph import GraphOptimization
from loadmaster.graph.anneal import Chains, renamed
from loadmaster.graph.go.graph import alike
from loadmaster.graph.go.prior import Prior, seeds_prior
from loadmaster.graph.moves import SteeredMoves
from loadmaster.graph.pipeline import SHARE, WORST, Candidates, constructive, graph_of, variants
from loadmaster.graph.search import Brkga, Fresh, Genes
from loadmaster.host import cores
from loadmaster.learn.policies import PRETRAINED, pretrained_names
from loadmaster.search.solver import Meter, Solution, Solver, State, restore_generator

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
Float32 = npt.NDArray[np.float32]
Rng = np.random.Generator

CHECKPOINT = f"{PRETRAINED}go"
SHARP, PLAIN = 3, 4
"""Plans drawn from the prior, near to the likeliest and as likely as it says."""
MOST_CHAINS, LEAST_CHAINS = 10, 2
PER_GROUP = 4
"""Proposals for each group that a chain should have, or else there are fewer chains."""
EVOLVED, LAST_CHAINS = 0.4, 4
"""The share of the search after which the genetic algorithm hands over, and to how many chains."""
TRUST = 4.0
"""How narrow the Beta distributions are: their two parameters add up to it."""
FASTER = 6
"""A change is evaluated about so much faster than a whole plan."""
UNLIMITED = 50_000
"""Evaluations until it is cold where nothing limits it."""
LATE = 0.5


class Prepared:
    """What a steered search begins with: plans, a prior, and where in the budget it stands."""

    def __init__(self, meter: Meter, problem: GraphOptimization, source: str, seed: int) -> None:
        self.alike = alike(problem)
        self.plans, before = constructive(meter, problem), meter.seconds
        learned, self.source = prior_for(problem, source)
        known = self._known(problem, learned)
        self.prior = learned or known
        self.steering = learned.mixed(known) if learned else known
        """Half of it is what constructive plans do: the policy may be wrong about a graph."""
        rng = np.random.default_rng([seed, 3])
        drawn = [
            self.prior.best(problem)[None],
            self.prior.draw(problem, rng, SHARP, 4.0),
            self.prior.draw(problem, rng, PLAIN),
        ]
        if len(self.plans.values) and not meter.exhausted:
            vectors = np.concatenate(drawn)
            self.plans.add(meter, [*vectors, *variants(problem, vectors)], SHARE)
        self.begun = np.array([meter.evaluations, meter.seconds])
        self.pace = before / max(1, len(self.plans.values))

    def _known(self, problem: GraphOptimization, learned: Prior | None) -> Prior:
        """The prior of the plans, with devices named as the learned one names them."""
        vectors, at = self.plans.vectors.copy(), problem.part("device")
        if self.alike and at.stop > at.start and len(vectors):
            best = vectors[self.plans.values.argmin(), at].astype(np.int64)
            like = learned.device if learned else np.eye(problem.devices)[best]
            for vector in vectors:
                vector[at] = renamed(vector[at], like)
        return seeds_prior(problem, vectors, self.plans.values)

    def starts(self, meter: Meter, problem: GraphOptimization, count: int) -> Candidates:
        """So many plans: the best of different placements, named as the prior names devices; where
        there are too few, again from the first."""
        rows = self.plans.best_placements(problem, count)
        vectors, values = self.plans.vectors[rows], self.plans.values[rows]
        at = problem.part("device")
        if self.alike and at.stop > at.start:
            found = Candidates(vectors, values)
            named = vectors.copy()
            for vector in named:
                vector[at] = renamed(vector[at], self.steering.device)
            found.add(meter, named)
            value = dict(zip((v.tobytes() for v in found.vectors), found.values.tolist(), strict=True))
            values = np.array([value.get(v.tobytes(), WORST) for v in named], dtype=np.int64)
            vectors = named
        again = np.arange(count) % max(1, len(rows))
        return Candidates(vectors[again], values[again]) if rows else Candidates(vectors, values)


def prior_for(problem: GraphOptimization, source: str) -> tuple[Prior | None, str]:
    """The learned prior and its name; none where `source` is 'seeds' or GO has no policy for a graph."""
    from loadmaster.graph.go.graph import MOST_DEVICES
    from loadmaster.graph.go.infer import prior_of

    known = CHECKPOINT.removeprefix(PRETRAINED) in pretrained_names("go")
    if source == "seeds" or (source == "learned" and not (known and problem.devices <= MOST_DEVICES)):
        return None, "seeds"
    name = CHECKPOINT if source == "learned" else source
    return prior_of(problem, name), name


class _Steered(Solver):
    """Options of both searches. `prior`: 'learned' (GO's policy where there is one, else as 'seeds'),
    'seeds' (the constructive plans, nothing learned) or a file of `loadmaster train go`. `chains`: how
    many at first; without it, by the budget. `threads`: all cores where it is not given; the answer
    does not depend on it."""

    problem_kind = "graph"
    deterministic = scheduled = True

    def __init__(self, prior: str = "learned", chains: int | None = None, threads: int | None = None) -> None:
        if chains is not None and chains < 1:
            raise LoadmasterError(
                f"{chains} chains can't search", object="chains", number=chains, remedy="use 1 or more"
            )
        self.prior, self.chains, self.threads = prior, chains, threads
        self.options = {"prior": prior, "chains": chains, "threads": threads}

    def _anneal(
        self,
        meter: Meter,
        problem: GraphOptimization,
        prior: Prior,
        seed: int,
        begun: Float64,
        starts: Candidates | None,
        state: State,
    ) -> None:
        chains = Chains(
            meter,
            problem,
            SteeredMoves(problem, prior),
            seed,
            _progress(meter, begun),
            alike(problem),
            self.threads,
        )
        if starts is not None:
            chains.begin(starts.vectors, starts.values)
        else:
            chains.restore(state)
        kept = _kept(prior, begun)
        if chains.moves:
            chains.run(lambda: kept)

    def _count(self, meter: Meter, problem: GraphOptimization, pace: float) -> int:
        """Chains that the budget can feed."""
        if self.chains is not None:
            return self.chains
        room = meter.evaluations_left
        if room is None:
            threads = self.threads or cores()
            room = int((meter.seconds_left or 10.0) * FASTER * threads / max(1e-6, pace))
        return int(np.clip(room // (PER_GROUP * max(1, problem.groups)), LEAST_CHAINS, MOST_CHAINS))


class GoAnneal(_Steered):
    name = "go+anneal"
    summary = "annealing chains from constructive plans and GO's, steered by its probabilities"
    __doc__ = f"{summary}. {_Steered.__doc__}"

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem, notes = graph_of(meter), dict[str, Any]()
        if state is not None:
            prior = _prior_in(state)
            self._anneal(meter, problem, prior, seed, state["begun"], None, state)
        elif not meter.exhausted:
            ready = Prepared(meter, problem, self.prior, seed)
            notes["prior"] = ready.source
            starts = ready.starts(meter, problem, self._count(meter, problem, ready.pace))
            if not meter.exhausted and len(starts.values):
                self._anneal(meter, problem, ready.steering, seed, ready.begun, starts, {})
        return meter.solution(**notes)


class GoBrkga(_Steered):
    name = "go+brkga"
    summary = "a genetic algorithm whose population and mutants are drawn from GO; then its chains"
    __doc__ = f"{summary}. {_Steered.__doc__}"

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        problem, notes = graph_of(meter), dict[str, Any]()
        genes, brkga, rng = Genes(problem), Brkga(), np.random.default_rng([seed, 5])
        if state is not None and "standing" in state:
            prior = _prior_in(state)
            self._anneal(meter, problem, prior, seed, state["begun"], None, state)
            return meter.solution()
        if state is None:
            if meter.exhausted:
                return meter.solution()
            ready = Prepared(meter, problem, self.prior, seed)
            prior, begun, notes["prior"] = ready.prior, ready.begun, ready.source
            fresh, order = likely(genes, prior), np.argsort(ready.plans.values, kind="stable")
            best = ready.plans.vectors[order[: brkga.population // 2]]
            keys, values = brkga.first(meter, genes, rng, list(best), fresh)
        else:
            prior = _prior_in(state)
            keys, values, begun = np.array(state["keys"]), np.array(state["values"]), state["begun"]
            rng, fresh = restore_generator(state["rng"]), likely(genes, prior)
        kept = _kept(prior, begun)
        over = _progress(meter, begun)
        keys, values = brkga.evolve(
            meter, genes, rng, keys, values, fresh, lambda: kept, lambda: over() > EVOLVED
        )
        if not meter.exhausted:
            count = min(self.chains or LAST_CHAINS, len(keys))
            rows = Candidates(genes.decoded(keys), values).best_placements(problem, count)
            starts = Candidates(genes.decoded(keys[rows]), values[rows])
            begun = np.array([meter.evaluations, meter.seconds])
            self._anneal(meter, problem, prior, seed, begun, starts, {})
        return meter.solution(**notes)


def likely(genes: Genes, prior: Prior) -> Fresh:
    """Chromosomes whose affinities have the prior's probabilities as means; keys are drawn from its
    levels."""
    mean = prior.device.astype(np.float64).ravel()

    def fresh(rng: Rng, count: int) -> Float32:
        vectors = prior.draw(genes.problem, rng, count)
        keys = np.empty((count, genes.width), dtype=np.float32)
        keys[:, : genes.affinities.start] = vectors[:, : genes.device.start]
        keys[:, genes.affinities] = rng.beta(
            1e-2 + TRUST * mean, 1e-2 + TRUST * (1 - mean), size=(count, len(mean))
        )
        keys[:, genes.affinities.stop :] = vectors[:, genes.device.stop :]
        return keys

    return fresh


def _kept(prior: Prior, begun: Float64) -> State:
    """What a checkpoint of either phase needs."""
    return {"device": prior.device, "fusion": prior.fusion, "schedule": prior.schedule, "begun": begun}


def _prior_in(state: State) -> Prior:
    return Prior(state["device"], state["fusion"], state["schedule"])


def _progress(meter: Meter, begun: Float64) -> Callable[[], float]:
    """How much of what was left then is over now: of evaluations, or of seconds where there is no
    other limit or they will clearly be spent first."""
    evaluations, seconds = float(begun[0]), float(begun[1])
    whole, limit = meter.budget.evaluations, meter.budget.seconds

    def over() -> float:
        done, late = meter.evaluations - evaluations, 0.0
        if limit is not None:
            late = (meter.seconds - seconds) / max(1e-9, limit - seconds)
            if whole is None:
                return late
        share = done / max(1.0, (whole or UNLIMITED) - evaluations)
        return late if late > share + LATE else share

    return over
