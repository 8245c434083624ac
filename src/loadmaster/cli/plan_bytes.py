"""How `plan --objective bytes-moved` works: the map whose slowest memory has least to do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from loadmaster.cli.answer import Answer, Table
from loadmaster.cli.files import writing
from loadmaster.cli.plan_mapping import BASELINES, quick_bound
from loadmaster.cli.plan_show import ending, head
from loadmaster.cli.planning import Wanted, chosen_solver, completed, ended_badly, solved, written
from loadmaster.cli.progress import gap_text, say
from loadmaster.machine import Machine
from loadmaster.mapping.bytes_moved import bound_bytes, moved_bytes
from loadmaster.mapping.problem import Mapping
from loadmaster.plan import save_plan
from loadmaster.search.problem import Decision
from loadmaster.search.registry import make_solver
from loadmaster.search.solver import Budget, Solution, solve
from loadmaster.simulate import simulate
from loadmaster.units import show_bytes, show_time


def plan_bytes(problem: Mapping, real: Machine, wanted: Wanted, source: str) -> Answer:
    """`problem` is on the machine of `by_bytes`; the plan that is written is for the real one."""
    wanted = completed(wanted, ("auto", "exact"))
    solver = chosen_solver("mapping", str(wanted.solver), wanted.options)
    say(
        f"{head(problem, source)}; fewest bytes through {real.memories[real.home[0]].name}, "
        "each of which counts as a nanosecond"
    )
    found = {name: solve(make_solver("mapping", name), problem, Budget()) for name in BASELINES}
    known = {name: each.decision for name, each in found.items() if each.decision is not None}
    solution = solved(solver, problem, quick_bound(problem), wanted, known)
    plan = None if solution.decision is None else written(problem, solution.decision, None)
    if plan is not None and wanted.out is not None:
        with writing(wanted.out):
            save_plan(plan, problem.program, real, wanted.out)
    bound = bound_bytes(problem.program, problem.machine, solution.bound.value)
    rows = [
        _row(problem, real, "bytes-baseline", name, each, bound)
        for name, each in found.items()
        if name != solver.name
    ]
    rows.append(_row(problem, real, "bytes-result", solver.name, solution, bound))
    rows.append(
        {
            "what": "bytes-bound",
            "name": "bound",
            "bytes": bound,
            "seconds": None,
            "gap": 0.0,
            "evaluations": 0,
            "took_seconds": 0.0,
            "status": solution.bound.method,
        }
    )
    answer = _shown(problem, real, source, solution, rows, wanted.out)
    return replace(answer, error=ended_badly(problem, solution))


def _row(
    problem: Mapping, real: Machine, what: str, name: str, found: Solution, bound: int
) -> dict[str, Any]:
    moved, seconds = None, None
    if found.decision is not None:
        moved = _moved(problem, found.decision)
        seconds = simulate(problem.program, real, problem.plan(found.decision)).seconds
    status = "optimal" if moved is not None and moved <= bound else str(found.status)
    return {
        "what": what,
        "name": name,
        "bytes": moved,
        "seconds": seconds,
        "gap": moved / bound - 1 if moved is not None and bound > 0 else None,
        "evaluations": found.evaluations,
        "took_seconds": found.seconds,
        "status": status,
    }


def _moved(problem: Mapping, decision: Decision) -> int:
    legal = problem.rectify(decision[None])[2][0]
    return moved_bytes(problem.program, problem.machine, problem.tensor_memories(legal))


def _shown(
    problem: Mapping,
    real: Machine,
    source: str,
    solution: Solution,
    rows: list[dict[str, Any]],
    out: Path | None,
) -> Answer:
    cells = [
        (
            row["name"],
            "–" if row["bytes"] is None else f"{row['bytes']:,}",
            "–" if row["bytes"] is None else show_bytes(row["bytes"]),
            gap_text(row["gap"]),
            "–" if row["seconds"] is None else show_time(round(row["seconds"] * 10**12)),
            f"{row['took_seconds']:.1f} s" if row["took_seconds"] >= 0.05 else "–",
            row["status"],
        )
        for row in rows
    ]
    memory = real.memories[real.home[0]].name
    columns = ("plan", f"bytes through {memory}", "", "gap to bound", "simulated time", "took", "")
    blocks: list[str | Table] = [Table(columns, cells, f"{source} on {real.name}")]
    run = solution.extra.get("run")
    if solution.value is not None and out is not None:
        blocks.append(ending(real, source, out, None))
    elif solution.value is not None:
        blocks.append("checked: ok; give --out plan.json to keep a plan for the machine itself")
    more = {
        "model": source,
        "machine": real.name,
        "nodes": problem.nodes,
        "run": run,
        "plan": None if out is None else str(out),
        "stop": solution.extra.get("stop"),
    }
    warnings = (*solution.extra.get("warnings", ()), *solution.extra.get("refused", ()))
    return Answer(rows, blocks, tuple(map(str, warnings)), more=more)
