"""What `plan` does for every kind of problem: options and defaults, the solver, the checked plan."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from loadmaster.cli.allocate import NoAnswer
from loadmaster.cli.answer import Usage
from loadmaster.cli.files import writing
from loadmaster.cli.progress import LiveLine, say
from loadmaster.errors import LoadmasterError, Refused
from loadmaster.machine import Machine
from loadmaster.plan import Plan, save_plan
from loadmaster.problems.problem import Bound, Decision, Problem
from loadmaster.problems.registry import load_problem
from loadmaster.program import Program
from loadmaster.program.measured_costs import costless_hash
from loadmaster.program.repeats import repeat
from loadmaster.runs import RunFolder
from loadmaster.runs.session import Interrupted, run_solver
from loadmaster.solvers.registry import make_solver
from loadmaster.solvers.solver import Budget, Meter, Scoring, Solution, Solver, State

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
            wanted, solver=wanted.solver or ours["name"],
            options={**ours.get("switches", {}), **wanted.options},
            evaluations=wanted.evaluations or budget.get("evaluations"),
            seconds=wanted.seconds or budget.get("seconds"),
            seed=about["seed"] if wanted.seed is None else wanted.seed,
        )  # fmt: skip
    name = wanted.solver or "auto"
    # Who gives a time limit alone wants the time to be used.
    most = None if wanted.seconds is not None else EVALUATIONS
    return replace(wanted, solver=name, evaluations=wanted.evaluations or most,
                   seconds=wanted.seconds or (EXACT_SECONDS if name in by_clock else None))  # fmt: skip


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
        raise Usage(f"run '{run}' is not about '{program.name}' but '{problem.program.name}'",
                    object=str(run), remedy="give the model that it was started with")  # fmt: skip
    return problem


def chosen_solver(kind: str, name: str, options: dict[str, Any]) -> Solver:
    """A solver, or an error that names what it refuses."""
    try:
        return make_solver(kind, name, options)
    except LoadmasterError:
        raise
    except (ValueError, TypeError) as error:  # the solver's class refused a value
        raise Usage(f"solver '{name}' refuses its options: {error}", object="--set",
                    remedy=f"see 'loadmaster solvers {name}'") from None  # fmt: skip


class Bounded:
    """A solver that is told a bound, so that the gap is shown while it works."""

    def __init__(self, solver: Solver, bound: Bound) -> None:
        self._solver, self._bound = solver, bound
        self.name, self.problem_kind = solver.name, solver.problem_kind
        self.summary, self.deterministic = solver.summary, solver.deterministic
        self.switches = getattr(solver, "switches", {})

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


def solved(solver: Solver, problem: Problem, bound: Bound, wanted: Wanted,
           baselines: dict[str, Decision]) -> Solution:  # fmt: skip
    """Run the solver, in a run folder if one is wanted, and keep the better bound."""
    solution = run_solver(
        Bounded(solver, bound), problem, Budget(wanted.evaluations, wanted.seconds), wanted.seed or 0,
        folder=None if wanted.resume else wanted.folder, resume=wanted.resume, display=LiveLine(),
        baselines=baselines, score=wanted.score,
    )  # fmt: skip
    solution.bound = max(bound, solution.bound, key=lambda each: each.value)
    return solution


def written(problem: Problem, decision: Decision, out: Path | None) -> Plan:
    """The plan of a decision, checked, and in a file if one is wanted."""
    plan = problem.plan(decision)
    violations = problem.violations(plan)
    if violations:  # a bug of a solver must never reach a file
        raise Refused(f"the checker refuses the plan: {violations[0].message}", object=problem.program.name,
                      number=len(violations), remedy="report this as a bug")  # fmt: skip
    if out is not None:
        with writing(out):
            save_plan(plan, problem.program, problem.machine, out)
    return plan


def ended_badly(problem: Problem, solution: Solution) -> LoadmasterError | None:
    """What to say if a solver was stopped or found nothing."""
    name = problem.program.name
    if solution.extra.get("interrupted"):
        return Interrupted(f"{name}: interrupted, the best so far is kept", object=name,
                           number=solution.value, remedy="go on with --resume")  # fmt: skip
    if solution.value is None:
        return NoAnswer(f"{name}: no plan that fits was found in {solution.evaluations:,} evaluations",
                        object=name, number=solution.evaluations, remedy="give more --budget")  # fmt: skip
    return None
