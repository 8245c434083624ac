"""Nodes of an exported graph as calls: shapes from the tracer, arguments by the schema's names."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

from loadmaster.errors import BadProgram
from loadmaster.program.importers.torch.calls import Call, Type
from loadmaster.program.importers.torch.steps import Value
from loadmaster.program.types import BITS, from_numpy


def type_of(value: Any, name: str) -> Type:
    """The type of a (fake) tensor. An unknown size is an error: it is never guessed."""
    for size in value.shape:
        if not isinstance(size, int) and not _is_plain(size):
            raise BadProgram(
                f"tensor '{name}' has unknown dimension '{size}'",
                object=name,
                number=str(size),
                remedy="give example inputs whose results have fixed shapes",
            )
    dtype = from_numpy(str(value.dtype).removeprefix("torch."))
    if dtype not in BITS:
        raise BadProgram(
            f"tensor '{name}' has the element type '{dtype}', which is not known",
            object=name,
            number=dtype,
            remedy=f"use one of {', '.join(BITS)}",
        )
    return Type(tuple(int(size) for size in value.shape), dtype)


def _is_plain(size: Any) -> bool:
    """Whether a symbolic size stands for a number."""
    expression = getattr(getattr(size, "node", None), "expr", None)
    return bool(getattr(expression, "is_number", False))


def op_name(target: Any) -> str:
    """'conv2d' for aten.conv2d.default; the function's name for what is no ATen op."""
    packet = getattr(target, "overloadpacket", target)
    return str(getattr(packet, "__name__", packet))


def is_getitem(node: Any) -> bool:
    return node.op == "call_function" and node.target is operator.getitem


def is_random(node: Any) -> bool:
    """Whether a node draws random numbers. Attention may: only if it drops something."""
    tags = {str(tag) for tag in getattr(node.target, "tags", ())}
    if not any(tag.endswith("nondeterministic_seeded") for tag in tags):
        return False
    return bind(node, {})[0].get("dropout_p") != 0


def bind(node: Any, values: dict[Any, list[Value]]) -> tuple[dict[str, Any], list[Value]]:
    """Arguments by name, with types where tensors are, and the tensors in the order they come in."""
    operands: list[Value] = []

    def plain(argument: Any) -> Any:
        if hasattr(argument, "all_input_nodes"):  # a node
            if argument in values:
                found = values[argument]
                operands.extend(found)
                types = [value.type for value in found]
                return types[0] if len(types) == 1 else types
            return argument.meta.get("val")
        if isinstance(argument, list | tuple):
            return [plain(each) for each in argument]
        return argument

    schema = getattr(node.target, "_schema", None)
    if schema is None:
        named: Iterable[tuple[str, Any]] = ((str(i), each) for i, each in enumerate(node.args))
        return {name: plain(each) for name, each in named}, operands
    args: dict[str, Any] = {}
    for position, argument in enumerate(schema.arguments):
        if argument.is_out:
            continue
        if position < len(node.args):
            args[argument.name] = plain(node.args[position])
        else:
            default = argument.default_value if argument.has_default_value() else None
            args[argument.name] = plain(node.kwargs.get(argument.name, default))
    return args, operands


def call_of(node: Any, values: dict[Any, list[Value]], results: list[Type]) -> tuple[Call, list[Value]]:
    args, operands = bind(node, values)
    return Call(op_name(node.target), args, results), operands


def part_of(node: Any, values: dict[Any, list[Value]]) -> Value:
    """What a getitem takes; parts that are no tensors have no values."""
    source, number = node.args
    before = list(source.meta["val"])[:number]
    return values[source][sum(hasattr(part, "dtype") for part in before)]


def results_of(node: Any) -> list[Type]:
    """The types of the tensors that a node makes."""
    value = node.meta.get("val")
    parts = list(value) if isinstance(value, list | tuple) else [value]
    return [type_of(part, node.name) for part in parts if hasattr(part, "dtype")]


def scope_of(node: Any) -> str:
    """The path of the innermost module that the node comes from, as 'layers/3/attention'."""
    stack = node.meta.get("nn_module_stack") or {}
    path = str(next(reversed(stack.values()))[0]) if stack else ""
    return path.removeprefix("L__self__").strip(".").replace(".", "/")
