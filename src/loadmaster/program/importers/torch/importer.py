"""PyTorch modules as Programs, through torch.export on the meta device: nothing is computed.

    program = import_torch(module, (tokens,), name="llama")

Shapes and layers come from the exporter; parameters are weights, buffers too unless a run changes
them, then they are state. Views share storage and take no time.
"""

from __future__ import annotations

import functools
import io
import logging
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import loadmaster
from loadmaster.errors import BadProgram, LoadmasterError, require
from loadmaster.program.importers import load_function, takes_nothing
from loadmaster.program.importers.torch.graph import (
    Graph,
    Step,
    Value,
    call_of,
    emit,
    is_getitem,
    made,
    op_name,
    part_of,
    results_of,
    scope_of,
    type_of,
)
from loadmaster.program.program import Program, TensorKind

LEVELS = ("functional", "core")
VIEWS = ("alias", "copy")
_STRIDED = frozenset({"permute", "transpose", "t", "movedim", "swapaxes"})
"""Views that change the order of elements: targets without strides must copy."""
_DROPOUTS = frozenset({"dropout", "feature_dropout", "alpha_dropout"})


def import_torch(
    module: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str,
    level: str = "functional",
    views: str = "alias",
    strict: bool = False,
) -> Program:
    """Export an `nn.Module` over example inputs and read its graph.

    `level`: 'functional' keeps the ops that the module calls; 'core' decomposes them into the core
    ATen ops, attention excepted. `views="copy"` makes transposes real ops. Modules and inputs
    on the meta device cost no memory.
    """
    if level not in LEVELS:
        raise BadProgram(
            f"there is no level '{level}'",
            object="--level",
            number=level,
            remedy=f"use {' or '.join(LEVELS)}",
        )
    if views not in VIEWS:
        raise BadProgram(
            f"views can't be '{views}'", object="views", number=views, remedy=f"use {' or '.join(VIEWS)}"
        )
    torch = require("torch", "torch")
    with misfits_told(module, args, kwargs, name), quiet(), torch.no_grad():
        exported = exported_program(module, args, kwargs, name, _decompositions(torch, level))
    return emit(_graph(exported, views), name, strict=strict)


def import_torch_spec(spec: str, result: Any = None, **options: Any) -> Program:
    """`import_torch` for 'module:function', a function that gives (module, args) or (module, args,
    kwargs) and is called with the meta device as the default, if its `result` isn't there yet."""
    require("torch", "torch")
    result = made_on_meta(load_function(spec)) if result is None else result
    return import_torch(*model_and_inputs(result, spec), **{"name": spec, **options})


def made_on_meta(function: Callable[[], Any]) -> Any:
    """What a function gives where new tensors have shapes and no data.

    Modules whose code looks at values while they are built are built on the CPU with parameters that have
    no data, and really on the CPU where that is not enough.
    """
    torch = require("torch", "torch")
    _check_takes_nothing(function)
    for place, finished in ((torch.device("meta"), _as_is), (_parameters_on_meta(), _rest_on_meta)):
        try:
            with place, torch.no_grad():
                return finished(function())
        except (Exception, SystemExit) as error:
            if "meta" not in str(error):
                raise _own_fault(function, error) from error
    return made_on_cpu(function)


def _as_is(result: Any) -> Any:
    return result


def _rest_on_meta(result: Any) -> Any:
    """A model whose parameters are on the meta device with its buffers and inputs there too."""
    torch = require("torch", "torch")
    from torch.utils._pytree import tree_map_only

    if not is_model(result):
        return result
    module, *inputs = result
    return (module.to("meta"), *tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), inputs))


def made_on_cpu(function: Callable[[], Any]) -> Any:
    """What a function gives, with all of its data."""
    torch = require("torch", "torch")
    _check_takes_nothing(function)
    try:
        with torch.device("cpu"):
            return function()
    except (Exception, SystemExit) as error:
        raise _own_fault(function, error) from error


def _check_takes_nothing(function: Callable[..., Any]) -> None:
    if not takes_nothing(function):
        name = _name_of(function)
        raise BadProgram(
            f"'{name}' can't be called without arguments",
            object=name,
            remedy="give a function that takes none, and calls it",
        )


