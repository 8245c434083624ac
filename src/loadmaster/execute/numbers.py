"""Graphs that Dynamo gives numbers besides tensors: a plan has numbers of its own, and none that change.

Numbers that only count (how far a cache is filled) are computed on the host, beside one graph. Where an op looks at a
number, or the size of a tensor is not fixed, there is a graph for every value that comes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from loadmaster.errors import require

Compile = Callable[[Any, Sequence[Any]], Callable[..., Any]]


def has_numbers(module: Any) -> bool:
    """Whether there are numbers among the inputs of a graph, or tensors with sizes that are not fixed."""
    values = [node.meta.get("example_value") for node in module.graph.nodes if node.op == "placeholder"]
    return any(_is_number(each) or _varies(each) for each in values)


def compile_with_numbers(
    module: Any, inputs: Sequence[Any], compile_graph: Compile, run_as_it_is: Callable[..., Any], most: int
) -> Callable[..., Any]:
    """A graph with numbers among its inputs, by what compiles one that has tensors alone. `most`: graphs for values of
    numbers; others are run as they are."""
    counting, nodes = _counting(module), module.graph.nodes
    varies = any(_varies(node.meta.get("example_value")) for node in nodes if node.op == "placeholder")
    if counting is not None and not varies:
        return _Counted(module, counting, inputs, compile_graph)
    known: dict[Any, Callable[..., Any]] = {}
    read = _read(module)

    def call(*args: Any) -> Any:
        values = tuple(args[at].item() for at in read)
        key = (require("torch", "torch").is_grad_enabled(), values, *(_value_key(each) for each in args))
        if key not in known:
            if len(known) >= most:
                return run_as_it_is(*args)
            fixed, given = _fixed(module, args)
            known[key] = _Counted(fixed, _counting(fixed) or [], given, compile_graph)
        return known[key](*args)

    return call


class _Counted:
    """A graph of tensors, and what is computed of numbers beside it."""

    def __init__(
        self, module: Any, counting: list[Any], inputs: Sequence[Any], compile_graph: Compile
    ) -> None:
        torch = require("torch", "torch")
        self._counting = counting
        self._tensors = [at for at, each in enumerate(inputs) if isinstance(each, torch.Tensor)]
        self._results = list(_output(module).args[0])
        """Nodes, and numbers that are known."""
        plain = copy.deepcopy(module)
        names = {node.name for node in counting}
        output = _output(plain)
        output.args = (tuple(each for each in output.args[0] if _is_tensor(each, names)),)
        for node in reversed(list(plain.graph.nodes)):
            if node.name in names:
                plain.graph.erase_node(node)
        plain.recompile()
        self._compiled = compile_graph(plain, [inputs[at] for at in self._tensors])
        self._names = names

    def __call__(self, *args: Any) -> list[Any]:
        numbers = _count(self._counting, args)
        found = iter(self._compiled(*(args[at] for at in self._tensors)))
        return [
            next(found)
            if _is_tensor(each, self._names)
            else numbers.get(str(getattr(each, "name", "")), each)
            for each in self._results
        ]


def _output(module: Any) -> Any:
    return next(node for node in reversed(module.graph.nodes) if node.op == "output")


def _is_tensor(leaf: Any, numbers: set[str]) -> bool:
    return hasattr(leaf, "name") and leaf.name not in numbers


def _is_number(value: Any) -> bool:
    torch = require("torch", "torch")
    return isinstance(value, (int, float, torch.SymInt, torch.SymFloat, torch.SymBool))


def _varies(value: Any) -> bool:
    """Whether it is a tensor of which not all sizes are fixed."""
    torch = require("torch", "torch")
    return isinstance(value, torch.Tensor) and any(
        isinstance(each, torch.SymInt) for each in (*value.shape, *value.stride())
    )


def _counting(module: Any) -> list[Any] | None:
    """Nodes that make numbers of numbers, inputs among them, in order; None: an op needs one of them."""
    found: list[Any] = []
    for node in module.graph.nodes:
        number = node.op == "placeholder" and _is_number(node.meta.get("example_value"))
        if number or (
            node.op == "call_function"
            and _is_number(node.meta.get("example_value"))
            and all(each in found for each in node.all_input_nodes)
        ):
            found.append(node)
    return (
        found if all(user in found or user.op == "output" for node in found for user in node.users) else None
    )


def _count(counting: Sequence[Any], args: Sequence[Any]) -> Mapping[str, Any]:
    """Those numbers, by the names of their nodes."""
    from torch.fx.node import map_arg

    found: dict[str, Any] = {}
    if not counting:
        return found
    places = {
        node.name: at
        for at, node in enumerate(each for each in counting[0].graph.nodes if each.op == "placeholder")
    }
    for node in counting:
        if node.op == "placeholder":
            found[node.name] = args[places[node.name]]
        else:
            given = map_arg((node.args, node.kwargs), lambda each: found[each.name])
            found[node.name] = node.target(*given[0], **given[1])
    return found


def _read(module: Any) -> list[int]:
    """Which inputs are numbers that Dynamo has put into tensors: the graph begins with taking them out."""
    inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
    return [at for at, node in enumerate(inputs) if any(_takes_out(user) for user in node.users)]


def _takes_out(node: Any) -> bool:
    taken = node.op == "call_method" and node.target == "item"
    return bool(taken and node.args[0].op == "placeholder")


def _value_key(value: Any) -> Any:
    torch = require("torch", "torch")
    if not isinstance(value, torch.Tensor):
        return value
    return tuple(value.shape), value.stride(), value.dtype, value.device, value.requires_grad


def _fixed(module: Any, args: Sequence[Any]) -> tuple[Any, list[Any]]:
    """The same graph for these numbers and sizes: none of its ops has another one as an input. And example inputs, of
    which all sizes are fixed: tensors without data."""
    torch = require("torch", "torch")
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.node import map_arg

    fixed, numbers = copy.deepcopy(module), {}
    inputs = [node for node in fixed.graph.nodes if node.op == "placeholder"]
    values = dict(zip((node.name for node in inputs), args, strict=True))
    taken = {inputs[at].name: args[at].item() for at in _read(fixed)}

    class Seen(torch.fx.Interpreter):  # type: ignore[misc,name-defined]
        def run_node(self, node: Any) -> Any:
            value = taken[node.args[0].name] if _takes_out(node) else super().run_node(node)
            if node.op != "output":
                node.meta["example_value"] = value
            if node.op != "placeholder" and _is_number(value):
                numbers[node] = value
            return value

    with FakeTensorMode(allow_non_fake_inputs=True) as mode, torch.set_grad_enabled(torch.is_grad_enabled()):
        given = [
            mode.from_tensor(each, static_shapes=True) if isinstance(each, torch.Tensor) else each
            for each in args
        ]
        Seen(fixed).run(*given)
    for node in inputs:
        if not isinstance(values[node.name], torch.Tensor):
            numbers[node] = values[node.name]
    for node in fixed.graph.nodes:
        node.args, node.kwargs = map_arg((node.args, node.kwargs), lambda each: numbers.get(each, each))
    for node in reversed(list(fixed.graph.nodes)):
        if node in numbers and node.op != "placeholder":
            fixed.graph.erase_node(node)
    fixed.recompile()
    return fixed, given
