"""Small changes of a vector of GraphOptimization, as rows that the native loop understands."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from loadmaster.problems.graph import GraphOptimization

Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
Rng = np.random.Generator

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
