"""How `plan` plans for a device that works in its first memory alone: what stays there, what is streamed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.cli.answer import Answer, Table
from loadmaster.cli.kernel_room import kernel_room
from loadmaster.cli.plan_show import Figure, ending, measured_again
from loadmaster.cli.planned import with_shares
from loadmaster.cli.planning import Wanted, chosen_solver, completed, ended_badly, solved, written
from loadmaster.cli.progress import gap_text, say
from loadmaster.errors import LoadmasterError
from loadmaster.machine import Machine
from loadmaster.offload.auto import WHITE_BOX
from loadmaster.offload.measured import MeasuredOffload
from loadmaster.offload.problem import Offload
from loadmaster.offload.repeats import with_repeats
from loadmaster.plan import Plan
from loadmaster.program import Program
from loadmaster.program.measured_costs import apply_costs, read_costs
from loadmaster.program.repeats import AGAIN, Repeated, repeat
from loadmaster.search.champion import Champion, Leaders, remeasure
from loadmaster.search.pins import Pins
from loadmaster.search.problem import Bound, Decision
from loadmaster.search.registry import make_solver
from loadmaster.search.solver import Budget, Solution, solve
from loadmaster.simulate import simulate
from loadmaster.units import show_bytes, show_time

MEASURED = 100
"""Evaluations on hardware, if the user does not say."""
AT_ONCE = 4
"""Measurements of a plan in a row: going over to another one takes long."""
PROBE = Budget(evaluations=200, seconds=10.0)
"""For comparing programs in which other ops run again."""
BASELINES = ("all-resident", "layerwise", "prefetch", "msa")
BY_CLOCK = ("auto",)


def offload_problem(
    program: Program,
    machine: Machine,
    shares: Sequence[str],
    costs: Path | None,
    pins: Pins | None = None,
    *,
    recompute: bool = False,
    device: str | None = None,
) -> Offload:
    """The problem, with measured times if there are any and capacities as shares of what is needed. What
    kernels take has room of its own, on the `device` that the program was captured for. To `recompute`: about
    the program with those ops run again that let the quickest plans be found."""
    measured = None if costs is None else read_costs(costs)
    if measured is not None:
        program = apply_costs(program, measured, machine.devices[0].name)
    room = kernel_room(program.n_ops, measured, device)
    machine = with_shares(machine, program, shares, room.needed)

    def make(found: Repeated) -> Offload:
        own = room.kernels and replace(room.kernels, workspace=room.kernels.workspace[found.origin])
        return Offload(found.program, machine, reserve=room.reserve, kernels=own, pins=pins)

    if not recompute:
        return make(repeat(program, []))
    say(f"seeking ops of '{program.name}' to run again")
    auto = make_solver("offload", "auto")
    return with_repeats(program, make, lambda each: solve(auto, each, PROBE)).problem


def plan_offload(problem: Offload, wanted: Wanted, source: str) -> Answer:
    """Solve, compare, check, write, tell; then let go of hardware, whatever happened."""
    if not isinstance(problem, MeasuredOffload):
        return _planned(problem, wanted, source)
    try:
        if wanted.solver is None and wanted.resume is None:
            wanted = replace(wanted, solver="refined", evaluations=wanted.evaluations or MEASURED)
        return _planned(problem, wanted, source)
    finally:
        problem.close()


def _planned(problem: Offload, wanted: Wanted, source: str) -> Answer:
    wanted = completed(wanted, BY_CLOCK)
    solver = chosen_solver("offload", str(wanted.solver), wanted.options)
    say(_head(problem, source))
    baselines = _baselines(problem)
    known = {name: decision for name, (decision, _) in baselines.items()}
    solution = solved(solver, problem, problem.bound(), wanted, known)
    again = _measured_again(problem, solution, solver.name, wanted.seed or 0)
    decision, value, out = solution.decision, solution.value, wanted.out
    if again is not None:
        decision, value = again.decision, again.picoseconds
        if out is None and "run" in solution.extra:
            out = Path(solution.extra["run"]) / "champion.json"
    plan = None if decision is None else written(problem, decision, out)
    figures = [figure for _, figure in baselines.values() if figure.name != solver.name]
    figures.append(
        Figure(
            solver.name,
            solver.name in WHITE_BOX,
            value,
            str(solution.status),
            solution.evaluations,
            solution.seconds,
            "result",
        )
    )
    answer = _shown(problem, source, solution, figures, plan, replace(wanted, out=out))
    if again is not None:
        answer.rows[len(figures) - 1]["champion"] = again.champion.as_json()
        answer.blocks.insert(1, again.said)
    return replace(answer, error=ended_badly(problem, solution))


@dataclass(frozen=True)
class _Again:
    """What the search found, measured again, and what is taken of it."""

    champion: Champion
    decision: Decision | None
    picoseconds: int
    said: str


def _measured_again(problem: Offload, solution: Solution, solver: str, seed: int) -> _Again | None:
    """Where plans are measured: the best of many is optimistic, so the leaders are measured again.
    What `refined` found is only taken if it is surely faster than what it began with."""
    if (
        not isinstance(problem, MeasuredOffload)
        or solution.decision is None
        or solution.extra.get("interrupted")
    ):
        return None
    say("measuring the best plans again, in turns with the one that the search began with")
    champion = remeasure(problem, seed=seed, together=AT_ONCE)
    refined = solver == "refined"
    said = measured_again(champion, True, "the simulator's best" if refined else "belady")
    if refined and not champion.gained:
        said += "; that is not surely faster, so the simulator's best is the plan"
        return _Again(champion, problem.baseline, round(champion.baseline.time_ps.middle), said)
    winner = champion.winner
    return _Again(champion, winner.decision, round(winner.time_ps.middle), said)


def _head(problem: Offload, source: str) -> str:
    """What will be decided, in one line."""
    model, memory = problem.model, problem.machine.memories[problem.model.fast]
    to_kernels = problem.for_kernels
    left = f", {show_bytes(to_kernels)} of it left to kernels" if to_kernels else ""
    return (
        f"{source} on {problem.machine.name}: {model.steps:,} steps, {model.gaps:,} decisions about "
        f"{model.items:,} tensors; it needs {show_bytes(model.needed)} at once, {memory.name} has "
        f"{show_bytes(memory.capacity)}{left}"
    )


def _baselines(problem: Offload) -> dict[str, tuple[Decision, Figure]]:
    """Known methods' plans and what they are worth; they cost no evaluations."""
    found: dict[str, tuple[Decision, Figure]] = {}
    for name in BASELINES:
        try:
            solution = solve(make_solver("offload", name), problem, Budget())
        except LoadmasterError:  # a rule that can't be followed here is no baseline
            continue
        if solution.decision is not None:
            figure = Figure(name, True, solution.value, "", 0, solution.seconds, "baseline")
            found[name] = (solution.decision, figure)
    if isinstance(problem, MeasuredOffload):
        problem.leaders = Leaders()  # what was measured here is not the solver's
    return found


