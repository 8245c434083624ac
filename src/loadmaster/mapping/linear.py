"""A Mapping problem as a mixed-integer linear program with integer coefficients.

Three things make it easy to prove. A node of few entries has one variable for each way to choose
their memories, so that the linear relaxation is the convex hull of its true times and not a
maximum of two lines. Entries that cost and weigh the same, each alone in its nodes, are one group
with a number of members in each memory: no symmetry is left among them. And a program is one of a
few cases, by how many bytes of memory 0 activations ever fill (`peak_cases` says why that helps).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from loadmaster.arrays import Bool, Int64, distinct
from loadmaster.mapping.model import MappingModel
from loadmaster.search.or_tools import FREE, Draft, Group, Linear

MOST_CASES = 12


@dataclass(frozen=True)
class Case:
    """Some of the maps: the best of all maps is the best of some case."""

    allowed: tuple[tuple[int, ...], ...]
    """[E] the memories that each entry can have."""
    most: int | None = None
    """At most so many bytes in memory 0 at any step, weights left out; None: any."""


def whole_case(model: MappingModel) -> Case:
    """All maps that matter, as one case."""
    return Case(tuple(_useful(model)))


def peak_cases(model: MappingModel, most_cases: int = MOST_CASES) -> list[Case]:
    """Cases that together hold a best map, from most bytes to fewest.

    Where activations fill at least P bytes of memory 0 at some step, everything alive only at steps
    that have at most P bytes in all may be in memory 0 as well: it fits beside the weights, which
    already leave P bytes, and no node gets slower. So a case 'from P to less than Q bytes' has few
    open activations, and few cases are close to the best.
    """
    allowed = _useful(model)
    # Memory 0 may be the busiest: nothing gains by moving there for certain. And a case with few
    # bytes in memory 0 may have no room for what is pinned there.
    if model.parallel or (model.pinned >= 0).any():
        return [Case(tuple(allowed))]
    needed = np.zeros(model.entries, dtype=np.int64)  # most bytes of any step an entry is alive in
    for entries, size in model.rows:
        needed[entries] = np.maximum(needed[entries], size[:, 0].sum())
    slower = (model.access_cost[:, :1] > model.access_cost).any(axis=1)
    fixable = model.always.sum(axis=1) == 0
    fixable[model.access_entry[slower]] = False
    marks = distinct(needed[fixable & (needed > 0) & (needed <= model.capacity[0])])[::-1]
    if len(marks) >= most_cases:
        marks = marks[np.linspace(0, len(marks) - 1, most_cases - 1).astype(np.int64)]
    cases: list[Case] = []
    most = None
    for mark in [*marks.tolist(), 0]:
        here = [
            (0,) if fixable[e] and 0 < needed[e] <= mark and 0 in allowed[e] else allowed[e]
            for e in range(model.entries)
        ]
        cases.append(Case(tuple(here), most))
        most = mark - 1
    return cases


def _useful(model: MappingModel) -> list[tuple[int, ...]]:
    """The memories of each entry, without those that are never faster than the slowest."""
    last = model.memories - 1
    faster = np.zeros((model.entries, model.memories), dtype=np.bool_)
    if model.parallel:
        faster[:] = True
    else:
        cost = model.access_cost
        np.logical_or.at(faster, model.access_entry, cost < cost[:, last:])
    pinned = model.pinned.tolist()
    return [
        (pin,) if pin >= 0 else (*np.flatnonzero(row[:last]).tolist(), last)
        for row, pin in zip(faster, pinned, strict=True)
    ]


MOST_WAYS = 729
"""Nodes with more ways to choose memories have lines."""
MOST_TERMS = 200_000
"""Above it, capacity rows have one variable for all weights in place of every weight."""


@dataclass
class _Node:
    """A node that is no sum: the ways to choose the memories of its open entries."""

    node: int
    open: list[int]
    ways: Int64
    times: Int64


def make_linear(model: MappingModel, case: Case) -> Linear:
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


def _held(case: Case, memory: int) -> Bool:
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
