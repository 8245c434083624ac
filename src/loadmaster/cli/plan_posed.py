"""Which problem `plan` solves: from a model, a machine and what the user wants of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from loadmaster.cli.answer import Usage
from loadmaster.cli.model import Model, divided

if TYPE_CHECKING:
    from loadmaster.allocation.problem import Allocation
    from loadmaster.machine import Machine
    from loadmaster.program import Program
    from loadmaster.search.pins import Pins
    from loadmaster.search.problem import Problem

PLANNED = ("mapping", "malloc-game", "offload", "graph", "allocation", "order")


@dataclass(frozen=True)
class Asked:
    """What `plan` was asked about."""

    model: Model
    machine: str | None = None
    problem: str | None = None
    objective: str = "time"
    solver: str | None = None
    tasks: str | None = None
    groups: str | None = None
    base: tuple[str, ...] = ()
    capacity: tuple[str, ...] = ()
    evaluator: str | None = None
    repeats: int = 5
    timeout: float = 60.0
    noise: float = 0.0
    seed: int = 0
    pin: tuple[str, ...] = ()
    pin_op: tuple[str, ...] = ()
    keep_order: bool = False
    recompute: bool | None = None

    def pins(self, program: Program, machine: Machine) -> Pins:
        from loadmaster.search.pins import parse_pins

        return parse_pins(program, machine, self.pin, self.pin_op)

    def on(self) -> Machine:
        """The machine, with the capacities that were given; shares of what a program needs come later."""
        from loadmaster.machine.presets import with_capacities

        return with_capacities(self.model.machine(self.machine), divided(self.capacity)[0])

    def recomputes(self, program: Program) -> bool:
        """Whether ops may run again: by default where there is a backward pass and no command measures."""
        trains = bool(program.op_backward.any())
        if self.recompute and not trains:
            raise Usage(
                f"'{program.name}' has no backward pass for which ops could run again",
                object="--recompute",
                remedy="leave it out, or give --train",
            )
        simulated = self.evaluator is None or self.evaluator.startswith("executor:")
        return trains and (simulated if self.recompute is None else self.recompute)

    @property
    def shares(self) -> list[str]:
        """Capacities that are given as a share of what the program needs."""
        return divided(self.capacity)[1]


def posed(asked: Asked) -> Problem:
    """The problem."""
    if asked.model.is_buffers:
        return buffers_problem(asked)
    kind, machine = _kind(asked)
    _check_recompute(asked, kind)
    if asked.evaluator is not None and asked.evaluator.startswith("executor:"):
        from loadmaster.cli.plan_executed import executed_problem

        return executed_problem(asked, kind, machine)
    program = None
    if kind == "offload":
        program = asked.model.load(machine)
    if kind != "offload" and (asked.shares or asked.model.costs):
        option = "--costs" if asked.model.costs else "--capacity"
        raise Usage(
            f"measured times, and capacities in percent, are for the offload problem, not for {kind}",
            object=option,
            number=kind,
            remedy="leave them out, or give --problem offload",
        )
    _check_recompute(asked, kind)
    about_graphs = _only_graphs(asked)
    if about_graphs and kind != "graph":
        raise Usage(
            f"{about_graphs} is for the graph problem, not for {kind}",
            object=about_graphs,
            remedy="leave it out, or give --problem graph",
        )
    if kind != "mapping" and (asked.noise or (asked.evaluator and kind != "offload")):
        raise Usage(
            "--evaluator and --noise are about times of the mapping problem",
            object="--problem",
            number=kind,
            remedy="leave them out, or give --problem mapping",
        )
    if kind == "order":
        return _order(asked)
    assert machine is not None
    program = program or asked.model.load(machine)
    pins = asked.pins(program, machine)
    if kind == "allocation":
        return _allocation(asked, program, machine, pins)
    if kind == "offload":
        from loadmaster.cli.plan_offload import offload_problem

        plain = offload_problem(
            program,
            machine,
            asked.shares,
            asked.model.costs,
            pins,
            recompute=asked.recomputes(program),
            device=asked.model.captured_for(machine),
        )
        if asked.evaluator is None:
            return plain
        from loadmaster.cli.plan_executed import commanded

        return commanded(plain, asked.evaluator, asked.repeats, asked.timeout)
    if kind == "malloc-game":
        from loadmaster.malloc_game.problem import MallocGame

        return MallocGame(program, machine, pins=pins)
    if kind == "graph":
        from loadmaster.cli.plan_graph import graph_problem

        return graph_problem(program, machine, asked.tasks, asked.groups or "auto", asked.base, pins)
    return _mapping(asked, program, machine, pins)


def buffers_problem(asked: Asked) -> Allocation:
    """The offsets of a list of buffers; the capacity is the arena's, else the one in its name."""
    from loadmaster.allocation.buffers_csv import read_buffers
    from loadmaster.allocation.problem import Allocation
    from loadmaster.problem_choice import is_arena
    from loadmaster.units import UNLIMITED

    source = asked.model.source
    if asked.pin or asked.pin_op or asked.evaluator or asked.noise or _only_graphs(asked):
        raise Usage(
            f"'{source}' has buffers alone: no ops, no memories to choose from",
            object=source,
            remedy="leave the other options out; a column 'offset' pins a buffer",
        )
    buffers, stated = read_buffers(source)
    if asked.machine is not None:
        machine = asked.on()
        if not is_arena(machine):
            raise Usage(
                f"'{source}' has buffers for one memory, and '{machine.name}' has several",
                object="--machine",
                number=machine.name,
                remedy="give --machine arena:1MiB",
            )
        capacity = machine.memories[machine.home[0]].capacity
        stated = None if capacity >= UNLIMITED else capacity
    return Allocation(buffers, stated, Path(source).stem)


