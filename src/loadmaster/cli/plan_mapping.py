"""How `plan` solves a Mapping problem: the solver, its references, and the plan that is written."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from loadmaster.cli.allocate import NoAnswer
from loadmaster.cli.answer import Answer, Usage
from loadmaster.cli.files import writing
from loadmaster.cli.plan_show import Figure, Told, head, shown
from loadmaster.cli.progress import LiveLine, say
from loadmaster.errors import LoadmasterError, MissingPackage, Refused
from loadmaster.machine import Machine
from loadmaster.plan import Plan, save_plan
from loadmaster.problems.champion import Champion, Leaders, remeasure
from loadmaster.problems.evaluator import CommandEvaluator
from loadmaster.problems.mapping import Mapping
from loadmaster.problems.measured import MeasuredMapping
from loadmaster.problems.problem import Bound, Decision
from loadmaster.problems.recorded import recorded_row
from loadmaster.problems.registry import load_problem
from loadmaster.program import Program
from loadmaster.runs import RunFolder
from loadmaster.runs.session import Interrupted, run_solver
from loadmaster.solvers.mapping import can_prove
from loadmaster.solvers.registry import make_solver
from loadmaster.solvers.solver import Budget, Meter, Solution, Solver, State, Status, solve

EVALUATIONS = 4_000
EXACT_SECONDS = 60.0
BASELINES = ("all-slowest", "compiler", "density")


@dataclass(frozen=True)
class Wanted:
    """What the user asked for; None: the default, or what a resumed run was started with."""

    solver: str | None = None
    options: dict[str, Any] = field(default_factory=dict)
    evaluations: int | None = None
    seconds: float | None = None
    seed: int | None = None
    folder: Path | None = None
    resume: Path | None = None
    out: Path | None = None
    exact_seconds: float = 30.0


def simulated_problem(program: Program, machine: Machine, noise: float, seed: int) -> Mapping:
    """The simulator says what a map is worth."""
    try:
        return Mapping(program, machine, noise=noise, noise_seed=seed if noise else 0)
    except ValueError as error:
        raise Usage(str(error), object="--noise", number=noise, remedy="give 0.02") from None


def measured_problem(program: Program, machine: Machine, command: str, repeats: int,
                     timeout: float) -> Mapping:  # fmt: skip
    """A command measures what a map is worth."""
    return MeasuredMapping(program, machine, CommandEvaluator(command, timeout_s=timeout), repeats=repeats)  # fmt: skip


def resumed_problem(run: Path, program: Program) -> Mapping:
    """The problem of a run, if it is about this model."""
    RunFolder.open(run)  # says what is wrong with the folder, if anything is
    problem = load_problem(run)
    if not isinstance(problem, Mapping) or problem.program.hash != program.hash:
        raise Usage(f"run '{run}' is not about '{program.name}' but '{problem.program.name}'",
                    object=str(run), remedy="give the model that it was started with")  # fmt: skip
    return problem


def plan_mapping(problem: Mapping, wanted: Wanted, source: str) -> Answer:
    """Solve, compare, check, write, tell; then let go of hardware, whatever happened."""
    try:
        return _planned(problem, wanted, source)
    finally:
        if isinstance(problem, MeasuredMapping):
            problem.close()


def _planned(problem: Mapping, wanted: Wanted, source: str) -> Answer:
    wanted = _completed(wanted)
    solver = _solver(str(wanted.solver), wanted.options)
    say(head(problem, source))
    bound = _quick_bound(problem)
    baselines = _baselines(problem)
    solution = run_solver(
        _Bounded(solver, bound), problem, Budget(wanted.evaluations, wanted.seconds), wanted.seed or 0,
        folder=None if wanted.resume else wanted.folder, resume=wanted.resume, display=LiveLine(),
        baselines={name: decision for name, (decision, _) in baselines.items()},
    )  # fmt: skip
    solution.bound = max(bound, solution.bound, key=lambda each: each.value)
    stopped = solution.decision is None or bool(solution.extra.get("interrupted"))
    champion = None if stopped else _champion(problem, wanted.seed or 0)
    reference = None if stopped else _reference(problem, solver.name, solution, wanted)
    decision = champion.winner.decision if champion else solution.decision
    kept = wanted.out
    if champion and kept is None and "run" in solution.extra:
        kept = Path(solution.extra["run"]) / "champion.json"
    plan = None if decision is None else _written(problem, decision, kept)
    figures = [figure for _, figure in baselines.values()]
    told = Told(problem, source, solver.name, solution, figures, reference, champion, plan, kept)
    return replace(shown(told), error=_error(problem, solution))


def _champion(problem: Mapping, seed: int) -> Champion | None:
    """Where values are noisy: the best of many is optimistic, so the leaders are measured again."""
    if problem.repeatable:
        return None
    say("measuring the best maps again, in turns with the compiler's")
    return remeasure(problem, seed=seed)


def _completed(wanted: Wanted) -> Wanted:
    """With defaults: the run's own where one is resumed."""
    if wanted.resume is not None:
        about = RunFolder.open(wanted.resume).about
        ours, budget = about["solver"], about["budget"]
        return replace(
            wanted, solver=wanted.solver or ours["name"],
            options={**ours.get("switches", {}), **wanted.options},
            evaluations=wanted.evaluations or budget.get("evaluations"),
            seconds=wanted.seconds or budget.get("seconds"),
            seed=about["seed"] if wanted.seed is None else wanted.seed,
        )  # fmt: skip
    name = wanted.solver or "auto"
    exact = name in ("auto", "exact")
    return replace(wanted, solver=name, evaluations=wanted.evaluations or EVALUATIONS,
                   seconds=wanted.seconds or (EXACT_SECONDS if exact else None))  # fmt: skip


