"""`PlanRequest`: what is to be planned, as types; whoever reads texts makes one. Capacities are bytes, or shares
of what a program needs."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Protocol

from loadmaster.errors import BadMachine, LoadmasterError, nearest
from loadmaster.machine.machine import Machine
from loadmaster.program.measured_costs import MeasuredCosts, read_costs
from loadmaster.program.program import Program
from loadmaster.search.evaluator import Measures
from loadmaster.search.pins import Pins, parse_pins
from loadmaster.search.problem import Problem
from loadmaster.units import parse_bytes


class BadRequest(LoadmasterError):
    """What is to be planned makes no sense together."""


@dataclass(frozen=True)
class Bytes:
    """A capacity in bytes."""

    count: int
    text: str = ""
    """As it was written: it becomes part of the machine's name."""

    def __str__(self) -> str:
        return self.text or str(self.count)


@dataclass(frozen=True)
class Share:
    """A capacity as a part of what a program needs if nothing ever leaves the memory: 0.5 is a half."""

    part: float

    def __str__(self) -> str:
        return f"{100 * self.part:g}%"


Capacity = Mapping[str, Bytes | Share]
"""Memory -> its capacity."""
GivenCapacity = Mapping[str, Bytes | Share | int | str] | Sequence[str]
"""As users write capacities: {"sram": 2**21}, {"sram": "2MiB"}, {"hbm": "50%"}, ["hbm=50%"]."""


def parse_capacity(given: GivenCapacity) -> dict[str, Bytes | Share]:
    """Capacities from texts such as 'sram=2MiB' and 'hbm=50%', or from sizes by name of the memory."""
    if isinstance(given, Mapping):
        return {memory: _typed(memory, size) for memory, size in given.items()}
    pairs = [text.partition("=") for text in ([given] if isinstance(given, str) else given)]
    for text, sign, _ in pairs:
        if not sign and text[:1].isdigit():
            raise BadRequest(
                f"--capacity '{text}' names no memory",
                object="--capacity",
                number=text,
                remedy=f"write hbm={text}",
            )
    sizes: dict[str, Bytes | Share] = {}
    for memory, _, size in pairs:
        if memory in sizes:
            raise BadRequest(
                f"--capacity gives '{memory}' twice, the second time {size}",
                object="--capacity",
                number=size,
                remedy="give each memory one capacity",
            )
        sizes[memory] = _parse_size(memory, size)
    return sizes


def _typed(memory: str, size: Bytes | Share | int | str) -> Bytes | Share:
    if isinstance(size, Bytes | Share):
        return size
    if isinstance(size, int | str) and not isinstance(size, bool):
        return _parse_size(memory, str(size))
    raise BadRequest(
        f"the capacity {size!r} of '{memory}' is neither bytes nor text",
        object=memory,
        number=size,
        remedy="give bytes, '2MiB' or '50%'",
    )


def _parse_size(memory: str, size: str) -> Bytes | Share:
    if not size.endswith("%"):
        try:
            return Bytes(parse_bytes(size, f"the capacity of '{memory}'"), size)
        except ValueError as error:
            raise BadMachine(
                f"{error}", object=memory, number=size, remedy=f"write {memory or 'sram'}=2MiB"
            ) from None
    try:
        part = float(size.removesuffix("%")) / 100
    except ValueError:
        part = 0.0
    if not 0 < part <= 100:
        raise BadRequest(
            f"--capacity '{memory}={size}' is no share of a memory",
            object="--capacity",
            number=f"{memory}={size}",
            remedy="write hbm=50%",
        )
    return Share(part)


def has_shares(capacity: Capacity) -> bool:
    """Whether some are parts of what a program needs."""
    return any(isinstance(size, Share) for size in capacity.values())


def with_bytes(machine: Machine, capacity: Capacity) -> Machine:
    """The machine with those capacities that are given in bytes; its name tells them. One that has and tells them
    already, as in a file that was written beside a plan, stays as it is."""
    sizes = {memory: size for memory, size in capacity.items() if isinstance(size, Bytes)}
    sized = machine
    for memory, size in sizes.items():
        sized = sized.with_capacity(memory, size.count)
    written = ",".join(f"{memory}={size}" for memory, size in sizes.items())
    if not sizes or (sized.memories == machine.memories and machine.name.endswith(f":{written}")):
        return machine
    return replace(sized, name=f"{machine.name}:{written}")


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


class ProblemSource(ABC):
    """What is no program and makes its own problem, of one `kind`."""

    kind: ClassVar[str]
    name: str

    @abstractmethod
    def make_problem(self, request: PlanRequest) -> Problem:
        """The problem of a request for it."""


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
    def prepare(self, request: PlanRequest) -> Problem:
        """The problem whose plans it runs, where maps are made into such plans."""

    @abstractmethod
    def evaluator(self, problem: Problem) -> Measures:
        """Measures plans of this problem."""


def say_nothing(text: str) -> None:
    """No progress is reported."""


@dataclass(frozen=True, eq=False)
class PlanRequest:
    """What is to be planned. None, and what is empty: not said, so that a default or nothing applies."""

    program: Program | ProgramSource | ProblemSource
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
    evaluator: Measures | ProblemEvaluator | None = None
    """Measures plans in place of the simulator."""
    repeats: int = 5
    """Measurements of a plan."""
    noise: float = 0.0
    """Standard deviation of simulated times, as a share of them."""
    seed: int = 0
    tasks: tuple[str, ...] | None = None
    groups: str | None = None
    base: Any = None
    """Of graph plans: what is decided, what is placed as one, and what stands where nothing is decided (a
    `graph.Base`)."""
    problem_class: Callable[..., Any] | None = None
    """Makes the problem in place of its kind's own class: a subclass that counts, or with options of the class
    that no command has (mapping without an evaluator, malloc-game)."""
    say: Callable[[str], None] = say_nothing
    """Hears what takes long."""

    @cached_property
    def own_machine(self) -> Machine:
        """The machine, with the capacities that are given in bytes."""
        machine = self.machine
        if machine is None:
            if isinstance(self.program, Program | ProblemSource):
                raise BadRequest(
                    f"there is no machine for '{self.program.name}'", object="--machine", remedy="give one"
                )
            machine = self.program.machine(None)
        return with_bytes(machine, self.capacity)

    def load_program(self, machine: Machine | None) -> Program:
        """The Program, as it would run on a machine."""
        assert not isinstance(self.program, ProblemSource)
        return self.program if isinstance(self.program, Program) else self.program.load(machine)

    def captured_for(self, machine: Machine) -> str | None:
        """The device that the program was captured for, if that is known."""
        if isinstance(self.program, Program | ProblemSource):
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
    def says_what(self) -> bool:
        """Whether anything is said of the problem but the program: a run that goes on has all of it."""
        named = self.machine is not None or self.problem is not None or self.recompute is not None
        parts = {part for part, _ in self.given()} - {"costs", "evaluator"}
        return named or bool(self.capacity or parts) or self.objective != Objective.TIME

    @property
    def graph_option(self) -> str | None:
        """The first option given that graph problems alone have."""
        return next((option for part, option in self.given() if part in ("tasks", "groups", "base")), None)