def _name_of(function: Callable[..., Any]) -> str:
    return f"{getattr(function, '__module__', '')}:{getattr(function, '__name__', function)}"


def _own_fault(function: Callable[[], Any], error: Exception | SystemExit) -> BaseException:
    """The error of a user's function, as one that is not ours."""
    if isinstance(error, LoadmasterError | OSError):
        return error
    name = _name_of(function)
    reason = (str(error).strip() or "no reason given").splitlines()[0]
    last = traceback.extract_tb(error.__traceback__)[-1]
    return BadProgram(
        f"'{name}' raises {type(error).__name__}: {reason} ({Path(last.filename).name}, line {last.lineno})",
        object=name,
        remedy="call it in Python to see all of it",
    )


@contextmanager
def _parameters_on_meta() -> Iterator[None]:
    """Let modules lose the data of each parameter as soon as they have it."""
    torch = require("torch", "torch")
    from torch.utils.weak import WeakTensorKeyDictionary

    register = torch.nn.Module.register_parameter
    known = WeakTensorKeyDictionary()  # a parameter of two modules stays one

    def register_on_meta(module: Any, name: str, parameter: Any) -> None:
        register(module, name, parameter)
        has_shape = parameter is not None and not torch.nn.parameter.is_lazy(parameter)
        if has_shape and parameter.device.type != "meta":
            if parameter not in known:
                known[parameter] = torch.nn.Parameter(parameter.to("meta"), parameter.requires_grad)
            module._parameters[name] = known[parameter]

    torch.nn.Module.register_parameter = register_on_meta
    try:
        with torch.device("cpu"):
            yield
    finally:
        torch.nn.Module.register_parameter = register


def model_and_inputs(
    result: Any, spec: str, *, training: bool = False
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """(module, args, kwargs) from what a user's function returned, in evaluation mode unless it is to be
    trained: then every layer is in the mode that the function left it in."""
    if not is_model(result):
        raise BadProgram(
            f"'{spec}' does not return (nn.Module, args) or (nn.Module, args, kwargs): it returns {_shown(result)}",
            object=spec,
            remedy="return the module and a tuple of its example inputs",
        )
    module, args, *rest = result
    is_lazy = require("torch", "torch").nn.parameter.is_lazy
    for name, each in (*module.named_parameters(), *module.named_buffers()):
        if is_lazy(each):
            raise BadProgram(
                f"'{name}' of what '{spec}' returns has no shape yet",
                object=spec,
                number=name,
                remedy="call the module once with its inputs before it is returned",
            )
    return module if training else module.eval(), tuple(args), dict(rest[0]) if rest else {}


def is_model(result: Any) -> bool:
    """Whether a function's result is a PyTorch module with example inputs."""
    torch = require("torch", "torch")
    return (
        isinstance(result, tuple)
        and len(result) in (2, 3)
        and isinstance(result[0], torch.nn.Module)
        and isinstance(result[1], tuple | list)
        and all(isinstance(each, Mapping) for each in result[2:])
    )


def has_module(result: Any) -> bool:
    """Whether there is a PyTorch module in a function's result, with example inputs or not."""
    torch = require("torch", "torch")
    parts = result if isinstance(result, tuple | list) else (result,)
    return any(isinstance(part, torch.nn.Module) for part in parts)


def _shown(result: Any) -> str:
    """The types of what a function gave."""
    if not isinstance(result, tuple):
        return type(result).__name__
    return f"({', '.join(type(part).__name__ for part in result)})"


def exported_program(
    module: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None,
    name: str,
    decompositions: dict[Any, Callable[..., Any]] | None = None,
) -> Any:
    """torch.export's result, without dropouts that do nothing; functional, if there are decompositions."""
    torch = require("torch", "torch")
    named = dict(kwargs or {})
    try:
        with _plain_results(module, keeps_cache(named)):
            exported = torch.export.export(module, tuple(args), named, strict=False)
        for node in list(exported.graph.nodes):
            idle = node.op == "call_function" and op_name(node.target) in _DROPOUTS and not node.args[2]
            if idle and all(user.op != "output" for user in node.users):
                node.replace_all_uses_with(node.args[0])
                exported.graph.erase_node(node)
        return exported if decompositions is None else exported.run_decompositions(decompositions)
    except Exception as error:  # the exporter has dozens of ways to say no
        raise BadProgram(
            f"torch.export can't read '{name}': {why_not(error)}",
            object=name,
            remedy="see that it runs with these inputs in Python, and let it branch on no tensor's values; "
            "loadmaster.fit runs it as it is",
        ) from error


@contextmanager
def misfits_told(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, name: str, *, training: bool = False
) -> Iterator[None]:
    """Where a module can't be traced, it is called once as it is: if that fails too, it is the inputs that are refused."""
    try:
        yield
    except BadProgram:
        failure = _failure(module, args, dict(kwargs or {}), training)
        if failure is None:
            raise
        raise fails_itself(name, failure) from failure


def _failure(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], training: bool) -> Exception | None:
    """The error of a module's own call; None: it works, or that can't be told without data. Its inputs and buffers are
    afterwards what they were."""
    torch = require("torch", "torch")
    from torch.utils._pytree import tree_map_only

    try:
        before = [(buffer, buffer.clone()) for buffer in module.buffers()]
        own, named = tree_map_only(torch.Tensor, torch.clone, (tuple(args), dict(kwargs)))
    except Exception:  # a lazy module's buffers can't be copied
        return None
    try:
        with quiet(), torch.set_grad_enabled(training), torch.random.fork_rng(devices=[]):
            module(*own, **named)
    except Exception as error:  # the user's code
        return None if "meta" in str(error).lower() else error
    finally:
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)
    return None


