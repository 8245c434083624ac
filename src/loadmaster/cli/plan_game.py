"""How `plan` plays a MallocGame: the solver beside known methods, the bound, the checked plan."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from loadmaster.cli.answer import Answer, Table
from loadmaster.cli.plan_show import Figure, ending
from loadmaster.cli.planning import Wanted, chosen_solver, completed, ended_badly, solved, written
from loadmaster.cli.progress import gap_text, say
from loadmaster.errors import MissingPackage
from loadmaster.malloc_game.auto import BY_CLOCK, WHITE_BOX, has_production, known_production
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.plan import Plan
from loadmaster.search.problem import Bound, Decision
from loadmaster.search.registry import make_solver
from loadmaster.search.solver import Budget, Solution, solve
from loadmaster.simulate import simulate
from loadmaster.units import show_bytes, show_time

BASELINES = ("all-slow", "greedy-order", "msa", "production")
BOUND_SECONDS = 20.0


def plan_game(problem: MallocGame, wanted: Wanted, source: str) -> Answer:
    """Solve, compare, check, write, tell."""
    wanted = completed(wanted, BY_CLOCK)
    solver = chosen_solver("malloc-game", str(wanted.solver), wanted.options)
    if solver.name == "production":
        known_production(problem)  # refused before anything is written
    say(_head(problem, source))
    bound = _quick_bound(problem)
    baselines = _baselines(problem)
    known = {name: decision for name, (decision, _) in baselines.items()}
    solution = solved(solver, problem, bound, wanted, known)
    plan = None if solution.decision is None else written(problem, solution.decision, wanted.out)
    figures = [figure for _, figure in baselines.values() if figure.name != solver.name]
    figures.append(
        Figure(
            solver.name,
            solver.name in WHITE_BOX,
            solution.value,
            str(solution.status),
            solution.evaluations,
            solution.seconds,
            "result",
        )
    )
    answer = _shown(problem, source, solution, figures, plan, wanted.out)
    return replace(answer, error=ended_badly(problem, solution))


def _head(problem: MallocGame, source: str) -> str:
    """What will be decided, in one line."""
    model, memories = problem.model, problem.machine.memories
    fast = memories[model.fast]
    return (
        f"{source} on {problem.machine.name}: {model.steps:,} steps, {problem.moves:,} decisions about "
        f"{len(model.tensors.root):,} tensors ({show_bytes(int(model.tensors.size.sum()))}), "
        f"{fast.name} {show_bytes(fast.capacity)} over {memories[model.slow].name}"
    )


def _quick_bound(problem: MallocGame) -> Bound:
    """The recorded one, else that of the linear relaxation, else the problem's own."""
    own = problem.bound()
    if own.method.endswith("on record"):
        return own
    from loadmaster.malloc_game.exact import game_bound

    with contextlib.suppress(MissingPackage):
        return max(own, game_bound(problem, BOUND_SECONDS), key=lambda bound: bound.value)
    return own


def _baselines(problem: MallocGame) -> dict[str, tuple[Decision, Figure]]:
    """Known methods' plans and what they are worth; they cost no evaluations."""
    found: dict[str, tuple[Decision, Figure]] = {}
    for name in BASELINES:
        if name == "production" and not has_production(problem):
            continue
        solution = solve(make_solver("malloc-game", name), problem, Budget())
        if solution.decision is not None:
            status = "as the production compiler placed it" if name == "production" else ""
            figure = Figure(name, True, solution.value, status, 0, solution.seconds, "baseline")
            found[name] = (solution.decision, figure)
    return found


def _shown(
    problem: MallocGame,
    source: str,
    solution: Solution,
    figures: list[Figure],
    plan: Plan | None,
    out: Path | None,
) -> Answer:
    bound = solution.bound
    rows = [_row(problem, figure, bound) for figure in figures]
    if bound.value > 0 and not any(figure.value == bound.value for figure in figures):
        rows.append(_row(problem, Figure("bound", True, bound.value, bound.method, 0, 0.0, "bound"), bound))
    blocks: list[str | Table] = [_table(rows, f"{source} on {problem.machine.name}")]
    run = solution.extra.get("run")
    kept = out or (None if run is None else Path(run) / "best.json")
    traffic: dict[str, Any] = {}
    if plan is not None:
        traffic = _traffic(problem, plan)
        blocks.append(_traffic_line(problem, traffic))
        blocks.append(ending(problem.machine, source, kept, run))
    more = {
        "model": source,
        "machine": problem.machine.name,
        "steps": problem.model.steps,
        "moves": problem.moves,
        "run": run,
        "plan": None if kept is None else str(kept),
        "stop": solution.extra.get("stop"),
        **traffic,
    }
    warnings = (*solution.extra.get("warnings", ()), *solution.extra.get("refused", ()))
    return Answer(rows, blocks, tuple(map(str, warnings)), more=more)


def _row(problem: MallocGame, figure: Figure, bound: Bound) -> dict[str, Any]:
    value = figure.value
    return {
        "what": figure.what,
        "name": figure.name,
        "white_box": figure.white_box,
        "picoseconds": value,
        "seconds": None if value is None else value / 10**12,
        "speedup": problem.all_slow_ps / value if value else None,
        "gap": value / bound.value - 1 if value is not None and bound.value > 0 else None,
        "evaluations": figure.evaluations,
        "took_seconds": figure.seconds,
        "status": figure.status,
    }


def _table(rows: list[dict[str, Any]], title: str) -> Table:
    cells = [
        (
            row["name"],
            "–" if row["picoseconds"] is None else show_time(row["picoseconds"]),
            "–" if row["speedup"] is None else f"{row['speedup']:.3f} ×",
            gap_text(row["gap"]),
            f"{row['evaluations']:,}" if row["evaluations"] and not row["white_box"] else "–",
            f"{row['took_seconds']:.1f} s" if row["took_seconds"] >= 0.05 else "–",
            row["status"],
        )
        for row in rows
    ]
    columns = ("plan", "simulated time", "over all-slow", "gap to bound", "evaluations", "took", "")
    return Table(columns, cells, title)


def _traffic(problem: MallocGame, plan: Plan) -> dict[str, Any]:
    """What the plan moves, where it waits, and how full the fast memory gets."""
    timeline = simulate(problem.program, problem.machine, plan)
    sizes = problem.program.storage_bytes
    copied = sum(int(sizes[row.tensor]) if row.low < 0 else row.high - row.low for row in plan.copy_rows)
    return {
        "residencies": len(plan.residency_rows),
        "copies": len(plan.copy_rows),
        "copied_bytes": copied,
        "stall_picoseconds": int(timeline.op_stall.sum()),
        "fast_peak_bytes": int(timeline.memory_peak[problem.model.fast]),
        "fast_capacity_bytes": problem.machine.memories[problem.model.fast].capacity,
    }


def _traffic_line(problem: MallocGame, traffic: dict[str, Any]) -> str:
    fast = problem.machine.memories[problem.model.fast].name
    return (
        f"{traffic['residencies']:,} residencies in {fast}, peak {show_bytes(traffic['fast_peak_bytes'])} of "
        f"{show_bytes(traffic['fast_capacity_bytes'])}; {traffic['copies']:,} copies of "
        f"{show_bytes(traffic['copied_bytes'])}, {show_time(traffic['stall_picoseconds'])} of waiting for them"
    )
