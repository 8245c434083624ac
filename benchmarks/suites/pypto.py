"""The PyPTO kernels as problems: pools with capacities, alignment, reserved ranges, pairs."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.suites.problems import make_as
from loadmaster.allocation.buffers import NONE, Buffers
from loadmaster.allocation.problem import Allocation
from loadmaster.planner import NamedBuffers


@dataclass
class Pool:
    """One address space of one kernel."""

    name: str
    capacity: int
    reserved: list[tuple[int, int]]
    rows: list[tuple[str, int, int, int, int]] = field(default_factory=list)
    """(id, lower, upper, size, alignment)"""
    separated: list[tuple[str, str]] = field(default_factory=list)

    def problem(self, *, apart: bool) -> Allocation:
        """The least height of this pool; reserved ranges are buffers that live throughout, pinned."""
        ids = [row[0] for row in self.rows]
        number = {name: i for i, name in enumerate(ids)}
        begin = min((row[1] for row in self.rows), default=0)
        end = max((row[2] for row in self.rows), default=1)
        held = [(f"reserved{i}", begin, end, b - a, 1, a) for i, (a, b) in enumerate(self.reserved)]
        rows = [(*row, NONE) for row in self.rows] + held
        pairs = (
            [(number[a], number[b]) for a, b in self.separated if a in number and b in number]
            if apart
            else []
        )
        columns = list(zip(*rows, strict=True))
        buffers = Buffers.of(
            columns[1],
            columns[2],
            columns[3],
            ids=columns[0],
            alignment=columns[4],
            pinned=columns[5],
            apart=pairs,
        )
        return make_as(Allocation, NamedBuffers(self.name, buffers))


def read_pools(folder: Path) -> list[Pool]:
    """All pools that hold buffers."""
    pools: dict[tuple[str, str], Pool] = {}
    for row in _rows(folder / "pools.csv"):
        reserved = [tuple(map(int, part.split("-"))) for part in row["reserved"].split()]
        pools[row["instance"], row["pool"]] = Pool(
            f"{row['instance']}:{row['name']}", int(row["capacity"]), [(a, b) for a, b in reserved]
        )
    pool_of: dict[tuple[str, str], Pool] = {}
    for row in _rows(folder / "buffers.csv"):
        pool = pools[row["instance"], row["pool"]]
        pool.rows.append(
            (row["id"], int(row["lower"]), int(row["upper"]), int(row["size"]), int(row["alignment"]))
        )
        pool_of[row["instance"], row["id"]] = pool
    for row in _rows(folder / "pairs.csv"):
        if row["kind"] == "separation":
            pool = pool_of[row["instance"], row["a"]]
            if pool is pool_of[row["instance"], row["b"]]:
                pool.separated.append((row["a"], row["b"]))
    return [pool for pool in pools.values() if pool.rows]


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))
