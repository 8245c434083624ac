"""Search for the fastest map of a small network, measured on this computer's processor.

    python examples/measure_cpu/run.py [EVALUATIONS] [SOLVER] [SEED]

No simulator is asked: every map is packed, checked, and run by pass.c (see measure.py). At the end
the best maps are measured again, in turns with the compiler's map.
"""

from __future__ import annotations

import shlex
import sys
import time
from pathlib import Path

from convnet import convnet

from loadmaster.cli.answer import Table, show
from loadmaster.errors import LoadmasterError
from loadmaster.machine import load_machine
from loadmaster.mapping.measured import MeasuredMapping, evaluator_report
from loadmaster.runs import run_solver
from loadmaster.search.champion import Champion, Remeasured, remeasure
from loadmaster.search.evaluator import CommandEvaluator
from loadmaster.search.registry import make_solver
from loadmaster.search.solver import Budget
from loadmaster.units import show_time

HERE = Path(__file__).parent


def measured_problem() -> MeasuredMapping:
    """The network on this processor. One run of the command is a median of nine passes already, so
    fewer repeats than usual will do."""
    evaluator = CommandEvaluator(shlex.join([sys.executable, str(HERE / "measure.py")]), timeout_s=30)
    machine = load_machine(str(HERE / "cpu-cache.toml"))
    return MeasuredMapping(convnet(), machine, evaluator, repeats=3, warmups=1)


def table(problem: MeasuredMapping, found: Champion) -> Table:
    """Compiler, all-slowest and the champion, as re-measured; simulated times beside."""
    slowest = next(row for row in found.candidates if _same(row, problem))
    rows = []
    for name, row, simulated in (
        ("all in the slowest", slowest, problem.simulated_ps(problem.all_slowest())),
        ("compiler", found.baseline, problem.simulated_ps(problem.compiler)),
        ("best found", found.winner, found.simulated_ps),
    ):
        median, low, high = row.time_ps.middle, row.time_ps.low, row.time_ps.high
        rows.append(
            (
                name,
                show_time(round(median)),
                f"{show_time(round(low))} to {show_time(round(high))}",
                f"{found.baseline.time_ps.middle / median:.2f} ×",
                show_time(simulated),
            )
        )
    return Table(("map", "measured", "95 % interval", "speed-up", "simulated"), rows)


def _same(row: Remeasured, problem: MeasuredMapping) -> bool:
    return row.decision is not None and bool((row.decision == problem.all_slowest()).all())


def main() -> None:
    evaluations = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    solver = make_solver("mapping", sys.argv[2] if len(sys.argv) > 2 else "search")
    problem = measured_problem()
    about = evaluator_report(problem.gauge.evaluator, problem)
    if not about.ok:
        raise LoadmasterError(f"it can't be measured here: {about.findings[0]}", object=about.name)
    started = time.monotonic()
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    solution = run_solver(solver, problem, Budget(evaluations), seed)
    seconds = (time.monotonic() - started) / max(1, solution.evaluations)
    found = remeasure(problem, [*problem.leaders.decisions(), problem.all_slowest()])
    first = found.winner.first_ps
    spread, valid = about.variation or 0.0, round(1e12 * (about.valid_s or 0.0))
    counts = f"{solution.evaluations} evaluations, {problem.measurements} measurements, {problem.failures} failures"
    said = "unknown" if first is None else show_time(first)
    blocks: list[str | Table] = [
        f"one plan   {show_time(valid)}, again and again within {spread:.0%}",
        f"search     {solver.name}: {counts}, {seconds:.2f} s each",
        table(problem, found),
        f"The winner's first value was {said}; its speed-up is {found.speedup.low:.2f} to {found.speedup.high:.2f}.",
    ]
    show(blocks, sys.stdout)


if __name__ == "__main__":
    try:
        main()
    except LoadmasterError as error:
        sys.exit(f"error: {error.message}")
