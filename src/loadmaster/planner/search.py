"""`solve_problem`: from a problem to a Result: the solver beside known methods, bound, check, and files."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from loadmaster.allocation.auto import Blame, explain_infeasible
from loadmaster.allocation.problem import Allocation
from loadmaster.errors import LoadmasterError, NoAnswer, Refused
from loadmaster.graph import auto as graph_auto
from loadmaster.machine.machine import Machine
from loadmaster.malloc_game import search as game_auto
from loadmaster.malloc_game.heuristics import known_production
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.mapping import auto as mapping_auto
from loadmaster.mapping.bytes_moved import bound_bytes, moved_bytes
from loadmaster.mapping.problem import Mapping as MappingProblem
from loadmaster.offload import search as offload_auto
from loadmaster.order import search as order_auto
from loadmaster.order.problem import PeakOrder
from loadmaster.plan import Plan, save_plan
from loadmaster.planner import facts, known
from loadmaster.planner.capacity import BadRequest
from loadmaster.planner.facts import Facts, Found
from loadmaster.planner.known import Bounded, Known, Remeasured
from loadmaster.planner.request import say_nothing
from loadmaster.planner.result import Result, Row
from loadmaster.program.program import Program
from loadmaster.runs import Display, Interrupted, RunFolder, run_solver
from loadmaster.runs.history import gap_of
from loadmaster.search.measuring import Measuring
from loadmaster.search.problem import Bound, Decision, Problem
from loadmaster.search.registry import make_labelled, make_solver, solver_label
from loadmaster.search.solver import Budget, Scoring, Solution, Solver, Status
from loadmaster.simulate import simulate

EVALUATIONS = 4_000
"""If neither evaluations nor seconds are limited."""
MEASURED = 100
"""The same where hardware measures offload plans."""
EXACT_SECONDS = 60.0
"""For solvers that work as long as they may."""
BLAME_SECONDS = 10.0


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


@dataclass(frozen=True)
class Approach:
    """How problems of one kind are planned, and what is compared."""

    describe: Callable[[Any, str], str]
    known: Callable[[Any, str], list[Known]]
    facts: Callable[[Found], Facts]
    by_clock: Collection[str]
    """Solvers that get a time limit if the user gives none."""
    white_box: Collection[str] = ()
    bound: Callable[[Any], Bound] = lambda problem: problem.bound()
    reference: Callable[[Any, Mapping[str, int | None]], int | None] = lambda problem, values: None
    """The value that others are compared with, from the values of known methods."""
    remeasure: Callable[[Any, str, int, Callable[[str], None]], Remeasured | None] | None = None
    extra: Callable[[Any, int | None], dict[str, Any]] = lambda problem, value: {}
    """More figures of a row, from its value."""
    settles: tuple[str, ...] = ()
    """Roles whose status is 'optimal' at the bound, whatever the method says of itself."""
    shows_itself: bool = False
    """Whether a baseline has a row too that is the solver itself."""
    bound_row: str = "more"
    """When the bound has a row: 'always', if something is 'proven', or if that is 'more' than other rows say."""


APPROACHES = {
    "mapping": Approach(
        facts.describe_mapping,
        known.known_maps,
        facts.mapping_facts,
        by_clock=("auto", "exact"),
        white_box=mapping_auto.WHITE_BOX,
        bound=known.quick_map_bound,
        reference=lambda problem, values: values.get("compiler"),
        remeasure=known.remeasure_maps,
        settles=("result",),
        shows_itself=True,
    ),
    "malloc-game": Approach(
        facts.describe_game,
        known.known_games,
        facts.game_facts,
        by_clock=game_auto.BY_CLOCK,
        white_box=game_auto.WHITE_BOX,
        bound=known.quick_game_bound,
        reference=lambda problem, values: int(problem.all_slow_ps),
    ),
    "offload": Approach(
        facts.describe_offload,
        known.known_offloads,
        facts.offload_facts,
        by_clock=("auto",),
        white_box=offload_auto.WHITE_BOX,
        reference=lambda problem, values: values.get("layerwise"),
        remeasure=known.remeasure_offloads,
        extra=lambda problem, value: {
            "over_ops": value / problem.limit_ps if value and problem.limit_ps else None
        },
    ),
    "graph": Approach(
        facts.describe_graph,
        known.known_graphs,
        facts.graph_facts,
        by_clock=graph_auto.BY_CLOCK,
        white_box=(*graph_auto.CONSTRUCTIVE, "auto", "cp-sat"),
        reference=lambda problem, values: values["base"],
        shows_itself=True,
        bound_row="proven",
    ),
    "allocation": Approach(
        facts.describe_allocation,
        known.known_offsets,
        facts.allocation_facts,
        by_clock=("auto", "exact", "large", "cp-sat", "omnimalloc"),
        settles=("baseline", "result"),
        bound_row="always",
    ),
    "order": Approach(
        facts.describe_order,
        known.known_orders,
        facts.order_facts,
        by_clock=order_auto.BY_CLOCK,
        extra=lambda problem, value: {
            "saved": None if value is None else 1 - value / max(1, problem.reference)
        },
        settles=("baseline", "result"),
        bound_row="always",
    ),
}
BYTES_MOVED = Approach(
    facts.describe_bytes,
    known.known_byte_maps,
    facts.bytes_facts,
    by_clock=("auto", "exact"),
    bound=known.quick_map_bound,
    settles=("baseline", "result"),
    bound_row="always",
)


def solve_problem(problem: Problem, search: SearchOptions, real: Machine | None = None) -> Result:
    """Solve, compare, check and write; then let go of hardware, whatever happened. `real`: the machine that
    plans are for, where the problem is on one that counts bytes (`bytes_machine`)."""
    try:
        with _sharing(problem, search) as score:
            return _solve(problem, search, score, real)
    finally:
        if isinstance(problem, Measuring):
            problem.close()


def _solve(problem: Problem, search: SearchOptions, score: Scoring | None, real: Machine | None) -> Result:
    approach = APPROACHES[problem.kind] if real is None else BYTES_MOVED
    search = _complete(search, problem, approach.by_clock)
    solver, source = _choose_solver(problem, search), search.source or problem.program.name
    search.say(approach.describe(problem, source))
    bound, baselines = approach.bound(problem), approach.known(problem, source)
    solution = run_solver(
        Bounded(solver, bound),
        problem,
        Budget(search.evaluations, search.seconds),
        search.seed or 0,
        folder=None if search.resume else search.folder,
        resume=search.resume,
        display=search.display,
        baselines={
            each.name: each.decision for each in baselines if each.legal and each.decision is not None
        },
        score=score,
        model=search.arguments,
    )
    solution.bound = max(bound, solution.bound, key=lambda each: each.value)
    again, optimum = None, None
    if solution.decision is not None and not solution.interrupted and real is None:
        if approach.remeasure is not None:
            again = approach.remeasure(problem, solver.name, search.seed or 0, search.say)
        if isinstance(problem, MappingProblem):
            optimum = known.find_optimum(problem, solver.name, solution, search.exact_seconds, search.say)
    plan = _checked_plan(problem, solution.decision if again is None else again.decision, solution.plan)
    kept = _keep(plan, problem, solution, search.out, again, real)
    found = Found(problem, real or problem.machine, solution, plan, baselines, search.model or source)
    said = approach.facts(found)
    bound, rows = _rows(approach, found, solver.name, again, optimum, real)
    blame = _blame(problem, solution, search)
    return Result(
        problem,
        found.machine,
        solution,
        solver.name,
        plan=plan,
        value=next(row.value for row in rows if row.role == "result"),
        unit="bytes" if real is not None else problem.unit,
        bound=bound,
        rows=rows,
        places=said.places,
        facts=said.numbers,
        notes=said.notes,
        remeasured=None if again is None else again.note,
        measured=isinstance(problem, Measuring),
        kept=kept,
        blame=blame,
        error=_error(problem, solution, blame),
    )


def _complete(search: SearchOptions, problem: Problem, by_clock: Collection[str]) -> SearchOptions:
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
    if search.solver is None and isinstance(problem, Measuring) and problem.kind == "offload":
        search = replace(search, solver="refined", evaluations=search.evaluations or MEASURED)
    # Who gives a time limit alone wants the time to be used.
    most = None if search.seconds is not None else EVALUATIONS
    solver = search.solver or "auto"
    timed = isinstance(solver, str) and solver_label(problem.kind, solver, search.options) in by_clock
    return replace(
        search,
        solver=solver,
        evaluations=search.evaluations or most,
        seconds=search.seconds or (EXACT_SECONDS if timed else None),
    )


def _choose_solver(problem: Problem, search: SearchOptions) -> Solver:
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
    if isinstance(problem, MallocGame) and solver.name == "production":
        known_production(problem)  # refused before anything is written
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
    solution: Solution,
    out: Path | None,
    again: Remeasured | None,
    real: Machine | None,
) -> Path | None:
    """The file of the plan: `out`, else the run's."""
    if out is None and again is not None and solution.run is not None:
        out = solution.run / "champion.json"
    if plan is not None and out is not None:
        write_plan(plan, problem.program, real or problem.machine, out)
    if out is not None or real is not None or solution.run is None:
        return out  # a run's plan is for the machine that counts bytes
    return solution.run / "best.json"


