"""MODEL and the importers' options, the same for every command that takes a model."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.cli.answer import Answer, Usage
from loadmaster.cli.progress import say
from loadmaster.errors import LoadmasterError
from loadmaster.host import command_line

if TYPE_CHECKING:
    from loadmaster.machine import Machine
    from loadmaster.program import Program

MachineOption = Annotated[
    str | None,
    typer.Option(
        "--machine",
        "-m",
        metavar="MACHINE",
        help="A name from 'loadmaster machines', a TOML file, or arena:SIZE. "
        "A workload from 'loadmaster models' has one of its own.",
    ),
]


@dataclass(frozen=True)
class Model:
    """A model as the user named it; `load` makes the Program."""

    source: str
    format: str | None = None
    shape: tuple[str, ...] = ()
    arg: tuple[str, ...] = ()
    weights: str | None = None
    trip: tuple[str, ...] = ()
    inplace: tuple[str, ...] = ()
    edge_unit: str | None = None
    level: str = "functional"
    strict: bool = False
    train: bool = False
    split: str | None = None
    device: str | None = None
    costs: Path | None = None

    @property
    def is_buffers(self) -> bool:
        """Whether it is a list of buffers (MiniMalloc's CSV): lives and sizes, no ops."""
        return self.format is None and Path(self.source).suffix.lower() == ".csv"

    @property
    def is_function(self) -> bool:
        """Whether it may be a PyTorch 'module:function': then the executor can run it."""
        from loadmaster.program.zoo import MODELS

        module, colon, _ = self.source.partition(":")
        return (
            self.format in (None, "torch")
            and bool(colon)
            and not self.arg
            and module not in MODELS
            and not Path(self.source).is_file()
        )

    @property
    def words(self) -> str:
        """As a later command that is about the same Program takes it."""
        options = [("--split", self.split), ("--device", self.device), ("--costs", self.costs)]
        given = [f"{name} {value}" for name, value in options if value is not None]
        return " ".join([self.source, *(["--train"] if self.train else []), *given])

    def typed(self) -> list[str]:
        """The model and the options that read it, as they were typed."""
        words = [self.source]
        for each in fields(self)[1:]:
            option, value = f"--{each.name.replace('_', '-')}", getattr(self, each.name)
            if value is True:
                words.append(option)
            elif value != each.default:
                given = value if isinstance(value, tuple) else (value,)
                words += [word for one in given for word in (option, str(one))]
        return words

    def arguments(self) -> dict[str, Any]:
        """How the model is read, for a run's folder: without absolute paths, as JSON takes it."""
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        return {
            name: command_line([str(value)])[0] if isinstance(value, str | Path) else value
            for name, value in given.items()
            if name == "source" or value not in (None, (), False)
        }

    def load(self, machine: Machine | None = None) -> Program:
        """The Program. For a machine whose ops work in its first memory alone, a PyTorch module is read as the
        executor would run it. Raises `BadProgram` if there is none, and says what would help."""
        program = self._captured(machine) or self._imported()
        if self.costs is None:
            return program
        from loadmaster.program.measured_costs import apply_costs, read_costs

        measured = read_costs(self.costs)
        return apply_costs(program, measured, None if machine is None else machine.devices[0].name)

    def captured_for(self, machine: Machine | None) -> str | None:
        """The device that `load` captures the model for; None if it is not one of PyTorch's, or need not run."""
        runs = machine is not None and machine.rules.reach == "first"
        if not self.is_function or not (self._asked_to_run or runs):
            return None
        if not self._asked_to_run and self.format is None and self._made is None:
            return None  # a function of JAX
        from loadmaster.program.importers.torch.captured import capture_device

        return capture_device(self.device)

    @property
    def _asked_to_run(self) -> bool:
        return self.train or self.split is not None or self.device is not None

    @cached_property
    def _made(self) -> Any:
        """What a function of PyTorch's gives, else None; it is called once."""
        from loadmaster.program.importers import torch_result

        return torch_result(self.source)

    def _captured(self, machine: Machine | None) -> Program | None:
        """The graph that is run, op by op; None if the model is not one of PyTorch's, or need not run."""
        if self._asked_to_run and not self.is_function:
            raise Usage(
                f"--train, --split and --device are about PyTorch functions, and '{self.source}' is none",
                object=self.source,
                remedy="leave them out, or give module:function",
            )
        device = self.captured_for(machine)
        if device is None:
            return None
        if self.level != "functional" or self.strict:
            raise Usage(
                "a module that is to be run is captured as it is, without --level and --strict",
                object="--level",
                number=self.level,
                remedy="leave them out, or plan the file of 'loadmaster import --out net.npz'",
            )
        from loadmaster.program.importers.torch.captured import capture_spec

        result = None if self._asked_to_run or self.format is not None else self._made
        return capture_spec(
            self.source, device, result, training=self.train, split_over=size_of(self.split, "--split")
        ).program

    def _imported(self) -> Program:
        if self.is_buffers:
            from loadmaster.allocation.buffers_csv import read_buffers
            from loadmaster.allocation.buffers_program import buffers_as_program

            return buffers_as_program(read_buffers(self.source)[0], Path(self.source).stem)
        from loadmaster.program.importers import ImportOptions
        from loadmaster.program.models import load_model

        options = ImportOptions(
            shapes=dict(_shape(text) for text in self.shape),
            args=self.arg,
            weights=None if self.weights is None else _numbers(self.weights, "--weights"),
            trips=dict(_trip(text) for text in self.trip),
            inplace=tuple(kind for text in self.inplace for kind in text.split(",")),
            edge_unit=self.edge_unit,
            level=self.level,
            strict=self.strict,
        )
        if _takes_a_while(self.source):
            say(f"tracing '{self.source}' with JAX, once; later it comes from the cache")
        return load_model(self.source, self.format, options)

    def machine(self, name: str | None) -> Machine:
        """The machine the user named, or the one that the workload is meant for."""
        from loadmaster.machine import load_machine
        from loadmaster.program.zoo import MODELS

        stem = self.source.partition(":")[0]
        if name is None and Path(self.source).suffix.lower() == ".json":
            return load_machine(self.source)  # a graph that tells its own
        if name is None and stem not in MODELS:
            raise Usage(
                f"there is no machine for '{self.source}'",
                object="--machine",
                remedy="give --machine, for example --machine nnp-i",
            )
        return load_machine(MODELS[stem].machine if name is None else name)


def takes_model(command: Callable[..., Answer]) -> Callable[..., Answer]:
    """Let a command's first parameter be a `Model`: on the command line it becomes MODEL and the
    options of the importers."""
    own = inspect.signature(command, eval_str=True)
    named = [p.replace(kind=p.KEYWORD_ONLY) for p in list(own.parameters.values())[1:]]
    # A command that has its own words for MODEL annotates its first parameter with them.
    words = getattr(next(iter(own.parameters.values())).annotation, "__metadata__", None)
    declared = _SOURCE if words is None else Annotated[str, *words]
    first = _parameter("source", declared, inspect.Parameter.empty)
    options = [_parameter(name, *option) for name, option in _OPTIONS.items()]

    def run(**values: Any) -> Answer:
        given = {name: values.pop(name) for name in ("source", *_OPTIONS)}
        frozen: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in given.items()
        }
        return command(Model(**frozen), **values)

    everything = [first, *named, *options]
    run.__doc__ = command.__doc__
    run.__name__ = command.__name__
    # Typer reads both to find out what a command takes.
    run.__signature__ = own.replace(parameters=everything)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in everything} | {"return": Answer}
    return run


