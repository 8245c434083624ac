"""`plan`: from a program and a machine to a checked plan, in one call; and going on with a run."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from loadmaster.allocation.auto import NamedBuffers, is_arena
from loadmaster.allocation.problem import Allocation
from loadmaster.clock import now
from loadmaster.errors import nearest
from loadmaster.graph import Base
from loadmaster.graph.kind import KIND as GRAPH
from loadmaster.machine import Machine, load_machine
from loadmaster.malloc_game.kind import KIND as MALLOC_GAME
from loadmaster.mapping.kind import BYTES_MOVED
from loadmaster.mapping.kind import KIND as MAPPING
from loadmaster.offload.kind import KIND as OFFLOAD
from loadmaster.order.problem import KIND as ORDER
from loadmaster.plan.check import Violation
from loadmaster.plan.plan import Plan
from loadmaster.planner.fitting import ARENA, Fits, buffers_fit, fits, order_fits
from loadmaster.planner.fitting import SECONDS as FIT_SECONDS
from loadmaster.planner.result import Result
from loadmaster.planner.search import SearchOptions, solve_problem, write_plan
from loadmaster.planner.source import ModelSource
from loadmaster.program.measured_costs import MeasuredCosts, costless_hash
from loadmaster.program.program import Program
from loadmaster.program.repeats import repeat
from loadmaster.runs import RunFolder
from loadmaster.runs.bank import Bank, open_bank
from loadmaster.runs.folder import resume_line
from loadmaster.search.evaluator import EXECUTOR, CommandEvaluator, Measures, RecordedEvaluator
from loadmaster.search.kind import Known, ProblemKind
from loadmaster.search.measuring import Measuring
from loadmaster.search.pins import Pins
from loadmaster.search.problem import Bound, Problem
from loadmaster.search.registry import kinds_with, load_problem, make_labelled, solver_names
from loadmaster.search.request import (
    BadRequest,
    GivenCapacity,
    Objective,
    PlanRequest,
    ProblemEvaluator,
    ProblemSource,
    ProgramSource,
    parse_capacity,
    parse_objective,
)
from loadmaster.search.solver import Budget, Observer, Solution, Solver, solve
from loadmaster.simulate import Timeline, simulate
from loadmaster.units import UNLIMITED

KINDS: dict[str, ProblemKind[Any]] = {
    kind.name: kind for kind in (MAPPING, MALLOC_GAME, OFFLOAD, GRAPH, ARENA, ORDER)
}


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
    evaluator: Measures | ProblemEvaluator | None = None,
    repeats: int = 5,
    noise: float = 0.0,
    tasks: Sequence[str] | None = None,
    groups: str | None = None,
    base: Base | None = None,
    exact_seconds: float = 0.0,
    workers: str | None = None,
    run: str | Path | None = None,
    out: str | Path | None = None,
    bank: Bank | str | Path | None = None,
) -> Result:
    """Plan a program on a machine: choose and make the problem, solve it, check the plan, compare it.

    Args:
      program: a Program, or a model as the command line takes it: a name, a file, 'module:function'.
      machine: a Machine or its name; by default the one that the model is meant for.
      problem: 'mapping', 'malloc-game', 'offload', 'graph', 'allocation' or 'order'; by default what suits the
        machine, the objective and the solver.
      solver: a name of `solver_names(problem)`, or an object of your own.
      options: keyword arguments of a solver that is named.
      budget: evaluations, or evaluations and seconds; by default 4,000 evaluations, and 60 s for solvers that prove.
      seed: the same seed gives the same plan, unless seconds end the search.
      objective: 'time', 'peak-memory' or 'bytes-moved'.
      capacity: other capacities of memories: `{"sram": 2**20}` or `["sram=1MiB"]`; of an offload problem also
        `{"hbm": "50%"}` of what the program needs.
      costs: measured times of the ops (offload).
      pins: what is decided already.
      recompute: whether ops may run again in a backward pass (offload); by default where that is quicker.
      keep_order: in an arena, leave the ops in their order.
      evaluator: measures plans in place of the simulator (mapping, offload).
      repeats: how often each is measured.
      noise: standard deviation of simulated times, as a share of them (mapping).
      tasks, groups, base: what is decided, what is placed as one, what stands where nothing is decided (graph).
      exact_seconds: to seek the optimum for comparison (mapping).
      workers: who evaluates: 'local:N', 'ray:N' or 'ray://HOST:PORT'.
      run: keep a run folder in this folder.
      out: write the plan's file here.
      bank: a folder of answers: the same question is answered from there, a like one begins with its plan, and the
        answer is kept.

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
        bank=open_bank(bank),
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
    """Make the problem of a program on a machine: where tensors live, when they move, which device runs what,
    in which order, or at which offsets. Ops keep their order in an arena, and none runs again: see `plan`.

    Args:
      program: what `load_model` gives.
      machine: what `load_machine` gives.
      problem: the kind; None: as suits the machine and the objective.
      objective: 'time', 'peak-memory' or 'bytes-moved'.
      pins: what is decided already.
      tasks: of graph problems, what is decided: 'fusion', 'placement', 'schedule'.
      groups: of graph problems, which ops are placed together.
      base: of graph problems, what is not decided.

    Returns:
      a problem that scores decisions, makes plans of them, and has a lower bound.
    """
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
    """Make the problem of a request and solve it. Reading a file counts against a time limit, and a function of the
    user's does not: how long that takes is not ours."""
    kind, before = choose_kind(request), _own_seconds(request)
    problem = build_problem(request, kind)
    started = search.started + _own_seconds(request) - before
    return solve_problem(kind, problem, replace(search, started=started))


