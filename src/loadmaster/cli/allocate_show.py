"""What `allocate` tells: the placement beside its bound, or why there is none."""

from __future__ import annotations

from pathlib import Path

from loadmaster.allocation.auto import explain_infeasible
from loadmaster.allocation.heuristics import SizeFirstFit
from loadmaster.allocation.problem import Allocation
from loadmaster.cli.allocate import NoAnswer
from loadmaster.cli.answer import Answer, Table
from loadmaster.errors import Refused
from loadmaster.runs.session import Interrupted
from loadmaster.search.solver import Budget, Solution, Status, solve

_SHOWN = 12


def result(problem: Allocation, solution: Solution, files: list[Path]) -> Answer:
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
            **solution.extra,
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
    if "moved" in solution.extra:
        blocks.append(
            f"moved {len(solution.extra['moved'])} unchanged buffers, {solution.extra['moved_bytes']:,} bytes"
        )
    files += [Path(solution.extra["run"])] if "run" in solution.extra else []
    blocks.append("checked: ok" + "".join(f", wrote {path}" for path in files))
    told = (*solution.extra.get("warnings", ()), *solution.extra.get("refused", ()))
    error = None
    if solution.extra.get("interrupted"):
        error = Interrupted(
            f"{problem.name}: interrupted, the best so far is kept",
            object=problem.name,
            number=solution.value,
            remedy="go on with --resume",
        )
    return Answer(rows, blocks, tuple(map(str, told)), error)


def explained(problem: Allocation, solution: Solution, seconds: float | None, seed: int) -> Answer:
    """No placement: proven (exit 1, with the buffers to blame) or not known (exit 4)."""
    buffers, capacity = problem.buffers, problem.capacity
    if solution.status != Status.INFEASIBLE or capacity is None:
        what = "no placement was found and none was proven impossible"
        error: NoAnswer | Refused = NoAnswer(
            f"{problem.name}: {what} in {solution.seconds:.1f} s",
            object=problem.name,
            number=capacity,
            remedy="give more --time-limit",
        )
        return Answer(
            [{"what": "ours", "status": str(solution.status), "bound": solution.bound.value}], error=error
        )
    blame = explain_infeasible(problem, min(seconds or 10.0, 10.0), seed)
    names = [buffers.ids[b] for b in blame.buffers.tolist()]
    total = int(buffers.size[blame.buffers].sum())
    blocks: list[str | Table] = []
    if names:
        cells = [
            (
                buffers.ids[b],
                f"{int(buffers.size[b]):,}",
                f"{int(buffers.lower[b])} to {int(buffers.upper[b])}",
            )
            for b in blame.buffers.tolist()[:_SHOWN]
        ]
        blocks.append(
            Table(
                ("to blame", "bytes", "alive"),
                cells,
                f"{len(names)} buffers that do not fit together, and would without any one of them",
            )
        )
    if blame.excess:
        why = f"{blame.alive:,} bytes are alive at time {blame.instant}, {blame.excess:,} too many"
    else:
        why = (
            f"the bytes alive fit, but these {len(names)} shapes do not" if names else "the shapes do not fit"
        )
    row = {
        "what": "infeasible",
        "status": "infeasible",
        "bound": solution.bound.value,
        "capacity_bytes": capacity,
        "excess_bytes": blame.excess,
        "instant": blame.instant,
        "blamed": names,
        "blamed_bytes": total,
    }
    remedy = f"a capacity of at least {solution.bound.value:,} bytes" if blame.excess else "try --minimize"
    refused = Refused(
        f"{problem.name} does not fit into {capacity:,} bytes: {why}",
        object=problem.name,
        number=blame.excess,
        remedy=remedy,
    )
    return Answer([row], blocks, error=refused)
