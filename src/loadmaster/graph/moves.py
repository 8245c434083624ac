"""Small changes of a vector of GraphOptimization, as rows that the native loop understands."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from loadmaster.arrays import Float64, Int64
from loadmaster.graph import GraphOptimization
from loadmaster.graph.pipeline import Fitting

Rng = np.random.Generator
Changes = tuple[Int64, Int64, Int64, Float64]
"""(rows [count + 1], index, source or -1, value) of `count` proposals; see climb.hpp."""

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

    def draw(self, rng: Rng, count: int) -> Changes:
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
        self._set_each(part, entries, np.full(len(entries), value))

    def _set_each(self, part: str, entries: npt.NDArray[np.integer], values: Float64) -> None:
        self._index += (entries + self.at[part]).tolist()
        self._source += [-1] * len(entries)
        self._value += values.tolist()

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


FUSION_SHARE = 0.06
"""Of all proposals: to fuse again takes ten times as long as anything else."""
_FITTED_SHARES = {"device": 0.55, "schedule": 0.45, "fusion": 0.0}
"""Of the others."""


class FittedMoves(Moves):
    """Proposals in which fusion follows the devices. `standing` is the vector to which they will be applied,
    or one like it."""

    def __init__(self, problem: GraphOptimization) -> None:
        super().__init__(problem)
        self.problem, self.standing = problem, problem.vector()
        self.fitting = Fitting(problem)
        self._near: dict[int, tuple[Int64, Int64, Int64]] = {}
        self.device_part, self.fuses = problem.part("device"), "fusion" in problem.tasks
        self._out = problem.edges  # sorted by producer
        self._starts = np.searchsorted(self._out[0], np.arange(problem.nodes + 1))
        into = np.argsort(problem.edges[1], kind="stable")
        self._in = problem.edges[:, into]
        self._in_starts = np.searchsorted(self._in[1], np.arange(problem.nodes + 1))
        placed = "placement" in problem.tasks and self.devices > 1 and self.groups > 0
        fitted: list[Callable[[Rng], None]] = []
        if self.fuses and len(self.fusible) and self.groups:
            fitted += [self._fit_group, self._fit_group, self._part_group]
            if placed:
                fitted += [self._move_fitted, self._move_fitted]
        decided = {
            "device": placed,
            "schedule": "schedule" in problem.tasks and self.nodes > 0,
            "fusion": self.fuses and len(self.fusible) > 0,
        }
        self.parts = [name for name in _FITTED_SHARES if decided[name]]
        if "fusion" in self.parts:
            self.makers[self.parts.index("fusion")] += fitted

    def draw_for(
        self, standing: Float64, rng: Rng, count: int, fusion_share: float = FUSION_SHARE
    ) -> Changes:
        """Proposals for a vector, so many of them about fusion."""
        self.standing = standing
        shares = np.array([_FITTED_SHARES[name] for name in self.parts])
        shares = shares * (1 - fusion_share) / max(1e-9, shares.sum())
        if "fusion" in self.parts:
            shares[self.parts.index("fusion")] = 1 - shares.sum()
        self.shares = np.cumsum(shares / shares.sum())
        return self.draw(rng, count)

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

    def _devices(self) -> Float64:
        decided = self.standing[self.device_part]
        return decided if len(decided) else self.problem.split(self.standing)[1].astype(np.float64)

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


def first_rows(changes: Changes, count: int) -> Changes:
    """The first proposals of some."""
    rows, index, source, value = changes
    end = int(rows[count])
    return rows[: count + 1], index[:end], source[:end], value[:end]
