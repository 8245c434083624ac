"""What `plan` tells: the solver's plan beside baselines, optimum and bound, and where it is kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from loadmaster.cli.answer import Answer, Table
from loadmaster.cli.progress import gap_text
from loadmaster.errors import LoadmasterError
from loadmaster.machine import Machine, load_machine
from loadmaster.mapping.auto import WHITE_BOX
from loadmaster.mapping.measured import MeasuredMapping
from loadmaster.mapping.problem import Mapping
from loadmaster.plan import Plan
from loadmaster.search.champion import Champion
from loadmaster.search.solver import Solution
from loadmaster.simulate import simulate
from loadmaster.units import show_bytes, show_time


@dataclass(frozen=True)
class Figure:
    """One line of the table. `value` is in picoseconds."""

    name: str
    white_box: bool
    value: int | None
    status: str
    evaluations: int
    seconds: float
    what: str
    """'baseline', 'result' or 'reference'"""


@dataclass(frozen=True)
class Told:
    """All that there is to tell."""

    problem: Mapping
    source: str
    solver: str
    solution: Solution
    baselines: list[Figure]
    reference: Figure | None
    champion: Champion | None
    """Set where values are noisy: then it is the result."""
    plan: Plan | None
    out: Path | None

    @property
    def measured(self) -> bool:
        return isinstance(self.problem, MeasuredMapping)


def head(problem: Mapping, source: str) -> str:
    """What will be decided, in one line."""
    memories = [problem.machine.memories[number] for number in problem.memories]
    sizes = ", ".join(f"{memory.name} {show_bytes(memory.capacity)}" for memory in memories)
    live = int(problem.live.sum())
    return (
        f"{source} on {problem.machine.name}: {problem.nodes:,} nodes, {live:,} tensors to place "
        f"({show_bytes(int(problem.entries.bytes.sum()))}) in {sizes}"
    )


def shown(told: Told) -> Answer:
    """Rows and tables."""
    solution, problem = told.solution, told.problem
    figures = [
        *map(partial(_again, told), told.baselines),
        _result(told),
        *([told.reference] if told.reference else []),
    ]
    bound = solution.bound
    rows = [_row(told, figure) for figure in figures]
    if bound.value > 0 and not any(figure.value == bound.value for figure in figures):
        rows.append(_row(told, Figure("bound", True, bound.value, bound.method, 0, 0.0, "bound")))
    blocks: list[str | Table] = [_table(told, rows)]
    if told.champion is not None:
        rows[len(told.baselines)]["champion"] = told.champion.as_json()
        blocks.append(measured_again(told.champion, told.measured))
    memories = [] if told.plan is None else _memories(told)
    if memories:
        blocks.append(_memory_table(memories))
    run = solution.extra.get("run")
    kept = told.out or (None if run is None else Path(run) / "best.json")
    if told.plan is not None:
        blocks.append(ending(problem.machine, told.source, kept, run))
    warnings = (*solution.extra.get("warnings", ()), *solution.extra.get("refused", ()))
    more = {
        "model": told.source,
        "machine": problem.machine.name,
        "nodes": problem.nodes,
        "tensors": int(problem.live.sum()),
        "run": run,
        "plan": None if kept is None else str(kept),
        "stop": solution.extra.get("stop"),
    }
    return Answer(rows + memories, blocks, tuple(map(str, warnings)), more=more)


def _again(told: Told, figure: Figure) -> Figure:
    """A baseline; the compiler's plan as it was measured in turns with the result."""
    if told.champion is None or not told.measured or figure.name != "compiler":
        return figure
    return replace(figure, value=round(told.champion.baseline.time_ps.middle))


def _result(told: Told) -> Figure:
    """What the solver found; of noisy values, what was measured again or is free of noise."""
    solution, value = told.solution, told.solution.value
    if told.champion is not None:
        median = round(told.champion.winner.time_ps.middle)
        value = median if told.measured else told.champion.simulated_ps
    status = "optimal" if value is not None and value <= solution.bound.value else str(solution.status)
    return Figure(
        told.solver, told.solver in WHITE_BOX, value, status, solution.evaluations, solution.seconds, "result"
    )


