"""Graphs of `torch.compile` as captured ones: what AOTAutograd hands to a backend, forward and backward in one.

    prepared = prepare(graph_module, forward_outputs=2)        # a joint graph; None: of inference
    captured = prepared.captured("gpt2", roles)

One `Role` per primal says what the planner may do with it. The same graph can be captured with other roles: where
the caller has tensors on the device, they are no part of a plan.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from loadmaster.errors import BadProgram, require
from loadmaster.program.importers.torch.batch import split_batch
from loadmaster.program.importers.torch.captured import Captured, make_captured
from loadmaster.program.importers.torch.graph import (
    Given,
    Result,
    Traced,
    checks,
    copied,
    drop_idle,
    is_getitem,
    is_random,
    op_name,
    tidy,
    writes,
)
from loadmaster.program.importers.torch.joined import (
    join_in_place,
    join_losses,
    join_products,
    lies_alike,
    shows,
)
from loadmaster.program.importers.torch.nested import attribute, nest_graphs
from loadmaster.program.importers.torch.norms import lay_out_groups, restore_norms, type_statistics
from loadmaster.program.importers.torch.sample_axes import Batch, find_batch
from loadmaster.program.program import TensorKind

_SELF = ("L['self']", "L__self__", "L['mod']", "L['fn']")
"""How paths of layers begin in what Dynamo traces."""


@dataclass(frozen=True)
class Role:
    """What one of the graph's primals is to the planner."""

    kind: TensorKind = TensorKind.INPUT
    source: str = ""
    """The name of a weight."""
    held: bool = False
    """The caller has it on the device."""


@dataclass(frozen=True, eq=False)
class Prepared:
    """A functional ATen graph in which the forward pass comes first."""

    graph: Any
    """torch.fx.Graph: placeholders, calls of ATen overloads, getitems, output."""
    primals: tuple[str, ...]
    """Placeholders of the forward call, in order."""
    tangents: tuple[str, ...]
    """Those of the backward call."""
    forward_outputs: int | None
    """So many leaves belong to the forward call; None: there is no backward call."""
    backward: frozenset[str] = frozenset()
    """Names of the nodes of the backward call."""
    constants: Mapping[str, Any] = field(default_factory=dict)
    updates: tuple[int, ...] = ()
    """Primals that the forward call changes: the last so many of its leaves are their new values."""
    replaced: frozenset[int] = frozenset()
    """Of those, the ones that get other memory (`weight.data = …`): whoever shares the old keeps that."""
    plain: Any = None
    """The graph of inference before calls were joined; None: of training."""

    @property
    def leaves(self) -> tuple[Any, ...]:
        """What the graph returns: fx nodes, or None."""
        output = next(node for node in reversed(self.graph.nodes) if node.op == "output")
        return tuple(output.args[0])

    @cached_property
    def updated_in_place(self) -> frozenset[int]:
        """Primals over which their new values can be written as soon as those are made: nothing reads the old ones
        afterwards."""
        place = {node: at for at, node in enumerate(self.graph.nodes)}
        by_name = {node.name: node for node in place}
        first = len(self.leaves) if self.forward_outputs is None else self.forward_outputs
        made = dict(zip(self.updates, self.leaves[first - len(self.updates) : first], strict=True))
        return frozenset(
            at
            for at, node in made.items()
            if at not in self.replaced and _replaces(node, by_name[self.primals[at]], place)
        )

    def read_by(self, names: Collection[str]) -> frozenset[int]:
        """Primals that these calls read, as they are or through views."""
        found = set()
        for node in self.graph.nodes:
            for source in node.all_input_nodes if node.name in names else ():
                root = source
                while root.op == "call_function" and shows(root):
                    root = root.args[0]
                found.add(root.name)
        return frozenset(at for at, name in enumerate(self.primals) if name in found)

    def batch(self, inputs: Sequence[int]) -> Batch:
        """Where the samples of these primals are in the graph; refuses one that may mix them."""
        if self.plain is None or self.updates:
            raise BadProgram(
                "a graph that is trained or changes what it is given can't be computed in parts",
                object="batch",
                remedy="use a smaller batch",
            )
        return find_batch(self.plain, [self.primals[at] for at in inputs])

    def in_parts(self, batch: Batch, parts: int) -> Prepared:
        """The same, computed for so many parts of the batch one after another."""
        graph = split_batch(self.plain, batch, parts)
        _join_calls(graph)
        return replace(self, graph=graph)

    def captured(
        self,
        name: str,
        roles: Sequence[Role],
        *,
        sinks: Sequence[int] = (),
        stays: Sequence[int] = (),
        hold_tangents: bool = False,
    ) -> Captured:
        """The Program in which primals have these roles. `sinks`: leaves that the caller takes on the device as they
        are made; `stays`: at the end; `hold_tangents`: it brings tangents there."""
        given = [
            Given(node, role.kind, role.source, -1 if role.kind != TensorKind.INPUT else at, held=role.held)
            for at, (node, role) in enumerate(zip(self.primals, roles, strict=True))
        ]
        for at, node in enumerate(self.tangents):
            position = len(self.primals) + at
            given.append(Given(node, TensorKind.INPUT, position=position, held=hold_tangents, late=True))
        given += [Given(name, TensorKind.WEIGHT, name) for name in self.constants]
        taken, staying = frozenset(sinks), frozenset(stays)
        first = len(self.leaves) if self.forward_outputs is None else self.forward_outputs
        results = [
            Result(
                getattr(leaf, "name", ""),
                what="output" if at < first else "gradient",
                name="" if at < first else str(at - first),
                sink=at in taken,
                stays=at in staying,
                late=at >= first,
            )
            for at, leaf in enumerate(self.leaves)
        ]
        traced = Traced(self.graph, given, results, dict(self.constants), set(self.backward))
        captured = make_captured(traced, name)
        if self.forward_outputs is None:
            return captured
        forward = sum(node not in self.backward for node in captured.op_node)
        return replace(captured, forward_ops=forward)