def _solver(name: str, options: dict[str, Any]) -> Solver:
    try:
        return make_solver("mapping", name, options)
    except LoadmasterError:
        raise
    except (ValueError, TypeError) as error:  # the solver's class refused a value
        raise Usage(f"solver '{name}' refuses its options: {error}", object="--set",
                    remedy=f"see 'loadmaster solvers {name}'") from None  # fmt: skip


class _Bounded:
    """A solver that is told a bound, so that the gap is shown while it works."""

    def __init__(self, solver: Solver, bound: Bound) -> None:
        self._solver, self._bound = solver, bound
        self.name, self.problem_kind = solver.name, solver.problem_kind
        self.summary, self.deterministic = solver.summary, solver.deterministic
        self.switches = getattr(solver, "switches", {})

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        meter.raise_bound(self._bound.value, self._bound.method)
        return self._solver.run(meter, seed, state)


def _quick_bound(problem: Mapping) -> Bound:
    """Of times without noise: the recorded one, else that of the linear relaxation, else the
    problem's own."""
    if isinstance(problem, MeasuredMapping):
        return problem.bound()  # nothing is proven about hardware
    plain = _plain(problem)
    if recorded_row(plain.program, plain.machine) is None and can_prove(plain):
        from loadmaster.solvers.exact.mapping import linear_bound

        with contextlib.suppress(MissingPackage):
            return max(plain.bound(), linear_bound(plain), key=lambda bound: bound.value)
    return plain.bound()


def _plain(problem: Mapping) -> Mapping:
    """The same without noise."""
    return problem if problem.repeatable else Mapping(problem.program, problem.machine)


def _baselines(problem: Mapping) -> dict[str, tuple[Decision, Figure]]:
    """Known methods' maps and what they are worth; they cost no evaluations."""
    found: dict[str, tuple[Decision, Figure]] = {}
    for name in BASELINES:
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
    if row is not None:
        status = "optimal" if row["best"] <= row["bound"] else "best on record"
        return Figure("optimum" if status == "optimal" else "exact", True, int(row["best"]),
                      f"{status}, {row['method']}, on record", 0, 0.0, "reference")  # fmt: skip
    plain, proven = _plain(problem), solution.status == Status.OPTIMAL
    if proven or solver in ("auto", "exact") or not wanted.exact_seconds or not can_prove(plain):
        return None
    say(f"seeking the optimum for up to {wanted.exact_seconds:g} s, for comparison")
    exact = solve(_Bounded(make_solver("mapping", "exact"), solution.bound), plain,
                  Budget(seconds=wanted.exact_seconds))  # fmt: skip
    if exact.bound.value > solution.bound.value:
        solution.bound = exact.bound
    optimal = exact.status == Status.OPTIMAL
    return Figure("optimum" if optimal else "exact", True, exact.value, f"{exact.status}, {exact.bound.method}",
                  0, exact.seconds, "reference")  # fmt: skip


def _written(problem: Mapping, decision: Decision, out: Path | None) -> Plan:
    plan = problem.plan(decision)
    violations = problem.violations(plan)
    if violations:  # a bug of a solver must never reach a file
        raise Refused(f"the checker refuses the plan: {violations[0].message}", object=problem.program.name,
                      number=len(violations), remedy="report this as a bug")  # fmt: skip
    if out is not None:
        with writing(out):
            save_plan(plan, problem.program, problem.machine, out)
    return plan


def _error(problem: Mapping, solution: Solution) -> LoadmasterError | None:
    name = problem.program.name
    if solution.extra.get("interrupted"):
        return Interrupted(f"{name}: interrupted, the best so far is kept", object=name,
                           number=solution.value, remedy="go on with --resume")  # fmt: skip
    if solution.decision is None:
        return NoAnswer(f"{name}: no map that fits was found in {solution.evaluations:,} evaluations",
                        object=name, number=solution.evaluations, remedy="give more --budget")  # fmt: skip
    return None
