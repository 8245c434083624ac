"""`PlanRequest`: what is to be planned, as types; whoever reads texts makes one."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol

from loadmaster.allocation.buffers import Buffers
from loadmaster.errors import nearest
from loadmaster.graph import Base
from loadmaster.machine.machine import Machine
from loadmaster.planner.capacity import BadRequest, Capacity, has_shares, with_bytes
from loadmaster.program.measured_costs import MeasuredCosts, read_costs
from loadmaster.program.program import Program
from loadmaster.search.evaluator import Evaluator
from loadmaster.search.pins import Pins, parse_pins
from loadmaster.search.problem import Problem
from loadmaster.units import UNLIMITED


class Objective(enum.StrEnum):
    """What a plan has least of."""

    TIME = "time"
    PEAK_MEMORY = "peak-memory"
    BYTES_MOVED = "bytes-moved"


def parse_objective(text: str) -> Objective:
    """An objective by its name."""
    if text not in list(Objective):
        raise BadRequest(
            f"there is no objective '{text}'{nearest(text, list(Objective))}",
            object="--objective",
            number=text,
            remedy=f"use {' or '.join(Objective)}",
        )
    return Objective(text)


def parse_base(texts: Sequence[str]) -> Base | None:
    """What stands where a graph plan decides nothing, from 'fusion=none,placement=single' and the like."""
    given: dict[str, str] = {}
    for text in (part for each in texts for part in each.split(",")):
        name, equals, value = text.strip().partition("=")
        if not equals or name not in ("fusion", "placement", "schedule"):
            raise BadRequest(
                f"--base '{text}' is not PART=NAME",
                object="--base",
                number=text,
                remedy="write --base fusion=none,placement=single,schedule=fifo",
            )
        given[name] = value.replace("-", "_")
    return Base(**given) if given else None


class ProgramSource(Protocol):
    """Where a Program comes from, if it is to be read only once all else makes sense."""

    def load(self, machine: Machine | None = None) -> Program:
        """The Program as it would run on a machine."""
        ...

    def captured_for(self, machine: Machine | None) -> str | None:
        """The device that `load` captures the model for, if it is one that can be run."""
        ...

    def machine(self, name: str | None) -> Machine:
        """The machine of this name; of None, the one that the model is meant for."""
        ...


@dataclass(frozen=True, eq=False)
class NamedBuffers:
    """Buffers alone: lives and sizes, no ops."""

    name: str
    buffers: Buffers
    capacity: int | None = None
    """Of the memory that they are meant for, if that is known."""


@dataclass(frozen=True)
class PinTexts:
    """Pins as texts, for a program that is not read yet."""

    tensors: tuple[str, ...] = ()
    """'TENSOR=MEMORY' or 'TENSOR=MEMORY@OFFSET'"""
    ops: tuple[str, ...] = ()
    """'OP=DEVICE'"""

    def __bool__(self) -> bool:
        return bool(self.tensors or self.ops)


class ProblemEvaluator(ABC):
    """What measures plans of one problem, and is made when that is known: it has to know what a plan leaves
    to kernels, and which ops run again."""

    warmups = 0

    @abstractmethod
    def check(self, kind: str, request: PlanRequest) -> None:
        """Refuse what it can't measure, before anything is read."""

    @abstractmethod
    def evaluator(self, problem: Problem) -> Evaluator:
        """Measures plans of this problem."""


def say_nothing(text: str) -> None:
    """No progress is reported."""