def _replaces(made: Any, primal: Any, place: Mapping[Any, int]) -> bool:
    """Whether nothing reads a primal after its new value is made."""
    while made.op == "call_function" and _is_view(made):
        made = made.all_input_nodes[0]
    shown = [primal]
    for node in shown:  # it grows
        for user in node.users:
            if place[user] > place[made] or (user.op == "output" and user is not made):
                return False
            if _is_view(user):
                shown.append(user)
    return bool(made.op == "call_function")


def prepare(module: Any, forward_outputs: int | None, primals: int, name: str) -> Prepared:
    """A copy of AOTAutograd's graph with nothing in it but calls of ATen ops that somebody needs."""
    graph = copied(module.graph)
    nest_graphs(module, graph)
    constants = _lift_constants(module, graph)
    updates, replaced = _as_results(graph, forward_outputs)
    if forward_outputs is not None:
        forward_outputs += len(updates)
    drop_idle(graph)
    _drop_same(graph)
    type_statistics(graph)
    restore_norms(graph)
    inputs = [node for node in graph.nodes if node.op == "placeholder" and node.name not in constants]
    backward = _forward_first(graph, inputs[primals:], forward_outputs)
    _name_layers(graph)
    given = [Given(node.name, TensorKind.INPUT) for node in inputs]
    given += [Given(each, TensorKind.WEIGHT) for each in constants]
    tidy(Traced(graph, given, []), name)
    _drop_clones(graph)
    backward |= lay_out_groups(graph, backward)
    plain = None
    if forward_outputs is None:
        plain = copied(graph)
        _free_constants(plain)
        _join_calls(graph)
    backward |= join_losses(graph)
    names = [node.name for node in inputs]
    return Prepared(
        graph,
        tuple(names[:primals]),
        tuple(names[primals:]),
        forward_outputs,
        backward,
        constants,
        tuple(names.index(each) for each in updates),
        frozenset(names.index(each) for each in replaced),
        plain,
    )