_SOURCE = Annotated[
    str, typer.Argument(metavar="MODEL", help="A name from 'loadmaster models', a file, or module:function.")
]
_OPTIONS: dict[str, tuple[Any, Any]] = {
    "format": (
        Annotated[
            str | None,
            typer.Option(
                help="onnx, tflite, hlo, jax, torch, executorch, dnn-partitioning or program; else by the ending."
            ),
        ],
        None,
    ),
    "shape": (
        Annotated[list[str], typer.Option(metavar="NAME=1,3,224,224", help="Dimensions of an input.")],
        [],
    ),
    "arg": (Annotated[list[str], typer.Option(metavar="f32[8,128]", help="An argument of a function.")], []),
    "weights": (
        Annotated[str | None, typer.Option(metavar="0,2", help="Positions of arguments that are weights.")],
        None,
    ),
    "trip": (Annotated[list[str], typer.Option(metavar="NAME=N", help="How often a loop runs.")], []),
    "inplace": (
        Annotated[
            list[str], typer.Option(metavar="KIND", help="Ops that overwrite their input, such as relu.")
        ],
        [],
    ),
    "edge_unit": (
        Annotated[
            str | None, typer.Option(metavar="UNIT", help="Of the edges' times of a dnn-partitioning file.")
        ],
        None,
    ),
    "level": (
        Annotated[str, typer.Option(help="PyTorch: functional, or core, where layers are taken apart.")],
        "functional",
    ),
    "strict": (
        Annotated[bool, typer.Option("--strict", help="Refuse ops whose cost would be an estimate.")],
        False,
    ),
    "train": (
        Annotated[bool, typer.Option("--train", help="PyTorch: a training step of the module.")],
        False,
    ),
    "split": (
        Annotated[
            str | None, typer.Option(metavar="SIZE", help="PyTorch: larger weights are cut into slices.")
        ],
        None,
    ),
    "device": (
        Annotated[
            str | None,
            typer.Option(help="PyTorch: cuda or cpu, what it is captured for. [a GPU if there is one]"),
        ],
        None,
    ),
    "costs": (
        Annotated[
            Path | None, typer.Option(metavar="JSON", help="Measured op times, as 'calibrate' writes them.")
        ],
        None,
    ),
}


