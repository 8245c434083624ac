"""Models from elsewhere: which importer reads which file, and what all importers say in the same words."""

from __future__ import annotations

import ast
import gc
import importlib
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from loadmaster.errors import BadProgram, LoadmasterError, nearest, require
from loadmaster.files import special_kind
from loadmaster.program.build import clean_name
from loadmaster.program.program import Program
from loadmaster.program.storage import load


@dataclass(frozen=True)
class ImportOptions:
    """What a user can say about a model; each importer takes what it understands."""

    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Input name -> dimensions, where the file leaves them open."""
    args: Sequence[str] = ()
    """Arguments of a function, as 'f32[8,128]'."""
    weights: Sequence[int] | None = None
    """Positions of arguments that are weights."""
    trips: Mapping[str, int] = field(default_factory=dict)
    """Loop name -> trip count, where the source does not say."""
    inplace: Sequence[str] = ()
    """Kinds of elementwise ops that overwrite their dying input (ONNX)."""
    edge_unit: str | None = None
    """Unit of the times of edges, where the file does not say (dnn-partitioning)."""
    level: str = "functional"
    """How far ops are taken apart: functional or core (PyTorch)."""
    strict: bool = False
    """Refuse ops whose cost would be an estimate."""


def _onnx(source: str, options: ImportOptions) -> Program:
    from loadmaster.program.importers.onnx.importer import import_onnx

    return import_onnx(
        source, shapes=options.shapes, strict=options.strict, inplace=options.inplace, trips=options.trips
    )


def _tflite(source: str, options: ImportOptions) -> Program:
    from loadmaster.program.importers.tflite.importer import import_tflite

    return import_tflite(source, strict=options.strict, trips=options.trips)


def _hlo(source: str, options: ImportOptions) -> Program:
    from loadmaster.program.importers.hlo.importer import import_hlo

    return import_hlo(Path(source), strict=options.strict, trips=options.trips, weights=options.weights or ())


def _jax(source: str, options: ImportOptions) -> Program:
    from loadmaster.program.importers.jax.importer import import_jax_spec

    return import_jax_spec(
        source, options.args, name=source, weights=options.weights, strict=options.strict, trips=options.trips
    )


def _torch(source: str, options: ImportOptions, result: Any = None) -> Program:
    from loadmaster.program.importers.torch.importer import import_torch_spec

    return import_torch_spec(source, result, level=options.level, strict=options.strict)


def _executorch(source: str, options: ImportOptions) -> Program:
    from loadmaster.program.importers.executorch.importer import import_executorch_spec

    return import_executorch_spec(source, strict=options.strict)


def _function(source: str, options: ImportOptions) -> Program:
    """PyTorch if the function takes nothing and gives a module, else JAX."""
    result = None if options.args else torch_result(source)
    return _jax(source, options) if result is None else _torch(source, options, result)


def _dnn_partitioning(source: str, options: ImportOptions) -> Program:
    from loadmaster.program.importers.dnn_partitioning import import_dnn_partitioning

    return import_dnn_partitioning(source, edge_unit=options.edge_unit)


def _program(source: str, options: ImportOptions) -> Program:
    return load(source)


FORMATS: dict[str, Callable[[str, ImportOptions], Program]] = {
    "onnx": _onnx,
    "tflite": _tflite,
    "hlo": _hlo,
    "jax": _jax,
    "torch": _torch,
    "executorch": _executorch,
    "dnn-partitioning": _dnn_partitioning,
    "program": _program,
}
FUNCTIONS = ("function", "jax", "torch", "executorch")
"""Formats whose source is 'module:function'; 'function': whichever of JAX and PyTorch it is."""
ENDINGS = {
    ".onnx": "onnx",
    ".tflite": "tflite",
    ".hlo": "hlo",
    ".txt": "hlo",
    ".json": "dnn-partitioning",
    ".npz": "program",
}


_A_FUNCTION = "give a function that returns the module and example inputs, as net.py:build"
_CONVERTED = "convert it to .onnx or .tflite"
INSTEAD = {
    ".ort": "give the .onnx file that it was made from",
    ".mlir": "give the text of the compiled module, jax.jit(f).lower(*args).compile().as_text(), as a file .hlo",
    ".task": "it is an archive: unzip it, and give a .tflite file of it",
    **dict.fromkeys((".pt", ".pth", ".pt2", ".bin", ".ckpt", ".safetensors"), _A_FUNCTION),
    **dict.fromkeys((".pb", ".h5", ".keras", ".caffemodel", ".mlmodel", ".gguf"), _CONVERTED),
}
"""Files that hold models too, or parts of them, and are not read -> what to give."""


def import_model(source: str, format: str | None = None, options: ImportOptions | None = None) -> Program:
    """Import a file, or 'module:function' of JAX or PyTorch. The format follows from the ending."""
    found = format or guess_format(source)
    if found == "function":
        return _function(source, options or ImportOptions())
    if found not in FORMATS:
        raise BadProgram(
            f"'{source}' has the unknown format '{found}'",
            object=source,
            remedy=f"give --format {', '.join(FORMATS)}",
        )
    if found not in FUNCTIONS and not Path(source).is_file():
        refuse_special(source)
        raise BadProgram(f"there is no file '{source}'", object=source, remedy="check the path")
    with no_collection():
        return FORMATS[found](source, options or ImportOptions())


@contextmanager
def no_collection() -> Iterator[None]:
    """Hundreds of thousands of new objects that are all kept: searching them for garbage takes long."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def as_module(source: str) -> str:
    """'folder/net.py:build', a file below this folder, as Python has it: 'folder.net:build'; all else as it is."""
    file, _, function = source.rpartition(":")
    parts = Path(file.removesuffix(".py")).parts
    named = bool(parts) and function.isidentifier() and all(part.isidentifier() for part in parts)
    return f"{'.'.join(parts)}:{function}" if file.endswith(".py") and named else source


