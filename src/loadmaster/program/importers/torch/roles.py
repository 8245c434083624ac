"""What goes into and comes out of a graph of ATen calls. Plain data around torch.fx."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from loadmaster.errors import BadProgram
from loadmaster.program.importers.torch.read import is_getitem, op_name
from loadmaster.program.program import TensorKind


def placeholders(graph: Any) -> dict[str, Any]:
    """The nodes through which a torch.fx graph is given its values (PyTorch's word), by name."""
    return {node.name: node for node in graph.nodes if node.op == "placeholder"}


@dataclass(frozen=True)
class Given:
    """One tensor among the graph's placeholders."""

    node: str
    """Name of the fx node."""
    kind: TensorKind
    """WEIGHT (constants and unchanged buffers too), STATE or INPUT."""
    source: str = ""
    """Name of the parameter, buffer or constant; empty for a user's input."""
    position: int = -1
    """Number of a user's input among the leaves of (args, kwargs)."""
    tensor: int = -1
    """Row in the Program; -1 for a weight that nobody reads."""
    rows: tuple[int, int] | None = None
    """It is `source[low:high]`; None: all of it."""


@dataclass(frozen=True)
class Result:
    """One leaf of what the graph returns, in the order of the output node's arguments."""

    node: str
    """Name of the fx node; empty if the leaf is a number or None."""
    part: int = 0
    """Which of the node's tensors it is."""
    what: str = "output"
    """'output', 'loss', 'gradient' or 'update' (a buffer's new value)."""
    name: str = ""
    """The parameter of a gradient, the buffer of an update."""
    tensor: int = -1
    """Row in the Program; -1 for what was given and for what is no tensor."""
    rows: tuple[int, int] | None = None
    """It is the gradient of `name[low:high]`; None: of all of it."""


@dataclass
class Traced:
    """A functional graph and its roles, before there is a Program."""

    graph: Any
    """torch.fx.Graph: placeholders, calls of ATen overloads, getitems, output."""
    given: list[Given]
    results: list[Result]
    constants: dict[str, Any] = field(default_factory=dict)
    backward: set[str] = field(default_factory=set)
    """Names of the nodes of the backward pass."""


def drop_idle(graph: Any) -> None:
    """Take out what only tells autograd something."""
    for node in list(graph.nodes):
        if node.op == "call_function" and op_name(node.target) in ("detach", "alias"):
            node.replace_all_uses_with(node.args[0])
            graph.erase_node(node)


def tidy(traced: Traced, name: str) -> None:
    """Leave nothing in the graph but calls of ATen ops that somebody needs."""
    graph, given = traced.graph, {each.node for each in traced.given}
    for node in graph.nodes:
        value = node.meta.get("val")
        if is_getitem(node) and isinstance(value, bool | int | float):
            node.replace_all_uses_with(value)  # a part that is a plain number
        if node.op == "call_function" and op_name(node.target) == "as_strided":
            _relative(node)
    for node in reversed(list(graph.nodes)):
        tensor = node.op == "output" or (node.op == "placeholder" and node.name in given)
        if not tensor and not node.users:
            graph.erase_node(node)
    for node in graph.nodes:
        known = node.op in ("placeholder", "output") or is_getitem(node)
        if not known and not (node.op == "call_function" and hasattr(node.target, "_schema")):
            raise BadProgram(
                f"'{name}' calls '{node.target}', which is no ATen op",
                object=name,
                number=node.name,
                remedy="write that part with plain tensor ops",
            )
        if any(alias.is_write for alias in _aliases(node)):
            raise BadProgram(
                f"'{name}' has '{node.target}', which writes over its argument",
                object=name,
                number=node.name,
                remedy="use the op that returns a new tensor",
            )


def _relative(node: Any) -> None:
    """Let a strided view begin where its source begins, wherever a runtime puts that."""
    source, size, stride, *offset = node.args
    if offset and offset[0] == source.meta["val"].storage_offset():
        node.args = (source, size, stride)


def _aliases(node: Any) -> list[Any]:
    arguments = node.target._schema.arguments if hasattr(node.target, "_schema") else []
    return [argument.alias_info for argument in arguments if argument.alias_info is not None]
