"""Changes of a vector that know more than `Moves`: fusion that follows the devices, and decisions
drawn from a prior."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from loadmaster.problems.graph import GraphOptimization
from loadmaster.solvers.go.prior import Prior
from loadmaster.solvers.search.graph_candidates import Fitting
from loadmaster.solvers.search.graph_moves import Moves

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
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
