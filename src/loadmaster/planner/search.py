"""`solve_problem`: from a problem to a Result: the solver beside known methods, bound, check, and files."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from loadmaster.clock import now
from loadmaster.errors import LoadmasterError, NoAnswer, Refused
from loadmaster.files import writing
from loadmaster.machine.machine import Machine
from loadmaster.plan import Plan, save_plan
from loadmaster.planner.result import Result
from loadmaster.program.program import Program
from loadmaster.runs import Display, Interrupted, RunFolder, run_solver
from loadmaster.runs.bank import Bank, Search
from loadmaster.runs.folder import CHAMPION, kept_before
from loadmaster.runs.history import compute_gap
from loadmaster.runs.resume import BANK
from loadmaster.runs.session import keep_solution
from loadmaster.search.kind import Bounded, Found, Headline, Known, ProblemKind, Row, find_before
from loadmaster.search.measuring import Measuring
from loadmaster.search.problem import Bound, Decision, Problem
from loadmaster.search.registry import make_labelled, make_solver, solver_label
from loadmaster.search.request import BadRequest, say_nothing
from loadmaster.search.solver import Budget, Scoring, Solution, Solver

EVALUATIONS = 4_000
"""If neither evaluations nor seconds are limited."""
EXACT_SECONDS = 60.0
"""For solvers that work as long as they may."""
SETUP_SHARE = 1 / 3
"""Of a time limit: known methods that have not begun by then are left out."""
MANY_TENSORS = 20_000
"""From so many on, a check of a plan takes part of a second."""
OPTIMUM_SECONDS = 30.0
"""To seek the optimum for comparison, if the user does not say how long."""
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
    before: str | None = None
    """The known method that plans are held against; None: what users have today."""
    exact_seconds: float | None = None
    """To seek the optimum, for comparison."""
    workers: str | None = None
    bank: Bank | None = None
    """Answers that are known, and where this one is kept."""
    source: str = ""
    """The model as the user named it."""
    arguments: Mapping[str, Any] | None = None
    """How the model was read: kept in the run."""
    costs: Path | None = None
    """The cost table that it was read with: kept in the run."""
    calibrate: str = ""
    """The command that measures the model's ops."""
    display: Display | None = None
    say: Callable[[str], None] = say_nothing
    started: float = field(default_factory=now)
    """The clock when it was asked for: reading the model and known methods' plans count against `seconds`. Later by
    what a function of the user's took."""


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
    asked = _asked(search, solver)
    recalled = (
        None if search.bank is None or search.resume is not None else search.bank.recall(problem, asked)
    )
    settled = recalled is not None and recalled.settled
    _tell(search, "set-up: a lower bound")
    bound = problem.bound() if settled else kind.bound(problem, _setup_seconds(search, problem))
    _tell(search, "set-up: known methods' plans")
    known = kind.known(problem, source, _setup_seconds(search, problem))
    named = {each.name for each in known if each.value is not None}
    is_known = search.resume is None or search.before in named  # a run may come from elsewhere
    before = find_before(known, search.before if is_known else None, kind.before)
    if before is not None:
        search = replace(search, before=before.name)
    solution = run_solver(
        Bounded(solver, bound),
        problem,
        Budget(search.evaluations, search.seconds),
        search.seed or 0,
        folder=None if search.resume else search.folder,
        resume=search.resume,
        display=search.display,
        baselines=_candidates(known, problem),
        spent=now() - search.started if _timed(search, problem) else 0.0,
        score=score,
        command=None if search.resume is None else RunFolder.open(search.resume).about["command"],
        about=_recorded(search),
        costs=search.costs,
        recalled=recalled,
    )
    if recalled is not None and not settled:
        known = [*known, Known(BANK, recalled.decision, recalled.value)]
    name = BANK if settled else solver.name
    solution.bound = max(bound, solution.bound, key=lambda each: each.value)
    again, optimum = None, None
    if solution.decision is not None and not solution.interrupted:
        again = kind.measure_again(problem, solver.name, search.seed or 0, search.say)
    found_something = solution.decision is not None or solution.baseline is not None
    if found_something and not solution.interrupted and not settled:
        optimum = kind.find_optimum(problem, solver.name, solution, search.exact_seconds or 0.0, search.say)
    best = _choose_best(name, solution, known, again, optimum)
    plan = _checked_plan(problem, best.decision, solution.plan if best.of_solver else None)
    if search.bank is not None and plan is not None:
        kept_solution, finder = replace(solution, decision=best.decision), None
        for each in () if best.of_solver else (*known, optimum):
            if each is not None and each.name == best.name:
                finder = each.name
                kept_solution.evaluations, kept_solution.seconds = each.evaluations, each.seconds
        keep_solution(search.bank, problem, plan, kept_solution, solver, asked, finder)
        solution.warnings = [*solution.warnings, *search.bank.warnings]
    machine = kind.machine(problem)
    kept = _keep(plan, problem, machine, solution, search.out, best.in_log)
    found = Found(solution, plan, best.value, known, before, search.calibrate)
    facts = kind.facts(problem, found)
    bound, rows = _rows(kind, problem, found, name, again, optimum)
    not_decided = kind.not_decided(problem)
    handed = next((row for row in rows if row.name == best.name and row.role == best.role), None)
    return Result(
        problem,
        machine,
        solution,
        name,
        plan=plan,
        origin=best.name,
        value=best.value if handed is None else handed.value,
        unit=kind.unit(problem),
        bound=bound,
        rows=rows,
        places=facts.places,
        before=search.before,
        space=kind.space,
        left_out=kind.left_out,
        facts=facts.numbers,
        notes=[*facts.notes, *([] if not_decided is None else [not_decided])],
        remeasured=None if again is None else again.note,
        measured=isinstance(problem, Measuring),
        kept=kept,
        error=_error(kind, problem, solution, search, plan),
    )