def fails_itself(name: str, error: Exception) -> BadProgram:
    """The refusal of inputs on which a module fails as the user has it."""
    return BadProgram(
        f"'{name}' itself fails on these inputs: {why_not(error).removesuffix('.')}",
        object=name,
        remedy="see that it runs with them in Python",
    )


_LOOKS_AT_VALUES = {
    "GuardOnDataDependentSymNode": "it branches on a tensor's values",
    "PendingUnbackedSymbolNotFound": "a tensor's size depends on values",
}
"""What a tracer's errors mean, by type."""


def why_not(error: Exception) -> str:
    """A tracer's reason in one line, with the line of the user's code."""
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return f"{_LOOKS_AT_VALUES.get(type(error).__name__, reason)}{_own_line(error)}"


def _own_line(error: Exception) -> str:
    """The innermost line of code that is neither ours nor PyTorch's nor Python's, in brackets."""
    torch = require("torch", "torch")
    libraries = {Path(str(each.__file__)).parent for each in (torch, loadmaster)}
    python = Path(traceback.__file__).parent
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        above = Path(frame.filename).parents
        standard = python in above and "site-packages" not in frame.filename
        if frame.line and not standard and libraries.isdisjoint(above):
            code = frame.line.rstrip(":")
            return f" ({Path(frame.filename).name}, line {frame.lineno}: {code})"
    return ""


def keeps_cache(kwargs: Mapping[str, Any]) -> bool:
    """Whether a call asks for the cache: by name, since models of transformers always give one."""
    return bool(kwargs.get("use_cache"))


def plain_result(result: Any, caches: bool) -> Any:
    """What a module returns, of tensors, numbers and None alone: data classes become tuples of their fields.
    Of other objects, such as a `DynamicCache`, the tensors are kept if `caches`, else nothing."""
    torch = require("torch", "torch")
    from torch.utils._pytree import tree_map

    def plain(leaf: Any) -> Any:
        if leaf is None or isinstance(leaf, torch.Tensor | bool | int | float | str):
            return leaf
        if is_dataclass(leaf):
            parts = (getattr(leaf, each.name) for each in fields(leaf))
            return tuple(plain_result(part, caches) for part in parts)
        return _tensors_inside(leaf, set()) if caches else None

    return tree_map(plain, result)


