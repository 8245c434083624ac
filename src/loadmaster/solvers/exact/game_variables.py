"""The linear program of a MallocGame in the making; `game_linear` says what it is."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from loadmaster.problems.malloc_game.model import GameModel
from loadmaster.solvers.exact.game_ties import Ties
from loadmaster.solvers.exact.mapping_linear import Draft, Linear

Int64 = npt.NDArray[np.int64]
Terms = list[tuple[int, int]]
"""(variable, coefficient) …"""
NONE = -1
"""As a variable: it is 0."""


def _no_sites() -> Int64:
    return np.zeros(0, dtype=np.int64)


@dataclass
class GameLinear:
    """The program, and which variable is what."""

    model: GameModel
    ties: Ties
    unit: int
    """Picoseconds that variables of time count."""
    draft: Draft = field(default_factory=Draft)
    fast: Int64 = field(default_factory=_no_sites)
    """[N]"""
    stay: Int64 = field(default_factory=_no_sites)
    """[N] NONE for writes and for the first read of a given tensor"""
    back: list[list[tuple[int, int]]] = field(default_factory=list)
    """[B] (step, variable) in order; the last is the end's"""
    lead: list[dict[int, int]] = field(default_factory=list)
    """[N] step -> variable"""
    tail: list[dict[int, int]] = field(default_factory=list)
    """[B] step -> variable"""
    clock: list[int] = field(default_factory=list)
    stall: list[int] = field(default_factory=list)

    @property
    def most_time(self) -> int:
        """Of any plan worth while: that of the all-slow one, rounded up."""
        return -(-self.model.all_slow_ps // self.unit)

    @property
    def linear(self) -> Linear:
        return self.draft.linear(_no_sites(), ())

    def new(self, most: int = 1) -> int:
        """A variable of whole numbers up to `most` that costs nothing."""
        return self.draft.add([0], most, True)[0]

    def row(self, terms: Terms, lower: int, upper: int) -> None:
        """Tied sites share a variable, so one may come up twice."""
        merged: dict[int, int] = {}
        for variable, coefficient in terms:
            merged[variable] = merged.get(variable, 0) + coefficient
        self.draft.row(merged.items(), lower, upper)

    def made(self, tensor: int) -> int:
        """The step that writes a tensor; -1: it is given."""
        first = self.ties.sites[tensor][0]
        return int(self.model.site_step[first]) if self.model.site_write[first] else -1

    def copy(self, site: int, work: int) -> Terms:
        """`work` times the copy in before a read."""
        stay = int(self.stay[site])
        return [(int(self.fast[site]), work), *([(stay, -work)] if stay != NONE else [])]
