"""`plan`: from a program and a machine to a checked plan, in one call; and going on with a run."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

from loadmaster.allocation.problem import Allocation
from loadmaster.clock import now
from loadmaster.graph import Base
from loadmaster.machine import Machine, load_machine
from loadmaster.plan.check import Violation
from loadmaster.plan.plan import Plan
from loadmaster.planner.capacity import BadRequest, GivenCapacity, parse_capacity
from loadmaster.planner.fitting import SECONDS as FIT_SECONDS
from loadmaster.planner.fitting import Fits, buffers_fit, fits
from loadmaster.planner.known import Known
from loadmaster.planner.problems import build_problem, make_buffers
from loadmaster.planner.request import (
    NamedBuffers,
    Objective,
    PlanRequest,
    ProblemEvaluator,
    ProgramSource,
    parse_objective,
)
from loadmaster.planner.result import Result
from loadmaster.planner.search import APPROACHES, SearchOptions, solve_problem, write_plan
from loadmaster.planner.source import ModelSource
from loadmaster.program.measured_costs import MeasuredCosts, costless_hash
from loadmaster.program.program import Program
from loadmaster.program.repeats import repeat
from loadmaster.runs import RunFolder
from loadmaster.search.evaluator import CommandEvaluator, Evaluator, RecordedEvaluator
from loadmaster.search.measuring import Measuring
from loadmaster.search.pins import Pins
from loadmaster.search.problem import Bound, Problem
from loadmaster.search.registry import load_problem, make_labelled
from loadmaster.search.solver import Budget, Observer, Solution, Solver, solve
from loadmaster.simulate import Timeline, simulate
from loadmaster.units import UNLIMITED

EXECUTOR = "executor:"
"""Begins the names of evaluators that run plans on a device of this computer."""


def plan(
    program: Program | ProgramSource | NamedBuffers | str,
    machine: Machine | str | None = None,
    *,
    problem: str | None = None,
    solver: str | Solver | None = None,
    options: Mapping[str, Any] | None = None,
    budget: Budget | int | None = None,
    seed: int = 0,
    objective: Objective | str = "time",
    capacity: GivenCapacity = (),
    costs: MeasuredCosts | str | Path | None = None,
    pins: Pins | None = None,
    recompute: bool | None = None,
    keep_order: bool = False,
    evaluator: Evaluator | ProblemEvaluator | None = None,
    repeats: int = 5,
    noise: float = 0.0,
    tasks: Sequence[str] | None = None,
    groups: str | None = None,
    base: Base | None = None,
    exact_seconds: float = 0.0,
    workers: str | None = None,
    run: str | Path | None = None,
    out: str | Path | None = None,
) -> Result:
    """Plan a program on a machine: choose and make the problem, solve it, check the plan, compare it.

    Arguments:
      program: a Program, or a model as the command line takes it: a name, a file, 'module:function'.
      machine: a Machine or its name; by default the one that the model is meant for.
      problem: 'mapping', 'malloc-game', 'offload', 'graph', 'allocation' or 'order'; by default what suits the
        machine, the objective and the solver.
      solver: a name of `solver_names(problem)`, made with `options`, or an object of your own.
      budget: evaluations, or evaluations and seconds; by default 4,000 evaluations, and 60 s for solvers that prove.
      objective: 'time', 'peak-memory' or 'bytes-moved'.
      capacity: other capacities of memories: `{"sram": 2**20}` or `["sram=1MiB"]`; of an offload problem also
        `{"hbm": "50%"}` of what the program needs.
      costs: measured times of the ops (offload).
      pins: what is decided already.
      recompute: whether ops may run again in a backward pass (offload); by default where that is quicker.
      keep_order: in an arena, leave the ops in their order.
      evaluator: measures plans in place of the simulator, `repeats` times each (mapping, offload).
      noise: standard deviation of simulated times, as a share of them (mapping).
      tasks, groups, base: what is decided, what is placed as one, what stands where nothing is decided (graph).
      exact_seconds: to seek the optimum for comparison (mapping).
      workers: who evaluates: 'local:N', 'ray:N' or 'ray://HOST:PORT'.
      run: keep a run folder in this folder.
      out: write the plan's file here.

    Returns:
      the plan beside known methods' plans and the bound; `error` says why there is none.
    """
    request = PlanRequest(
        ModelSource(program).planned() if isinstance(program, str) else program,
        load_machine(machine) if isinstance(machine, str) else machine,
        problem=problem,
        solver=solver if isinstance(solver, str) else None,
        objective=parse_objective(objective),
        capacity=parse_capacity(capacity),
        costs=Path(costs) if isinstance(costs, str) else costs,
        pins=pins or Pins(),
        recompute=recompute,
        keep_order=keep_order,
        evaluator=evaluator,
        repeats=repeats,
        noise=noise,
        seed=seed,
        tasks=None if tasks is None else tuple(tasks),
        groups=groups,
        base=base,
    )
    budget = Budget(budget) if isinstance(budget, int) else budget or Budget()
    search = SearchOptions(
        solver=solver,
        options=options or {},
        evaluations=budget.evaluations,
        seconds=budget.seconds,
        seed=seed,
        folder=None if run is None else Path(run),
        out=None if out is None else Path(out),
        exact_seconds=exact_seconds,
        workers=workers,
        source=program if isinstance(program, str) else "",
    )
    return solve_request(request, search)


def make_problem(
    program: Program,
    machine: Machine,
    *,
    problem: str | None = None,
    objective: Objective | str = "time",
    pins: Pins | None = None,
    tasks: Sequence[str] | None = None,
    groups: str | None = None,
    base: Base | None = None,
) -> Problem:
    """The problem of a program on a machine: where tensors live, when they move, which device runs what, in
    which order, or at which offsets, as suits the machine and the objective ('time' or 'peak-memory').
    `problem` names another kind; `pins` fix what is decided already; `tasks`, `groups` and `base` are of graph
    problems. Ops keep their order in an arena, and none runs again: see `plan`."""
    chosen = parse_objective(objective)
    if chosen == Objective.BYTES_MOVED:
        raise BadRequest(
            "plans that move fewest bytes have no problem of their own",
            object="objective",
            number=chosen,
            remedy="use lm.plan",
        )
    request = PlanRequest(
        program,
        machine,
        problem,
        objective=chosen,
        pins=pins or Pins(),
        recompute=False,
        keep_order=chosen == Objective.TIME and problem != "order",
        tasks=None if tasks is None else tuple(tasks),
        groups=groups,
        base=base,
    )
    return build_problem(request)


def solve_request(request: PlanRequest, search: SearchOptions) -> Result:
    """Make the problem of a request and solve it."""
    problem = build_problem(request)
    moved = request.objective == Objective.BYTES_MOVED
    return solve_problem(problem, search, request.own_machine if moved else None)


@dataclass(frozen=True, eq=False)
class CheckedSolution:
    """What one solver found for one problem; its plan, the checker's word and the time on demand."""

    problem: Problem
    solution: Solution
    seconds: float
    """That it took, whatever clock the budget had."""

    @cached_property
    def plan(self) -> Plan | None:
        """None: nothing was found, or it can't be packed."""
        decision = self.solution.decision
        return None if decision is None else self.problem.plan(decision)

    @cached_property
    def violations(self) -> list[Violation]:
        """What the checker refuses of the plan: a bug of the solver."""
        return [] if self.plan is None else self.problem.violations(self.plan)

    @property
    def status(self) -> str:
        """The solver's, unless the checker refuses its plan."""
        return "refused by the checker" if self.violations else str(self.solution.status)

    @cached_property
    def timeline(self) -> Timeline:
        """What the plan costs, simulated."""
        assert self.plan is not None
        return simulate(self.problem.program, self.problem.machine, self.plan)


