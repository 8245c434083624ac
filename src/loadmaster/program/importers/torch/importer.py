"""PyTorch modules as Programs, through torch.export on the meta device: nothing is computed.

    program = import_torch(module, (tokens,), name="llama")

Shapes and layers come from the exporter; parameters are weights, buffers too unless a run changes
them, then they are state. Views share storage and take no time.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from loadmaster.errors import BadProgram, require
from loadmaster.program.importers import load_function
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
    with quiet(), torch.no_grad():
        exported = exported_program(module, args, kwargs, name)
        exported = exported.run_decompositions(_decompositions(torch, level))
    return emit(_graph(exported, views), name, strict=strict)


def import_torch_spec(spec: str, result: Any = None, **options: Any) -> Program:
    """`import_torch` for 'module:function', a function that gives (module, args) or (module, args,
    kwargs) and is called with the meta device as the default, if its `result` isn't there yet."""
    require("torch", "torch")
    result = made_on_meta(load_function(spec)) if result is None else result
    return import_torch(*model_and_inputs(result, spec), **{"name": spec, **options})


def made_on_meta(function: Callable[[], Any]) -> Any:
    """What a function gives where new tensors have shapes and no data."""
    torch = require("torch", "torch")
    with torch.device("meta"), torch.no_grad():
        return function()


def model_and_inputs(result: Any, spec: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """(module, args, kwargs) from what a user's function returned."""
    if not is_model(result):
        raise BadProgram(
            f"'{spec}' does not return (nn.Module, args) or (nn.Module, args, kwargs)",
            object=spec,
            remedy="return the module and a tuple of its example inputs",
        )
    module, args, *rest = result
    return module.eval(), tuple(args), dict(rest[0]) if rest else {}


def is_model(result: Any) -> bool:
    """Whether a function's result is a PyTorch module with example inputs."""
    torch = require("torch", "torch")
    return (
        isinstance(result, tuple)
        and len(result) in (2, 3)
        and isinstance(result[0], torch.nn.Module)
        and isinstance(result[1], tuple | list)
    )


def exported_program(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, name: str) -> Any:
    """torch.export's result, without dropouts that do nothing."""
    torch = require("torch", "torch")
    try:
        exported = torch.export.export(module, tuple(args), dict(kwargs or {}), strict=False)
    except Exception as error:  # the exporter has dozens of ways to say no
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise BadProgram(
            f"torch.export can't read '{name}': {reason}",
            object=name,
            remedy="make the module exportable with torch.export.export",
        ) from error
    for node in list(exported.graph.nodes):
        idle = node.op == "call_function" and op_name(node.target) in _DROPOUTS and not node.args[2]
        if idle and all(user.op != "output" for user in node.users):
            node.replace_all_uses_with(node.args[0])
            exported.graph.erase_node(node)
    return exported


@contextmanager
def quiet() -> Iterator[None]:
    """The exporter warns of its own deprecated parts, which a user can't change."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


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
