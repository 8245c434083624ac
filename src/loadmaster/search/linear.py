"""`Linear`: a mixed-integer linear program in whole numbers, as plain arrays, and how one is drawn up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Group = tuple[tuple[int, ...], tuple[tuple[int, int], ...]]
"""(entries that are alike, (memory, variable that counts how many are there) …)."""
FREE = 2**62
"""As a limit of a row: none."""


@dataclass(frozen=True)
class Linear:
    """Minimise constant + cost @ v, 0 <= v <= upper, row_lower <= rows @ v <= row_upper."""

    cost: Int64
    """None is negative."""
    upper: Int64
    whole: npt.NDArray[np.bool_]
    """Variables that must be whole numbers; the others then are by themselves."""
    constant: int
    row_start: Int64
    variable: Int64
    coefficient: Int64
    row_lower: Int64
    row_upper: Int64
    fixed: Int64
    """[E] memories, -1 where variables decide."""
    groups: tuple[Group, ...]

    def chosen(self, values: npt.NDArray[np.float64]) -> Int64:
        """[E] the memories that values of the variables stand for."""
        memory = self.fixed.copy()
        for entries, counts in self.groups:
            places = [m for m, v in counts for _ in range(round(float(values[v])))]
            memory[list(entries)] = places
        return memory


@dataclass
class Draft:
    """A `Linear` in the making."""

    cost: list[int] = field(default_factory=list)
    upper: list[int] = field(default_factory=list)
    whole: list[bool] = field(default_factory=list)
    constant: int = 0
    row_start: list[int] = field(default_factory=lambda: [0])
    variable: list[int] = field(default_factory=list)
    coefficient: list[int] = field(default_factory=list)
    row_lower: list[int] = field(default_factory=list)
    row_upper: list[int] = field(default_factory=list)

    def add(self, cost: Iterable[int], upper: int, whole: bool) -> list[int]:
        before = len(self.cost)
        self.cost += cost
        new = len(self.cost) - before
        self.upper += [upper] * new
        self.whole += [whole] * new
        return list(range(before, before + new))

    def row(self, terms: Iterable[tuple[int, int]], lower: int, upper: int) -> None:
        for variable, coefficient in terms:
            if coefficient:
                self.variable.append(variable)
                self.coefficient.append(coefficient)
        self.row_start.append(len(self.variable))
        self.row_lower.append(lower)
        self.row_upper.append(upper)

    def linear(self, fixed: Int64, groups: Iterable[Group]) -> Linear:
        """What was drawn up so far."""
        return Linear(
            cost=np.array(self.cost, dtype=np.int64),
            upper=np.array(self.upper, dtype=np.int64),
            whole=np.array(self.whole, dtype=np.bool_),
            constant=self.constant,
            row_start=np.array(self.row_start, dtype=np.int64),
            variable=np.array(self.variable, dtype=np.int64),
            coefficient=np.array(self.coefficient, dtype=np.int64),
            row_lower=np.array(self.row_lower, dtype=np.int64),
            row_upper=np.array(self.row_upper, dtype=np.int64),
            fixed=fixed,
            groups=tuple(groups),
        )