def _own_seconds(request: PlanRequest) -> float:
    return request.program.own_seconds if isinstance(request.program, ModelSource) else 0.0


def build_problem(request: PlanRequest, kind: ProblemKind[Any] | None = None) -> Problem:
    """The problem that a request is about. What makes no sense is refused before anything is read."""
    if isinstance(request.program, ProblemSource):
        return request.program.make_problem(request)
    kind = kind or choose_kind(request)
    accepts = kind.accepts
    if isinstance(request.evaluator, ProblemEvaluator):
        request.evaluator.check(kind.name, request)
        # It measures with what an offload plan leaves to kernels, whatever kind of plan it is.
        accepts |= {"costs", "shares"}
    for part, option in request.given():
        if part not in accepts:
            message, remedy = next(said for parts, said in _REFUSALS.items() if part in parts)
            text = message.format(kind=kind.name, option=option)
            raise BadRequest(text, object=option, number=kind.name, remedy=remedy)
    problem: Problem = kind.make(request)
    return problem


_REFUSALS = {
    ("recompute",): (
        "ops run again in plans of the offload problem, not of {kind}",
        "leave it out, or give --problem offload",
    ),
    ("costs", "shares"): (
        "measured times, and capacities in percent, are for the offload problem, not for {kind}",
        "leave them out, or give --problem offload",
    ),
    ("tasks", "groups", "base"): (
        "{option} is for the graph problem, not for {kind}",
        "leave it out, or give --problem graph",
    ),
    ("noise", "evaluator"): (
        "--evaluator and --noise are about times of the mapping problem",
        "leave them out, or give --problem mapping",
    ),
    ("problem_class",): (
        "the class of {kind} problems can't be replaced",
        "leave problem_class out, or make the problem of that class",
    ),
    ("pins", "keep_order"): (
        "--objective peak-memory decides the order of the ops, not memories or devices",
        "leave --pin, --pin-op and --keep-order out",
    ),
}
"""Parts of a request -> what to say where a kind does not understand them, and the remedy."""


def choose_kind(request: PlanRequest) -> ProblemKind[Any]:
    """The kind that is named, or that the objective needs, or that suits the machine and the solver."""
    if isinstance(request.program, ProblemSource):
        return KINDS[request.program.kind]
    name = _choose_name(request)
    return BYTES_MOVED if request.objective == Objective.BYTES_MOVED else KINDS[name]


def _choose_name(request: PlanRequest) -> str:
    objective, named = request.objective, request.problem
    if named is not None and named not in KINDS:
        raise BadRequest(
            f"there is no problem '{named}' to plan{nearest(named, list(KINDS))}",
            object="--problem",
            number=named,
            remedy=f"use {' or '.join(KINDS)}",
        )
    needed = {Objective.PEAK_MEMORY: "order", Objective.BYTES_MOVED: "mapping"}.get(objective)
    if needed is not None and named not in (None, needed):
        raise BadRequest(
            f"--objective {objective} is about the {needed}, not the {named}",
            object="--problem",
            number=named,
            remedy="leave --problem out",
        )
    if "order" in (needed, named):
        return "order"  # it needs no machine
    machine, chosen = request.own_machine, needed or named
    if chosen is not None:
        return chosen
    if request.graph_option is not None:
        return "graph"
    suits = problem_kind(machine)
    if request.solver is None or suits in (known := kinds_with(request.solver)):
        return suits
    holders = [kind for kind in KINDS if request.solver in solver_names(kind)] or known
    # Of several kinds with such a solver, one that the machine is made for; of one alone, its own error says more.
    unfit = {"allocation": not is_arena(machine), "graph": len(machine.devices) == 1}
    fit = [kind for kind in holders if len(holders) == 1 or not unfit.get(kind)]
    return fit[0] if fit else suits


