"""Modules as graphs that can be run, and the Programs made of them, row by row.

    captured = capture(module, (tokens,), name="llama", device="cuda")

A Program that a planner gets here describes what a runtime does and nothing else: every call of the
graph is an op, every result has a place of its own, views share their root's. Nothing is written
over and nothing is folded away.

Large weights may be cut into slices that are used one after another: a linear layer's slices give columns
of its result, an embedding's answer for their own words. Each slice is a weight of its own to the planner,
so no more than one must be in fast memory at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from loadmaster.errors import BadProgram, require
from loadmaster.program.importers import load_function
from loadmaster.program.importers.torch.graph import (
    Given,
    Graph,
    Result,
    Step,
    Traced,
    Value,
    call_of,
    copied,
    emit,
    is_getitem,
    is_random,
    made,
    part_of,
    results_of,
    scope_of,
    stay,
    type_of,
)
from loadmaster.program.importers.torch.importer import made_on_meta, misfits_told, model_and_inputs
from loadmaster.program.importers.torch.trace import faked, trace_forward, trace_step
from loadmaster.program.program import Program, TensorKind
from loadmaster.program.repeats import Repeated, repeat

__all__ = ["Captured", "Given", "Result", "capture", "capture_device", "capture_spec"]

DEVICES = ("cuda", "cpu")
Slices = dict[str, tuple[str, tuple[int, int]]]
"""A slice's own name -> the name of the whole weight, and the rows."""


@dataclass(frozen=True, eq=False)
class Captured:
    """A module's functional ATen graph that can be run, and the Program made of it."""

    program: Program
    graph: Any
    """torch.fx.Graph: placeholders, calls of ATen overloads, getitems, output."""
    op_node: tuple[str, ...]
    """[n_ops] fx node of each op, views too."""
    tensor_at: Mapping[tuple[str, int], int]
    """(fx node, number among its tensors) -> tensor. A getitem's tensor is number 0 of it too."""
    given: tuple[Given, ...]
    results: tuple[Result, ...]
    constants: Mapping[str, Any]
    """Values of weights that are neither parameters nor buffers, by source."""
    renamed: Mapping[int, Mapping[int, int]] = field(default_factory=dict)
    """Op -> for tensors of its node the ones that it reads or makes instead, where ops run again."""
    forward_ops: int | None = None
    """Of a training step in two calls: so many ops belong to the first. None: it is one call."""

    def inputs(self, args: Sequence[Any], kwargs: Mapping[str, Any] | None = None) -> list[Any]:
        """The tensors for `given` of kind INPUT, in order, from a call's arguments."""
        from torch.utils._pytree import tree_leaves

        leaves = tree_leaves((tuple(args), dict(kwargs or {})))
        return [leaves[given.position] for given in self.given if given.kind == TensorKind.INPUT]

    def on(self, device: Any) -> Captured:
        """The same with calls that name a device (`arange`, `zeros`) naming this one."""
        torch = require("torch", "torch")
        from torch.utils._pytree import tree_map_only

        graph = copied(self.graph)
        for node in graph.nodes:
            there = (node.args, node.kwargs)
            node.args, node.kwargs = tree_map_only(torch.device, lambda _: torch.device(device), there)
        return replace(self, graph=graph)

    def repeated(self, ops: Sequence[int]) -> Captured:
        """The same with these ops run again for the backward pass."""
        random = {node.name for node in self.graph.nodes if is_random(node)}
        for op in ops:
            if self.op_node[op] in random:
                name = self.program.op_name[op]
                raise BadProgram(
                    f"op '{name}' draws random numbers: run again it would draw others",
                    object=name,
                    number=op,
                    remedy="plan without it, or with --no-recompute",
                )
        found = repeat(self.program, ops)
        renamed = {op: _renamed(self.program, found, op) for op in range(found.program.n_ops)}
        return replace(
            self,
            program=found.program,
            op_node=tuple(self.op_node[op] for op in found.origin.tolist()),
            renamed={op: pairs for op, pairs in renamed.items() if pairs},
        )


