"""A Mapping problem as a mixed-integer linear program with integer coefficients.

Three things make it easy to prove. A node of few entries has one variable for each way to choose
their memories, so that the linear relaxation is the convex hull of its true times and not a
maximum of two lines. Entries that cost and weigh the same, each alone in its nodes, are one group
with a number of members in each memory: no symmetry is left among them. And a program may be told
which memories an entry can have (`mapping_cases` says why), which makes most nodes sums.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from loadmaster.solvers.exact.mapping_cases import Case
from loadmaster.solvers.exact.mapping_model import MappingModel

Int64 = npt.NDArray[np.int64]
Group = tuple[tuple[int, ...], tuple[tuple[int, int], ...]]
"""(entries that are alike, (memory, variable that counts how many are there) …)."""
MOST_WAYS = 729
"""Nodes with more ways to choose memories have lines."""
MOST_TERMS = 200_000
"""Above it, capacity rows have one variable for all weights in place of every weight."""
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


@dataclass
class _Node:
    """A node that is no sum: the ways to choose the memories of its open entries."""

    node: int
    open: list[int]
    ways: Int64
    times: Int64


def mapping_linear(model: MappingModel, case: Case) -> Linear:
    """The program whose optimum is the best map of a case."""
    alone = np.zeros((model.entries, model.memories), dtype=np.int64)
    draft, tables, lines = Draft(), [], []
    for node in range(model.nodes):
        entries = model.access_entry[model.accesses(node)].tolist()
        if math.prod(len(case.allowed[e]) for e in entries) > MOST_WAYS:
            lines.append(node)
        elif (table := _sum_or_table(draft, alone, model, case, node, entries)) is not None:
            tables.append(table)
    bound_up = {e for table in tables for e in table.open}
    bound_up |= {e for node in lines for e in model.access_entry[model.accesses(node)].tolist()}
    bound_up |= {e for entries, _ in model.rows for e in entries.tolist()}
    fixed, groups = _groups(draft, alone, model, case, bound_up)
    at = {(e, m): v for entries, counts in groups for e in entries for m, v in counts}
    for table in tables:
        _table(draft, at, case, table)
    for node in lines:
        _lines(draft, at, model, case, node)
    _capacities(draft, at, model, case, groups)
    return draft.linear(fixed, groups)


def _sum_or_table(
    draft: Draft, alone: Int64, model: MappingModel, case: Case, node: int, entries: list[int]
) -> _Node | None:
    """Add the costs of a node that is the sum of its entries'; the table of any other."""
    shape = [len(case.allowed[e]) for e in entries]
    ways = np.array(list(np.ndindex(*shape)), dtype=np.int64).reshape(math.prod(shape), -1)
    chosen = (
        np.stack([np.array(case.allowed[e])[ways[:, k]] for k, e in enumerate(entries)], axis=1)
        if entries
        else ways
    )
    times = int(model.repeat[node]) * model.durations(node, chosen)
    grid = times.reshape(shape)
    base = int(times[0])
    parts = [grid[(0,) * k + (slice(None),) + (0,) * (len(shape) - k - 1)] - base for k in range(len(shape))]
    sums = base + sum((part[ways[:, k]] for k, part in enumerate(parts)), np.zeros(len(ways), np.int64))
    if not (times == sums).all():
        keep = [k for k, n in enumerate(shape) if n > 1]
        return _Node(node, [entries[k] for k in keep], chosen[:, keep], times)
    draft.constant += base + sum(int(part.min()) for part in parts)  # no cost is negative
    for entry, part in zip(entries, parts, strict=True):
        alone[entry, list(case.allowed[entry])] += part - part.min()
    return None


def _groups(
    draft: Draft, alone: Int64, model: MappingModel, case: Case, bound_up: set[int]
) -> tuple[Int64, list[Group]]:
    fixed = np.full(model.entries, -1, dtype=np.int64)
    alike: dict[object, list[int]] = {}
    for entry, allowed in enumerate(case.allowed):
        cost = tuple(alone[entry].tolist())
        if len(allowed) == 1:
            fixed[entry] = allowed[0]
            draft.constant += cost[allowed[0]]
        else:
            same = entry if entry in bound_up else (cost, tuple(model.always[entry].tolist()), allowed)
            alike.setdefault(same, []).append(entry)
    groups = []
    for entries in alike.values():
        allowed = case.allowed[entries[0]]
        counts = draft.add(alone[entries[0], list(allowed)].tolist(), len(entries), True)
        draft.row([(v, 1) for v in counts], len(entries), len(entries))
        groups.append((tuple(entries), tuple(zip(allowed, counts, strict=True))))
    return fixed, groups


