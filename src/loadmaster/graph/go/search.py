"""GO: large-neighbourhood search with trained networks, from plans that one of them has chosen.

The networks rank, the decoder and the simulator decide. Of what the scheduler makes of everything with a portfolio of
parameters that was chosen on other graphs, a network says which is evaluated first. Of the small changes that annealing
could try, another says which it tries while most changes are still for nothing.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from loadmaster.arrays import Float32, Float64, Int32
from loadmaster.errors import LoadmasterError
from loadmaster.graph.go.scores import (
    CHANGES,
    RANKER,
    GraphView,
    Network,
    PlanView,
    RunView,
    change_features,
    join_changes,
    make_features,
    rank,
    single_moves,
    take_changes,
)
from loadmaster.graph.large_neighbourhood import (
    FUSED_OTHERWISE,
    STRETCH,
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
DECODED, FIRST, FUSIONS = 128, 10, 2
"""Placements that the scheduler makes before the search; how many of them and of the hints, each with a fusion, are
evaluated before the best are tried with other fusions; and with how many of these one placement, at most."""
DRAWN, SINGLES = 4, 16
"""Proposals of annealing that are ranked, for each that is tried: those that it draws, and single groups to other
devices, at most."""
SCREENED = 600
"""Proposals of annealing that are screened; then there are few changes for the better left, and to draw many more
is worth more than to draw well."""
ANYWAY = 0.05
"""The share of proposals that are tried whatever is expected of them."""
GUMBEL = 0.1
"""Of the noise on utilities: the network may be wrong in the same way every time."""


@dataclass(frozen=True)
class Policy:
    """What training gives; networks are None before there are any."""

    ranker: Network | None
    changes: Network | None
    portfolio: Float64
    """[P, 6] scheduler parameters as they are drawn, and the order."""

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """By name."""
        found: dict[str, npt.NDArray[Any]] = {"portfolio": self.portfolio}
        for name in ("ranker", "changes"):
            network = getattr(self, name)
            found |= {} if network is None else network.arrays(name)
        return found


def load_policy(name: str) -> Policy:
    """Of a file of `train`, of the package, or untrained."""
    if name == UNTRAINED:
        return Policy(RANKER.make(0), CHANGES.make(0), np.zeros((0, 6)))
    arrays, _ = read_policy(name, "go")
    try:
        ranker, changes = RANKER.read(arrays, "ranker"), CHANGES.read(arrays, "changes")
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
    return Policy(ranker, changes, portfolio)


class ScreenedStretch(Stretch):
    """Annealing whose first proposals a network has ranked: of single groups to other devices, and of what annealing
    draws anyway, those that it expects most of."""

    def __init__(self, proposer: Proposer, begun: float, budget: Budget, network: Network) -> None:
        super().__init__(proposer, begun, budget)
        self.network, self.graph = network, GraphView(proposer.decoder)
        decided = self.space.device.stop > self.space.device.start
        self.singles = self.problem.groups * (self.problem.devices - 1) if decided else 0
        self.plain_size, self.screened = self.size, 0
        self.size = min(self.size, STRETCH)

    def restore(self, screened: int) -> None:
        """So many proposals were screened before."""
        self.screened = screened
        if screened >= SCREENED:
            self.size = self.plain_size

    def draw(self, rng: Rng, standing: Standing, start: Float64) -> Changes:
        if self.screened >= SCREENED or standing.value >= UNFIT:
            return super().draw(rng, standing, start)
        return self.draw_screened(rng, start)

    def run(self, meter: Meter, rng: Rng, standing: Standing, heat: float) -> Standing:
        found = super().run(meter, rng, standing, heat)
        self.restore(self.screened)
        return found

    def draw_screened(self, rng: Rng, start: Float64) -> Changes:
        """The proposals of which the network expects most."""
        run = RunView(self.graph, self.climb, start)
        pool = self.pool(rng, run)
        utility = rank(self.network, change_features(run, pool))
        chosen = np.argsort(-(utility + GUMBEL * rng.gumbel(size=len(utility))), kind="stable")[: self.size]
        anyway = np.flatnonzero(rng.random(len(chosen)) < ANYWAY)
        chosen[anyway] = rng.integers(len(utility), size=len(anyway))  # the network may be wrong
        self.screened += len(chosen)
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
    """As `large-neighbourhood`, with trained networks. `init`: the policy that comes with the package, a file of
    `loadmaster train go`, or 'none' (untrained networks). `look_ahead`: whether a network chooses the first plans.
    `changes`: whether a network screens what annealing proposes."""

    name = "go"
    summary = "large neighbourhoods whose first plans and small changes trained networks choose (GO)"

    def __init__(
        self,
        init: str = SHIPPED,
        batch: int = 8,
        screen: int = 4,
        look_ahead: bool = True,
        changes: bool = True,
        portfolio: int = 16,
        threads: int | None = None,
    ) -> None:
        super().__init__(batch, screen, portfolio, threads)
        self.init, self.look_ahead, self.changes = init, look_ahead, changes
        self.policy = load_policy(init)
        self.options = {"init": init, "look_ahead": look_ahead, "changes": changes, **self.options}
        self._screened = 0
        self._stretch: ScreenedStretch | None = None

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        self._stretch, self._screened = None, 0
        return super().run(meter, seed, state)

    def arrays(self, proposer: Proposer) -> State:
        """How many proposals were screened."""
        return {"screened": np.array(0 if self._stretch is None else self._stretch.screened)}

    def restore(self, state: State, proposer: Proposer) -> None:
        self._screened = int(state["screened"])

    def make_stretch(self, proposer: Proposer, begun: float, budget: Budget) -> Stretch:
        network, self._stretch = self.policy.changes, None
        if network is None or not self.changes:
            return super().make_stretch(proposer, begun, budget)
        self._stretch = ScreenedStretch(proposer, begun, budget, network)
        self._stretch.restore(self._screened)
        return self._stretch

    def look_first(self, proposer: Proposer, rng: Rng, found: Starts) -> None:
        """Of hints, partitions and what the scheduler makes with the portfolio and with random parameters, the one that
        the scheduler reckons best; then those that the network expects most of, each with a fusion; then the best of
        them with other fusions."""
        ranker = self.policy.ranker
        if proposer.neighbourhoods is None or ranker is None or not self.look_ahead:
            return
        modes, left = proposer.space.modes, self.first_placements(proposer, rng)
        best = left[int(reckon_time(proposer, left).argmin())]
        utility = ranker(make_features(PlanView(GraphView(proposer.decoder), best), left))[:, : len(modes)]
        pairs = [(left[row], modes[mode]) for row, mode in first_pairs(utility)]
        found.add([best, *proposer.partitions], modes[0])
        found.add_pairs(pairs)
        placements = found.best_devices(FUSED_OTHERWISE - 1)
        found.add_pairs([(device, mode) for mode in modes for device in placements])

    def first_placements(self, proposer: Proposer, rng: Rng) -> Int32:
        """[K, G] what the first plans are chosen of."""
        return np.unique(np.concatenate([np.stack(proposer.starts), self.decode(proposer, rng)]), axis=0)

    def decode(self, proposer: Proposer, rng: Rng, count: int = DECODED) -> Int32:
        """[count, G] everything put anew with the portfolio and with random parameters."""
        known = self.policy.portfolio
        drawn, order = proposer.draw_parameters(rng, max(0, count - len(known)))
        drawn = np.concatenate([known[:, :5], drawn])
        return proposer.portfolio(drawn, np.concatenate([known[:, 5].astype(np.int64), order]))


def first_pairs(utility: Float32) -> list[tuple[int, int]]:
    """Rows and columns of utilities [K, modes], largest first, at most `FIRST`, of a row at most `FUSIONS`."""
    found, often = list[tuple[int, int]](), Counter[int]()
    for number in np.argsort(-utility.ravel(), kind="stable").tolist():
        row, mode = divmod(number, utility.shape[1])
        if often[row] < FUSIONS:
            found.append((row, mode))
            often[row] += 1
        if len(found) == FIRST:
            break
    return found
