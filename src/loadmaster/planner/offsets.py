"""Offsets for buffers with fixed lifetimes: which solver, and planning again with little change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadmaster import _core
from loadmaster.allocation.auto import make_auto
from loadmaster.allocation.buffers import Buffers
from loadmaster.allocation.exact import Exact
from loadmaster.allocation.problem import Allocation
from loadmaster.allocation.several import replan
from loadmaster.errors import nearest
from loadmaster.planner.capacity import BadRequest
from loadmaster.search.registry import make_solver
from loadmaster.search.solver import Budget, Meter, Solution, Solver

REPLAN_SECONDS = 60.0


def offset_solver(
    name: str, off: Sequence[str], threads: int | None, options: Mapping[str, Any] | None = None
) -> Solver:
    """A solver by name. With techniques turned `off` it is the exact search, which has them."""
    solver = make_solver("allocation", name, options)
    for technique in off:
        if technique not in _core.TECHNIQUES:
            raise BadRequest(
                f"there is no switch '{technique}'{nearest(technique, tuple(_core.TECHNIQUES))}",
                object=technique,
                remedy=f"use one of {', '.join(_core.TECHNIQUES)}",
            )
    if name == "exact" or (off and name == "auto"):
        return Exact(dict.fromkeys(off, False), threads)
    if off:
        raise BadRequest(
            f"--off needs solver 'exact', not '{solver.name}'", object="--off", remedy="leave it out"
        )
    return make_auto(threads) if name == "auto" else solver


def replan_offsets(problem: Allocation, previous: Buffers, seconds: float | None, seed: int) -> Solution:
    """Offsets that differ little from those in `previous` (its `pinned`): `metrics` says which buffers moved."""
    if problem.capacity is None:
        raise BadRequest("--previous needs a capacity", object="--previous", remedy="give --capacity")
    answer = replan(
        problem.buffers,
        previous,
        previous.pinned,
        problem.capacity,
        seconds=seconds or REPLAN_SECONDS,
        seed=seed,
    )
    meter = Meter(problem, Budget(seconds=seconds))
    if answer is None:
        return meter.solution()
    meter.evaluate(answer.offset)
    moved = [problem.buffers.ids[b] for b in answer.moved.tolist()]
    return meter.solution(moved=moved, moved_bytes=int(problem.buffers.size[answer.moved].sum()))
