"""Layers that are alike are traced once: AOTAutograd looks at every op two or three times, and a model has the same
thirty layers.

    shared = share_layers(module, inputs)      # a graph of torch functions; None: no layers are alike
    joint = …                                  # what AOTAutograd makes of it: one call in place of each such layer
    expand_layers(joint)                       # the graph that it would have made of the whole

A layer is a run of ops that Dynamo has found in one call of a module. Two are alike if they do the same to tensors of the
same kind. What they make between them is the same then, up to the weights; results are those ops, in the same order.
"""

from __future__ import annotations

import itertools
import operator
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from loadmaster.errors import require
from loadmaster.program.importers.torch.graph import is_getitem, op_name, writes
from loadmaster.program.importers.torch.nested import attribute

LEAST_OPS = 8
"""A layer of fewer is traced where it stands."""
LEAST_SAVED = 48
"""So many ops must be spared by all layers of a kind: one of them is traced by itself, and each has a call."""

_NAMES = """
    view reshape transpose permute unsqueeze squeeze expand expand_as view_as flatten unflatten contiguous t swapaxes
    swapdims movedim moveaxis narrow select chunk split split_with_sizes tensor_split unbind to type type_as float half
    bfloat16 detach getitem dropout
"""
_VIEWS = frozenset(_NAMES.split())
"""Functions that may give a view of their first argument, or itself, and change nothing."""
_IDLE = ("_log_api_usage_once", "setitem")
"""Functions that give nothing, and may be a part of a layer."""
_HARMLESS = (*_IDLE, "_assert", "_check", "broadcast_shapes", "lazy_load_decompositions")
"""How functions begin that give no tensor, and do not change how others are traced."""
_OPENS, _CLOSES = "_enter_autocast", "_exit_autocast"


