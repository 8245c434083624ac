"""`solve_problem`: from a problem to a Result: the solver beside known methods, bound, check, and files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from loadmaster.errors import LoadmasterError, NoAnswer, Refused
from loadmaster.files import writing
from loadmaster.machine.machine import Machine
from loadmaster.plan import Plan, save_plan
from loadmaster.planner.result import Result
from loadmaster.program.program import Program
from loadmaster.runs import Display, Interrupted, RunFolder, run_solver
from loadmaster.runs.history import compute_gap
from loadmaster.search.kind import Bounded, Found, Headline, ProblemKind, Row
from loadmaster.search.measuring import Measuring
from loadmaster.search.problem import Bound, Decision, Problem
from loadmaster.search.registry import make_labelled, make_solver, solver_label
from loadmaster.search.request import BadRequest, say_nothing
from loadmaster.search.solver import Budget, Scoring, Solution, Solver

EVALUATIONS = 4_000
"""If neither evaluations nor seconds are limited."""
EXACT_SECONDS = 60.0
"""For solvers that work as long as they may."""
EXPLAIN_SECONDS = 10.0
"""At most, to say why there is no plan."""
Kind = ProblemKind[Any]


@dataclass(frozen=True, eq=False)
class SearchOptions:
    """How a problem is solved and what is kept of it; None: the default, or what a resumed run was started with."""

    solver: str | Solver | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of a solver that is given by its name."""
    evaluations: int | None = None
    seconds: float | None = None
    seed: int | None = None
    folder: Path | None = None
    """Where a run folder is made."""
    resume: Path | None = None
    """A run to go on with."""
    out: Path | None = None
    """A file for the plan."""
    exact_seconds: float = 30.0
    """To seek the optimum, for comparison."""
    workers: str | None = None
    source: str = ""
    """The model as the user named it."""
    model: str = ""
    """The same with the options that read it, as other commands take it."""
    arguments: Mapping[str, Any] | None = None
    """How the model was read: kept in the run."""
    display: Display | None = None
    say: Callable[[str], None] = say_nothing


def solve_problem(kind: Kind, problem: Problem, search: SearchOptions) -> Result:
    """Solve, compare, check and write; then let go of hardware, whatever happened."""
    try:
        with _sharing(problem, search) as score:
            return _solve(kind, problem, search, score)
    finally:
        if isinstance(problem, Measuring):
            problem.close()


def _solve(kind: Kind, problem: Problem, search: SearchOptions, score: Scoring | None) -> Result:
    search = _complete(search, kind, problem)
    solver, source = _choose_solver(kind, problem, search), search.source or problem.program.name
    search.say(kind.describe(problem, source))
    bound, known = kind.bound(problem), kind.known(problem, source)
    solution = run_solver(
        Bounded(solver, bound),
        problem,
        Budget(search.evaluations, search.seconds),
        search.seed or 0,
        folder=None if search.resume else search.folder,
        resume=search.resume,
        display=search.display,
        baselines={each.name: each.decision for each in known if each.legal and each.decision is not None},
        score=score,
        model=search.arguments,
    )
    solution.bound = max(bound, solution.bound, key=lambda each: each.value)
    again, optimum = None, None
    if solution.decision is not None and not solution.interrupted:
        again = kind.measure_again(problem, solver.name, search.seed or 0, search.say)
        optimum = kind.find_optimum(problem, solver.name, solution, search.exact_seconds, search.say)
    plan = _checked_plan(problem, solution.decision if again is None else again.decision, solution.plan)
    machine = kind.machine(problem)
    kept = _keep(plan, problem, machine, solution, search.out, again)
    found = Found(solution, plan, known, search.model or source)
    facts = kind.facts(problem, found)
    bound, rows = _rows(kind, problem, found, solver.name, again, optimum)
    return Result(
        problem,
        machine,
        solution,
        solver.name,
        plan=plan,
        value=next(row.value for row in rows if row.role == "result"),
        unit=kind.unit(problem),
        bound=bound,
        rows=rows,
        places=facts.places,
        facts=facts.numbers,
        notes=facts.notes,
        remeasured=None if again is None else again.note,
        measured=isinstance(problem, Measuring),
        kept=kept,
        error=_error(kind, problem, solution, search),
    )


def _complete(search: SearchOptions, kind: Kind, problem: Problem) -> SearchOptions:
    """With defaults: the run's own where one is resumed."""
    if search.resume is not None:
        about = RunFolder.open(search.resume).about
        ours, budget = about["solver"], about["budget"]
        return replace(
            search,
            solver=search.solver or ours["name"],
            options={**ours.get("options", {}), **search.options},
            evaluations=search.evaluations or budget.get("evaluations"),
            seconds=search.seconds or budget.get("seconds"),
            seed=about["seed"] if search.seed is None else search.seed,
        )
    solver, evaluations = search.solver, search.evaluations
    if solver is None:
        solver, most = kind.default_search(problem)
        evaluations = evaluations or most
    timed = isinstance(solver, str) and solver_label(problem.kind, solver, search.options) in kind.by_clock
    return replace(
        search,
        solver=solver,
        # Who gives a time limit alone wants the time to be used.
        evaluations=evaluations or (None if search.seconds is not None else EVALUATIONS),
        seconds=search.seconds or (EXACT_SECONDS if timed else None),
    )


