"""How `plan --objective peak-memory` works: an order of the ops, what it saves, and the bound."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from loadmaster.cli.answer import Answer, Table, Usage
from loadmaster.cli.plan_show import ending
from loadmaster.cli.planning import Wanted, chosen_solver, completed, ended_badly, solved, written
from loadmaster.cli.progress import gap_text, say
from loadmaster.errors import LoadmasterError, Refused
from loadmaster.machine import load_machine
from loadmaster.machine.presets import with_capacities
from loadmaster.order.auto import BY_CLOCK
from loadmaster.order.problem import PeakOrder
from loadmaster.program import Program
from loadmaster.search.problem import Decision
from loadmaster.search.registry import make_solver
from loadmaster.search.solver import Budget, Solution, solve
from loadmaster.units import show_bytes

BASELINES = ("program-order", "peak-greedy", "depth-first", "reverse-post-order")


def peak_problem(program: Program, machine: str | None, capacities: tuple[str, ...]) -> PeakOrder:
    """The problem on a machine that the user named, else on one without a limit."""
    if machine is None:
        if capacities:
            raise Usage(
                "--capacity needs a machine that has that memory",
                object="--capacity",
                number=capacities[0],
                remedy="give --machine",
            )
        return PeakOrder(program)
    return PeakOrder(program, with_capacities(load_machine(machine), capacities))


def plan_peak(problem: PeakOrder, wanted: Wanted, source: str) -> Answer:
    """Solve, compare, check, write, tell."""
    wanted = completed(wanted, BY_CLOCK)
    solver = chosen_solver("order", str(wanted.solver), wanted.options)
    say(
        f"{source}: the order of {problem.nodes:,} ops, with {show_bytes(problem.graph.resident)} of weights "
        "that are always there and are not counted"
    )
    found = {name: solve(make_solver("order", name), problem, Budget()) for name in BASELINES}
    known: dict[str, Decision] = {
        name: solution.decision for name, solution in found.items() if solution.decision is not None
    }
    solution = solved(solver, problem, problem.bound(), wanted, known)
    if solution.decision is not None:
        written(problem, solution.decision, wanted.out)
    rows = [
        _row(problem, "order-baseline", name, each, solution)
        for name, each in found.items()
        if name != solver.name
    ]
    rows.append(_row(problem, "order", solver.name, solution, solution))
    rows.append(
        {
            **_row(problem, "order-bound", "bound", solution, solution),
            "peak_bytes": solution.bound.value,
            "saved": 1 - solution.bound.value / max(1, problem.reference),
            "gap": 0.0,
            "evaluations": 0,
            "took_seconds": 0.0,
            "status": solution.bound.method,
        }
    )
    error = _too_large(problem, solution) or ended_badly(problem, solution)
    return replace(_shown(problem, source, solution, rows, wanted.out), error=error)


def _too_large(problem: PeakOrder, solution: Solution) -> LoadmasterError | None:
    """A proof that no order fits, if there is one."""
    need = solution.bound.value + problem.resident
    if solution.decision is not None or need <= problem.capacity:
        return None
    name = problem.machine.memories[problem.machine.home[0]].name
    return Refused(
        f"'{name}' needs {need:,} bytes and has {problem.capacity:,}: {need - problem.capacity:,} too "
        "many, whatever the order",
        object=name,
        number=need,
        remedy=f"a capacity of {need:,} bytes at least",
    )


def _row(problem: PeakOrder, what: str, name: str, solution: Solution, best: Solution) -> dict[str, Any]:
    value, bound = solution.value, best.bound.value
    status = "optimal" if value is not None and value <= bound else str(solution.status)
    return {
        "what": what,
        "name": name,
        "peak_bytes": value,
        "saved": None if value is None else 1 - value / max(1, problem.reference),
        "gap": value / bound - 1 if value is not None and bound > 0 else None,
        "evaluations": solution.evaluations,
        "took_seconds": solution.seconds,
        "status": status,
    }


def _shown(
    problem: PeakOrder, source: str, solution: Solution, rows: list[dict[str, Any]], out: Path | None
) -> Answer:
    cells = [
        (
            row["name"],
            "–" if row["peak_bytes"] is None else f"{row['peak_bytes']:,}",
            "–" if row["peak_bytes"] is None else show_bytes(row["peak_bytes"]),
            "–" if row["saved"] is None else f"{100 * row['saved']:.1f} %",
            gap_text(row["gap"]),
            f"{row['took_seconds']:.1f} s" if row["took_seconds"] >= 0.05 else "–",
            row["status"],
        )
        for row in rows
    ]
    columns = ("order", "peak bytes", "", "saved", "gap to bound", "took", "")
    blocks: list[str | Table] = [Table(columns, cells, f"{source}, one device, weights not counted")]
    run = solution.extra.get("run")
    kept = out or (None if run is None else Path(run) / "best.json")
    if solution.value is not None:
        proof = (
            "proven the least"
            if solution.value <= solution.bound.value
            else f"at least {solution.bound.value:,} whatever the order"
        )
        blocks.append(f"before {problem.reference:,} bytes, after {solution.value:,}: {proof}")
        # `figures` draws where tensors live, which is not decided here.
        lines = ending(problem.machine, source, kept, run).splitlines()
        blocks.append("\n".join(line for line in lines if not line.startswith("draw it")))
    more = {
        "model": source,
        "machine": problem.machine.name,
        "ops": problem.nodes,
        "run": run,
        "resident_bytes": problem.graph.resident,
        "before_bytes": problem.reference,
        "after_bytes": solution.value,
        "bound_bytes": solution.bound.value,
        "plan": None if kept is None else str(kept),
        "stop": solution.extra.get("stop"),
    }
    warnings = (*solution.extra.get("warnings", ()), *solution.extra.get("refused", ()))
    return Answer(rows, blocks, tuple(map(str, warnings)), more=more)
