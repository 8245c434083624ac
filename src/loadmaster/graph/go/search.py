"""GO: large-neighbourhood search whose candidates a trained network screens, from plans that it has chosen.

The network ranks, the decoder decides: of many changes that the operators and the list scheduler make, those
are evaluated that the network expects to gain. Before that, it ranks what the scheduler makes of everything
with a portfolio of parameters that was chosen on other graphs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.arrays import Float32, Float64, Int32
from loadmaster.errors import LoadmasterError
from loadmaster.graph.decoder import partitions
from loadmaster.graph.go.changes import (
    CHANGES,
    RunView,
    change_features,
    join_changes,
    single_moves,
    take_changes,
)
from loadmaster.graph.go.scores import (
    PRIOR,
    RANKER,
    GraphView,
    Network,
    PlanView,
    believe,
    device_features,
    make_features,
    operator_numbers,
    rank,
)
from loadmaster.graph.large_neighbourhood import (
    FUSED_OTHERWISE,
    OPERATORS,
    Candidates,
    LargeNeighbourhood,
    Proposer,
    Standing,
    Starts,
    Stretch,
    reckon_time,
)
from loadmaster.graph.moves import Changes
from loadmaster.graph.problem import UNFIT
from loadmaster.learn.policies import BadPolicy, read_policy
from loadmaster.search.solver import Budget, Meter, Solution, State

Rng = np.random.Generator

SHIPPED = "pretrained:ranker"
"""The policy that comes with the package."""
UNTRAINED = "none"
SCREEN = 6
DECODED, FIRST = 64, 7
"""Placements that the scheduler makes before the search, and how many of them and of the hints are evaluated before
other fusions are."""
EVERY = 4
"""Rounds between two looks of the prior at the plan in hand."""
DRAWN, SINGLES = 4, 8
"""Proposals of annealing that are ranked, for each that is tried: those that it draws, and single groups to other
devices, at most."""
SCREENED_COST = 2.0
"""The time of a proposal that was ranked over that of another."""
ANYWAY = 0.1
"""The share of proposals that are tried whatever is expected of them."""
GUMBEL = 0.3
"""Of the noise on utilities: the network may be wrong in the same way every time."""


@dataclass(frozen=True)
class Policy:
    """What training gives. `prior`: None where a search should do without."""

    ranker: Network | None
    prior: Network | None
    changes: Network | None
    portfolio: Float64
    """[P, 6] scheduler parameters as they are drawn, and the order."""

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """By name."""
        found: dict[str, npt.NDArray[Any]] = {"portfolio": self.portfolio}
        for name in ("ranker", "prior", "changes"):
            network = getattr(self, name)
            found |= {} if network is None else network.arrays(name)
        return found


@lru_cache(maxsize=8)
def load_policy(name: str) -> Policy:
    """Of a file of `train`, of the package, or untrained."""
    if name == UNTRAINED:
        return Policy(RANKER.make(0), PRIOR.make(0), CHANGES.make(0), np.zeros((0, 6)))
    arrays, _ = read_policy(name, "go")
    try:
        ranker, prior = RANKER.read(arrays, "ranker"), PRIOR.read(arrays, "prior")
        changes = CHANGES.read(arrays, "changes")
        portfolio = np.asarray(arrays["portfolio"], dtype=np.float64)
        fine = portfolio.ndim == 2 and portfolio.shape[1] == 6 and bool(np.isfinite(portfolio).all())
        fine = fine and bool(np.isin(portfolio[:, 5], (0, 1, 2)).all())
    except (LoadmasterError, KeyError, TypeError, ValueError):
        fine = False
    if not fine:
        raise BadPolicy(
            f"policy '{name}' has no networks and portfolio for graphs",
            object=name,
            remedy="train it again with this version: loadmaster train go --out POLICY.npz",
        )
    return Policy(ranker, prior, changes, portfolio)


class Watched:
    """The views of a problem and of the plan that was looked at last."""

    def __init__(self, proposer: Proposer) -> None:
        self.proposer, self.graph = proposer, GraphView(proposer.decoder)
        self._seen: tuple[Standing, PlanView] | None = None

    def features(self, standing: Standing, candidates: Candidates) -> Float32:
        """[K, F] of changes of a plan."""
        device = self.proposer.space.devices(candidates.plain)
        return make_features(
            self.view(standing), standing, device, operator_numbers(self.proposer, candidates)
        )

    def placements(self, standing: Standing, device: Int32) -> Float32:
        """[K, F] of placements [K, G] in which everything is put anew."""
        operator = np.full(len(device), OPERATORS.index("all"))
        return make_features(self.view(standing), standing, device, operator)

    def view(self, standing: Standing) -> PlanView:
        if self._seen is None or self._seen[0] is not standing:
            self._seen = standing, PlanView(self.graph, self.proposer.space.devices(standing.vector))
        return self._seen[1]


class ScreenedStretch(Stretch):
    """Annealing whose proposals a network has ranked: of single groups to other devices, and of what annealing draws
    anyway, those that it expects most of."""

    def __init__(self, proposer: Proposer, begun: float, budget: Budget, network: Network) -> None:
        super().__init__(proposer, begun, budget)
        self.network, self.graph = network, GraphView(proposer.decoder)
        self.cost *= SCREENED_COST if budget.evaluations is None else 1.0
        decided = self.space.device.stop > self.space.device.start
        self.singles = self.problem.groups * (self.problem.devices - 1) if decided else 0

    def draw(self, rng: Rng, standing: Standing, start: Float64) -> Changes:
        if standing.value >= UNFIT:
            return super().draw(rng, standing, start)
        run = RunView(self.graph, self.climb, start)
        pool = self.pool(rng, run)
        utility = rank(self.network, change_features(run, pool))
        chosen = np.argsort(-(utility + GUMBEL * rng.gumbel(size=len(utility))), kind="stable")[: self.size]
        anyway = np.flatnonzero(rng.random(len(chosen)) < ANYWAY)
        chosen[anyway] = rng.integers(len(utility), size=len(anyway))  # the network may be wrong
        return take_changes(pool, rng.permutation(chosen))

    def pool(self, rng: Rng, run: RunView) -> Changes:
        """What is ranked."""
        drawn = self.moves.draw_for(run.vector, rng, DRAWN * self.size)
        most = min(self.singles, SINGLES * self.size)
        if not most:
            return drawn
        numbers = rng.choice(self.singles, size=most, replace=False, shuffle=False)
        return join_changes(single_moves(self.problem, run.here, numbers), drawn)


class Go(LargeNeighbourhood):
    """As `large-neighbourhood`, with a trained network. `init`: the policy that comes with the package, a file of
    `loadmaster train go`, or 'none' (untrained networks). `screen`: so many times as many candidates are ranked as are
    evaluated; 1: the ranker has no say. `prior`: whether the prior has a say in what is freed and where it goes. `changes`:
    whether a network screens what annealing proposes."""

    name = "go"
    summary = "large neighbourhoods whose changes a trained network proposes and ranks (GO)"

    def __init__(
        self,
        init: str = SHIPPED,
        batch: int = 8,
        screen: int = SCREEN,
        prior: bool = True,
        changes: bool = True,
        portfolio: int = 16,
        threads: int | None = None,
    ) -> None:
        super().__init__(batch, screen, portfolio, threads)
        self.init, self.prior, self.changes = init, prior, changes
        self.policy = load_policy(init)
        self.options = {"init": init, "prior": prior, "changes": changes, **self.options}
        self._watched: Watched | None = None
        self._rounds = 0

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        self._watched, self._rounds = None, 0
        return super().run(meter, seed, state)

    def arrays(self, proposer: Proposer) -> State:
        """How many rounds there were, and what the prior said at its last look."""
        prior = np.zeros(0) if proposer.prior is None else proposer.prior
        weight = np.zeros(0) if proposer.weight is None else proposer.weight
        return {"rounds": np.array(self._rounds), "prior": prior, "weight": weight}

    def restore(self, state: State, proposer: Proposer) -> None:
        self._rounds = int(state["rounds"])
        proposer.prior = np.array(state["prior"]) if state["prior"].size else None
        proposer.weight = np.array(state["weight"]) if state["weight"].size else None

    def make_stretches(self, proposer: Proposer, begun: float, budget: Budget) -> list[Stretch]:
        found, network = super().make_stretches(proposer, begun, budget), self.policy.changes
        if network is not None and self.changes:
            found.append(ScreenedStretch(proposer, begun, budget, network))
        return found

    def watched(self, proposer: Proposer) -> Watched:
        """The views of what is searched now."""
        if self._watched is None or self._watched.proposer is not proposer:
            self._watched = Watched(proposer)
        return self._watched

    def begin(self, meter: Meter, proposer: Proposer, rng: Rng) -> Standing | None:
        """Of hints, partitions and what the scheduler makes with the portfolio and with random parameters, the one that
        the scheduler reckons best; then those that the network expects most of; then the best of them with other
        fusions; then more of the same, what is left of the hints, and constructive pipelines."""
        ranker = self.policy.ranker
        if proposer.neighbourhoods is None or ranker is None or self.screen == 1:
            return super().begin(meter, proposer, rng)
        first, *others = proposer.space.modes
        found, watched = Starts(meter, proposer.space), self.watched(proposer)
        hints = np.unique(np.stack(self.starts(proposer)), axis=0)
        left = np.unique(np.concatenate([hints, self.decode(proposer, rng)]), axis=0)
        reckoned = reckon_time(proposer, left)
        found.add([left[int(reckoned.argmin())], *partitions(proposer.problem)], first)
        for count in (FIRST, self.portfolio):
            best = found.best()
            if best is None or meter.exhausted:
                break
            order = np.argsort(-rank(ranker, watched.placements(best, left)), kind="stable")
            found.add(list(left[order[:count]]), found.best_mode())
            left = left[order[count:]]
            if count == FIRST:
                placements = found.best_devices(FUSED_OTHERWISE - 1)
                for mode in others:
                    found.add(placements, mode)
        found.add_vector(proposer.problem.vector())
        found.add(list(hints), first)
        self.construct(meter, proposer, found)
        return found.best()

    def decode(self, proposer: Proposer, rng: Rng) -> Int32:
        """[DECODED, G] everything put anew with the portfolio and with random parameters."""
        known = self.policy.portfolio
        drawn, order = proposer.draw_parameters(rng, max(0, DECODED - len(known)))
        drawn = np.concatenate([known[:, :5], drawn])
        return proposer.portfolio(drawn, np.concatenate([known[:, 5].astype(np.int64), order]))

    def propose(self, proposer: Proposer, rng: Rng, standing: Standing) -> Candidates:
        ranker, prior = self.policy.ranker, self.policy.prior
        if proposer.neighbourhoods is None:
            return proposer.draw(rng, standing, self.batch)
        watched = self.watched(proposer)
        if self.prior and prior is not None and self._rounds % EVERY == 0:
            view = watched.view(standing)
            log_prob = believe(prior, device_features(view))
            stays = np.exp(log_prob[np.arange(len(log_prob)), view.device])
            proposer.prior = log_prob - log_prob.max(axis=1, keepdims=True)
            proposer.weight = (1 - stays + 1e-3) / (1 - stays + 1e-3).sum()
        self._rounds += 1
        if self.screen == 1 or ranker is None:
            return proposer.draw(rng, standing, self.batch)
        drawn = proposer.draw(rng, standing, self.batch * self.screen)
        utility = rank(ranker, watched.features(standing, drawn))
        chosen = np.argsort(-(utility + GUMBEL * rng.gumbel(size=len(drawn))), kind="stable")[: self.batch]
        if self.batch > 4:
            chosen[-1] = rng.integers(len(drawn))  # the network may be wrong
        return drawn.take(chosen)
