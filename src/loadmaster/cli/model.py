"""MODEL and the importers' options, the same for every command that takes a model."""

from __future__ import annotations

import contextlib
import inspect
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.cli.answer import Answer, Usage
from loadmaster.cli.progress import say

if TYPE_CHECKING:
    from loadmaster.machine import Machine
    from loadmaster.plan import Plan
    from loadmaster.planner.source import ModelSource
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

    @cached_property
    def spec(self) -> ModelSource:
        """The same as types: it reads the model."""
        from loadmaster.planner.source import ModelSource
        from loadmaster.program.importers import ImportOptions

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
        split = size_of(self.split, "--split")
        return ModelSource(self.source, self.format, options, self.train, split, self.device, self.costs, say)

    def load(self, machine: Machine | None = None) -> Program:
        """The Program, as a machine would run it."""
        return self.spec.load(machine)

    def machine(self, name: str | None) -> Machine:
        """The machine the user named, or the one that the workload is meant for."""
        return self.spec.machine(name)

    def measured_by(self, evaluator: str | None) -> Model:
        """The model as later commands take it: captured for the device that an executor measured on."""
        from loadmaster.search.evaluator import EXECUTOR

        runs = evaluator is not None and evaluator.startswith(EXECUTOR)
        return replace(self, device=evaluator.removeprefix(EXECUTOR)) if evaluator and runs else self

    @property
    def calibrate_line(self) -> str:
        """The command that measures its ops, if it is a function that can be run."""
        if not self.spec.is_function:
            return ""
        options = [("--split", self.split), ("--device", self.device), ("--costs", "costs.json")]
        words = [word for option, value in options if value is not None for word in (option, value)]
        return shlex.join(["loadmaster", "calibrate", self.source, *["--train"][: self.train], *words])

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
        from loadmaster.host import command_line
        from loadmaster.runs.folder import RunFolder, hash_file, is_run

        if is_run(self.source):  # what is known of the model itself is in that run
            recorded = RunFolder.open(Path(self.source)).about.get("model")
            return recorded if isinstance(recorded, dict) else {"source": Path(self.source).name}
        given = {each.name: getattr(self, each.name) for each in fields(self)}
        words = {
            name: command_line([_from_here(str(value))])[0] if isinstance(value, str | Path) else value
            for name, value in given.items()
            if name == "source" or value not in (None, (), False)
        }
        file = self.file
        if file is None:
            return words
        named = command_line([_from_here(str(file))])[0]
        return {**words, "file": {"path": Path(named).as_posix(), "sha256": hash_file(file)}}

    @property
    def file(self) -> Path | None:
        """The file that it is read from; of 'module:function', the module's, if that is in this folder."""
        if Path(self.source).is_file():
            return Path(self.source)
        module, colon, _ = self.source.partition(":")
        if not colon or not all(part.isidentifier() for part in module.split(".")):
            return None
        place = Path(*module.split("."))
        return next(
            (each for each in (place.with_suffix(".py"), place / "__init__.py") if each.is_file()), None
        )

    @classmethod
    def of_run(cls, run: Path, remedy: str) -> Model:
        """The model that a run was started with, with its options. Raises if its file is not here, or has changed.

        A folder may come from anyone: a module that it names is only taken if that is the very file, in this folder.
        `remedy`: what to do where there is none to take.
        """
        from loadmaster.runs.folder import RunFolder, model_file
        from loadmaster.runs.log import BadRun

        folder = RunFolder.open(run)
        model, file = cls.recorded(folder.about), model_file(folder.about)
        if file is not None:
            file.check(run, remedy)
        names = None if model is None else model.file
        if model is None or (":" in model.source and (file is None or names != file.path)):
            raise BadRun(f"run '{run}' does not say which file its model is", object=str(run), remedy=remedy)
        return replace(model, costs=folder.costs)

    @classmethod
    def recorded(cls, about: Mapping[str, Any]) -> Model | None:
        """What a run's `run.json` says of its model; None: nothing that makes sense."""
        said = about.get("model")
        if not isinstance(said, dict) or not isinstance(said.get("source"), str):
            return None
        values: dict[str, Any] = {}
        for each in fields(cls):
            value = said.get(each.name, each.default)
            several = isinstance(each.default, tuple)
            if several and isinstance(value, list) and all(isinstance(one, str) for one in value):
                value = tuple(value)
            if each.name == "costs":
                value = None  # the run has its own copy
            kinds = (tuple,) if several else (bool,) if each.default is False else (str, type(None))
            if not isinstance(value, kinds):
                return None
            values[each.name] = value
        return cls(**values)


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
        from loadmaster.program.importers import as_module

        given = {name: values.pop(name) for name in ("source", *_OPTIONS)}
        frozen: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in given.items()
        }
        frozen["source"] = as_module(frozen["source"])
        return command(Model(**frozen), **values)

    everything = [first, *named, *options]
    run.__doc__ = command.__doc__
    run.__name__ = command.__name__
    # Typer reads both to find out what a command takes.
    run.__signature__ = own.replace(parameters=everything)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in everything} | {"return": Answer}
    return run