@dataclass(frozen=True, eq=False)
class PlanRequest:
    """What is to be planned. None, and what is empty: not said, so that a default or nothing applies."""

    program: Program | ProgramSource | NamedBuffers
    machine: Machine | None = None
    """None: the one that the program's source is meant for; of an order, one without limits."""
    problem: str | None = None
    """A name of `KINDS`; None: what suits the machine, the objective and the solver."""
    solver: str | None = None
    """Of several problems that suit, one that this solver solves is taken."""
    objective: Objective = Objective.TIME
    capacity: Capacity = field(default_factory=dict)
    costs: MeasuredCosts | Path | None = None
    """Measured times of the program's ops."""
    pins: Pins | PinTexts = field(default_factory=Pins)
    recompute: bool | None = None
    """Whether ops may run again in the backward pass; None: where nothing but a command measures."""
    keep_order: bool = False
    """In an arena: the ops keep their order, even if nothing fits in it."""
    evaluator: Evaluator | ProblemEvaluator | None = None
    """Measures plans in place of the simulator."""
    repeats: int = 5
    """Measurements of a plan."""
    noise: float = 0.0
    """Standard deviation of simulated times, as a share of them."""
    seed: int = 0
    tasks: tuple[str, ...] | None = None
    groups: str | None = None
    base: Base | None = None
    """Of graph plans: what is decided, what is placed as one, and what stands where nothing is decided."""
    problem_class: Callable[..., Problem] | None = None
    """Makes the problem in place of its kind's own class: a subclass that counts, or with options of the class
    that no command has (mapping without an evaluator, malloc-game)."""
    say: Callable[[str], None] = say_nothing
    """Hears what takes long."""

    @cached_property
    def own_machine(self) -> Machine:
        """The machine, with the capacities that are given in bytes."""
        machine = self.machine
        if machine is None:
            if isinstance(self.program, Program | NamedBuffers):
                raise BadRequest(
                    f"there is no machine for '{self.program.name}'", object="--machine", remedy="give one"
                )
            machine = self.program.machine(None)
        return with_bytes(machine, self.capacity)

    def load_program(self, machine: Machine | None) -> Program:
        """The Program, as it would run on a machine."""
        assert not isinstance(self.program, NamedBuffers)
        return self.program if isinstance(self.program, Program) else self.program.load(machine)

    def captured_for(self, machine: Machine) -> str | None:
        """The device that the program was captured for, if that is known."""
        if isinstance(self.program, Program | NamedBuffers):
            return None
        return self.program.captured_for(machine)

    def read_costs(self) -> MeasuredCosts | None:
        return read_costs(self.costs) if isinstance(self.costs, Path) else self.costs

    def resolve_pins(self, program: Program, machine: Machine) -> Pins:
        if isinstance(self.pins, Pins):
            return self.pins
        return parse_pins(program, machine, self.pins.tensors, self.pins.ops)

    def recomputes(self, program: Program) -> bool:
        """Whether ops may run again: by default where there is a backward pass and no command measures."""
        trains = bool(program.op_backward.any())
        if self.recompute and not trains:
            raise BadRequest(
                f"'{program.name}' has no backward pass for which ops could run again",
                object="--recompute",
                remedy="leave it out, or give --train",
            )
        simulated = self.evaluator is None or isinstance(self.evaluator, ProblemEvaluator)
        return trains and (simulated if self.recompute is None else self.recompute)

    def given(self) -> Iterator[tuple[str, str]]:
        """(part, its option) of what only some problems understand and was said."""
        parts = {
            "recompute": ("--recompute", self.recompute),
            "costs": ("--costs", self.costs is not None),
            "shares": ("--capacity", has_shares(self.capacity)),
            "tasks": ("--tasks", self.tasks is not None),
            "groups": ("--groups", self.groups is not None),
            "base": ("--base", self.base is not None),
            "noise": ("--noise", self.noise),
            "evaluator": ("--evaluator", self.evaluator is not None),
            "pins": ("--pin", self.pins),
            "keep_order": ("--keep-order", self.keep_order),
            "problem_class": ("problem_class", self.problem_class is not None),
        }
        return ((name, option) for name, (option, said) in parts.items() if said)

    @property
    def graph_option(self) -> str | None:
        """The first option given that graph problems alone have."""
        return next((option for part, option in self.given() if part in ("tasks", "groups", "base")), None)


def is_arena(machine: Machine) -> bool:
    """One device, and one memory for all but the weights, which have room without limit elsewhere:
    nothing is to be chosen but offsets."""
    others = [m for m in machine.reach[0] if m != machine.home[0]]
    roomy = all(machine.memories[m].capacity >= UNLIMITED for m in others)
    return len(machine.devices) == 1 and bool(others) and roomy
