"""Higher-order ops: calls of other calls, such as `cond` and `flex_attention`, which have graphs of their own among their
arguments, and of a user's op that writes over what it is given (it gets copies, which are results).

    nest_graphs(module, graph)
    inline_regions(module)                     # those that are no more than a part of a graph

To a plan such a call is one op: what its graphs make between them is its workspace.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from loadmaster.errors import require

_LOOPS = frozenset(["while_loop", "while_loop_stack_output"])
_EFFECTS = "with_effects"
"""An op that does something beside its results: it complains of a singular matrix, or prints. What keeps such calls in
order is a tensor of no elements, which each takes from the one before it."""


class Nested:
    """A higher-order op whose graphs stand among its arguments as what they are."""

    namespace = "higher_order"

    def __init__(self, target: Any, graphs: tuple[Any, ...]) -> None:
        self.target = target
        self.tags = frozenset(tag for graph in graphs for tag in _tags_of(graph))
        """Those of the ops in it: whether any draws random numbers."""
        if self.has_effects:  # no plan may run it twice
            self.tags |= {require("torch", "torch").Tag.nondeterministic_seeded}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.target(*_as_tuples(args), **kwargs)

    def __str__(self) -> str:
        return f"{self.namespace}.{self.__name__}"

    @property
    def __name__(self) -> str:
        return str(self.target.__name__)

    @property
    def is_loop(self) -> bool:
        """Whether how long it takes depends on values, so that it may never end with others."""
        return self.__name__ in _LOOPS

    @property
    def has_effects(self) -> bool:
        """Whether it does something beside its results."""
        return self.__name__ == _EFFECTS


def nest_graphs(module: Any, graph: Any) -> None:
    """Put graphs that stand beside a graph among the arguments of the calls that have them."""
    torch = require("torch", "torch")
    beside = {node: attribute(module, node.target) for node in graph.nodes if node.op == "get_attr"}
    own = {node: each for node, each in beside.items() if isinstance(each, torch.fx.GraphModule)}
    for node in graph.nodes:
        if isinstance(node.target, torch._ops.HigherOrderOperator) and _is_flat(node):
            graphs = tuple(own[each] for each in node.all_input_nodes if each in own)
            given = (node.args, node.kwargs)
            node.args, node.kwargs = torch.fx.map_arg(given, lambda each: own.get(each, each))
            node.target = Nested(node.target, graphs)
    for node in own:
        if not node.users:
            graph.erase_node(node)


def inline_regions(module: Any) -> None:
    """Put what is compiled once (`torch.compiler.nested_compile_region`) where it is called, in a graph of torch functions:
    to a plan, its ops are ops as others are."""
    torch = require("torch", "torch")
    for each in module.children():  # regions, and graphs of higher-order ops
        if isinstance(each, torch.fx.GraphModule):
            inline_regions(each)
    graph, count = module.graph, 0
    calls = [node for node in graph.nodes if str(node.target) == "invoke_subgraph"]
    for call in calls:
        inner, _, *given = call.args
        region = attribute(module, inner.target)
        own = dict(zip((node for node in region.graph.nodes if node.op == "placeholder"), given, strict=True))
        with graph.inserting_before(call):
            for node in region.graph.nodes:
                if node.op == "output":
                    results = torch.fx.map_arg(node.args[0], own.__getitem__)
                elif node.op == "get_attr":
                    name, count = f"_region_{count}", count + 1
                    setattr(module, name, attribute(region, node.target))
                    own[node] = graph.get_attr(name)
                    own[node].meta = dict(node.meta)
                elif node.op != "placeholder":
                    own[node] = graph.node_copy(node, own.__getitem__)
        for user in list(call.users):
            user.replace_all_uses_with(results[user.args[1]])
            graph.erase_node(user)
        graph.erase_node(call)
        if not inner.users:
            graph.erase_node(inner)
    if calls:
        module.recompile()


def _is_flat(node: Any) -> bool:
    """Whether tensors stand in nothing but sequences, as a plan knows them: those of a Triton kernel stand in dicts."""
    found: list[Any] = []

    def look(value: Any) -> None:
        if hasattr(value, "all_input_nodes"):
            found.append(value)
        elif isinstance(value, list | tuple):
            for each in value:
                look(each)

    look((*node.args, *node.kwargs.values()))
    return set(found) == set(node.all_input_nodes) and not isinstance(node.meta.get("val"), dict)


def has_nested(graph: Any) -> bool:
    """Whether a graph has such calls. `cond` looks at a value on the host."""
    return any(isinstance(node.target, Nested) for node in graph.nodes)


def attribute(module: Any, path: str) -> Any:
    """What a path of names leads to."""
    for part in path.split("."):
        module = getattr(module, part)
    return module


def _tags_of(module: Any) -> Iterator[Any]:
    torch = require("torch", "torch")
    for each in module.modules():
        if isinstance(each, torch.fx.GraphModule):
            for node in each.graph.nodes:
                yield from getattr(node.target, "tags", ())


def _as_tuples(value: Any) -> Any:
    """Sequences as tuples, which such ops insist on."""
    return tuple(_as_tuples(each) for each in value) if isinstance(value, list | tuple) else value