def write_plan(plan: Plan, program: Program, machine: Machine, path: Path) -> None:
    """Write a plan's file; a disk that is full or closed to us is the user's to mend."""
    try:
        save_plan(plan, program, machine, path)
    except OSError as error:
        raise BadRequest(
            f"'{path}' can't be written: {error.strerror or error}",
            object=str(path),
            remedy="check the folder and the space on the disk",
        ) from None


def _rows(
    approach: Approach,
    found: Found,
    solver: str,
    again: Remeasured | None,
    optimum: Row | None,
    real: Machine | None,
) -> tuple[Bound, list[Row]]:
    """The bound in the rows' unit, and a row for each baseline, the solver, the optimum and the bound."""
    problem, solution = found.problem, found.solution
    rows = [
        Row("baseline", each.name, each.value, each.status, each.evaluations, each.seconds)
        for each in found.known
        if approach.shows_itself or each.name != solver
    ]
    result = Row(
        "result",
        solver,
        solution.value if again is None else again.value,
        str(solution.status),
        solution.evaluations,
        solution.seconds,
        solver in approach.white_box,
    )
    bound = solution.bound
    if real is not None:
        bound = Bound(bound_bytes(problem.program, problem.machine, bound.value), bound.method)
        decisions = {each.name: each.decision for each in found.known}
        rows = [_in_bytes(row, problem, decisions[row.name], real) for row in rows]
        result = _in_bytes(result, problem, solution.decision, real)
    if again is not None:
        result = replace(result, extra={"champion": again.champion.as_json()})
        if isinstance(problem, MappingProblem) and isinstance(problem, Measuring):
            # The compiler's plan as it was measured in turns with the result.
            turns = round(again.champion.baseline.time_ps.middle)
            rows = [replace(row, value=turns) if row.name == "compiler" else row for row in rows]
    rows += [result] if optimum is None else [result, optimum]
    if _says_more(approach, bound, rows):
        extra = {} if real is None else {"seconds": None}
        rows.append(Row("bound", "bound", bound.value, bound.method, extra=extra))
    compared = approach.reference(problem, {row.name: row.value for row in rows})
    return bound, [_complete_row(approach, problem, row, bound.value, compared) for row in rows]