def _renamed(base: Program, found: Repeated, op: int) -> dict[int, int]:
    """Tensors of an op's origin -> its own, where they differ."""
    origin, program = int(found.origin[op]), found.program
    theirs = [*base.reads(origin).tolist(), *base.writes(origin).tolist()]
    ours = [*program.reads(op).tolist(), *program.writes(op).tolist()]
    return {one: other for one, other in zip(theirs, ours, strict=True) if one != other}


def capture(
    module: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    name: str,
    training: bool = False,
    split_over: int | None = None,
    batch_slices: int = 1,
    device: str = "cpu",
) -> Captured:
    """Trace a module, on whatever device it is (meta costs no memory), as if it were on `device`.

    `training`: forward and backward in one graph; the first output is the loss. `split_over`:
    weights of linear layers and embeddings above so many bytes are cut into slices that are used one
    after another. `batch_slices`: so many parts of the batch are computed one after another.
    """
    require("torch", "torch")
    twin, inputs, named = faked(module, args, kwargs, device)
    slices = {} if split_over is None else _split_layers(twin, split_over)
    if batch_slices != 1:
        if training or batch_slices < 1:
            raise BadProgram(
                f"a batch can't be computed in {batch_slices} slices here",
                object=name,
                number=batch_slices,
                remedy="slice the batch of a forward pass alone",
            )
        _slice_batch(twin, batch_slices)
    with misfits_told(module, args, kwargs, name, training=training):
        traced = (trace_step if training else trace_forward)(twin, inputs, named, name)
    _name_slices(traced, slices)
    return make_captured(traced, name)


def capture_spec(
    spec: str, device: str, result: Any = None, *, training: bool = False, split_over: int | None = None
) -> Captured:
    """`capture` of a user's 'module:function', so that planning, measuring and running mean one Program.

    `device`: 'cuda:1' is captured as 'cuda'. `result`: what the function gave, if it was called already; else
    it is called with the meta device as the default. For training, layers stay in the modes that it gave them.
    """
    require("torch", "torch")
    result = made_on_meta(load_function(spec)) if result is None else result
    module, args, kwargs = model_and_inputs(result, spec, training=training)
    return capture(
        module,
        args,
        kwargs,
        name=spec,
        training=training,
        split_over=split_over,
        device=device.partition(":")[0],
    )


def capture_device(name: str | None) -> str:
    """The device that a model is captured for: the named one, else a GPU if there is one. PyTorch can't trace
    for CUDA without one."""
    torch = require("torch", "torch")
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.partition(":")[0] not in DEVICES:
        raise BadProgram(
            f"there is no device '{name}' to capture for",
            object="--device",
            number=name,
            remedy=f"use {' or '.join(DEVICES)}",
        )
    if name != "cpu" and not torch.cuda.is_available():
        raise BadProgram(
            "this computer has no CUDA device that PyTorch can use",
            object="--device",
            number=name,
            remedy="capture where the GPU is ('loadmaster calibrate --program net.npz') and give "
            "net.npz here, or use --device cpu",
        )
    return name


def make_captured(traced: Traced, name: str) -> Captured:
    """The Program of a traced graph, and which of its rows is what."""
    if any(result.stays for result in traced.results):
        traced = _with_stay(traced)
    values: dict[Any, list[Value]] = {}
    graph = _steps(traced, values)
    at = {node.name: values[node] for node in values}
    leaves = [at[r.node][r.part] if r.node in at else None for r in traced.results]
    kept = [
        leaf
        for leaf, result in zip(leaves, traced.results, strict=True)
        if not result.sink and not result.stays
    ]
    graph.outputs = [leaf for leaf in kept if leaf is not None and leaf.given is None]
    program = emit(graph, name, fixed=True)
    return Captured(
        program,
        traced.graph,
        tuple(step.name for step in graph.steps),
        {(node, part): value.tensor for node, found in at.items() for part, value in enumerate(found)},
        tuple(replace(given, tensor=at[given.node][0].tensor) for given in traced.given),
        tuple(
            replace(result, tensor=-1 if leaf is None or leaf.given is not None else leaf.tensor)
            for result, leaf in zip(traced.results, leaves, strict=True)
        ),
        traced.constants,
    )