def _free_constants(graph: Any) -> None:
    """Let constants that are made like another tensor (`x.new_zeros`) be made without it: they have no samples."""
    torch = require("torch", "torch")
    for node in graph.nodes:
        value = {"new_zeros": 0, "new_ones": 1}.get(op_name(node.target))
        if node.op == "call_function" and value is not None:
            like = node.meta["val"]
            node.target, node.args = torch.ops.aten.full.default, (list(map(int, like.shape)), value)
            node.kwargs = {"dtype": like.dtype, "device": like.device}


def _join_calls(graph: Any) -> None:
    join_in_place(graph)
    join_products(graph)


def _as_results(graph: Any, forward_outputs: int | None) -> tuple[list[str], set[str]]:
    """Let the forward call return what it would write over its inputs, or put in their place; gives the names of all of
    them, and of the latter."""
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    found: dict[str, Any] = {}
    replaced: set[str] = set()
    # `tensor.data = …`, before and since PyTorch 2.15.
    sets = ("aten.set_.source_Tensor", "aten.shallow_copy_data_.default")
    for node in list(graph.nodes):
        is_set = node.op == "call_function" and str(node.target) in sets
        changes = is_set or (node.op == "call_function" and op_name(node.target) == "copy_")
        if not changes or node.args[0].op != "placeholder":
            continue
        target, value = node.args[:2]
        found[target.name] = value
        if is_set:
            replaced.add(target.name)
        node.replace_all_uses_with(value)
        graph.erase_node(node)
    leaves = list(output.args[0])
    first = len(leaves) if forward_outputs is None else forward_outputs
    output.args = ([*leaves[:first], *found.values(), *leaves[first:]],)
    return list(found), replaced


def _drop_clones(graph: Any) -> None:
    """Take out copies that nothing can tell from what they are of: no op here writes over anything. Layers that drop
    nothing leave them, and gradients of what was written in part. What is given or returned keeps its own."""
    for node in list(graph.nodes):
        name = op_name(node.target) if node.op == "call_function" else ""
        if name not in ("clone", "copy"):
            continue
        into, source = node.args[0], node.args[1 if name == "copy" else 0]
        root = source
        while root.op == "call_function" and shows(root):
            root = root.args[0]
        returned = any(user.op == "output" for user in (*node.users, *source.users))
        one, other = source.meta["val"], node.meta["val"]
        alike = lies_alike(one, other) or (
            (one.shape, one.dtype) == (other.shape, other.dtype)
            and all(_puts(user, node) for user in node.users)
        )
        if root.op == "call_function" and not returned and alike:
            users = list(node.users)
            node.replace_all_uses_with(source)
            graph.erase_node(node)
            _show_again(source, users)
            if name == "copy":
                _drop_unused(graph, into)


def _drop_unused(graph: Any, node: Any) -> None:
    """Take out what was only there to be written over, with what it shows."""
    while node.op == "call_function" and not node.users and not is_random(node):
        inputs = node.all_input_nodes
        graph.erase_node(node)
        if not inputs:
            return
        node = inputs[0]


_SCATTERS = frozenset(("slice_scatter", "select_scatter", "as_strided_scatter", "diagonal_scatter"))


def _puts(node: Any, value: Any) -> bool:
    """Whether a call puts a value into a part of another: however that lies, the result is the same."""
    scatters = node.op == "call_function" and op_name(node.target) in _SCATTERS
    return scatters and node.args[0] is not value and node.args[1] is value


def _show_again(node: Any, users: Sequence[Any]) -> None:
    """Let what looked at a copy of a node's value look at that itself: views are known by their storage."""
    for user in users:
        if is_getitem(user):
            user.meta["val"] = node.meta["val"][user.args[1]]
        elif _is_view(user) and user.args[0] is node:
            user.meta["val"] = user.target(node.meta["val"], *user.args[1:], **user.kwargs)
        else:
            continue
        _show_again(user, list(user.users))


