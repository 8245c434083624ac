"""How `plan` finds offsets in one memory: the solver beside first fit and the bound."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from loadmaster.allocation.problem import Allocation, ProgramAllocation
from loadmaster.cli.allocate_show import explained
from loadmaster.cli.answer import Answer, Table
from loadmaster.cli.plan_show import ending
from loadmaster.cli.planning import Wanted, chosen_solver, completed, ended_badly, solved, written
from loadmaster.cli.progress import gap_text, say
from loadmaster.search.problem import Decision
from loadmaster.search.registry import make_solver
from loadmaster.search.solver import Budget, Solution, Status, solve

BY_CLOCK = ("auto", "exact", "large", "cp-sat", "omnimalloc")
BASELINES = ("first-fit", "xla-best-fit")


def plan_allocation(problem: Allocation, wanted: Wanted, source: str) -> Answer:
    """Solve, compare, check, write, tell."""
    wanted = completed(wanted, BY_CLOCK)
    solver = chosen_solver("allocation", str(wanted.solver), wanted.options)
    say(_head(problem, source))
    # Without a capacity, so that a baseline that does not fit shows what it would need.
    free = Allocation(problem.buffers, None, problem.name)
    found = {name: solve(make_solver("allocation", name), free, Budget()) for name in BASELINES}
    known: dict[str, Decision] = {
        name: each.decision
        for name, each in found.items()
        if each.decision is not None and problem.evaluate(each.decision) is not None
    }
    solution = solved(solver, problem, problem.bound(), wanted, known)
    if solution.decision is None and solution.status == Status.INFEASIBLE:
        return explained(problem, solution, wanted.seconds, wanted.seed or 0)
    if solution.decision is not None:
        written(problem, solution.decision, wanted.out)
    rows = [
        _row("bytes-baseline", name, each, solution) for name, each in found.items() if name != solver.name
    ]
    rows.append(_row("bytes-result", solver.name, solution, solution))
    rows.append(
        {
            "what": "bytes-bound",
            "name": "bound",
            "bytes": solution.bound.value,
            "gap": 0.0,
            "evaluations": 0,
            "took_seconds": 0.0,
            "status": solution.bound.method,
        }
    )
    return replace(_shown(problem, source, solution, rows, wanted.out), error=ended_badly(problem, solution))


def _head(problem: Allocation, source: str) -> str:
    """What will be decided, in one line."""
    memory = problem.machine.memories[problem.machine.home[0]].name
    size = "no limit" if problem.capacity is None else f"{problem.capacity:,} bytes"
    order = ""
    if isinstance(problem, ProgramAllocation):
        order = f", ops in {'their own' if problem.order is None else 'another'} order"
    return f"{source}: an offset in '{memory}' ({size}) for each of {len(problem.buffers):,} buffers{order}"


def _row(what: str, name: str, found: Solution, best: Solution) -> dict[str, Any]:
    value, bound = found.value, best.bound.value
    status = "optimal" if value is not None and value <= bound else str(found.status)
    return {
        "what": what,
        "name": name,
        "bytes": value,
        "gap": value / bound - 1 if value is not None and bound > 0 else None,
        "evaluations": found.evaluations,
        "took_seconds": found.seconds,
        "status": status,
    }


def _shown(
    problem: Allocation, source: str, solution: Solution, rows: list[dict[str, Any]], out: Path | None
) -> Answer:
    cells = [
        (
            row["name"],
            "–" if row["bytes"] is None else f"{row['bytes']:,}",
            gap_text(row["gap"]),
            f"{row['took_seconds']:.1f} s" if row["took_seconds"] >= 0.05 else "–",
            row["status"],
        )
        for row in rows
    ]
    blocks: list[str | Table] = [Table(("placement", "bytes", "gap to bound", "took", ""), cells, source)]
    run = solution.extra.get("run")
    kept = out or (None if run is None else Path(run) / "best.json")
    if solution.value is not None:
        if problem.capacity is not None:
            left = problem.capacity - solution.value
            blocks.append(f"fits: {left:,} of {problem.capacity:,} bytes are left over")
        blocks.append(_ending(problem, source, kept, run))
    more = {
        "model": source,
        "machine": problem.machine.name,
        "buffers": len(problem.buffers),
        "run": run,
        "plan": None if kept is None else str(kept),
        "stop": solution.extra.get("stop"),
        "capacity_bytes": problem.capacity,
    }
    warnings = (*solution.extra.get("warnings", ()), *solution.extra.get("refused", ()))
    return Answer(rows, blocks, tuple(map(str, warnings)), more=more)


def _ending(problem: Allocation, source: str, kept: Path | None, run: str | None) -> str:
    if kept is None:
        return "checked: ok; no plan was written: give --out plan.json"
    # Plain buffers have no ops to simulate, and `figures` draws other kinds of runs.
    lines = ending(problem.machine, source, kept, run).splitlines()
    plain = not isinstance(problem, ProgramAllocation)
    left_out = ("draw it", "see it") if plain else ("draw it",)
    return "\n".join(line for line in lines if not line.startswith(left_out))