def _table(draft: Draft, at: dict[tuple[int, int], int], case: Case, table: _Node) -> None:
    least = int(table.times.min())
    draft.constant += least
    way = np.array(draft.add((table.times - least).tolist(), 1, False))
    for k, entry in enumerate(table.open):
        for m in case.allowed[entry]:
            which = way[table.ways[:, k] == m].tolist()
            draft.row([(at[entry, m], -1), *((v, 1) for v in which)], 0, 0)


def _lines(draft: Draft, at: dict[tuple[int, int], int], model: MappingModel, case: Case, node: int) -> None:
    """Time >= compute + share * memory and >= memory + share * compute, share being `overlap`."""
    here, last = model.accesses(node), model.memories - 1
    compute, launch = int(model.compute[node]), int(model.launch[node])
    share, repeat, cost = int(model.overlap[node]), int(model.repeat[node]), model.access_cost[here]
    busy = [0] * last + [int(model.fixed[node])]
    terms: list[list[tuple[int, int]]] = [[] for _ in range(model.memories)]
    for k, entry in enumerate(model.access_entry[here].tolist()):
        for m in case.allowed[entry]:
            if (entry, m) in at:
                terms[m].append((at[entry, m], int(cost[k, m])))
            else:
                busy[m] += int(cost[k, m])
    ports = list(zip(terms, busy, strict=True))
    if not model.parallel:
        ports = [([term for port in terms for term in port], sum(busy))]
    least = max(1, launch + compute)
    draft.constant += repeat * least
    worst = int(model.combined(node, model.fixed[node] + cost.max(axis=1).sum()))
    (time,) = draft.add([repeat], worst - least, False)
    extra = -(-compute * share // 10**6)
    for port, fixed in ports:
        draft.row([(time, 1), *((v, -c) for v, c in port)], launch + fixed + extra - least, FREE)
        if share:
            low = 10**6 * (launch + compute - least) + share * fixed
            draft.row([(time, 10**6), *((v, -share * c) for v, c in port)], low, FREE)


def _capacities(
    draft: Draft, at: dict[tuple[int, int], int], model: MappingModel, case: Case, groups: list[Group]
) -> None:
    for m in range(model.memories - 1):
        sizes = [model.always[:, m], *(size[:, m] for _, size in model.rows)]
        unit = max(1, int(np.gcd.reduce(np.concatenate(sizes))))
        room = int(model.capacity[m]) // unit
        room -= sum(int(model.always[e, m]) for e in np.flatnonzero(_held(case, m))) // unit
        weights = [
            (v, int(model.always[entries[0], m]) // unit, len(entries))
            for entries, counts in groups
            for memory, v in counts
            if memory == m
        ]
        heavy = sum(size * count for _, size, count in weights)
        rows = _loads(at, model, case, m, unit)
        if m == 0 and case.most is not None:
            for terms, there in rows:
                _limit(draft, terms, case.most // unit - there)
        if all(heavy + there + sum(s for _, s in terms) <= room for terms, there in rows):
            continue
        shared = [(v, size) for v, size, _ in weights if size]
        if len(rows) * len(shared) > MOST_TERMS:
            (total,) = draft.add([0], room, False)
            draft.row([(total, 1), *((v, -size) for v, size in shared)], 0, FREE)
            shared = [(total, 1)]
        for terms, there in rows:
            _limit(draft, [*shared, *terms], room - there)


def _held(case: Case, memory: int) -> npt.NDArray[np.bool_]:
    """[E] whether an entry is in a memory for certain."""
    return np.array([allowed == (memory,) for allowed in case.allowed], dtype=np.bool_)


def _loads(
    at: dict[tuple[int, int], int], model: MappingModel, case: Case, m: int, unit: int
) -> list[tuple[tuple[tuple[int, int], ...], int]]:
    """(variables and sizes, size that is there for certain) of each row, alike ones once."""
    held = _held(case, m)
    loads: dict[tuple[tuple[int, int], ...], int] = {}
    for entries, size in model.rows:
        pairs = list(zip(entries.tolist(), (size[:, m] // unit).tolist(), strict=True))
        terms = tuple((at[e, m], s) for e, s in pairs if (e, m) in at and s)
        loads[terms] = max(loads.get(terms, 0), sum(s for e, s in pairs if held[e]))
    return list(loads.items())


def _limit(draft: Draft, terms: Sequence[tuple[int, int]], most: int) -> None:
    if sum(size * draft.upper[v] for v, size in terms) <= most:
        return
    held: dict[int, int] = {}
    for v, size in terms:
        held[v] = held.get(v, 0) + size
    unit = max(1, math.gcd(*held.values()))  # often more than all rows share, which makes it tighter
    draft.row([(v, size // unit) for v, size in held.items()], -FREE, most // unit)
