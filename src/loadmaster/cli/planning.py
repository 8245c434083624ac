"""What `plan` does for every kind of problem: options and defaults, the solver, the checked plan."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from loadmaster.cli.allocate import NoAnswer
from loadmaster.cli.answer import Usage
from loadmaster.cli.files import writing
from loadmaster.cli.model import Model
from loadmaster.cli.progress import LiveLine, say
from loadmaster.errors import LoadmasterError, Refused
from loadmaster.machine import Machine
from loadmaster.plan import Plan, save_plan
from loadmaster.program import Program
from loadmaster.program.measured_costs import costless_hash
from loadmaster.program.repeats import repeat
from loadmaster.runs import RunFolder
from loadmaster.runs.session import Interrupted, run_solver
from loadmaster.search.evaluator import CommandEvaluator, RecordedEvaluator
from loadmaster.search.measuring import Measuring
from loadmaster.search.problem import Bound, Decision, Problem
from loadmaster.search.registry import load_problem, make_solver
from loadmaster.search.solver import Budget, Meter, Scoring, Solution, Solver, State

EXECUTOR = "executor:"
EVALUATIONS = 4_000
EXACT_SECONDS = 60.0


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
    workers: str | None = None
    score: Scoring | None = None
    named: str = ""
    """The model with the options that read it, as later commands take it."""
    runs: bool = False
    """Whether 'loadmaster run' may take it."""


def completed(wanted: Wanted, by_clock: Collection[str]) -> Wanted:
    """With defaults: the run's own where one is resumed. Solvers `by_clock` have a time limit."""
    if wanted.resume is not None:
        about = RunFolder.open(wanted.resume).about
        ours, budget = about["solver"], about["budget"]
        return replace(
            wanted,
            solver=wanted.solver or ours["name"],
            options={**ours.get("switches", {}), **wanted.options},
            evaluations=wanted.evaluations or budget.get("evaluations"),
            seconds=wanted.seconds or budget.get("seconds"),
            seed=about["seed"] if wanted.seed is None else wanted.seed,
        )
    name = wanted.solver or "auto"
    # Who gives a time limit alone wants the time to be used.
    most = None if wanted.seconds is not None else EVALUATIONS
    return replace(
        wanted,
        solver=name,
        evaluations=wanted.evaluations or most,
        seconds=wanted.seconds or (EXACT_SECONDS if name in by_clock else None),
    )


def resumed_problem(run: Path, load: Callable[[Machine], Program]) -> Problem:
    """The problem of a run, if it is about this model."""
    RunFolder.open(run)  # says what is wrong with the folder, if anything is
    problem = load_problem(run)
    program = load(problem.machine)
    repeats = problem.program.repeats
    if repeats is not None and repeats.base == costless_hash(program):
        program = repeat(program, repeats.ops).program
    # The run has its measured times: they need not be given again.
    theirs = costless_hash(problem.program) if program.costs is None else problem.program.hash
    if theirs != program.hash:
        raise Usage(
            f"run '{run}' is not about '{program.name}' but '{problem.program.name}'",
            object=str(run),
            remedy="give the model that it was started with",
        )
    return problem


def measure_again(problem: Problem, run: Path, model: Model, evaluator: str | None) -> None:
    """Let a resumed run measure, with the evaluator that the user gives in this call. A folder may come
    from anyone: the command that it names is shown, and run only by who types it."""
    if not isinstance(problem, Measuring):
        if evaluator is not None:
            raise Usage(
                f"run '{run}' was simulated, not measured",
                object="--evaluator",
                number=evaluator,
                remedy="leave --evaluator out",
            )
        return
    recorded = problem.gauge.evaluator
    assert isinstance(recorded, RecordedEvaluator)
    if recorded.name.startswith(EXECUTOR):
        raise Usage(
            f"run '{run}' was measured by '{recorded.name}', which is not taken up from a folder",
            object=recorded.name,
            remedy="start another run",
        )
    if evaluator is None:
        words = ["loadmaster", "plan", *_typed(model), "--resume", str(run), "--evaluator", recorded.name]
        shortened = "" if recorded.command else ", with its folders: a run keeps no absolute paths"
        raise Usage(
            f"run '{run}' would run the command '{recorded.name}', which it does only if you give it again",
            object="--evaluator",
            number=recorded.name,
            remedy=f"type {shlex.join(words)}{shortened}",
        )
    problem.measure_with(CommandEvaluator(evaluator, recorded.timeout_s))


