"""The ways in which `allocate` finds offsets: a solver, several memories, banks, little change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from loadmaster import _core
from loadmaster.allocation.auto import make_auto
from loadmaster.allocation.buffers_csv import read_buffers, write_buffers
from loadmaster.allocation.exact import Exact
from loadmaster.allocation.problem import Allocation
from loadmaster.allocation.several import NOWHERE, Assignment, banks, replan, spill
from loadmaster.cli.answer import Answer, Table, Usage
from loadmaster.cli.progress import LiveLine
from loadmaster.errors import Refused, nearest
from loadmaster.runs.session import run_solver
from loadmaster.search.registry import make_solver
from loadmaster.search.solver import Budget, Meter, Solution, Solver
from loadmaster.units import show_bytes


def searched(
    problem: Allocation,
    name: str,
    switches: dict[str, Any],
    threads: int | None,
    evaluations: int | None,
    seconds: float | None,
    seed: int,
    run: Path | None,
    resume: Path | None,
) -> Solution:
    """A solver by name, or the one that fits the size."""
    solver: Solver = make_solver("allocation", name)
    for switch in switches:
        if switch not in _core.TECHNIQUES:
            raise Usage(
                f"there is no switch '{switch}'{nearest(switch, tuple(_core.TECHNIQUES))}",
                object=switch,
                remedy=f"use one of {', '.join(_core.TECHNIQUES)}",
            )
    if name == "exact" or (switches and name == "auto"):
        solver = Exact(switches, threads)
    elif switches:
        raise Usage(f"--off needs solver 'exact', not '{solver.name}'", object="--off", remedy="leave it out")
    elif name == "auto":
        solver = make_auto(threads)
    budget = Budget(evaluations, seconds)
    return run_solver(solver, problem, budget, seed, folder=run, resume=resume, display=LiveLine())


def moving_little(problem: Allocation, previous: Path, seconds: float | None, seed: int) -> Solution:
    """Plan again from an earlier answer."""
    before, _ = read_buffers(previous)
    if (before.pinned < 0).any():
        raise Usage(
            f"'{previous}' has no offset for every buffer",
            object=str(previous),
            remedy="give an answer of --out",
        )
    capacity = problem.capacity
    if capacity is None:
        raise Usage("--previous needs a capacity", object="--previous", remedy="give --capacity")
    answer = replan(problem.buffers, before, before.pinned, capacity, seconds=seconds or 60.0, seed=seed)
    meter = Meter(problem, Budget(seconds=seconds))
    if answer is None:
        return meter.solution()
    meter.evaluate(answer.offset)
    moved = [problem.buffers.ids[b] for b in answer.moved.tolist()]
    return meter.solution(moved=moved, moved_bytes=int(problem.buffers.size[answer.moved].sum()))


def in_memories(
    problem: Allocation, memories: list[tuple[str, int]], seconds: float | None, seed: int, out: Path | None
) -> Answer:
    """Fill the fast ones with what is worth most."""
    assignment = spill(problem.buffers, [size for _, size in memories], seconds=seconds or 60.0, seed=seed)
    return _assigned(problem, assignment, memories, out)


def in_banks(problem: Allocation, count: int, seconds: float | None, seed: int, out: Path | None) -> Answer:
    """Equal banks that no buffer crosses."""
    if problem.capacity is None:
        raise Usage("--banks needs a capacity", object="--banks", remedy="give --capacity")
    size = problem.capacity // count
    different = problem.buffers.apart
    free = problem.buffers.changed(apart=())
    assignment = banks(free, count, size, different=different, seconds=seconds or 60.0, seed=seed)
    return _assigned(problem, assignment, [(f"bank{i}", size) for i in range(count)], out, size)


def _assigned(
    problem: Allocation,
    assignment: Assignment,
    memories: list[tuple[str, int]],
    out: Path | None,
    stride: int = 0,
) -> Answer:
    buffers = problem.buffers
    rows: list[dict[str, Any]] = []
    for number, (name, capacity) in enumerate(memories):
        chosen = np.flatnonzero(assignment.memory == number)
        offsets = assignment.offset[chosen] - number * stride
        used = int((offsets + buffers.size[chosen]).max(initial=0))
        worth = float(buffers.worth[chosen].sum())
        rows.append(
            {
                "memory": name,
                "buffers": len(chosen),
                "used_bytes": used,
                "capacity_bytes": capacity,
                "worth": worth,
            }
        )
    left = np.flatnonzero(assignment.memory == NOWHERE)
    cells = [
        (
            r["memory"],
            f"{r['buffers']:,}",
            show_bytes(r["used_bytes"]),
            show_bytes(r["capacity_bytes"]),
            f"{r['worth']:,.0f}",
        )
        for r in rows
    ]
    blocks: list[str | Table] = [Table(("memory", "buffers", "used", "capacity", "worth"), cells)]
    error = None
    if len(left):
        first = buffers.ids[int(left[np.argmax(buffers.size[left])])]
        error = Refused(
            f"{len(left):,} of {len(buffers):,} buffers have no place, the largest is '{first}'",
            object=first,
            number=len(left),
            remedy="add a memory, or raise a capacity",
        )
    elif out is not None:
        write_buffers(
            buffers, assignment.offset, out, memory=[memories[m][0] for m in assignment.memory.tolist()]
        )
        blocks.append(f"wrote {out}")
    return Answer(rows, blocks, error=error)