def _is_view(node: Any) -> bool:
    return bool(getattr(node.target, "is_view", False))


def _lift_constants(module: Any, graph: Any) -> dict[str, Any]:
    """Tensors that the tracer has put beside the graph become placeholders, so that a plan can move them."""
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    found: dict[str, Any] = {}
    first = next(iter(graph.nodes))
    for node in list(graph.nodes):
        if node.op != "get_attr":
            continue
        value = attribute(module, node.target)
        if not hasattr(value, "dtype"):
            continue  # `tidy` refuses it by name
        with graph.inserting_before(first):
            placed = graph.placeholder(f"constant_{len(found)}")
        placed.meta["val"] = node.meta.get("val", value)
        with unset_fake_temporarily():  # it has a value, unlike all others here
            found[placed.name] = value.detach().clone()
        node.replace_all_uses_with(placed)
        graph.erase_node(node)
    return found


def _drop_same(graph: Any) -> None:
    """Take out calls that give their own argument back, as `type_as` does for a tensor of that type. One that writes
    over it does something all the same: `tidy` refuses it."""
    for node in list(graph.nodes):
        if node.op != "call_function" or writes(node):
            continue
        value = node.meta.get("val")
        if not hasattr(value, "untyped_storage"):
            continue
        if value.is_sparse:
            raise BadProgram(
                f"'{node.name}' makes a sparse tensor, which has no place of one size",
                object=node.name,
                remedy="use dense gradients, as nn.Embedding(sparse=False) has",
            )
        for source in node.all_input_nodes:
            if _is_same(source.meta.get("val"), value):
                node.replace_all_uses_with(source)
                graph.erase_node(node)
                break


def _is_same(one: Any, other: Any) -> bool:
    if not hasattr(one, "untyped_storage"):
        return False
    return bool(
        one.untyped_storage()._cdata == other.untyped_storage()._cdata
        and one.dtype == other.dtype
        and one.shape == other.shape
        and one.stride() == other.stride()
        and one.storage_offset() == other.storage_offset()
        and one.is_conj() == other.is_conj()
        and one.is_neg() == other.is_neg()
    )


def _forward_first(graph: Any, tangents: Sequence[Any], forward_outputs: int | None) -> frozenset[str]:
    """Order the graph so that all that the forward call runs comes first; gives the names of the rest."""
    if forward_outputs is None:
        return frozenset()
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    calls = [node for node in graph.nodes if node.op == "call_function"]
    late = set(tangents)
    for node in calls:
        if any(source in late for source in node.all_input_nodes):
            late.add(node)
    needed = {leaf for leaf in output.args[0][:forward_outputs] if leaf is not None}
    needed |= {node for node in calls if checks(node) and node not in late}
    last = -1
    for at in range(len(calls) - 1, -1, -1):
        if calls[at] in needed:
            needed.update(calls[at].all_input_nodes)
            last = max(last, at)
    if needed & late:
        node = next(iter(needed & late))
        raise BadProgram(
            f"'{node.name}' is a result of the forward pass and needs the backward pass",
            object=node.name,
            remedy="return it from the backward pass alone",
        )
    rest = [node for at, node in enumerate(calls) if at > last or node in late]
    for node in rest:
        output.prepend(node)
    return frozenset(node.name for node in rest)


def _name_layers(graph: Any) -> None:
    """Let every node know its layer as 'h.0.attn': a backward node that of the forward node it belongs to."""
    for node in graph.nodes:
        stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
        path = str(next(reversed(stack.values()))[0]) if stack else ""
        for prefix in _SELF:
            path = path.removeprefix(prefix)
        node.meta["nn_module_stack"] = {path: (path.strip("."), None)}