def _with_stay(traced: Traced) -> Traced:
    """The same with a last op that needs the results that stay on the device. What shows a given tensor does not:
    it is handed over like others."""
    graph, given = (
        copied(traced.graph),
        {_storage_of(node) for node in traced.graph.nodes if node.op == "placeholder"},
    )
    nodes = {node.name: node for node in graph.nodes}
    results = [
        replace(each, stays=each.stays and each.node in nodes and _storage_of(nodes[each.node]) not in given)
        for each in traced.results
    ]
    leaves = dict.fromkeys(nodes[each.node] for each in results if each.stays)
    if not leaves:
        return replace(traced, results=results)
    with graph.inserting_before(next(node for node in graph.nodes if node.op == "output")):
        last = graph.call_function(stay, tuple(leaves))
    last.meta["val"] = ()
    return replace(traced, graph=graph, results=results)


def _storage_of(node: Any) -> int:
    value = node.meta.get("val")
    return _storage(value) if hasattr(value, "untyped_storage") else -1


def _steps(traced: Traced, values: dict[Any, list[Value]]) -> Graph:
    graph = Graph()
    given = {each.node: each for each in traced.given}
    for position, node in enumerate(traced.graph.nodes):
        if node.op == "placeholder" and node.name in given:
            role = given[node.name]
            kind = type_of(node.meta["val"], node.name)
            named = role.source if role.rows is None else "{}[{}:{}]".format(role.source, *role.rows)
            size = 0 if role.held else kind.bytes
            values[node] = [Value(kind, named or node.name, size, given=role.kind)]
            graph.given += values[node]
        elif is_getitem(node):
            values[node] = [part_of(node, values)]
        elif node.op == "call_function":
            graph.steps.append(_step(traced, values, node, position))
    return graph


def _step(traced: Traced, values: dict[Any, list[Value]], node: Any, position: int) -> Step:
    types = results_of(node)
    call, operands = call_of(node, values, types)
    tensors = [part for part in _parts(node.meta["val"]) if hasattr(part, "dtype")]
    base = _find_base(node, values, tensors)
    if base is not None and len(operands) != 1:
        raise BadProgram(
            f"'{node.target}' returns one of its {len(operands)} tensors",
            object=node.name,
            number=len(operands),
            remedy="leave out the call that does nothing",
        )
    names = [node.name if i == 0 else f"{node.name}:{i}" for i in range(len(types))]
    results = [made(kind, called, base) for kind, called in zip(types, names, strict=True)]
    if base is None:
        for result, tensor in zip(results, tensors, strict=True):
            result.bytes = int(tensor.untyped_storage().nbytes())  # padding counts too
    values[node] = results
    return Step(
        node.name,
        call,
        operands,
        results,
        scope_of(node),
        position,
        base is not None,
        node.name in traced.backward,
        is_random(node),
    )


def _find_base(node: Any, values: dict[Any, list[Value]], tensors: list[Any]) -> Value | None:
    """The operand whose storage the results share. The tracer's tensors know it: some calls that
    may give views give copies where strides demand it."""
    for source in node.all_input_nodes:
        for value, tensor in zip(values.get(source, []), _tensors(source), strict=False):
            if any(_storage(tensor) == _storage(result) for result in tensors):
                return value
    return None


def _tensors(node: Any) -> list[Any]:
    return [part for part in _parts(node.meta["val"]) if hasattr(part, "dtype")]