def _tensors_inside(value: Any, seen: set[int]) -> list[Any]:
    """The tensors that an object holds, in the order in which it was given them."""
    torch = require("torch", "torch")
    if isinstance(value, torch.Tensor):
        return [value]
    if id(value) in seen:
        return []
    seen.add(id(value))
    parts = value.values() if isinstance(value, Mapping) else value
    if not isinstance(value, Mapping | list | tuple):
        parts = vars(value).values() if hasattr(value, "__dict__") else ()
    return [tensor for part in parts for tensor in _tensors_inside(part, seen)]


@contextmanager
def _plain_results(module: Any, caches: bool) -> Iterator[None]:
    """Let a module return what the exporter knows."""
    whole, own = module.forward, module.__dict__.get("forward")

    @functools.wraps(whole)
    def forward(*args: Any, **kwargs: Any) -> Any:
        return plain_result(whole(*args, **kwargs), caches)

    module.forward = forward
    try:
        yield
    finally:
        del module.forward
        if own is not None:
            module.forward = own


@contextmanager
def quiet() -> Iterator[None]:
    """The exporter warns of its own deprecated parts, which a user can't change, and prints whole graphs
    before it says no."""
    silent = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(silent)


def _decompositions(torch: Any, level: str) -> dict[Any, Callable[..., Any]]:
    if level == "functional":
        return {}
    table = torch.export.default_decompositions()
    for target in list(table):
        if op_name(target) == "scaled_dot_product_attention":
            table.pop(target)
    return dict(table)


def _graph(exported: Any, views: str) -> Graph:
    graph = Graph()
    values: dict[Any, list[Value]] = {}
    signature = exported.graph_signature
    changed = {spec.target for spec in signature.output_specs if spec.kind.name == "BUFFER_MUTATION"}
    roles = {spec.arg.name: spec for spec in signature.input_specs if hasattr(spec.arg, "name")}
    for position, node in enumerate(exported.graph.nodes):
        if node.op == "placeholder":
            _given(graph, values, node, roles.get(node.name), changed)
        elif is_getitem(node) and node.args[0] in values:
            values[node] = [part_of(node, values)]
        elif node.op == "call_function":
            _call(graph, values, node, position, views)
    nodes = {node.name: node for node in exported.graph.nodes}
    states = {value.name: value for value in graph.given}
    for spec in signature.output_specs:
        node = nodes.get(getattr(spec.arg, "name", ""))
        if node not in values:
            continue
        (value,) = values[node]
        if spec.kind.name == "BUFFER_MUTATION":
            graph.updates.append((states[spec.target], value))
        elif value.given is None:
            graph.outputs.append(value)
    return graph


def _given(graph: Graph, values: dict[Any, list[Value]], node: Any, spec: Any, changed: set[str]) -> None:
    if not hasattr(node.meta.get("val"), "dtype"):
        return  # a number or a flag
    role = "USER_INPUT" if spec is None else spec.kind.name
    name = node.name if role == "USER_INPUT" else str(spec.target)
    kind = TensorKind.INPUT if role == "USER_INPUT" else TensorKind.WEIGHT
    if role == "BUFFER" and spec.target in changed:
        kind = TensorKind.STATE
    type = type_of(node.meta["val"], name)
    value = Value(type, name, type.bytes, given=kind)
    values[node] = [value]
    graph.given.append(value)


def _call(graph: Graph, values: dict[Any, list[Value]], node: Any, position: int, views: str) -> None:
    results = results_of(node)
    if not results:
        graph.folded += 1
        return
    call, operands = call_of(node, values, results)
    view = _is_view(node, call.op, views) and len(operands) == 1
    base = operands[0] if view else None
    names = [node.name if i == 0 else f"{node.name}:{i}" for i in range(len(results))]
    values[node] = [made(type, name, base) for type, name in zip(results, names, strict=True)]
    graph.steps.append(Step(node.name, call, operands, values[node], scope_of(node), position, view))


def _is_view(node: Any, op: str, views: str) -> bool:
    if views == "copy" and op in _STRIDED:
        return False
    return op == "_unsafe_view" or bool(getattr(node.target, "is_view", False))