def _functions(file: Path) -> str:
    """`module:function` for the first functions of a Python file, which is not run."""
    module = ".".join(file.with_suffix("").parts)
    try:
        body = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        body = []
    names = [each.name for each in body if isinstance(each, ast.FunctionDef) and each.name[0] != "_"]
    return " or ".join(f"{module}:{name}" for name in names[:3] or ["FUNCTION"])


def guess_format(source: str) -> str:
    """The format of a model by its name; a name that tells none is refused."""
    ending = Path(source).suffix.lower()
    if ending in ENDINGS:
        return ENDINGS[ending]
    module, colon, function = source.partition(":")
    if colon and function.isidentifier() and all(part.isidentifier() for part in module.split(".")):
        return "function"
    if ending == ".py":
        raise BadProgram(
            f"'{source}' is a Python file, and the model is one of its functions",
            object=source,
            remedy=f"write {_functions(Path(source))}",
        )
    file, _, function = source.rpartition(":")
    if file.endswith(".py"):
        raise BadProgram(
            f"'{source}' is a function of a Python file that is not below this folder",
            object=source,
            remedy=f"go to the file's folder and write {Path(file).stem}:{function}",
        )
    if ending in INSTEAD:
        raise BadProgram(f"files '{ending}' are not read", object=source, remedy=INSTEAD[ending])
    raise BadProgram(
        f"the format of '{source}' can't be told from its name",
        object=source,
        remedy=f"give --format {', '.join(FORMATS)}",
    )


def refuse_special(source: str) -> None:
    """Say of a folder, a pipe or a device what it is: only regular files are read."""
    kind = special_kind(source)
    if kind is not None:
        raise BadProgram(f"'{source}' is {kind} and no model file", object=source, remedy="give a file")


def malformed(message: str, object: str, number: int | str | None = None) -> BadProgram:
    """The error for a file that breaks its format's rules: no user can mend it by other options."""
    return BadProgram(message, object=object, number=number, remedy="export the model again")


def refuse_unknown_loops(trips: Mapping[str, int], loops: list[str]) -> None:
    """Refuse a trip count for a loop that the model does not have."""
    for name in trips:
        if name not in loops:
            raise BadProgram(
                f"the model has no loop '{clean_name(name)}'{nearest(name, loops)}",
                object=name,
                remedy=f"name one of {', '.join(loops[:8]) or 'none'}",
            )


def note_estimates(kinds: Counter[str], strict: bool) -> list[str]:
    """The warning that so many ops of these unknown kinds got an estimate; `strict` makes it an error."""
    if not kinds:
        return []
    names = ", ".join(f"{kind.removeprefix('unknown:')} ×{count}" for kind, count in kinds.most_common())
    total = f"{kinds.total()} ops of {len(kinds)} unknown kinds"
    if strict:
        raise BadProgram(
            f"{total}: {names}",
            object=names,
            number=kinds.total(),
            remedy="import without --strict to estimate them",
        )
    return [f"{total} got an estimate: {names}"]


FRAMEWORKS = {"torch": "torch", "jax": "agents"}
"""Packages that a user's module may import, and our extras that bring them."""


def load_function(spec: str) -> Callable[..., Any]:
    """Import 'module:function' from the current directory or the installed packages."""
    module_name, _, function_name = spec.partition(":")
    if not module_name or not function_name:
        raise BadProgram(f"'{spec}' names no function", object=spec, remedy="write module:function")
    if module_name.endswith(".py"):
        guess_format(spec)  # it is not below this folder, and refused
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        if error.name is not None and error.name in FRAMEWORKS:
            require(error.name, FRAMEWORKS[error.name])
        raise BadProgram(
            f"module '{module_name}' can't be imported: {error}",
            object=module_name,
            remedy="run this where the module is",
        ) from error
    except LoadmasterError:
        raise
    except (Exception, SystemExit) as error:  # the user's code, and all that it imports
        reason = (str(error) or "no reason given").splitlines()[0]
        raise BadProgram(
            f"module '{module_name}' can't be imported: {type(error).__name__}: {reason}",
            object=module_name,
            remedy=f"see that 'python -c \"import {module_name}\"' works",
        ) from error
    finally:
        sys.path.remove(here)
    function = getattr(module, function_name, None)
    if not callable(function):
        known = [key for key, value in vars(module).items() if callable(value)]
        raise BadProgram(
            f"module '{module_name}' has no function '{function_name}'{nearest(function_name, known)}",
            object=spec,
            remedy="check the name",
        )
    return function  # type: ignore[no-any-return]


def torch_result(spec: str) -> Any:
    """What a function gives if there is a PyTorch module in it, else None.

    It is called to see, on the meta device, if it takes no arguments and PyTorch is installed.
    """
    function = load_function(spec)
    if not takes_nothing(function) or find_spec("torch") is None:
        return None
    from loadmaster.program.importers.torch.importer import has_module, made_on_meta

    result = made_on_meta(function)
    return result if has_module(result) else None


def takes_nothing(function: Callable[..., Any]) -> bool:
    """Whether a function can be called without arguments."""
    try:
        inspect.signature(function).bind()
    except (TypeError, ValueError):
        return False
    return True
