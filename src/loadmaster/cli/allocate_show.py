"""What `allocate` tells: the placement beside its bound, or why there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.allocation.auto import Blame, explain_infeasible
from loadmaster.allocation.buffers_csv import write_buffers
from loadmaster.allocation.heuristics import SizeFirstFit
from loadmaster.allocation.problem import Allocation
from loadmaster.allocation.several import NOWHERE, Assignment
from loadmaster.cli.answer import Answer, Table
from loadmaster.errors import NoAnswer, Refused
from loadmaster.planner.search import unfit_error
from loadmaster.runs.session import Interrupted
from loadmaster.search.solver import Budget, Solution, Status, solve
from loadmaster.units import show_bytes

_MOST_ROWS = 12


def placed(problem: Allocation, solution: Solution, files: list[Path]) -> Answer:
    """The answer beside size-ordered first fit and the bound."""
    baseline = solve(SizeFirstFit(), Allocation(problem.buffers), Budget())
    rows = [
        {
            "what": "first-fit",
            "bytes": baseline.value,
            "gap": baseline.gap,
            "status": str(baseline.status),
            "seconds": baseline.seconds,
        },
        {
            "what": "ours",
            "bytes": solution.value,
            "gap": solution.gap,
            "status": str(solution.status),
            "seconds": solution.seconds,
            "evaluations": solution.evaluations,
            "capacity_bytes": problem.capacity,
            "fits": problem.capacity is not None,
            **solution.metrics,
            **_about_run(solution),
        },
        {
            "what": "bound",
            "bytes": solution.bound.value,
            "gap": 0.0,
            "status": solution.bound.method,
            "seconds": 0.0,
        },
    ]
    cells = [
        (
            str(r["what"]),
            "–" if r["bytes"] is None else f"{r['bytes']:,}",
            "–" if r["gap"] is None else f"{r['gap']:.2%}",
            f"{r['seconds']:.3f}",
            str(r["status"]),
        )
        for r in rows
    ]
    head = f"{problem.name}: {len(problem.buffers):,} buffers"
    if problem.capacity is not None:
        head += f" fit into {problem.capacity:,} bytes"
    blocks: list[str | Table] = [
        head,
        Table(("placement", "bytes", "gap to bound", "seconds", "status"), cells),
    ]
    if "moved" in solution.metrics:
        moved, size = solution.metrics["moved"], solution.metrics["moved_bytes"]
        blocks.append(f"moved {len(moved)} unchanged buffers, {size:,} bytes")
    files += [] if solution.run is None else [solution.run]
    blocks.append("checked: ok" + "".join(f", wrote {path}" for path in files))
    error = None
    if solution.interrupted:
        error = Interrupted(
            f"{problem.name}: interrupted, the best so far is kept",
            object=problem.name,
            number=solution.value,
            remedy="go on with --resume",
        )
    return Answer(rows, blocks, (*solution.warnings, *solution.refused), error)


def _about_run(solution: Solution) -> dict[str, Any]:
    """How the search ended, as far as there is something to say."""
    said = {
        "stop": solution.stop,
        "run": None if solution.run is None else str(solution.run),
        "interrupted": solution.interrupted,
        "warnings": solution.warnings,
        "refused": solution.refused,
    }
    return {name: content for name, content in said.items() if content}


def explained(problem: Allocation, solution: Solution, seconds: float | None, seed: int) -> Answer:
    """No placement: proven (exit 1, with the buffers to blame) or not known (exit 4)."""
    if solution.status == Status.INFEASIBLE and problem.capacity is not None:
        return blame_answer(problem, solution, explain_infeasible(problem, min(seconds or 10.0, 10.0), seed))
    error = NoAnswer(
        f"{problem.name}: no placement was found and none was proven impossible in {solution.seconds:.1f} s",
        object=problem.name,
        number=problem.capacity,
        remedy="give more --time-limit",
    )
    row = {"what": "ours", "status": str(solution.status), "bound": solution.bound.value}
    return Answer([row], error=error)


def blame_answer(problem: Allocation, solution: Solution, blame: Blame) -> Answer:
    """Why buffers do not fit, and which of them are to blame."""
    buffers, blamed = problem.buffers, blame.buffers.tolist()
    blocks: list[str | Table] = []
    if blamed:
        cells = [
            (
                buffers.ids[b],
                f"{int(buffers.size[b]):,}",
                f"{int(buffers.lower[b])} to {int(buffers.upper[b])}",
            )
            for b in blamed[:_MOST_ROWS]
        ]
        title = f"{len(blamed)} buffers that do not fit together, and would without any one of them"
        blocks.append(Table(("to blame", "bytes", "alive"), cells, title))
    row = {
        "what": "infeasible",
        "status": "infeasible",
        "bound": solution.bound.value,
        "capacity_bytes": problem.capacity,
        "excess_bytes": blame.excess,
        "instant": blame.instant,
        "blamed": [buffers.ids[b] for b in blamed],
        "blamed_bytes": int(buffers.size[blame.buffers].sum()),
    }
    return Answer([row], blocks, error=unfit_error(problem, solution, blame))


def assigned(
    problem: Allocation,
    assignment: Assignment,
    memories: list[tuple[str, int]],
    out: Path | None,
    stride: int = 0,
) -> Answer:
    """What lies in each memory; of banks, whose offsets go on from one to the next, each begins a `stride` after
    the one before."""
    buffers = problem.buffers
    rows: list[dict[str, Any]] = []
    for number, (name, capacity) in enumerate(memories):
        chosen = np.flatnonzero(assignment.memory == number)
        offsets = assignment.offset[chosen] - number * stride
        used = int((offsets + buffers.size[chosen]).max(initial=0))
        benefit = float(buffers.benefit[chosen].sum())
        rows.append(
            {
                "memory": name,
                "buffers": len(chosen),
                "used_bytes": used,
                "capacity_bytes": capacity,
                "worth": benefit,
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