def _typed(model: Model) -> list[str]:
    """The model and the options that read it, as they were typed."""
    words = [model.source]
    for each in fields(model)[1:]:
        option, value = f"--{each.name.replace('_', '-')}", getattr(model, each.name)
        if value is True:
            words.append(option)
        elif value != each.default:
            given = value if isinstance(value, tuple) else (value,)
            words += [word for one in given for word in (option, str(one))]
    return words


def chosen_solver(kind: str, name: str, options: dict[str, Any]) -> Solver:
    """A solver, or an error that names what it refuses."""
    try:
        return make_solver(kind, name, options)
    except LoadmasterError:
        raise
    except (ValueError, TypeError) as error:  # the solver's class refused a value
        raise Usage(
            f"solver '{name}' refuses its options: {error}",
            object="--set",
            remedy=f"see 'loadmaster solvers {name}'",
        ) from None


class Bounded:
    """A solver that is told a bound, so that the gap is shown while it works."""

    def __init__(self, solver: Solver, bound: Bound) -> None:
        self._solver, self._bound = solver, bound
        self.name, self.problem_kind = solver.name, solver.problem_kind
        self.summary, self.deterministic = solver.summary, solver.deterministic
        self.switches = getattr(solver, "switches", {})
        self.scheduled = bool(getattr(solver, "scheduled", False))

    def run(self, meter: Meter, seed: int, state: State | None) -> Solution:
        meter.raise_bound(self._bound.value, self._bound.method)
        return self._solver.run(meter, seed, state)


@contextlib.contextmanager
def shared(problem: Problem, wanted: Wanted) -> Iterator[Wanted]:
    """What is wanted, with evaluations by workers if there are to be some."""
    if wanted.workers is None:
        yield wanted
        return
    from loadmaster.runs.workers import sharing

    with sharing(problem, wanted.workers) as work:
        say(f"workers: {work.pool.staffed} of {work.pool.size} at {wanted.workers}")
        yield replace(wanted, score=work.score)
        done = " + ".join(f"{count:,}" for count in work.pool.answered)
        lost = f"; {work.pool.lost} died, and their work was done again" if work.pool.lost else ""
        say(f"workers: {done} requests answered{lost}")


def solved(
    solver: Solver, problem: Problem, bound: Bound, wanted: Wanted, baselines: dict[str, Decision]
) -> Solution:
    """Run the solver, in a run folder if one is wanted, and keep the better bound."""
    solution = run_solver(
        Bounded(solver, bound),
        problem,
        Budget(wanted.evaluations, wanted.seconds),
        wanted.seed or 0,
        folder=None if wanted.resume else wanted.folder,
        resume=wanted.resume,
        display=LiveLine(),
        baselines=baselines,
        score=wanted.score,
    )
    solution.bound = max(bound, solution.bound, key=lambda each: each.value)
    return solution


def written(problem: Problem, decision: Decision, out: Path | None) -> Plan:
    """The plan of a decision, checked, and in a file if one is wanted."""
    plan = problem.plan(decision)
    violations = problem.violations(plan)
    if violations:  # a bug of a solver must never reach a file
        raise Refused(
            f"the checker refuses the plan: {violations[0].message}",
            object=problem.program.name,
            number=len(violations),
            remedy="report this as a bug",
        )
    if out is not None:
        with writing(out):
            save_plan(plan, problem.program, problem.machine, out)
    return plan


def ended_badly(problem: Problem, solution: Solution) -> LoadmasterError | None:
    """What to say if a solver was stopped or found nothing."""
    name = problem.program.name
    if solution.extra.get("interrupted"):
        return Interrupted(
            f"{name}: interrupted, the best so far is kept",
            object=name,
            number=solution.value,
            remedy="go on with --resume",
        )
    if solution.value is None:
        return NoAnswer(
            f"{name}: no plan that fits was found in {solution.evaluations:,} evaluations",
            object=name,
            number=solution.evaluations,
            remedy="give more --budget",
        )
    return None