def _shown(
    problem: Offload,
    source: str,
    solution: Solution,
    figures: list[Figure],
    plan: Plan | None,
    wanted: Wanted,
) -> Answer:
    bound = solution.bound
    base = next((figure.value for figure in figures if figure.name == "layerwise"), None)
    rows = [_row(problem, figure, bound, base) for figure in figures]
    if bound.value > 0 and not any(figure.value == bound.value for figure in figures):
        rows.append(
            _row(problem, Figure("bound", True, bound.value, bound.method, 0, 0.0, "bound"), bound, base)
        )
    blocks: list[str | Table] = [
        _table(rows, f"{source} on {problem.machine.name}", isinstance(problem, MeasuredOffload))
    ]
    run = solution.extra.get("run")
    kept = wanted.out or (None if run is None else Path(run) / "best.json")
    traffic: dict[str, Any] = {}
    if plan is not None:
        traffic = _traffic(problem, plan)
        blocks.append(_traffic_line(problem, traffic))
        if problem.program.repeats is not None:
            blocks.append(_repeats_line(problem))
        if problem.kernels is not None and problem.program.costs is None:
            blocks.append(_unmeasured_line(problem, wanted.named or source))
        blocks.append(ending(problem.machine, wanted.named or source, kept, run, wanted.runs))
    more = {
        "model": source,
        "machine": problem.machine.name,
        "steps": problem.model.steps,
        "gaps": problem.model.gaps,
        "needed_bytes": problem.model.needed,
        "run": run,
        "ops_picoseconds": problem.limit_ps,
        "plan": None if kept is None else str(kept),
        "stop": solution.extra.get("stop"),
        **_repeats(problem),
        **traffic,
    }
    warnings = (*solution.extra.get("warnings", ()), *solution.extra.get("refused", ()))
    return Answer(rows, blocks, tuple(map(str, warnings)), more=more)