def measured_again(champion: Champion, measured: bool, over: str = "compiler") -> str:
    """The headline of noisy values, with its interval and what the search had thought of it."""
    winner, speedup = champion.winner, champion.speedup
    first = "–" if winner.first_ps is None else show_time(winner.first_ps)
    low, high = show_time(round(winner.time_ps.low)), show_time(round(winner.time_ps.high))
    simulated = f", simulated {show_time(champion.simulated_ps)}" if measured else ""
    return (
        f"measured again {len(winner.samples_ps)} times: median {show_time(round(winner.time_ps.middle))} "
        f"({low} to {high}), {speedup.middle:.3f} × over {over} ({speedup.low:.3f} to "
        f"{speedup.high:.3f}); the search had measured {first}{simulated}"
    )


def _row(told: Told, figure: Figure) -> dict[str, Any]:
    value, bound = figure.value, told.solution.bound.value
    compiler = next((f.value for f in told.baselines if f.name == "compiler"), None)
    if told.champion is not None and told.measured:
        compiler = round(told.champion.baseline.time_ps.middle)
    return {
        "what": figure.what,
        "name": figure.name,
        "white_box": figure.white_box,
        "picoseconds": value,
        "seconds": None if value is None else value / 10**12,
        "speedup": compiler / value if compiler and value else None,
        "gap": value / bound - 1 if value is not None and bound > 0 else None,
        "evaluations": figure.evaluations,
        "took_seconds": figure.seconds,
        "status": figure.status,
    }


def _table(told: Told, rows: list[dict[str, Any]]) -> Table:
    cells = [
        (
            row["name"],
            "" if row["what"] == "bound" else "white box" if row["white_box"] else "black box",
            "–" if row["picoseconds"] is None else show_time(row["picoseconds"]),
            "–" if row["speedup"] is None else f"{row['speedup']:.3f} ×",
            "none" if told.measured else gap_text(row["gap"]),
            f"{row['evaluations']:,}" if row["evaluations"] and not row["white_box"] else "–",
            f"{row['took_seconds']:.1f} s" if row["took_seconds"] >= 0.05 else "–",
            row["status"],
        )
        for row in rows
    ]
    timed = "measured time" if told.measured else "simulated time"
    columns = ("plan", "kind", timed, "over compiler", "gap to bound", "evaluations", "took", "")
    return Table(columns, cells, f"{told.source} on {told.problem.machine.name}")


def _memories(told: Told) -> list[dict[str, Any]]:
    problem = told.problem
    assert told.plan is not None
    ours = simulate(problem.program, problem.machine, told.plan).memory_peak
    first = simulate(problem.program, problem.machine, problem.plan(problem.compiler)).memory_peak
    return [
        {
            "what": "memory",
            "name": problem.machine.memories[number].name,
            "peak_bytes": int(ours[number]),
            "compiler_peak_bytes": int(first[number]),
            "capacity_bytes": problem.machine.memories[number].capacity,
        }
        for number in problem.memories
    ]


def _memory_table(rows: list[dict[str, Any]]) -> Table:
    cells = [
        (
            row["name"],
            show_bytes(row["peak_bytes"]),
            show_bytes(row["compiler_peak_bytes"]),
            show_bytes(row["capacity_bytes"]),
        )
        for row in rows
    ]
    return Table(("memory", "peak", "compiler's peak", "capacity"), cells)


def _is_known(machine: Machine) -> bool:
    """Whether its name alone brings it back."""
    try:
        return load_machine(machine.name).hash == machine.hash
    except LoadmasterError:
        return False


def ending(machine: Machine, source: str, kept: Path | None, run: str | None, runs: bool = False) -> str:
    """Where the plan is, and what can be done with it."""
    if kept is None:
        return "checked: ok; no plan was written: give --out plan.json"
    known = _is_known(machine)
    lines = [f"checked: ok, plan {kept}"]
    if known or run is not None:  # else no command can name the machine
        where = machine.name if known else f"{run}/machine.toml"
        lines.append(f"see it:  loadmaster simulate {source} {kept} --machine {where}")
        if runs:
            lines.append(f"run it:  loadmaster run {source} {kept} --machine {where}")
    if run is not None:
        lines.append(f"draw it: loadmaster figures {run} --out pictures")
        lines.append(f"again:   loadmaster replay {run}")
    return "\n".join(lines)