def solve_checked(
    problem: Problem,
    solver: str | Solver = "auto",
    budget: Budget | None = None,
    seed: int = 0,
    *,
    options: Mapping[str, Any] | None = None,
    observer: Observer | None = None,
    clock: Callable[[], float] = now,
) -> CheckedSolution:
    """One solver by itself, for who compares solvers: it has the whole budget, knows no bound but the problem's
    own, and no other method's plan; nothing is written.

    Arguments:
      solver: one of `solver_labels(problem.kind)`, made with `options`, or an object.
      clock: of the budget's seconds.
    """
    made = make_labelled(problem.kind, solver, options) if isinstance(solver, str) else solver
    started = now()
    solution = solve(made, problem, budget or Budget(), seed, observer, clock=clock)
    return CheckedSolution(problem, solution, now() - started)


def find_known(problem: Problem, source: str = "") -> tuple[list[Known], Bound]:
    """Known methods' answers and the bound that is quick to have: what a plan is compared with. `source`: the
    model as the user named it."""
    approach = APPROACHES[problem.kind]
    return approach.known(problem, source), approach.bound(problem)


def check_fit(
    request: PlanRequest, seconds: float | None, source: str, out: Path | None = None
) -> tuple[Fits, Program]:
    """Whether the program of a request fits its machine; and the program that this is about. The plan that
    shows it is written to `out`; `source`: the model as the user named it."""
    limit = FIT_SECONDS if seconds is None else seconds
    if isinstance(request.program, NamedBuffers):
        problem = make_buffers(request)
        if problem.capacity is None:
            problem = Allocation(problem.buffers, UNLIMITED - 1, problem.name)
        request.say(f"{source}: do {len(problem.buffers):,} buffers fit?")
        program, machine = problem.program, problem.machine
        found = buffers_fit(problem, limit, request.seed)
    else:
        machine = request.own_machine
        program = request.load_program(machine)
        order = "" if request.keep_order else " and, if need be, the order of the ops"
        request.say(f"{source} on {machine.name}: does it fit? Offsets{order} are decided")
        pins = request.resolve_pins(program, machine)
        found = fits(
            program, machine, seconds=limit, keep_order=request.keep_order, pins=pins, seed=request.seed
        )
    if found.plan is not None and out is not None:
        write_plan(found.plan, program, machine, out)
    return found, program