def _parts(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _storage(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def _split_layers(module: Any, limit: int) -> Slices:
    """Replace, in place, the linear layers and embeddings whose weight has more than `limit` bytes."""
    torch = require("torch", "torch")
    if limit < 1:
        raise BadProgram(
            f"weights can't be split over {limit} bytes",
            object="split_over",
            number=limit,
            remedy="give at least 1 byte",
        )
    slices: Slices = {}
    shared: dict[int, Any] = {}
    for path, layer in list(module.named_modules()):
        plain = type(layer) is torch.nn.Embedding and layer.padding_idx is None and layer.max_norm is None
        if not plain and type(layer) is not torch.nn.Linear:
            continue
        weight = layer.weight
        if weight.nbytes <= limit or not path:
            continue
        if id(weight) not in shared:  # tied layers share their slices
            shared[id(weight)] = _cut(weight, limit)
        parts = shared[id(weight)]
        sliced = _embedding(parts) if plain else _linear(parts, layer.bias)
        _put(module, path, sliced)
        low = 0
        for number, part in enumerate(parts):
            slices[f"{path}.slice{number}"] = (f"{path}.weight", (low, low + len(part)))
            low += len(part)
    return slices


def _slice_batch(module: Any, count: int) -> None:
    """Let a module, in place, work on its batch in slices, one after another.

    Where a layer's inputs and results alone fill the memory, no plan can help and this does.
    """
    torch = require("torch", "torch")
    from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

    whole = module.forward

    @functools.wraps(whole)
    def forward(*args: Any, **kwargs: Any) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        rows = len(tensors[0])
        ends = [rows * i // count for i in range(count + 1)]
        results = []
        for low, high in pairwise(ends):

            def part(x: Any, low: int = low, high: int = high) -> Any:
                return x[low:high] if x.ndim and len(x) == rows else x

            a, k = tree_map_only(torch.Tensor, part, (args, kwargs))
            results.append(whole(*a, **k))
        return tree_map(lambda *parts: torch.cat(parts), *results)

    module.forward = forward


def _name_slices(traced: Traced, slices: Slices) -> None:
    """Say of each slice and its gradient which rows of which weight it is."""
    for number, given in enumerate(traced.given):
        if given.source in slices:
            source, rows = slices[given.source]
            traced.given[number] = replace(given, source=source, rows=rows)
    for number, result in enumerate(traced.results):
        if result.name in slices:
            name, rows = slices[result.name]
            traced.results[number] = replace(result, name=name, rows=rows)


def _cut(weight: Any, limit: int) -> list[Any]:
    torch = require("torch", "torch")
    rows = len(weight)
    fit = max(1, limit // (weight.nbytes // rows))
    count = -(-rows // fit)
    ends = [rows * i // count for i in range(count + 1)]
    with torch.no_grad():
        return [
            torch.nn.Parameter(weight[a:b].clone(), requires_grad=weight.requires_grad)
            for a, b in pairwise(ends)
        ]


def _put(module: Any, path: str, layer: Any) -> None:
    parent, _, name = path.rpartition(".")
    setattr(module.get_submodule(parent), name, layer)


def _linear(parts: list[Any], bias: Any) -> Any:
    torch = require("torch", "torch")

    class SlicedLinear(_sliced()):  # type: ignore[misc]
        def forward(self, x: Any) -> Any:
            columns, low = [], 0
            for part in self.parts():
                own = None if self.bias is None else self.bias[low : low + len(part)]
                columns.append(torch.nn.functional.linear(x, part, own))
                low += len(part)
            return torch.cat(columns, -1)

    layer = SlicedLinear(parts)
    layer.register_parameter("bias", bias)
    return layer


def _embedding(parts: list[Any]) -> Any:
    torch = require("torch", "torch")

    class SlicedEmbedding(_sliced()):  # type: ignore[misc]
        def forward(self, words: Any) -> Any:
            found, low = None, 0
            for part in self.parts():
                own = (words - low).clamp(0, len(part) - 1)
                rows = torch.nn.functional.embedding(own, part)
                later = (words >= low).unsqueeze(-1)
                found = rows if found is None else torch.where(later, rows, found)
                low += len(part)
            return found

    return SlicedEmbedding(parts)


def _sliced() -> Any:
    torch = require("torch", "torch")

    class Sliced(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self, parts: list[Any]) -> None:
            super().__init__()
            self.count = len(parts)
            for number, part in enumerate(parts):
                self.register_parameter(f"slice{number}", part)

        def parts(self) -> list[Any]:
            return [getattr(self, f"slice{number}") for number in range(self.count)]

        @property
        def weight(self) -> Any:
            """All of it, for a module that reads the weight past its layer."""
            return torch.cat(self.parts())

    return Sliced
