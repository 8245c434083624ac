"""`ModelSource`: a model by its name, read as the machine that is planned for would run it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from loadmaster.allocation.auto import NamedBuffers
from loadmaster.allocation.buffers import buffers_as_program
from loadmaster.allocation.buffers_csv import read_buffers
from loadmaster.clock import now
from loadmaster.errors import LoadmasterError
from loadmaster.machine import Machine, load_machine
from loadmaster.offload.kind import kernel_room, with_shares
from loadmaster.program.importers import FUNCTIONS, ImportOptions
from loadmaster.program.measured_costs import apply_costs, read_costs
from loadmaster.program.models import is_workload, load_model
from loadmaster.program.program import Program
from loadmaster.program.zoo import MODELS, is_cached
from loadmaster.runs.folder import RunFolder, is_run
from loadmaster.search.problem import Problem
from loadmaster.search.registry import load_problem
from loadmaster.search.request import BadRequest, Capacity, has_shares, say_nothing, with_bytes
from loadmaster.units import UNLIMITED

Say = Callable[[str], None]


@dataclass(frozen=True)
class ModelSource:
    """A name of the zoo, a file, 'module:function', or the folder of a run, whose program it then is; and how it is
    read. It is a `ProgramSource`."""

    name: str
    format: str | None = None
    """None: by the name's ending."""
    options: ImportOptions = field(default_factory=ImportOptions)
    training: bool = False
    """A training step of a PyTorch module."""
    split_over: int | None = None
    """PyTorch: weights of more bytes are cut into slices."""
    device: str | None = None
    """PyTorch: what it is captured for."""
    costs: Path | None = None
    """A table of measured op times."""
    say: Say = say_nothing
    _took: list[float] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def own_seconds(self) -> float:
        """What `load` took so far for a function of the user's: its module and framework imported, called, traced.
        No time limit counts it."""
        return sum(self._took)

    @property
    def is_buffers(self) -> bool:
        """Whether it is a list of buffers (MiniMalloc's CSV): lives and sizes, no ops."""
        return self.format is None and Path(self.name).suffix.lower() == ".csv"

    @property
    def is_function(self) -> bool:
        """Whether it may be a PyTorch 'module:function': then the executor can run it."""
        return self.format in (None, "torch") and not self.options.args and self._is_code

    @property
    def _is_code(self) -> bool:
        """Whether it is a function of Python, of any framework."""
        return (
            self.format in (None, *FUNCTIONS)
            and ":" in self.name
            and not is_workload(self.name)
            and not is_run(self.name)
            and not Path(self.name).is_file()
        )

    @cached_property
    def of_run(self) -> Problem | None:
        """The problem of the run that the name is the folder of."""
        if not is_run(self.name):
            return None
        RunFolder.open(Path(self.name))  # says what is wrong with it, if anything is
        return load_problem(Path(self.name))

    @property
    def _must_run(self) -> bool:
        return self.training or self.split_over is not None or self.device is not None

    def planned(self) -> ModelSource | NamedBuffers:
        """What a `PlanRequest` takes: this source, or the buffers in it if it has nothing else."""
        if not self.is_buffers:
            return self
        buffers, stated = read_buffers(self.name)
        return NamedBuffers(Path(self.name).stem, buffers, stated)

    def load(self, machine: Machine | None = None) -> Program:
        """The Program. For a machine whose ops work in its first memory alone, a PyTorch module is read as the
        executor would run it. Raises `BadProgram` if there is none, and says what would help."""
        if self.of_run is not None:
            return self.of_run.program
        with self._timed():
            program = self._capture(machine) or self._import()
        if self.costs is None:
            return program
        device = None if machine is None else machine.devices[0].name
        return apply_costs(program, read_costs(self.costs), device)

    def captured_for(self, machine: Machine | None) -> str | None:
        """The device that `load` captures the model for; None if it is not one of PyTorch's, or need not run."""
        runs = machine is not None and machine.rules.reach == "first"
        if not self.is_function or not (self._must_run or runs):
            return None
        if not self._must_run and self.format is None and self._made is None:
            return None  # a function of JAX
        from loadmaster.program.importers.torch.captured import capture_device

        return capture_device(self.device)

    def machine(self, name: str | None) -> Machine:
        """The machine of this name, or the one that the model is meant for."""
        if name is None and self.of_run is not None:
            return self.of_run.machine
        stem = self.name.partition(":")[0]
        if name is None and Path(self.name).suffix.lower() == ".json":
            return load_machine(self.name)  # a graph that has its own
        if name is None and Path(self.name).is_dir():
            raise BadRequest(
                f"'{self.name}' is a folder, and no run",
                object=self.name,
                remedy=f"give one of the runs in it: 'loadmaster runs {self.name}' lists them",
            )
        if name is None and not is_workload(self.name):
            raise BadRequest(
                f"there is no machine for '{self.name}'",
                object="--machine",
                remedy=f"give --machine, for example --machine {'h200' if self.is_function else 'nnp-i'}",
            )
        return load_machine(MODELS[stem].machine if name is None else name)

    def machine_or_unlimited(self, name: str | None) -> Machine:
        """The same; for a model that is meant for none, one without limits."""
        try:
            return self.machine(name)
        except BadRequest:  # no workload with a machine of its own
            return load_machine(f"arena:{UNLIMITED}")

    def sized_machine(self, machine: Machine, capacity: Capacity, program: Program) -> Machine:
        """The machine with these capacities, in bytes or as shares of what the model's program needs."""
        machine = with_bytes(machine, capacity)
        if not has_shares(capacity):
            return machine
        measured = None if self.costs is None else read_costs(self.costs)
        room = kernel_room(program.n_ops, measured, self.captured_for(machine))
        return with_shares(machine, capacity, program, room.needed)

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = now()
        yield
        if self._is_code:
            self._took.append(now() - began)

    @cached_property
    def _made(self) -> Any:
        """What a function of PyTorch's gives, else None; it is called once."""
        from loadmaster.program.importers import torch_result

        return torch_result(self.name)

    def _capture(self, machine: Machine | None) -> Program | None:
        """The graph that is run, op by op; None if the model is not one of PyTorch's, or need not run."""
        if self._must_run and not self.is_function:
            raise BadRequest(
                f"--train, --split and --device are about PyTorch functions, and '{self.name}' is none",
                object=self.name,
                remedy="leave them out, or give module:function",
            )
        device = self.captured_for(machine)
        if device is None:
            return None
        if self.options.level != "functional" or self.options.strict:
            raise BadRequest(
                "a module that is to be run is captured as it is, without --level and --strict",
                object="--level",
                number=self.options.level,
                remedy="leave them out, or plan the file of 'loadmaster import --out net.npz'",
            )
        from loadmaster.program.importers.torch.captured import capture_spec

        result = None if self._must_run or self.format is not None else self._made
        return capture_spec(
            self.name, device, result, training=self.training, split_over=self.split_over
        ).program

    def _import(self) -> Program:
        if self.is_buffers:
            return buffers_as_program(read_buffers(self.name)[0], Path(self.name).stem)
        if self._takes_a_while():
            self.say(f"tracing '{self.name}' with JAX, once; later it comes from the cache")
        return load_model(self.name, self.format, self.options)

    def _takes_a_while(self) -> bool:
        """Whether a workload has to be traced before it can be loaded."""
        if not is_workload(self.name) or Path(self.name).exists():
            return False
        try:
            return not is_cached(self.name)
        except LoadmasterError:
            return False  # it will be refused


def split_machine(text: str, machine: str | None, say: Say = say_nothing) -> tuple[ModelSource, str | None]:
    """The model and the machine's name of 'MODEL@MACHINE', or of MODEL on the machine that is given."""
    name, _, own = text.partition("@")
    return ModelSource(name, say=say), own or machine
