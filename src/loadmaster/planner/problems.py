"""From a request to its problem: which kind it is, what that kind understands, and how it is made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from loadmaster.allocation.problem import Allocation, ProgramAllocation
from loadmaster.errors import Refused, nearest
from loadmaster.graph import TASKS, Base, GraphOptimization
from loadmaster.machine.machine import Machine
from loadmaster.malloc_game.problem import MallocGame
from loadmaster.mapping.bytes_moved import bytes_machine
from loadmaster.mapping.measured import MeasuredMapping
from loadmaster.mapping.problem import Mapping
from loadmaster.offload.measured import MeasuredOffload
from loadmaster.offload.problem import Offload, options_of
from loadmaster.offload.repeats import with_repeats
from loadmaster.order.problem import PeakOrder
from loadmaster.planner.capacity import BadRequest, KernelRoom, kernel_room, with_shares
from loadmaster.planner.fitting import fits
from loadmaster.planner.request import NamedBuffers, Objective, PlanRequest, ProblemEvaluator, is_arena
from loadmaster.program.measured_costs import apply_costs
from loadmaster.program.program import Program
from loadmaster.program.repeats import Repeated, repeat
from loadmaster.search.pins import Pins
from loadmaster.search.problem import Problem
from loadmaster.search.registry import kinds_with, make_solver
from loadmaster.search.solver import Budget, solve
from loadmaster.units import UNLIMITED

PROBE = Budget(evaluations=200, seconds=10.0)
"""For comparing programs in which other ops run again."""


@dataclass(frozen=True)
class ProblemKind:
    """One kind of problem, as a request sees it."""

    name: str
    make: Callable[[PlanRequest], Problem]
    accepts: frozenset[str]
    """The parts of a request (`PlanRequest.given`) that it understands; others are refused."""


def build_problem(request: PlanRequest) -> Problem:
    """The problem that a request is about. What makes no sense is refused before anything is read."""
    if isinstance(request.program, NamedBuffers):
        return make_buffers(request)
    kind = KINDS[choose_problem(request)]
    if isinstance(request.evaluator, ProblemEvaluator):
        request.evaluator.check(kind.name, request)
        # It measures with what an offload plan leaves to kernels, whatever kind of plan it is.
        kind = replace(kind, accepts=kind.accepts | {"costs", "shares"})
    _refuse_unless(kind, request)
    return kind.make(request)


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


def choose_problem(request: PlanRequest) -> str:
    """The kind that is named, or that the objective needs, or that suits the machine and the solver."""
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
    solved = [kind for kind in KINDS if request.solver is None or kind in kinds_with(request.solver)]
    return suits if suits in solved or not solved else solved[0]


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


def _refuse_unless(kind: ProblemKind, request: PlanRequest) -> None:
    """Say by name what was given and is not for this kind of problem."""
    for part, option in request.given():
        if part not in kind.accepts:
            message, remedy = next(said for parts, said in _REFUSALS.items() if part in parts)
            text = message.format(kind=kind.name, option=option)
            raise BadRequest(text, object=option, number=kind.name, remedy=remedy)


def make_buffers(request: PlanRequest) -> Allocation:
    """The offsets of a list of buffers; the capacity is the arena's, else the list's own."""
    given = request.program
    assert isinstance(given, NamedBuffers)
    if request.pins or request.evaluator or request.noise or request.graph_option:
        raise BadRequest(
            f"'{given.name}' has buffers alone: no ops, no memories to choose from",
            object=given.name,
            remedy="leave the other options out; a column 'offset' pins a buffer",
        )
    capacity = given.capacity
    if request.machine is not None:
        machine = request.own_machine
        if not is_arena(machine):
            raise BadRequest(
                f"'{given.name}' has buffers for one memory, and '{machine.name}' has several",
                object="--machine",
                number=machine.name,
                remedy="give --machine arena:1MiB",
            )
        room = machine.memories[machine.home[0]].capacity
        capacity = None if room >= UNLIMITED else room
    return Allocation(given.buffers, capacity, given.name)


def _make_allocation(request: PlanRequest) -> Problem:
    """Offsets in the program's order, or in one that fits where that does not."""
    machine = request.own_machine
    program = request.load_program(machine)
    pins = request.resolve_pins(program, machine)
    own = ProgramAllocation(program, machine, pins=pins)
    if own.capacity is None or own.buffers.max_live <= own.capacity or request.keep_order or pins:
        return own
    request.say(
        f"in the program's own order {own.buffers.max_live:,} bytes are alive at once and there are "
        f"{own.capacity:,}: seeking another order"
    )
    found = fits(program, machine, seed=request.seed)
    if found.plan is None:
        raise found.error(program)
    return ProgramAllocation(program, machine, order=found.plan.order)


def _make_order(request: PlanRequest) -> Problem:
    program = request.load_program(None)
    if request.machine is not None:
        return PeakOrder(program, request.own_machine)
    if request.capacity:
        memory, size = next(iter(request.capacity.items()))
        raise BadRequest(
            "--capacity needs a machine that has that memory",
            object="--capacity",
            number=f"{memory}={size}",
            remedy="give --machine",
        )
    return PeakOrder(program)


