"""How `plan` solves a Mapping problem: the solver, its references, and the plan that is written."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path

from loadmaster.cli.answer import Answer, Usage
from loadmaster.cli.plan_show import Figure, Told, head, shown
from loadmaster.cli.planning import Bounded, Wanted, chosen_solver, completed, ended_badly, solved, written
from loadmaster.cli.progress import say
from loadmaster.errors import MissingPackage
from loadmaster.machine import Machine
from loadmaster.mapping.auto import can_prove
from loadmaster.mapping.measured import MeasuredMapping
from loadmaster.mapping.model import weights_bound
from loadmaster.mapping.problem import Mapping
from loadmaster.program import Program
from loadmaster.search.champion import Champion, Leaders, remeasure
from loadmaster.search.evaluator import CommandEvaluator
from loadmaster.search.pins import Pins
from loadmaster.search.problem import Bound, Decision
from loadmaster.search.recorded_bounds import recorded_row
from loadmaster.search.registry import make_solver
from loadmaster.search.solver import Budget, Solution, Status, solve

BASELINES = ("all-slowest", "compiler", "density")
FIRMWARE = ("one-arena", "greedy-by-size")
"""What runtimes on microcontrollers do: shown for models of theirs."""


def simulated_problem(
    program: Program, machine: Machine, noise: float, seed: int, pins: Pins | None = None
) -> Mapping:
    """The simulator says what a map is worth."""
    try:
        return Mapping(program, machine, noise=noise, noise_seed=seed if noise else 0, pins=pins)
    except ValueError as error:
        raise Usage(str(error), object="--noise", number=noise, remedy="give 0.02") from None


def measured_problem(
    program: Program, machine: Machine, command: str, repeats: int, timeout: float
) -> Mapping:
    """A command measures what a map is worth."""
    return MeasuredMapping(program, machine, CommandEvaluator(command, timeout_s=timeout), repeats=repeats)


def plan_mapping(problem: Mapping, wanted: Wanted, source: str) -> Answer:
    """Solve, compare, check, write, tell; then let go of hardware, whatever happened."""
    try:
        return _planned(problem, wanted, source)
    finally:
        if isinstance(problem, MeasuredMapping):
            problem.close()


def _planned(problem: Mapping, wanted: Wanted, source: str) -> Answer:
    wanted = completed(wanted, ("auto", "exact"))
    solver = chosen_solver("mapping", str(wanted.solver), wanted.options)
    say(head(problem, source))
    bound = quick_bound(problem)
    more = FIRMWARE if source.lower().endswith(".tflite") else ()
    baselines = _baselines(problem, BASELINES + more)
    known = {name: decision for name, (decision, _) in baselines.items()}
    solution = solved(solver, problem, bound, wanted, known)
    stopped = solution.decision is None or bool(solution.extra.get("interrupted"))
    champion = None if stopped else _champion(problem, wanted.seed or 0)
    reference = None if stopped else _reference(problem, solver.name, solution, wanted)
    decision = champion.winner.decision if champion else solution.decision
    kept = wanted.out
    if champion and kept is None and "run" in solution.extra:
        kept = Path(solution.extra["run"]) / "champion.json"
    plan = None if decision is None else written(problem, decision, kept)
    figures = [figure for _, figure in baselines.values()]
    told = Told(problem, source, solver.name, solution, figures, reference, champion, plan, kept)
    return replace(shown(told), error=ended_badly(problem, solution))


def _champion(problem: Mapping, seed: int) -> Champion | None:
    """Where values are noisy: the best of many is optimistic, so the leaders are measured again."""
    if problem.repeatable:
        return None
    say("measuring the best maps again, in turns with the compiler's")
    return remeasure(problem, seed=seed)


def quick_bound(problem: Mapping) -> Bound:
    """Of times without noise: the recorded one, else that of the linear relaxation, else one that
    needs no package."""
    if isinstance(problem, MeasuredMapping):
        return problem.bound()  # nothing is proven about hardware
    plain = _plain(problem)
    if recorded_row(plain.program, plain.machine) is not None and not plain.pins:
        return plain.bound()  # what is on record knows no pins
    if can_prove(plain):
        from loadmaster.mapping.exact import linear_bound

        with contextlib.suppress(MissingPackage):
            return max(plain.bound(), linear_bound(plain), key=lambda bound: bound.value)
    return weights_bound(plain)


def _plain(problem: Mapping) -> Mapping:
    """The same without noise."""
    return problem if problem.repeatable else Mapping(problem.program, problem.machine, pins=problem.pins)


def _baselines(problem: Mapping, names: tuple[str, ...]) -> dict[str, tuple[Decision, Figure]]:
    """Known methods' maps and what they are worth; they cost no evaluations."""
    found: dict[str, tuple[Decision, Figure]] = {}
    for name in names:
        solution = solve(make_solver("mapping", name), problem, Budget())
        if solution.decision is not None:
            figure = Figure(name, True, solution.value, "", 0, solution.seconds, "baseline")
            found[name] = (solution.decision, figure)
    problem.leaders = Leaders()  # what was measured here is not the solver's
    return found


def _reference(problem: Mapping, solver: str, solution: Solution, wanted: Wanted) -> Figure | None:
    """The optimum, or the best that the exact solver knows; it may raise the solution's bound."""
    if isinstance(problem, MeasuredMapping):
        return None
    row = recorded_row(problem.program, problem.machine)
    if row is not None and not problem.pins:
        status = "optimal" if row["best"] <= row["bound"] else "best on record"
        return Figure(
            "optimum" if status == "optimal" else "exact",
            True,
            int(row["best"]),
            f"{status}, {row['method']}, on record",
            0,
            0.0,
            "reference",
        )
    plain, proven = _plain(problem), solution.status == Status.OPTIMAL
    if proven or solver in ("auto", "exact") or not wanted.exact_seconds or not can_prove(plain):
        return None
    say(f"seeking the optimum for up to {wanted.exact_seconds:g} s, for comparison")
    exact = solve(
        Bounded(make_solver("mapping", "exact"), solution.bound), plain, Budget(seconds=wanted.exact_seconds)
    )
    if exact.bound.value > solution.bound.value:
        solution.bound = exact.bound
    optimal = exact.status == Status.OPTIMAL
    return Figure(
        "optimum" if optimal else "exact",
        True,
        exact.value,
        f"{exact.status}, {exact.bound.method}",
        0,
        exact.seconds,
        "reference",
    )