def size_of(text: str | None, option: str) -> int | None:
    """Bytes of an option such as 256MiB."""
    from loadmaster.units import parse_bytes

    try:
        return None if text is None else parse_bytes(text, option)
    except ValueError as error:
        raise Usage(str(error), object=option, number=text, remedy="write 40GiB") from None


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    kind = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, kind, default=default, annotation=annotation)


def _takes_a_while(source: str) -> bool:
    """Whether a workload has to be traced before it can be loaded."""
    from loadmaster.program.zoo import MODELS, is_cached

    if source.partition(":")[0] not in MODELS or Path(source).exists():
        return False
    try:
        return not is_cached(source)
    except LoadmasterError:
        return False  # it will be refused


def _shape(text: str) -> tuple[str, list[int]]:
    name, equals, sizes = text.rpartition("=")
    if not equals or not name:
        raise Usage(
            f"--shape '{text}' has no '='",
            object="--shape",
            number=text,
            remedy="write --shape NAME=1,3,224,224",
        )
    return name, _numbers(sizes, "--shape")


def _trip(text: str) -> tuple[str, int]:
    name, equals, count = text.rpartition("=")
    if not equals or not name:
        raise Usage(
            f"--trip '{text}' has no '='", object="--trip", number=text, remedy="write --trip NAME=100"
        )
    return name, _numbers(count, "--trip")[0]


def _numbers(text: str, option: str) -> list[int]:
    parts = text.split(",")
    # Eighteen digits are below 2^63, and isdecimal takes digits of other scripts, hence isascii.
    if not all(part.isascii() and part.isdecimal() and len(part) <= 18 for part in parts):
        raise Usage(
            f"{option} can't take '{text}'",
            object=option,
            number=text,
            remedy="give whole numbers with commas between them",
        )
    return [int(part) for part in parts]
