"""Buffers as MiniMalloc's CSV, the capacity in the file's name."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import numpy as np

from loadmaster.allocation.buffers_csv import format_buffers, parse_buffers, read_buffers, read_pairs
from loadmaster.allocation.problem import Allocation
from loadmaster.search.registry import make_labelled
from loadmaster.search.solver import Budget, solve

from . import mutate
from .use import may_refuse

_PLAIN = "id,lower,upper,size\na,0,3,16\nb,1,4,8\nc,2,6,32\nd,5,9,4\n"
_RICH = (
    "buffer,begin,end,size,alignment,hint,gaps,offset,worth\n"
    "a,0,9,16,8,-1,2-3 5-6@0:8,-1,2.5\nb,1,4,8,1,4,,-1,1\nc,2,6,32,4,-1,3-4,64,0.5\n"
)
_SOLVERS = ("first-fit", "xla-best-fit", "tvm-hill-climb", "exact", "large", "anneal")


def seeds(place: Path) -> list[bytes]:
    """The first line is the file's name."""
    return [b"A.64.csv\n" + _PLAIN.encode(), b"B.csv\n" + _RICH.encode()]


def changed(rng: Random, data: bytes) -> bytes:
    name, _, text = data.decode("utf-8", "replace").partition("\n")
    kind = rng.random()
    if kind < 0.05:
        return mutate.octets(rng, data)
    if kind < 0.15:
        name = (
            rng.choice(("A", "A.", "A..", "A.1.2."))
            + "9" * rng.choice((0, 1, 18, 23, 200))
            + rng.choice((".csv", "csv"))
        )
    if kind < 0.2:
        text += "e,0,1," + rng.choice(("1", '"', "x")) * rng.choice((100, 140_000)) + "\n"
    if kind < 0.24:
        text += "".join(f"r{i},{i % 50},{i % 50 + 9},{i % 7}\n" for i in range(300))
    words = ("offset", "gaps", "alignment", "end", "-1", "0-9223372036854775807", "3-1", "@", '"', ",", "1e3")
    return mutate.encoded(rng, name + "\n" + mutate.lines(rng, text, tokens=words))


def read(data: bytes, place: Path) -> None:
    head, _, text = data.partition(b"\n")
    name = re.sub(r"[^A-Za-z0-9.]", "_", head.decode("latin-1"))[:240] or "x.csv"
    path = place / (name if name.strip(".") else "x.csv")
    path.write_bytes(text)
    with may_refuse():
        read_pairs(path, parse_buffers(_PLAIN))
    buffers, capacity = read_buffers(path)
    again = parse_buffers(format_buffers(buffers))
    if again.hash != buffers.hash:
        raise AssertionError("buffers are others after they were written and read")
    problem = Allocation(buffers, capacity)
    problem.bound()
    number = int(buffers.hash[:8], 16)
    problem.evaluate(np.full(len(buffers), number % 64, dtype=np.int64))
    solution = solve(make_labelled("allocation", _SOLVERS[number % len(_SOLVERS)]), problem, Budget(20, 1.0))
    if solution.decision is not None:
        problem.violations(problem.plan(solution.decision))
