"""Which sites of a game share a fate, and which tensors a place."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from loadmaster.problems.malloc_game.model import GameModel
from loadmaster.program.program import Program, TieKind

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Ties:
    """Of N sites and B tensors."""

    sites: list[list[int]]
    """[B] the sites of each tensor in order"""
    site_class: Int64
    """[N] sites of one class are fast together, or slow"""
    place: Int64
    """[B] tensors of one place take room once"""


def find_ties(program: Program, model: GameModel) -> Ties:
    """In-place ops read and write one spot; a loop's steps find what it carries in one spot."""
    sites: list[list[int]] = [[] for _ in range(len(model.tensors.root))]
    for site, tensor in enumerate(model.site_tensor.tolist()):
        sites[tensor].append(site)
    alike, places = _Groups(model.sites), _Groups(len(sites))
    at = {(int(model.site_step[site]), tensor): site for tensor, own in enumerate(sites) for site in own}
    for tensor, over in enumerate(model.tensors.over.tolist()):
        if over >= 0:
            places.join([tensor, over])
            step = int(model.site_step[sites[tensor][0]])
            alike.join([at[step, tensor], *([at[step, over]] if (step, over) in at else [])])
    for group in np.unique(model.tensors.carried[model.tensors.carried >= 0]):
        places.join(np.flatnonzero(model.tensors.carried == group).tolist())
    _join_carried(program, model, sites, alike)
    return Ties(sites, alike.numbers(), places.numbers())


def _join_carried(program: Program, model: GameModel, sites: list[list[int]], alike: _Groups) -> None:
    root, rows = program.tensor_alias, model.tensors.of_root
    ties = zip(
        program.tie_kind.tolist(),
        root[program.tie_source].tolist(),
        root[program.tie_target].tolist(),
        program.tie_at.tolist(),
        strict=True,
    )
    for kind, source, target, loop in ties:
        if kind != TieKind.CARRIED or rows[source] < 0 or rows[target] < 0 or source == target:
            continue
        first, last = int(model.loop_first[loop]), int(model.loop_last[loop])
        both = [*sites[rows[source]], *sites[rows[target]]]
        alike.join([site for site in both if first <= model.site_step[site] <= last])


class _Groups:
    """Disjoint sets of numbers."""

    def __init__(self, count: int) -> None:
        self.parent = list(range(count))

    def find(self, item: int) -> int:
        while self.parent[item] != item:
            self.parent[item] = self.parent[self.parent[item]]
            item = self.parent[item]
        return item

    def join(self, items: list[int]) -> None:
        for item in items[1:]:
            self.parent[self.find(item)] = self.find(items[0])

    def numbers(self) -> Int64:
        """[count] equal for those that were joined, from 0 without gaps"""
        found = np.array([self.find(item) for item in range(len(self.parent))], dtype=np.int64)
        return np.unique(found, return_inverse=True)[1].astype(np.int64)