def _row(problem: Offload, figure: Figure, bound: Bound, base: int | None) -> dict[str, Any]:
    value = figure.value
    return {
        "what": figure.what,
        "name": figure.name,
        "white_box": figure.white_box,
        "picoseconds": value,
        "seconds": None if value is None else value / 10**12,
        "speedup": base / value if base and value else None,
        "over_ops": value / problem.limit_ps if value and problem.limit_ps else None,
        "gap": value / bound.value - 1 if value is not None and bound.value > 0 else None,
        "evaluations": figure.evaluations,
        "took_seconds": figure.seconds,
        "status": figure.status,
    }


def _table(rows: list[dict[str, Any]], title: str, measured: bool) -> Table:
    cells = [
        (
            row["name"],
            "–" if row["picoseconds"] is None else show_time(row["picoseconds"]),
            "–" if row["speedup"] is None else f"{row['speedup']:.3f} ×",
            "–" if row["over_ops"] is None else f"{row['over_ops']:.3f} ×",
            gap_text(row["gap"]),
            f"{row['evaluations']:,}" if row["evaluations"] and not row["white_box"] else "–",
            f"{row['took_seconds']:.1f} s" if row["took_seconds"] >= 0.05 else "–",
            row["status"],
        )
        for row in rows
    ]
    columns = (
        "plan",
        "measured time" if measured else "simulated time",
        "over layerwise",
        "of the ops' time",
        "gap to bound",
        "evaluations",
        "took",
        "",
    )
    return Table(columns, cells, title)


def _traffic(problem: Offload, plan: Plan) -> dict[str, Any]:
    """What the plan moves, where it waits, and how full the fast memory gets."""
    timeline, model = simulate(problem.program, problem.machine, plan), problem.model
    moved = {
        (problem.machine.memory(link.source), problem.machine.memory(link.target)): int(count)
        for link, count in zip(problem.machine.links, timeline.link_bytes, strict=True)
    }
    return {
        "residencies": len(plan.residency_rows),
        "copies": len(plan.copy_rows),
        "bytes_in": moved[model.home, model.fast],
        "bytes_out": moved[model.fast, model.home],
        "stall_picoseconds": int(timeline.op_stall.sum()),
        "fast_peak_bytes": int(timeline.memory_peak[model.fast]),
        "fast_capacity_bytes": problem.machine.memories[model.fast].capacity,
    }


def _traffic_line(problem: Offload, traffic: dict[str, Any]) -> str:
    fast = problem.machine.memories[problem.model.fast].name
    return (
        f"{fast}: peak {show_bytes(traffic['fast_peak_bytes'])} of {show_bytes(traffic['fast_capacity_bytes'])}; "
        f"{traffic['copies']:,} copies, {show_bytes(traffic['bytes_in'])} in and "
        f"{show_bytes(traffic['bytes_out'])} out, {show_time(traffic['stall_picoseconds'])} of waiting for them"
    )


def _unmeasured_line(problem: Offload, model: str) -> str:
    return (
        f"what kernels take for themselves is not known without --costs: {show_bytes(problem.for_kernels)} are left to "
        f"libraries, nothing to ops; measure it with 'loadmaster calibrate {model} --costs costs.json'"
    )


def _repeats(problem: Offload) -> dict[str, Any]:
    """How many ops run again, and how long that takes."""
    repeats = problem.program.repeats
    if repeats is None:
        return {"repeats": 0, "repeat_picoseconds": 0}
    again = np.array([name.endswith(AGAIN) for name in problem.program.op_name])
    return {
        "repeats": len(repeats.ops),
        "repeat_picoseconds": int(problem.duration[again[problem.model.step_op]].sum()),
    }


def _repeats_line(problem: Offload) -> str:
    found, all_ops = _repeats(problem), problem.limit_ps
    again = found["repeat_picoseconds"]
    return (
        f"{found['repeats']:,} ops run again in the backward pass, which takes {show_time(again)} of the ops' "
        f"{show_time(all_ops)}; the bound is for these, with any others at least {show_time(all_ops - again)}"
    )