def _make_mapping(request: PlanRequest) -> Problem:
    machine, evaluator = request.own_machine, request.evaluator
    if isinstance(evaluator, ProblemEvaluator):
        plain = _simulated_offload(request, machine, recompute=False)
        # A map says what lies where between uses; the executor brings it to where ops work.
        return MeasuredMapping(
            plain.program,
            plain.machine.with_reach("all"),
            evaluator.evaluator(plain),
            repeats=request.repeats,
            warmups=evaluator.warmups,
        )
    program = request.load_program(machine)
    pins = request.resolve_pins(program, machine)
    if evaluator is None:
        if request.objective == Objective.BYTES_MOVED:
            return Mapping(program, bytes_machine(machine), pins=pins)
        try:
            seed = request.seed if request.noise else 0
            make = request.problem_class or Mapping
            return make(program, machine, noise=request.noise, noise_seed=seed, pins=pins)
        except ValueError as error:
            raise BadRequest(str(error), object="--noise", number=request.noise, remedy="give 0.02") from None
    if request.noise:
        raise BadRequest(
            "--noise is for simulated times and --evaluator measures",
            object="--noise",
            remedy="give one of them",
        )
    if pins or request.objective == Objective.BYTES_MOVED:
        raise BadRequest(
            "--evaluator measures times of maps without pins",
            object="--evaluator",
            remedy="leave --pin and --objective out",
        )
    return MeasuredMapping(program, machine, evaluator, repeats=request.repeats)


def _make_game(request: PlanRequest) -> Problem:
    machine = request.own_machine
    program = request.load_program(machine)
    make = request.problem_class or MallocGame
    return make(program, machine, pins=request.resolve_pins(program, machine))


def _make_graph(request: PlanRequest) -> Problem:
    machine = request.own_machine
    program = request.load_program(machine)
    tasks = TASKS if request.tasks is None else request.tasks
    if len(machine.devices) == 1 and "placement" in tasks:
        raise BadRequest(
            f"machine '{machine.name}' has one device: there is nothing to place",
            object="--tasks",
            number=1,
            remedy="give --tasks fusion,schedule, or --machine p100x4",
        )
    problem = GraphOptimization(
        program,
        machine,
        tasks=tasks,
        groups=request.groups or "auto",
        base=request.base or Base(),
        pins=request.resolve_pins(program, machine),
    )
    if problem.no_plan is not None:
        raise Refused(
            f"no plan of '{program.name}' fits '{machine.name}': {problem.no_plan}",
            object=program.name,
            remedy="give a larger machine, or --capacity",
        )
    return problem


def _make_offload(request: PlanRequest) -> Problem:
    evaluator = request.evaluator
    plain = _simulated_offload(request, request.own_machine)
    if evaluator is None:
        return plain
    made, warmups = evaluator, 2
    if isinstance(evaluator, ProblemEvaluator):
        made, warmups = evaluator.evaluator(plain), evaluator.warmups
    assert not isinstance(made, ProblemEvaluator)
    return MeasuredOffload(
        plain.program, plain.machine, made, repeats=request.repeats, warmups=warmups, **options_of(plain)
    )


def make_offload(
    program: Program | Repeated, machine: Machine, room: KernelRoom, pins: Pins | None = None
) -> Offload:
    """The problem with room for kernels. Where ops run again (`repeat`), `room` is that of the base program:
    each has the workspace of the op that it repeats."""
    kernels = room.kernels
    if isinstance(program, Repeated):
        kernels = kernels and replace(kernels, workspace=kernels.workspace[program.origin])
        program = program.program
    return Offload(program, machine, reserve=room.reserve, kernels=kernels, pins=pins)


def _simulated_offload(request: PlanRequest, machine: Machine, recompute: bool | None = None) -> Offload:
    """The problem with measured times if there are any, room for kernels, and capacities as shares of what is
    needed. To recompute: about the program with those ops run again that let the quickest plans be found."""
    program = request.load_program(machine)
    pins: Pins = request.resolve_pins(program, machine)
    measured = request.read_costs()
    if measured is not None:
        program = apply_costs(program, measured, machine.devices[0].name)
    room = kernel_room(program.n_ops, measured, request.captured_for(machine))
    machine = with_shares(machine, request.capacity, program, room.needed)
    make = partial(make_offload, machine=machine, room=room, pins=pins)
    if not (request.recomputes(program) if recompute is None else recompute):
        return make(repeat(program, []))
    request.say(f"seeking ops of '{program.name}' to run again")
    auto = make_solver("offload", "auto")
    return with_repeats(program, make, lambda each: solve(auto, each, PROBE)).problem


_KINDS = (
    ProblemKind(
        "mapping", _make_mapping, frozenset({"pins", "noise", "evaluator", "keep_order", "problem_class"})
    ),
    ProblemKind("malloc-game", _make_game, frozenset({"pins", "keep_order", "problem_class"})),
    ProblemKind(
        "offload",
        _make_offload,
        frozenset({"pins", "costs", "shares", "recompute", "evaluator", "keep_order"}),
    ),
    ProblemKind("graph", _make_graph, frozenset({"pins", "tasks", "groups", "base", "keep_order"})),
    ProblemKind("allocation", _make_allocation, frozenset({"pins", "keep_order"})),
    ProblemKind("order", _make_order, frozenset()),
)
KINDS = {kind.name: kind for kind in _KINDS}