READING, TORCH = "Reading the model", "Reading a PyTorch module"
_SOURCE = Annotated[
    str, typer.Argument(metavar="MODEL", help="A name from 'loadmaster models', a file, or module:function.")
]
_OPTIONS: dict[str, tuple[Any, Any]] = {
    "format": (
        Annotated[
            str | None,
            typer.Option(
                help="onnx, tflite, hlo, jax, torch, executorch, dnn-partitioning or program; else by the ending.",
                rich_help_panel=READING,
            ),
        ],
        None,
    ),
    "shape": (
        Annotated[
            list[str],
            typer.Option(
                metavar="NAME=1,3,224,224",
                help="Dimensions of an input, or the size of a named one, as batch=1.",
                rich_help_panel=READING,
            ),
        ],
        [],
    ),
    "arg": (
        Annotated[
            list[str],
            typer.Option(metavar="f32[8,128]", help="An argument of a function.", rich_help_panel=READING),
        ],
        [],
    ),
    "weights": (
        Annotated[
            str | None,
            typer.Option(
                metavar="0,2", help="Positions of arguments that are weights.", rich_help_panel=READING
            ),
        ],
        None,
    ),
    "trip": (
        Annotated[
            list[str], typer.Option(metavar="NAME=N", help="How often a loop runs.", rich_help_panel=READING)
        ],
        [],
    ),
    "inplace": (
        Annotated[
            list[str],
            typer.Option(
                metavar="KIND", help="Ops that overwrite their input, such as relu.", rich_help_panel=READING
            ),
        ],
        [],
    ),
    "edge_unit": (
        Annotated[
            str | None,
            typer.Option(
                metavar="UNIT",
                help="Of the edges' times of a dnn-partitioning file.",
                rich_help_panel=READING,
            ),
        ],
        None,
    ),
    "level": (
        Annotated[
            str,
            typer.Option(
                help="PyTorch: functional, or core, where layers are taken apart.", rich_help_panel=TORCH
            ),
        ],
        "functional",
    ),
    "strict": (
        Annotated[
            bool,
            typer.Option(
                "--strict", help="Refuse ops whose cost would be an estimate.", rich_help_panel=READING
            ),
        ],
        False,
    ),
    "train": (
        Annotated[
            bool,
            typer.Option("--train", help="PyTorch: a training step of the module.", rich_help_panel=TORCH),
        ],
        False,
    ),
    "split": (
        Annotated[
            str | None,
            typer.Option(
                metavar="SIZE", help="PyTorch: larger weights are cut into slices.", rich_help_panel=TORCH
            ),
        ],
        None,
    ),
    "device": (
        Annotated[
            str | None,
            typer.Option(
                help="PyTorch: cuda or cpu, what it is captured for. [a GPU if there is one]",
                rich_help_panel=TORCH,
            ),
        ],
        None,
    ),
    "costs": (
        Annotated[
            Path | None,
            typer.Option(
                metavar="JSON", help="Measured op times, as 'calibrate' writes them.", rich_help_panel=READING
            ),
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


def _from_here(path: str) -> str:
    """An absolute path below the current folder as a relative one."""
    with contextlib.suppress(ValueError):
        return str(Path(path).relative_to(Path.cwd())) if Path(path).is_absolute() else path
    return path


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


# What commands about a plan read: a model, a machine with the capacity that the plan was made for, its file.

CapacityOption = Annotated[
    list[str] | None,
    typer.Option(
        "--capacity",
        metavar="MEMORY=SIZE",
        help="The capacity that the plan was made for, as 'plan' was given it: hbm=40GiB, or hbm=50%.",
    ),
]


def read_planned(
    model: Model, machine: str | None, capacity: Sequence[str] | None, plan: Path | None
) -> tuple[Program, Machine, Plan]:
    """The program of a plan file, with the ops in it that the plan runs again; its machine; the plan. Without
    a file, the model as it is and a plan that decides nothing. Of a run, its own program, machine and plan."""
    from loadmaster.plan import Plan, load_planned
    from loadmaster.runs.folder import RunFolder, is_run

    if is_run(model.source):
        refuse_for_run(model.source, machine, capacity)
        plan = RunFolder.open(Path(model.source)).plan_file if plan is None else plan
    chosen = model.machine(machine)
    program = model.load(chosen)
    chosen = sized_machine(chosen, model, program, capacity)
    if plan is None:
        return program, chosen, Plan()
    about, decided = load_planned(plan, program, chosen)
    return about, chosen, decided


def check_function(model: Model, remedy: str) -> None:
    """Refuse what is no 'module:function' of PyTorch."""
    if not model.spec.is_function:
        refuse_folder(Path(model.source))
        if Path(model.source).suffix == ".py":
            from loadmaster.program.importers import guess_format

            guess_format(model.source)  # says which functions the file has
        raise Usage(
            f"'{model.source}' is no PyTorch function, and these alone are run",
            object=model.source,
            remedy=remedy,
        )


def refuse_folder(path: Path) -> None:
    """A folder of runs is none of them."""
    from loadmaster.runs.folder import is_run

    if path.is_dir() and not is_run(path):
        raise Usage(
            f"'{path}' is a folder, and no run",
            object=str(path),
            remedy=f"give one of the runs in it: 'loadmaster runs {path}' lists them",
        )


def refuse_for_run(run: str | Path, machine: str | None, capacity: Sequence[str] | None) -> None:
    """A run has its own machine: nothing else may be said of it."""
    if machine is not None or capacity:
        option, value = ("--capacity", capacity[0]) if capacity else ("--machine", machine)
        raise Usage(
            f"{option} is for a model: run '{run}' has its own machine",
            object=option,
            number=value,
            remedy="leave it out",
        )


def sized_machine(
    machine: Machine, model: Model, program: Program, capacity: Sequence[str] | None
) -> Machine:
    """The machine with these capacities, in bytes or as shares of what the model's program needs."""
    from loadmaster.search.request import parse_capacity

    return model.spec.sized_machine(machine, parse_capacity(capacity or ()), program)