class LayersDiffer(Exception):
    """A layer is used in another way than the one that was traced."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name
        """Of its call."""


class _NotPlain(Exception):
    """An argument is none of those that are known to be the same for all layers."""


@dataclass(eq=False)
class _Region:
    """The ops of one layer."""

    nodes: list[Any]
    path: str
    """Of its module."""
    autocasts: tuple[Any, ...]
    """Nodes that open those which it is traced under."""
    given: list[Any] = field(default_factory=list)
    """What it reads of others, in order."""
    roots: list[Any] = field(default_factory=list)
    """What others read of it, or views of which they read."""
    trained: tuple[bool, ...] = ()
    """Which of those autograd follows."""
    outside: list[Any] = field(default_factory=list)
    """Views that others read: they are taken of the roots."""


@dataclass(eq=False)
class _Traced:
    """ATen ops of a layer: those of its forward pass, and of the backward pass, if there is one."""

    graph: Any
    module: Any
    """Where its constants are."""

    @property
    def placeholders(self) -> list[Any]:
        return [node for node in self.graph.nodes if node.op == "placeholder"]

    @property
    def leaves(self) -> list[Any]:
        return list(next(node for node in reversed(self.graph.nodes) if node.op == "output").args[0])


@dataclass(eq=False)
class _Kind:
    """Layers that are alike."""

    module: Any
    """The graph of torch functions of the first of them."""
    given: list[tuple[Any, ...]]
    results: int
    trained: tuple[bool, ...]
    path: str
    forward: _Traced
    backward: _Traced | None = None
    saved: list[tuple[str, int]] = field(default_factory=list)
    """What the backward pass reads: ("given", number) or ("made", number of a leaf of the forward graph)."""
    tangents: list[tuple[Any, ...]] = field(default_factory=list)


_KINDS: dict[str, tuple[_Kind, str]] = {}
"""By name of a call, while a graph is traced: of which kind it is, and the path of its layer."""
_NUMBERS = itertools.count()


class Shared:
    """A graph in which layers that are alike are one call each."""

    def __init__(self, module: Any, layers: Mapping[str, tuple[_Kind, _Region]]) -> None:
        torch = require("torch", "torch")
        self._source, self._layers = module, layers
        called = {region.nodes[0]: (name, region) for name, (_, region) in layers.items()}
        self.module = torch.fx.GraphModule(module, _with_calls(module.graph, called))
        self.module.meta.update(module.meta)

    @contextmanager
    def known(self) -> Iterator[None]:
        """While it is traced."""
        _KINDS.update({name: (kind, region.path) for name, (kind, region) in self._layers.items()})
        try:
            yield
        finally:
            for name in self._layers:
                del _KINDS[name]

    def without(self, name: str) -> Shared | None:
        """The same with this layer as it is; None: no others are alike."""
        rest = {each: layer for each, layer in self._layers.items() if each != name}
        kinds = Counter(id(kind) for kind, _ in rest.values())
        rest = {each: layer for each, layer in rest.items() if kinds[id(layer[0])] > 1}
        return Shared(self._source, rest) if rest else None

    def __len__(self) -> int:
        return len(self._layers)


def share_layers(module: Any, inputs: Sequence[Any]) -> Shared | None:
    """A graph of torch functions with one call in place of each of the layers that are alike; None: there are none.
    `inputs`: tensors without data, on the device on which the graph will run."""
    torch = require("torch", "torch")
    from torch._guards import detect_fake_mode

    mode = detect_fake_mode(list(inputs))
    if mode is None:
        return None
    device = next((each.device for each in inputs if each.ndim), torch.device("cpu"))
    layers: dict[str, tuple[_Kind, _Region]] = {}
    for regions in _find(module.graph):
        kind = _trace(module, regions[0], mode, device)
        if kind is not None:
            layers |= {f"layer {next(_NUMBERS)}": (kind, region) for region in regions}
    return Shared(module, layers) if layers else None


# Which layers are alike.


def _find(graph: Any) -> list[list[_Region]]:
    """Layers that are alike, the largest possible, in groups."""
    autocasts = _autocasts(graph)
    if autocasts is None:
        return []
    trained = _with_gradients(graph)
    parts: list[list[Any]] = [[node for node in graph.nodes if node.op != "placeholder"]]
    found: list[list[_Region]] = []
    depth = 0
    while parts:
        runs = [run for part in parts for run in _runs(part, depth)]
        sizes = Counter(_size(run, depth) for run in runs)
        groups: dict[Any, list[_Region]] = defaultdict(list)
        parts = []
        for run in runs:
            key = region = None
            within = autocasts.get(run[0])
            is_one = all(autocasts.get(node) == within for node in run)
            if within is not None and is_one and sizes[_size(run, depth)] > 1:
                region = _Region(run, _stack(run[0])[depth][1], within)
                key = _signature(region, trained)
            if key is None or region is None:
                parts.append(run)
            else:
                groups[key].append(region)
        for regions in groups.values():
            if (len(regions) - 1) * len(regions[0].nodes) >= LEAST_SAVED:
                found.append(regions)
            else:
                parts += [region.nodes for region in regions]
        depth += 1
    return found


def _stack(node: Any) -> list[tuple[str, str, str]]:
    """The calls of modules that a node is in: which call it is, of which path, of which class."""
    known = node.meta.get("nn_module_stack") or {}
    return [(key, str(value[0]), str(value[1])) for key, value in known.items()]


def _runs(nodes: Sequence[Any], depth: int) -> Iterator[list[Any]]:
    """What lies in one call of a module, so many calls deep."""

    def call(node: Any) -> str:
        stack = _stack(node)
        return stack[depth][0] if node.op.startswith("call_") and len(stack) > depth else ""

    for key, run in itertools.groupby(nodes, call):
        found = list(run)
        if key and len(found) >= LEAST_OPS:
            yield found


def _size(run: Sequence[Any], depth: int) -> tuple[str, int]:
    return _stack(run[0])[depth][2], len(run)


def _autocasts(graph: Any) -> dict[Any, tuple[Any, ...]] | None:
    """The autocasts of the graph itself that each node is traced under, but for nodes with a gradient mode of their own
    or in a transform of `torch.func`; None: there is something else that changes how others are traced."""
    torch = require("torch", "torch")
    found: dict[Any, tuple[Any, ...]] = {}
    within: tuple[Any, ...] = ()
    enabled, transforms = torch.is_grad_enabled(), 0
    for node in graph.nodes:
        name = _name(node)
        if enabled == torch.is_grad_enabled() and not transforms:
            found[node] = within
        if name == _OPENS:
            within = (*within, node)
        elif name == _CLOSES:
            within = tuple(each for each in within if each is not node.args[0])
        elif name == "_set_grad_enabled":
            enabled = node.args[0]
        elif name.endswith("_increment_nesting"):
            transforms += 1
        elif name.endswith("_decrement_nesting"):
            transforms -= 1
        elif node.op.startswith("call_") and node.meta.get("example_value") is None:
            if name.startswith(_HARMLESS):
                continue
            return None
    return found


def _name(node: Any) -> str:
    if node.op == "call_method":
        return str(node.target)
    return str(getattr(node.target, "__name__", "")) if node.op == "call_function" else ""


def _tensors(node: Any) -> list[Any] | None:
    """The tensors that a node makes; None: it makes something else."""
    value = node.meta.get("example_value")
    parts = list(value) if isinstance(value, list | tuple) else [value]
    return parts if parts and all(_is_plain(each) for each in parts) else None


def _is_plain(value: Any) -> bool:
    torch = require("torch", "torch")
    from torch._subclasses.fake_tensor import FakeTensor

    return (
        type(value) is FakeTensor
        and value.layout is torch.strided
        and all(isinstance(size, int) for size in (*value.shape, *value.stride()))
    )


def _storage(value: Any) -> int:
    return int(value.untyped_storage()._cdata)


def _looks(value: Any) -> tuple[Any, ...]:
    """What a trace sees of a tensor."""
    return (
        tuple(map(int, value.shape)),
        tuple(map(int, value.stride())),
        value.dtype,
        value.device,
        bool(value.requires_grad),
    )


def _with_gradients(graph: Any) -> set[Any]:
    """Nodes that autograd follows. Whether a loss depends on them only a backward pass tells: what is written into a tensor
    has no edge of the graph."""
    torch = require("torch", "torch")
    if not torch.is_grad_enabled():
        return set()
    return {node for node in graph.nodes if any(each.requires_grad for each in _tensors(node) or [])}


def _signature(region: _Region, trained: set[Any]) -> Any:
    """What two layers must have in common to be alike; None: this one can't be traced by itself. What it reads and gives
    is filled in."""
    own = {node: at for at, node in enumerate(region.nodes)}
    given: dict[Any, int] = {}

    def token(value: Any) -> Any:
        if hasattr(value, "all_input_nodes"):
            return ("own", own[value]) if value in own else ("given", given.setdefault(value, len(given)))
        if isinstance(value, list | tuple):
            return (type(value).__name__, *(token(each) for each in value))
        if isinstance(value, dict):
            return ("dict", *((name, token(each)) for name, each in value.items()))
        if isinstance(value, slice):
            return ("slice", token(value.start), token(value.stop), token(value.step))
        if type(value) in _constants():
            return type(value).__name__, repr(value)
        raise _NotPlain

    try:
        calls = tuple((node.op, node.target, token(node.args), token(node.kwargs)) for node in region.nodes)
    except _NotPlain:
        return None
    if not all(_tensors(node) or _name(node) in _IDLE for node in region.nodes):
        return None
    if not all(_tensors(node) and _is_plain(node.meta["example_value"]) for node in given):
        return None
    region.given = list(given)
    if not _find_roots(region, own):
        return None
    if any(node in trained and _adds_up_otherwise(node, own) for node in region.given):
        return None
    if not trained.isdisjoint(region.outside):
        return None  # as above: of what is inside and outside
    region.trained = tuple(node in trained for node in region.roots)
    escapes = tuple(own[node] for node in region.roots)
    views = tuple(own[node] for node in region.outside)
    looks = tuple(_looks(node.meta["example_value"]) for node in region.given)
    modes = tuple(token(node.args) for node in region.autocasts)
    return calls, modes, looks, escapes, views, region.trained


def _adds_up_otherwise(node: Any, own: Mapping[Any, int]) -> bool:
    """Whether the gradient of what a layer reads more than once, and others read as well, would be added up in another
    order. What gives its argument back (`to`, of the same type) is no reader."""
    value, same = node.meta["example_value"], [node]
    for each in same:  # it grows
        near = (*each.all_input_nodes, *each.users)
        same += [other for other in near if other.meta.get("example_value") is value and other not in same]
    readers = [user for each in same for user in each.users if user not in same]
    inside = [reader for reader in readers if reader in own]
    uses = [
        each
        for reader in dict.fromkeys(inside)
        for each in _flat((reader.args, reader.kwargs))
        if each in same
    ]
    return len(uses) > 1 and len(inside) < len(readers)


@cache
def _constants() -> frozenset[type]:
    torch = require("torch", "torch")
    plain = (bool, int, float, complex, str, type(None), type(Ellipsis))
    return frozenset((*plain, torch.dtype, torch.device, torch.layout, torch.memory_format))


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for each in value:
            yield from _flat(each)
    elif isinstance(value, dict):
        yield from _flat(list(value.values()))
    elif isinstance(value, slice):
        yield from _flat([value.start, value.stop, value.step])
    else:
        yield value


def _find_roots(region: _Region, own: Mapping[Any, int]) -> bool:
    """What others need of a layer. A call can't give views of what it is given, or two of the same: those are taken
    outside of it. False: what is shared is more than that."""
    roots: dict[Any, None] = {}
    outside: dict[Any, None] = {}
    for node in region.nodes:
        if all(user in own for user in node.users):
            continue
        while node in own:
            source = _shown(node)
            if source is None:
                break
            outside[node] = None
            node = source
        if node in own:
            roots[node] = None
    storages = [_storage(node.meta["example_value"]) for node in region.given]
    for node in roots:
        value = node.meta["example_value"]
        if not _is_plain(value) or _storage(value) in storages:
            return False
        storages.append(_storage(value))
    region.roots = sorted(roots, key=own.__getitem__)
    region.outside = sorted(outside, key=own.__getitem__)
    return bool(region.roots)


def _shown(node: Any) -> Any:
    """What a node is a view of, or a part of several views; None: it has memory of its own."""
    source = node.args[0] if node.args and hasattr(node.args[0], "all_input_nodes") else None
    if source is None or _name(node) not in _VIEWS:
        return None
    own = {_storage(each) for each in _tensors(node) or []}
    from_there = {_storage(each) for each in _tensors(source) or []}
    is_part = node.target is operator.getitem and not _is_plain(source.meta["example_value"])
    if is_part and _shown(source) is None:
        return None  # one of several results
    return source if own and own <= from_there else None


# One of them is traced.


def _trace(module: Any, region: _Region, mode: Any, device: Any) -> _Kind | None:
    """The ATen ops of a layer; None: there is more to it."""
    torch = require("torch", "torch")
    graph = torch.fx.Graph()
    own: dict[Any, Any] = {}
    for node in region.given:
        own[node] = graph.placeholder(node.name)
    for node in (*region.autocasts, *region.nodes):
        own[node] = graph.node_copy(node, own.__getitem__)
    for node in reversed(region.autocasts):
        graph.call_function(torch.amp.autocast_mode._exit_autocast, (own[node],))
    graph.output(tuple(own[node] for node in region.roots))
    layer = torch.fx.GraphModule(module, graph)
    with mode:
        inputs = [_like(node.meta["example_value"], device) for node in region.given]
    looks = [_looks(each) for each in inputs]
    traced = _traced(layer, inputs, mode, len(region.roots), sum(region.trained))
    if traced is None:
        return None
    forward, backward = traced
    if not _is_closed(forward) or not (backward is None or _is_closed(backward)):
        return None
    kind = _Kind(layer, looks, len(region.roots), region.trained, region.path, forward)
    if backward is not None:
        kind.backward = backward
        places: dict[str, tuple[str, int]] = {
            each.name: ("made", at) for at, each in enumerate(forward.leaves)
        }
        places |= {each.name: ("given", at) for at, each in enumerate(forward.placeholders)}
        count = sum(kind.trained)
        names = [each.name for each in backward.placeholders]
        if not all(name in places for name in names[: len(names) - count]):
            return None
        kind.saved = [places[name] for name in names[: len(names) - count]]
        kind.tangents = [_looks(each.meta["val"])[:4] for each in backward.placeholders[len(names) - count :]]
    return kind


def _like(value: Any, device: Any) -> Any:
    torch = require("torch", "torch")
    found = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=device)
    return found.requires_grad_(value.requires_grad)


def _traced(
    layer: Any, inputs: Sequence[Any], mode: Any, results: int, trained: int
) -> tuple[_Traced, _Traced | None] | None:
    """What AOTAutograd makes of a layer; None: it has other results than it says."""
    require("torch", "torch")
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import default_partition
    from torch._guards import TracingContext, tracing

    class Found(Exception):
        """It need not go on."""

    found: list[tuple[_Traced, _Traced | None] | None] = []

    def inference(graph: Any, _: Any) -> Any:
        forward = _Traced(graph.graph, graph)
        found.append((forward, None) if len(forward.leaves) == results else None)
        raise Found

    def partition(joint: Any, joint_inputs: Any, *, num_fwd_outputs: int, **options: Any) -> Any:
        leaves = list(next(node for node in reversed(joint.graph.nodes) if node.op == "output").args[0])
        primals, tangents = joint_inputs
        if (num_fwd_outputs, len(tangents), len(leaves)) == (results, trained, results + len(primals)):
            parts = default_partition(joint, joint_inputs, num_fwd_outputs=num_fwd_outputs, **options)
            forward, backward = (_Traced(each.graph, each) for each in parts)
            found.append((forward, backward))
        else:
            found.append(None)
        raise Found

    def unused(graph: Any, _: Any) -> Any:
        raise Found

    compiler = aot_autograd(
        fw_compiler=unused,
        bw_compiler=unused,
        inference_compiler=inference,
        partition_fn=partition,
        keep_inference_input_mutations=True,
    )
    # `Found`, or what it complains of: it says that again of the whole.
    with tracing(TracingContext(mode)), suppress(Exception):
        compiler(layer, list(inputs))
    return found[0] if found else None


def _is_closed(traced: _Traced) -> bool:
    """Whether a graph is calls of ATen ops that write over nothing, of tensors as they come from an allocator."""
    for node in traced.graph.nodes:
        if node.op == "call_function" and not is_getitem(node):
            if not hasattr(node.target, "_schema") or writes(node):
                return False
        elif node.op == "get_attr" and not hasattr(attribute(traced.module, node.target), "dtype"):
            return False
    values = [leaf.meta.get("val") for leaf in traced.leaves if leaf is not None]
    return all(hasattr(each, "dtype") and not each.is_conj() and not each.is_neg() for each in values)


# Calls in the place of layers.


def _with_calls(graph: Any, called: Mapping[Any, tuple[str, _Region]]) -> Any:
    """A copy of a graph with calls in the place of these layers; by the first node of each."""
    torch = require("torch", "torch")
    found = torch.fx.Graph()
    own: dict[Any, Any] = {}
    left_out: set[Any] = set()
    for node in graph.nodes:
        if node in called:
            name, region = called[node]
            left_out.update(region.nodes)
            call = found.call_function(call_layer, (name, *(own[each] for each in region.given)))
            for at, root in enumerate(region.roots):
                own[root] = found.call_function(operator.getitem, (call, at))
                own[root].meta = dict(root.meta)
            for view in region.outside:
                own[view] = found.node_copy(view, own.__getitem__)
        if node not in left_out:
            own[node] = found.node_copy(node, own.__getitem__)
            if hasattr(node, "_dynamo_source"):  # AOTAutograd guards what is the same tensor
                own[node]._dynamo_source = node._dynamo_source
    return found


def call_layer(name: str, *given: Any) -> tuple[Any, ...]:
    """One layer, as AOTAutograd meets it: one op, if it is used as the one that was traced."""
    torch = require("torch", "torch")
    kind, _ = _KINDS[name]
    if [_looks(each) for each in given] != kind.given:
        return tuple(kind.module(*given))
    _register()
    if kind.backward is None:
        return tuple(torch.ops.loadmaster.layer(list(given), name))
    return tuple(_function().apply(name, *given))


@cache
def _function() -> Any:
    torch = require("torch", "torch")

    class Layer(torch.autograd.Function):  # type: ignore[misc, name-defined]
        """A layer and its backward pass, an op each."""

        @staticmethod
        def forward(ctx: Any, name: str, *given: Any) -> Any:
            kind, _ = _KINDS[name]
            found = torch.ops.loadmaster.layer(list(given), name)
            ctx.name = name
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(*(given[at] if where == "given" else found[at] for where, at in kind.saved))
            results = found[: kind.results]
            ctx.mark_non_differentiable(
                *(each for each, trained in zip(results, kind.trained, strict=True) if not trained)
            )
            return tuple(results)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            kind, _ = _KINDS[ctx.name]
            assert kind.backward is not None
            if tuple(each is not None for each in gradients) != kind.trained:
                raise LayersDiffer(ctx.name)
            tangents = [each for each in gradients if each is not None]
            if [_looks(each)[:4] for each in tangents] != kind.tangents:
                raise LayersDiffer(ctx.name)
            made = iter(torch.ops.loadmaster.layer_backward([*ctx.saved_tensors, *tangents], ctx.name))
            return (None, *(None if leaf is None else next(made) for leaf in kind.backward.leaves))

    return Layer


@cache
def _register() -> None:
    """Ops that stand for a layer while a graph is traced. None of them is ever run."""
    torch = require("torch", "torch")

    def made(leaves: Sequence[Any]) -> list[Any]:
        values = [leaf.meta["val"] for leaf in leaves if leaf is not None]
        return [
            torch.empty_strided(each.shape, each.stride(), dtype=each.dtype, device=each.device)
            for each in values
        ]

    def forward(given: list[Any], name: str) -> list[Any]:
        return made(_KINDS[name][0].forward.leaves)

    def backward(given: list[Any], name: str) -> list[Any]:
        kind, _ = _KINDS[name]
        assert kind.backward is not None
        return made(kind.backward.leaves)

    for op, fake in (("layer", forward), ("layer_backward", backward)):
        torch.library.define(f"loadmaster::{op}", "(Tensor[] given, str name) -> Tensor[]")
        torch.library.register_fake(f"loadmaster::{op}", fake)


# The ops of layers in the place of calls.


def expand_layers(module: Any) -> None:
    """Put the ops of layers in the place of their calls, in a graph that AOTAutograd has made."""
    graph, targets = module.graph, _targets()
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in targets:
            continue
        given, name = node.args
        kind, path = _KINDS[name]
        traced = kind.forward if node.target is targets[0] else kind.backward
        assert traced is not None
        leaves = [leaf for leaf in traced.leaves if leaf is not None]
        taken = {user: leaves[user.args[1]] for user in node.users}
        found = _inserted(module, node, traced, given, taken)
        for own in found.values():
            for key in ("nn_module_stack", "fwd_nn_module_stack"):
                if own not in given and own.meta.get(key):
                    own.meta[key] = _moved(own.meta[key], kind.path, path)
        for user, leaf in taken.items():
            user.replace_all_uses_with(found[leaf])
            graph.erase_node(user)
        graph.erase_node(node)
    _merge_views(graph)
    module.recompile()


@cache
def _targets() -> tuple[Any, Any]:
    torch = require("torch", "torch")
    _register()
    return torch.ops.loadmaster.layer.default, torch.ops.loadmaster.layer_backward.default


def _inserted(
    module: Any, call: Any, traced: _Traced, given: Sequence[Any], taken: Mapping[Any, Any]
) -> dict[Any, Any]:
    """The ops of a layer in front of its call, by those of the one that was traced. `taken`: what others take of it."""
    from torch.fx.node import map_arg

    graph = call.graph
    found: dict[Any, Any] = dict(zip(traced.placeholders, given, strict=True))
    copies = _Copies()
    for theirs, own in found.items():
        copies.know(theirs, own)
    for own, theirs in taken.items():  # views that others have of it share its memory
        copies.know(theirs, own)
    with graph.inserting_before(call):
        for node in traced.graph.nodes:
            if node.op == "get_attr":
                name = f"_constant_of_{call.name}_{node.name}"
                setattr(module, name, attribute(traced.module, node.target))
                found[node] = graph.get_attr(name)
            elif node.op == "call_function":
                args, kwargs = map_arg((node.args, node.kwargs), found.__getitem__)
                label = "getitem" if is_getitem(node) else op_name(node.target)
                found[node] = graph.create_node("call_function", node.target, args, kwargs, name=label)
            else:
                continue
            found[node].meta = {**node.meta, "val": copies.of(node, found)}
    return found


def _moved(stack: Mapping[str, tuple[Any, Any]], old: str, new: str) -> dict[str, tuple[Any, Any]]:
    """The modules that a node comes from, of another layer."""
    return {
        key: (new + str(path)[len(old) :] if str(path).startswith(old) else path, kind)
        for key, (path, kind) in stack.items()
    }


class _Copies:
    """Tensors without data like those of another trace, which share memory as those do."""

    def __init__(self) -> None:
        self._storages: dict[int, tuple[Any, int]] = {}
        """By storage of theirs: ours, and how many bytes later a tensor begins there."""

    def know(self, theirs: Any, own: Any) -> None:
        """What one node has there, the other has here: all of its memory, and not a part of it alone."""
        there, here = theirs.meta["val"], own.meta["val"]
        later = _start(here) - _start(there)
        if later >= 0 and later + there.untyped_storage().nbytes() <= here.untyped_storage().nbytes():
            self._storages.setdefault(_storage(there), (here.untyped_storage(), later))

    def of(self, node: Any, found: Mapping[Any, Any]) -> Any:
        """The value of this node, the sources of which are found."""
        from torch.fx.node import map_arg

        value = node.meta.get("val")
        if isinstance(value, list | tuple):
            return type(value)(self._copy(each) for each in value)
        if getattr(value, "is_conj", lambda: False)() or getattr(value, "is_neg", lambda: False)():
            args, kwargs = map_arg((node.args, node.kwargs), lambda each: found[each].meta["val"])
            return node.target(*args, **kwargs)
        return self._copy(value)

    def _copy(self, value: Any) -> Any:
        if not hasattr(value, "untyped_storage"):
            return value
        torch = require("torch", "torch")
        from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily

        key = _storage(value)
        with unset_fake_temporarily(), torch.no_grad():
            if key not in self._storages:
                size = int(value.untyped_storage().nbytes())
                self._storages[key] = torch.UntypedStorage(size, device="meta"), 0
            storage, later = self._storages[key]
            plain, start = torch.empty(0, dtype=value.dtype, device="meta"), _start(value) + later
            plain.set_(storage, start // value.element_size(), value.shape, value.stride())
            return FakeTensor(value.fake_mode, plain, value.device)


def _start(value: Any) -> int:
    return int(value.storage_offset() * value.element_size())


def _merge_views(graph: Any) -> None:
    """Views of the same, inside of a layer and behind it, are one."""
    known: dict[Any, Any] = {}
    for node in list(graph.nodes):
        source = node.args[0] if is_getitem(node) else node
        if node.op != "call_function" or not getattr(source.target, "is_view", False):
            continue
        key = (node.target, repr(node.args), repr(node.kwargs))
        if key in known:
            node.replace_all_uses_with(known[key])
            graph.erase_node(node)
        else:
            known[key] = node