def _allocation(asked: Asked, program: Program, machine: Machine, pins: Pins) -> Allocation:
    """Offsets in the program's order, or in one that fits where that does not."""
    from loadmaster.allocation.problem import ProgramAllocation
    from loadmaster.cli.plan_fits import refused
    from loadmaster.cli.progress import say
    from loadmaster.planner.fitting import fits

    own = ProgramAllocation(program, machine, pins=pins)
    if own.capacity is None or own.buffers.max_live <= own.capacity or asked.keep_order or pins:
        return own
    say(
        f"in the program's own order {own.buffers.max_live:,} bytes are alive at once and there are "
        f"{own.capacity:,}: seeking another order"
    )
    found = fits(program, machine, seed=asked.seed)
    if found.plan is None:
        raise refused(found, program)
    return ProgramAllocation(program, machine, order=found.plan.order)


def _order(asked: Asked) -> Problem:
    from loadmaster.cli.plan_peak import peak_problem

    if asked.pin or asked.pin_op or asked.keep_order:
        raise Usage(
            "--objective peak-memory decides the order of the ops, not memories or devices",
            object="--objective",
            number="peak-memory",
            remedy="leave --pin, --pin-op and --keep-order out",
        )
    return peak_problem(asked.model.load(), asked.machine, asked.capacity)


def _mapping(asked: Asked, program: Program, machine: Machine, pins: Pins) -> Problem:
    from loadmaster.cli.plan_mapping import measured_problem, simulated_problem

    if asked.evaluator is None:
        if asked.objective == "bytes-moved":
            from loadmaster.mapping.bytes_moved import bytes_machine

            return simulated_problem(program, bytes_machine(machine), 0.0, 0, pins)
        return simulated_problem(program, machine, asked.noise, asked.seed, pins)
    if asked.noise:
        raise Usage(
            "--noise is for simulated times and --evaluator measures",
            object="--noise",
            remedy="give one of them",
        )
    if pins or asked.objective == "bytes-moved":
        raise Usage(
            "--evaluator measures times of maps without pins",
            object="--evaluator",
            remedy="leave --pin and --objective out",
        )
    return measured_problem(program, machine, asked.evaluator, asked.repeats, asked.timeout)


def _check_recompute(asked: Asked, kind: str) -> None:
    if asked.recompute and kind != "offload":
        raise Usage(
            f"ops run again in plans of the offload problem, not of {kind}",
            object="--recompute",
            number=kind,
            remedy="leave it out, or give --problem offload",
        )


def _only_graphs(asked: Asked) -> str | None:
    """The first option given that other problems do not have."""
    given = {"--tasks": asked.tasks, "--groups": asked.groups, "--base": asked.base}
    return next((name for name, value in given.items() if value is not None and value != ()), None)


def _kind(asked: Asked) -> tuple[str, Machine | None]:
    """Which problem is meant, and the machine where it needs one: named, or the one that the solver
    solves, or the one that suits machine and objective."""
    from loadmaster.problem_choice import OBJECTIVES, problem_kind
    from loadmaster.search.registry import kinds_with

    objective, problem = asked.objective, asked.problem
    if objective not in OBJECTIVES:
        raise Usage(
            f"there is no objective '{objective}'",
            object="--objective",
            number=objective,
            remedy=f"use {' or '.join(OBJECTIVES)}",
        )
    if problem is not None and problem not in PLANNED:
        raise Usage(
            f"there is no problem '{problem}' to plan",
            object="--problem",
            number=problem,
            remedy=f"use {' or '.join(PLANNED)}",
        )
    wants = {"peak-memory": "order", "bytes-moved": "mapping"}.get(objective)
    if wants is not None and problem not in (None, wants):
        raise Usage(
            f"--objective {objective} is about the {wants}, not the {problem}",
            object="--problem",
            number=problem,
            remedy="leave --problem out",
        )
    if wants == "order" or problem == "order":
        return "order", None
    machine = asked.on()
    if wants is not None or problem is not None:
        return str(wants or problem), machine
    if _only_graphs(asked) is not None:
        return "graph", machine
    suits = problem_kind(machine)
    solver = asked.solver
    solved = [kind for kind in PLANNED if solver is None or kind in kinds_with(solver)]
    return (suits if suits in solved or not solved else solved[0]), machine