def resume_problem(run: Path, source: ProgramSource, evaluator: str | None, typed: Sequence[str]) -> Problem:
    """The problem of a run, if it is about this model. One that measured needs its evaluator again: a folder
    may come from anyone, so that the command that it names is only run by who types it. `typed`: the model
    and its options, for the message that says so."""
    RunFolder.open(run)  # says what is wrong with the folder, if anything is
    problem = load_problem(run)
    program = source.load(problem.machine)
    repeats = problem.program.repeats
    if repeats is not None and repeats.base == costless_hash(program):
        program = repeat(program, repeats.ops).program
    # The run has its measured times: they need not be given again.
    theirs = costless_hash(problem.program) if program.costs is None else problem.program.hash
    if theirs != program.hash:
        raise BadRequest(
            f"run '{run}' is not about '{program.name}' but '{problem.program.name}'",
            object=str(run),
            remedy="give the model that it was started with",
        )
    if isinstance(problem, Measuring):
        _measure_again(problem, run, evaluator, typed)
    elif evaluator is not None:
        raise BadRequest(
            f"run '{run}' was simulated, not measured",
            object="--evaluator",
            number=evaluator,
            remedy="leave --evaluator out",
        )
    return problem


def _measure_again(problem: Measuring, run: Path, evaluator: str | None, typed: Sequence[str]) -> None:
    recorded = problem.gauge.evaluator
    assert isinstance(recorded, RecordedEvaluator)
    if recorded.name.startswith(EXECUTOR):
        raise BadRequest(
            f"run '{run}' was measured by '{recorded.name}', which is not taken up from a folder",
            object=recorded.name,
            remedy="start another run",
        )
    if evaluator is None:
        words = ["loadmaster", "plan", *typed, "--resume", str(run), "--evaluator", recorded.name]
        shortened = "" if recorded.command else ", with its folders: a run keeps no absolute paths"
        raise BadRequest(
            f"run '{run}' would run the command '{recorded.name}', which it does only if you give it again",
            object="--evaluator",
            number=recorded.name,
            remedy=f"type {shlex.join(words)}{shortened}",
        )
    problem.measure_with(CommandEvaluator(evaluator, recorded.timeout_s))


def recorded_costs(run: Path) -> str | None:
    """The name of the cost table that a run was started with; a run does not say in which folder it was."""
    about = RunFolder.open(run).about
    if isinstance(about.get("model"), dict):
        costs = about["model"].get("costs")
        return None if costs is None else str(costs)
    # Runs of earlier versions have their command alone.
    words = [str(word) for word in about["command"]]
    given = [word for option, word in pairwise(words) if option == "--costs"]
    given += [word.partition("=")[2] for word in words if word.startswith("--costs=")]
    return given[-1] if given else None