def _timed(search: SearchOptions, problem: Problem) -> bool:
    """Whether set-up counts against the time limit: not what an earlier session did, nor what hardware measures."""
    return search.seconds is not None and search.resume is None and not isinstance(problem, Measuring)


def _setup_seconds(search: SearchOptions, problem: Problem) -> float:
    """What is left of set-up's share of the time."""
    if search.seconds is None or not _timed(search, problem) or search.before is not None:
        return math.inf  # what plans are to be held against has to be there
    return max(0.0, SETUP_SHARE * search.seconds - (now() - search.started))


def _candidates(known: Sequence[Known], problem: Problem) -> dict[str, Decision]:
    """Decisions by the name of the method; of a large program the best first: time may end before all are checked."""
    ranked = list(known)
    if problem.program.n_tensors > MANY_TENSORS:
        ranked.sort(key=lambda each: math.inf if each.value is None else each.value)
    return {each.name: each.decision for each in ranked if each.legal and each.decision is not None}


def _asked(search: SearchOptions, solver: Solver) -> Search:
    """The search as a bank knows it."""
    seconds = search.exact_seconds or 0.0
    return Search(
        solver.name,
        solver.options,
        search.seed or 0,
        search.evaluations,
        search.seconds,
        optimum_seconds=seconds,
    )


def _tell(search: SearchOptions, text: str) -> None:
    if search.display is not None:
        search.display.doing(text)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A plan that could be handed over, by the row that it has in the table."""

    role: str
    name: str
    decision: Decision | None
    value: int | None
    in_log: bool = True
    """Whether the run's log has it, and `best.json` with it."""

    @property
    def of_solver(self) -> bool:
        return self.role == "result"


def _choose_best(
    solver: str, solution: Solution, known: Sequence[Known], again: Headline | None, optimum: Row | None
) -> Candidate:
    """The best plan that is known, whoever it is from; of equal ones, the solver's."""
    if again is not None:  # measured again: only that counts
        rival = next((each for each in known if each.name == again.baseline), None)
        if (
            rival is not None
            and again.champion.baseline.time_ps.middle < again.champion.winner.time_ps.middle
        ):
            middle = round(again.champion.baseline.time_ps.middle)
            return Candidate("baseline", rival.name, rival.decision, middle, in_log=False)
        return Candidate("result", solver, again.decision, again.value, in_log=False)
    best = Candidate("result", solver, solution.decision, solution.value)
    better = next((each for each in known if each.name == solution.baseline), None)
    if better is not None:
        best = Candidate("baseline", better.name, better.decision, better.value)
    if optimum is None or optimum.decision is None or optimum.value is None:
        return best
    if best.value is None or optimum.value < best.value:
        return Candidate("reference", optimum.name, optimum.decision, optimum.value, in_log=False)
    return best


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
            exact_seconds=_kept_seconds(about) if search.exact_seconds is None else search.exact_seconds,
            before=search.before or kept_before(about),
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
        exact_seconds=OPTIMUM_SECONDS if search.exact_seconds is None else search.exact_seconds,
    )


def _recorded(search: SearchOptions) -> dict[str, Any]:
    """What a run keeps of these options beside solver, seed and budget."""
    model = {} if search.arguments is None else {"model": dict(search.arguments)}
    return {**model, "options": {"exact_seconds": search.exact_seconds, "before": search.before}}


def _kept_seconds(about: Mapping[str, Any]) -> float:
    options = about.get("options")
    seconds = options.get("exact_seconds") if isinstance(options, dict) else None
    return float(seconds) if isinstance(seconds, int | float) else OPTIMUM_SECONDS


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
    plan: Plan | None, problem: Problem, machine: Machine, solution: Solution, out: Path | None, in_log: bool
) -> Path | None:
    """The file of the plan: `out`, else the run's, which hands the same over."""
    champion = None if solution.run is None else solution.run / CHAMPION
    if champion is not None and machine is problem.machine:
        if plan is not None and not in_log:
            write_plan(plan, problem.program, machine, champion)
        elif problem.repeatable:
            champion.unlink(missing_ok=True)  # of an earlier session: what the log has is better now
    if plan is not None and out is not None:
        write_plan(plan, problem.program, machine, out)
    if out is not None or machine is not problem.machine or solution.run is None:
        return out  # a run's plan is for the problem's own machine
    return solution.run / ("best.json" if in_log else CHAMPION)


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
    compared = None if found.before is None else found.before.value
    if again is not None and found.before is not None and again.baseline == found.before.name:
        compared = next(row.value for row in rows if row.name == again.baseline)
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
        speedup=compared / value if compared and value and kind.unit(problem) == "ps" else None,
        extra={**kind.row_figures(problem, value), **row.extra},
    )


def _error(
    kind: Kind, problem: Problem, solution: Solution, search: SearchOptions, plan: Plan | None
) -> LoadmasterError | None:
    """What to say if there is no plan, or the search ended early."""
    name, seconds = problem.program.name, min(search.seconds or EXPLAIN_SECONDS, EXPLAIN_SECONDS)
    explained = None if plan is not None else kind.explain(problem, solution, seconds, search.seed or 0)
    if explained is not None:
        return explained
    if solution.interrupted:
        return Interrupted.of(name, solution)
    if plan is None:
        return NoAnswer(
            f"{name}: no plan that fits was found in {solution.evaluations:,} evaluations",
            object=name,
            number=solution.evaluations,
            remedy="give more --budget",
        )
    return None