def problem_kind(machine: Machine, objective: Objective = Objective.TIME) -> str:
    """The kind of problem (a name of `KINDS`) that suits a machine."""
    if objective == Objective.PEAK_MEMORY:
        return "order"
    if len(machine.devices) > 1:
        return "graph"
    if is_arena(machine):
        return "allocation"
    if machine.rules.reach == "first" and objective == Objective.TIME:
        return "offload"
    # Where copies only use idle bandwidth, moving tensors is what the machine was made for.
    idle = machine.rules.copies == "idle" and objective == Objective.TIME
    return "malloc-game" if idle else "mapping"


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

    Args:
      problem: what `make_problem` gives.
      solver: one of `solver_labels(problem.kind)`, made with `options`, or an object.
      budget: evaluations and seconds; by default the solver ends by itself.
      seed: the same seed gives the same solution, unless seconds end the search.
      options: keyword arguments of a solver that is named.
      observer: hears of every improvement.
      clock: of the budget's seconds.

    Returns:
      what it found, its plan as the checker sees it, and the seconds that it took.
    """
    made = make_labelled(problem.kind, solver, options) if isinstance(solver, str) else solver
    started = now()
    solution = solve(made, problem, budget or Budget(), seed, observer, clock=clock)
    return CheckedSolution(problem, solution, now() - started)


def find_known(problem: Problem, source: str = "") -> tuple[list[Known], Bound]:
    """Known methods' answers and the bound that is quick to have: what a plan is compared with. `source`: the
    model as the user named it."""
    kind = KINDS[problem.kind]
    return kind.known(problem, source), kind.bound(problem)


def check_fit(
    request: PlanRequest,
    seconds: float | None,
    source: str,
    out: Path | None = None,
    bank: Bank | None = None,
) -> tuple[Fits, Program]:
    """Whether the program of a request fits its machine; and the program that this is about. The plan that
    shows it is written to `out`; `source`: the model as the user named it."""
    limit = FIT_SECONDS if seconds is None else seconds
    if isinstance(request.program, NamedBuffers):
        problem = request.program.make_problem(request)
        if problem.capacity is None:
            problem = Allocation(problem.buffers, UNLIMITED - 1, problem.name)
        request.say(f"{source}: do {len(problem.buffers):,} buffers fit?")
        program, machine = problem.program, problem.machine
        found = buffers_fit(problem, limit, request.seed, bank)
    else:
        machine = request.own_machine
        peak = request.objective == Objective.PEAK_MEMORY
        kind = request.problem or ("order" if peak else problem_kind(machine))
        if kind not in ("order", problem_kind(machine)):
            raise BadRequest(
                f"--fits is about {problem_kind(machine)} or order on '{machine.name}', not about {kind}",
                object="--problem",
                number=kind,
                remedy="leave --problem or --fits out",
            )
        program = request.load_program(machine)
        pins = request.resolve_pins(program, machine)
        if kind == "order":
            request.say(f"{source} on {machine.name}: does it fit? The order of the ops is decided")
            found = order_fits(program, machine, limit, request.seed, bank)
        else:
            order = "" if request.keep_order else " and, if need be, the order of the ops"
            request.say(f"{source} on {machine.name}: does it fit? Offsets{order} are decided")
            found = fits(
                program,
                machine,
                seconds=limit,
                keep_order=request.keep_order,
                pins=pins,
                seed=request.seed,
                bank=bank,
            )
    for warning in [] if bank is None else bank.warnings:
        request.say(f"warning: {warning}")
    if found.plan is not None and out is not None:
        write_plan(found.plan, program, machine, out)
    return found, program


def resume_problem(
    run: Path, evaluator: str | None = None, request: PlanRequest | None = None, source: Any = None
) -> Problem:
    """The problem of a run, which has all of it. One that measured needs its evaluator again: a folder may come
    from anyone, so that the command that it names is only run by who types it. Where a `request` is given all the
    same, it must say nothing of the problem, and its `source` be of the same program."""
    RunFolder.open(run)  # says what is wrong with the folder, if anything is
    problem = load_problem(run)
    if request is not None:
        _check_resumed(run, problem, request, source)
    if isinstance(problem, Measuring):
        _measure_again(problem, run, evaluator)
    elif evaluator is not None:
        raise BadRequest(
            f"run '{run}' was simulated, not measured",
            object="--evaluator",
            number=evaluator,
            remedy="leave --evaluator out",
        )
    return problem


def _check_resumed(run: Path, problem: Problem, request: PlanRequest, source: ProgramSource) -> None:
    if request.says_what:
        raise BadRequest(
            "--resume takes machine, capacities, objective, problem, pins, recomputing and noise from the run",
            object="--resume",
            remedy="leave them out",
        )
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
            remedy=f"give the model that it was started with, or none: {resume_line(run)}",
        )


def _measure_again(problem: Measuring, run: Path, evaluator: str | None) -> None:
    recorded = problem.gauge.evaluator
    assert isinstance(recorded, RecordedEvaluator)
    if recorded.name.startswith(EXECUTOR):
        raise BadRequest(
            f"run '{run}' was measured by '{recorded.name}', which is not taken up from a folder",
            object=recorded.name,
            remedy="start another run",
        )
    if evaluator is None:
        words = f"{resume_line(run)} --evaluator {shlex.quote(recorded.name)}"
        shortened = "" if recorded.command else ", with its folders: a run keeps no absolute paths"
        raise BadRequest(
            f"run '{run}' would run the command '{recorded.name}', which it does only if you give it again",
            object="--evaluator",
            number=recorded.name,
            remedy=f"type {words}{shortened}",
        )
    problem.measure_with(CommandEvaluator(evaluator, recorded.timeout_s))


def solve_resumed(problem: Problem, search: SearchOptions) -> Result:
    """Go on with the run of a problem of `resume_problem`."""
    return solve_problem(KINDS[problem.kind], problem, search)