def _choose_solver(kind: Kind, problem: Problem, search: SearchOptions) -> Solver:
    """The solver, or an error that names what it refuses."""
    chosen = search.solver
    if not isinstance(chosen, str):
        assert chosen is not None
        return chosen
    try:
        # A run is recorded by its solver's own name.
        make = make_solver if search.resume is None else make_labelled
        solver = make(problem.kind, chosen, search.options)
    except LoadmasterError:
        raise
    except (ValueError, TypeError) as error:  # the solver's class refused a value
        raise BadRequest(
            f"solver '{chosen}' refuses its options: {error}",
            object="--set",
            remedy=f"see 'loadmaster solvers {chosen}'",
        ) from None
    kind.check_solver(problem, solver)
    return solver


@contextlib.contextmanager
def _sharing(problem: Problem, search: SearchOptions) -> Iterator[Scoring | None]:
    """Evaluations by workers, if there are to be some."""
    if search.workers is None:
        yield None
        return
    from loadmaster.runs.workers import distribute

    with distribute(problem, search.workers) as work:
        search.say(f"workers: {work.pool.alive} of {work.pool.size} at {search.workers}")
        yield work.score
        done = " + ".join(f"{count:,}" for count in work.pool.answered)
        lost = f"; {work.pool.lost} died, and their work was done again" if work.pool.lost else ""
        search.say(f"workers: {done} requests answered{lost}")


def _checked_plan(problem: Problem, decision: Decision | None, stored: Plan | None) -> Plan | None:
    """The plan of a decision; without one, what an earlier session has stored."""
    plan = stored if decision is None else problem.plan(decision)
    violations = [] if plan is None else problem.violations(plan)
    if violations:  # a bug of a solver must never reach a file
        raise Refused(
            f"the checker refuses the plan: {violations[0].message}",
            object=problem.program.name,
            number=len(violations),
            remedy="report this as a bug",
        )
    return plan


def _keep(
    plan: Plan | None,
    problem: Problem,
    machine: Machine,
    solution: Solution,
    out: Path | None,
    again: Headline | None,
) -> Path | None:
    """The file of the plan: `out`, else the run's."""
    if out is None and again is not None and solution.run is not None:
        out = solution.run / "champion.json"
    if plan is not None and out is not None:
        write_plan(plan, problem.program, machine, out)
    if out is not None or machine is not problem.machine or solution.run is None:
        return out  # a run's plan is for the problem's own machine
    return solution.run / "best.json"


def write_plan(plan: Plan, program: Program, machine: Machine, path: Path) -> None:
    """Write a plan's file; a disk that is full or closed to us is the user's to mend."""
    with writing(path):
        save_plan(plan, program, machine, path)


def _rows(
    kind: Kind, problem: Problem, found: Found, solver: str, again: Headline | None, optimum: Row | None
) -> tuple[Bound, list[Row]]:
    """The bound in the rows' unit, and a row for each baseline, the solver, the optimum and the bound."""
    solution = found.solution
    rows = []
    for each in found.known:
        if kind.shows_itself or each.name != solver:
            row = Row("baseline", each.name, each.value, each.status, each.evaluations, each.seconds)
            rows.append(kind.row_in_unit(problem, row, each.decision))
    if again is not None and again.baseline is not None:
        # As it was measured in turns with the result.
        turns = round(again.champion.baseline.time_ps.middle)
        rows = [replace(row, value=turns) if row.name == again.baseline else row for row in rows]
    result = Row(
        "result",
        solver,
        solution.value if again is None else again.value,
        str(solution.status),
        solution.evaluations,
        solution.seconds,
        solver in kind.white_box,
        extra={} if again is None else {"champion": again.champion.as_json()},
    )
    rows.append(kind.row_in_unit(problem, result, solution.decision))
    rows += [] if optimum is None else [optimum]
    bound = kind.bound_in_unit(problem, solution.bound)
    if _says_more(kind, bound, rows):
        rows.append(Row("bound", "bound", bound.value, bound.method))
    compared = kind.reference(problem, {row.name: row.value for row in rows})
    return bound, [_complete_row(kind, problem, row, bound.value, compared) for row in rows]


def _says_more(kind: Kind, bound: Bound, rows: list[Row]) -> bool:
    """Whether the bound gets a row of its own."""
    if kind.bound_row == "always":
        return True
    more = kind.bound_row == "proven" or all(row.value != bound.value for row in rows)
    return bound.value > 0 and more


def _complete_row(kind: Kind, problem: Problem, row: Row, bound: int, compared: int | None) -> Row:
    value, settled = row.value, row.role in kind.settles
    reached = settled and value is not None and value <= bound
    return replace(
        row,
        status="optimal" if reached else row.status,
        gap=0.0 if row.role == "bound" else compute_gap(value, bound),
        speedup=compared / value if compared and value else None,
        extra={**kind.row_figures(problem, value), **row.extra},
    )


def _error(kind: Kind, problem: Problem, solution: Solution, search: SearchOptions) -> LoadmasterError | None:
    """What to say if there is no plan, or the search ended early."""
    name, seconds = problem.program.name, min(search.seconds or EXPLAIN_SECONDS, EXPLAIN_SECONDS)
    explained = kind.explain(problem, solution, seconds, search.seed or 0)
    if explained is not None:
        return explained
    if solution.interrupted:
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