def _in_bytes(row: Row, problem: MappingProblem, decision: Decision | None, real: Machine) -> Row:
    """A row of `bytes_machine` with bytes moved as its value, and its time on the real machine."""
    if decision is None:
        return replace(row, value=None, extra={"seconds": None})
    legal = problem.rectify(decision[None])[2][0]
    moved = moved_bytes(problem.program, problem.machine, problem.tensor_memories(legal))
    seconds = simulate(problem.program, real, problem.plan(decision)).seconds
    return replace(row, value=moved, extra={"seconds": seconds})


def _says_more(approach: Approach, bound: Bound, rows: list[Row]) -> bool:
    """Whether the bound gets a row of its own."""
    if approach.bound_row == "always":
        return True
    more = approach.bound_row == "proven" or all(row.value != bound.value for row in rows)
    return bound.value > 0 and more


def _complete_row(approach: Approach, problem: Any, row: Row, bound: int, compared: int | None) -> Row:
    value, settled = row.value, row.role in approach.settles
    reached = settled and value is not None and value <= bound
    return replace(
        row,
        status="optimal" if reached else row.status,
        gap=0.0 if row.role == "bound" else gap_of(value, bound),
        speedup=compared / value if compared and value else None,
        extra={**approach.extra(problem, value), **row.extra},
    )


def _blame(problem: Problem, solution: Solution, search: SearchOptions) -> Blame | None:
    """Which buffers do not fit together, where that is proven."""
    infeasible = solution.decision is None and solution.status == Status.INFEASIBLE
    if not infeasible or not isinstance(problem, Allocation) or problem.capacity is None:
        return None
    seconds = min(search.seconds or BLAME_SECONDS, BLAME_SECONDS)
    return explain_infeasible(problem, seconds, search.seed or 0)


def _error(problem: Problem, solution: Solution, blame: Blame | None) -> LoadmasterError | None:
    """What to say if there is no plan, or the search ended early."""
    name = problem.program.name
    if blame is not None:
        assert isinstance(problem, Allocation)
        return unfit_error(problem, solution, blame)
    if isinstance(problem, PeakOrder) and solution.decision is None:
        need, room = solution.bound.value + problem.resident, problem.capacity
        if need > room:
            memory = problem.machine.memories[problem.machine.home[0]].name
            return Refused(
                f"'{memory}' needs {need:,} bytes and has {room:,}: {need - room:,} too many, whatever the order",
                object=memory,
                number=need,
                remedy=f"a capacity of {need:,} bytes at least",
            )
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


def unfit_error(problem: Allocation, solution: Solution, blame: Blame) -> Refused:
    """A proof that buffers do not fit, in one line."""
    if blame.excess:
        why = f"{blame.alive:,} bytes are alive at time {blame.instant}, {blame.excess:,} too many"
    elif len(blame.buffers):
        why = f"the bytes alive fit, but these {len(blame.buffers)} shapes do not"
    else:
        why = "the shapes do not fit"
    remedy = f"a capacity of at least {solution.bound.value:,} bytes" if blame.excess else "try --minimize"
    return Refused(
        f"{problem.name} does not fit into {problem.capacity:,} bytes: {why}",
        object=problem.name,
        number=blame.excess,
        remedy=remedy,
    )
