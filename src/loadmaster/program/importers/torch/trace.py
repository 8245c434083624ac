"""A module as a functional graph of ATen calls: its forward pass, or a training step with all gradients.

Tensors have shapes, types and a device, and no data: tracing costs no memory.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from loadmaster.errors import BadProgram, require
from loadmaster.program.importers.torch.graph import (
    Given,
    Result,
    Traced,
    drop_idle,
    op_name,
    placeholders,
    tidy,
)
from loadmaster.program.importers.torch.importer import (
    exported_program,
    keeps_cache,
    plain_result,
    quiet,
    why_not,
)
from loadmaster.program.importers.torch.nested import nest_graphs
from loadmaster.program.importers.torch.norms import type_statistics
from loadmaster.program.importers.torch.recurrent import recurrent_ops
from loadmaster.program.program import TensorKind


def faked(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any] | None, device: str
) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Copies of a module and its inputs that claim to be on `device`, wherever they are now.

    Which kernels a graph names, and in which layout they leave their results, depends on it.
    """
    torch = require("torch", "torch")
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv
    from torch.utils._pytree import tree_map_only

    # The exporter may take this mode over, and asks for one that could follow shapes.
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv(tracked_fakes=[]))

    def fake(tensor: Any) -> Any:
        with mode:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)

    memo: dict[int, Any] = {}
    for parameter in module.parameters():
        memo[id(parameter)] = torch.nn.Parameter(fake(parameter), requires_grad=parameter.requires_grad)
    memo |= {id(buffer): fake(buffer) for buffer in module.buffers()}
    for layer in module.modules():  # what is made of parameters, as weight norms keep it, can't be copied
        for each in vars(layer).values():
            if isinstance(each, torch.Tensor) and not each.is_leaf:
                memo[id(each)] = fake(each)
    # What the memo holds counts as copied already: no weight is ever duplicated, ties are kept.
    twin = copy.deepcopy(module, memo)
    return twin, *tree_map_only(torch.Tensor, fake, (tuple(args), dict(kwargs or {})))


def trace_forward(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Traced:
    """The ops that the module calls, composite ones such as attention in one piece."""
    torch = require("torch", "torch")
    with quiet(), torch.no_grad(), recurrent_ops():
        exported = exported_program(module, args, kwargs, name, _views_of_several())
    nest_graphs(exported.graph_module, exported.graph)
    drop_idle(exported.graph)
    type_statistics(exported.graph)
    specs = exported.graph_signature.output_specs
    changed = {spec.target for spec in specs if spec.kind.name == "BUFFER_MUTATION"}
    leaves = next(node for node in reversed(exported.graph.nodes) if node.op == "output").args[0]
    results = [_result(spec, leaf, name) for spec, leaf in zip(specs, leaves, strict=True)]
    traced = Traced(exported.graph, _given(exported, changed), results, dict(exported.constants))
    share_tied(traced, module)
    tidy(traced, name)
    return traced


def _views_of_several() -> dict[Any, Callable[..., Any]]:
    """How calls that show several tensors at once become views of one each."""
    table = require("torch", "torch").export.default_decompositions()
    return {target: table[target] for target in table if op_name(target) in ("meshgrid", "broadcast_tensors")}


def _given(exported: Any, changed: set[str]) -> list[Given]:
    nodes = placeholders(exported.graph)
    given: list[Given] = []
    position = 0
    for spec in exported.graph_signature.input_specs:
        user = spec.kind.name == "USER_INPUT"
        node = nodes.get(getattr(spec.arg, "name", ""))
        if node is not None and hasattr(node.meta.get("val"), "dtype"):
            kind = TensorKind.STATE if spec.target in changed else TensorKind.WEIGHT
            kind = TensorKind.INPUT if user else kind
            source = "" if user else str(spec.target)
            given.append(Given(node.name, kind, source, position if user else -1))
        position += user
    return given


def _result(spec: Any, leaf: Any, name: str) -> Result:
    node = getattr(leaf, "name", "")
    if spec.kind.name == "USER_OUTPUT":
        return Result(node)
    if spec.kind.name == "BUFFER_MUTATION":
        return Result(node, what="update", name=str(spec.target))
    raise BadProgram(
        f"'{name}' changes its input '{spec.target}'",
        object=name,
        number=str(spec.target),
        remedy="return the new value instead",
    )


def share_tied(traced: Traced, module: Any) -> None:
    """Let one placeholder stand for a parameter that the module knows under several names."""
    tensors = dict(module.named_parameters(remove_duplicate=False))
    tensors |= dict(module.named_buffers(remove_duplicate=False))
    nodes = placeholders(traced.graph)
    first: dict[int, Any] = {}
    for given in traced.given:
        if given.source in tensors:
            node = nodes[given.node]
            same = first.setdefault(id(tensors[given.source]), node)
            if same is not node:
                node.replace_all_uses_with(same)


def trace_step(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Traced:
    """Forward and backward of a module whose first output is its loss. A parameter that has no part in it
    has no gradient, as in PyTorch."""
    require("torch", "torch")
    from torch._functorch.aot_autograd import aot_export_module

    flat = _flattened(module, args, kwargs)
    scopes = _Scopes(module)
    try:
        # The mode: what the module makes of nothing has no data either, and its views are known as such.
        with quiet(), compiling(), recurrent_ops(), _fake_mode(flat):
            try:
                joint, signature = aot_export_module(
                    flat.module, flat.inputs, trace_joint=True, output_loss_index=0
                )
            except AssertionError:  # it takes no parameter without a gradient, and no gradient for two
                _freeze_unused(flat)
                flat.module.apart = True
                joint, signature = aot_export_module(
                    flat.module, flat.inputs, trace_joint=True, output_loss_index=0
                )
    except Exception as error:  # the tracer has dozens of ways to say no
        raise BadProgram(
            f"no gradients can be traced through '{name}': {why_not(error)}",
            object=name,
            remedy="let the first output be a scalar loss, and branch on no tensor's values; loadmaster.fit runs it as it is",
        ) from error
    graph = joint.graph
    drop_idle(graph)
    type_statistics(graph)
    results = _results(graph, signature, flat)
    given = _training_inputs(graph, signature, flat)
    traced = Traced(graph, given, results, _lift_constants(joint, given, _fake_mode(flat)))
    traced.backward |= scopes.finish(graph)
    tidy(traced, name)
    return traced


@dataclass(frozen=True)
class _Flat:
    """A module as one of plain tensors in and out that has every parameter and buffer once."""

    module: Any
    inputs: tuple[Any, ...]
    positions: list[int]
    """Of each input among the leaves of (args, kwargs)."""
    names: dict[str, str]
    """Its name of a parameter or buffer -> the first one that the user's module has for it."""


def _flattened(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Flat:
    torch = require("torch", "torch")
    from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

    leaves, shape = tree_flatten((tuple(args), dict(kwargs)))
    positions = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    names: dict[str, str] = {}

    class Flat(torch.nn.Module):  # type: ignore[name-defined, misc]
        apart = False
        """Parameters have a gradient of their own each, where two have the same, as an LSTM's biases."""

        def __init__(self) -> None:
            super().__init__()
            for number, (name, parameter) in enumerate(module.named_parameters()):
                self.register_parameter(f"parameter{number}", parameter)
                names[f"parameter{number}"] = name
            for number, (name, buffer) in enumerate(module.named_buffers()):
                self.register_buffer(f"buffer{number}", buffer)
                names[f"buffer{number}"] = name

        def forward(self, *tensors: Any) -> Any:
            filled = list(leaves)
            for position, tensor in zip(positions, tensors, strict=True):
                filled[position] = tensor
            a, k = tree_unflatten(filled, shape)
            own = {name: getattr(self, key) for key, name in names.items()}
            if self.apart:
                own = {name: each.view_as(each) if each.requires_grad else each for name, each in own.items()}
            with _as_before(module):
                result = plain_result(torch.func.functional_call(module, own, a, k), keeps_cache(k))
            found = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
            return (*found[:1], *(leaf.detach() for leaf in found[1:]))

    return _Flat(Flat(), tuple(leaves[i] for i in positions), positions, names)


@contextmanager
def _as_before(module: Any) -> Iterator[None]:
    """What a module keeps of a call, such as a mask for a size, is gone after it: a tracer makes several calls, each with
    tensors of its own."""
    known = [(layer, dict(vars(layer)), dict(layer._buffers)) for layer in module.modules()]
    try:
        yield
    finally:
        for layer, attributes, buffers in known:
            for now, before in ((layer._buffers, buffers), (vars(layer), attributes)):
                now.clear()
                now.update(before)


@contextmanager
def compiling() -> Iterator[None]:
    """Let modules that ask know that they are traced, as torch.export does: code that looks at a mask's
    values in an ordinary run must not here."""
    compiler = require("torch", "torch").compiler
    before = compiler._is_compiling_flag
    compiler._is_compiling_flag = True
    try:
        yield
    finally:
        compiler._is_compiling_flag = before


def _fake_mode(flat: _Flat) -> Any:
    """The one that its tensors are of."""
    return next(iter((*flat.module.parameters(), *flat.inputs))).fake_mode


def _freeze_unused(flat: _Flat) -> None:
    """Let parameters that have no part in the loss be traced as if they needed no gradient."""
    torch = require("torch", "torch")
    trained = [p for p in flat.module.parameters() if p.requires_grad]
    gradients = torch.autograd.grad(flat.module(*flat.inputs)[0], trained, allow_unused=True)
    unused = [p for p, gradient in zip(trained, gradients, strict=True) if gradient is None]
    for parameter in unused:
        parameter.requires_grad_(False)


def _training_inputs(graph: Any, signature: Any, flat: _Flat) -> list[Given]:
    sources = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    changed = set(signature.buffers_to_mutate.values())
    given: list[Given] = []
    users = iter(flat.positions)
    for node in placeholders(graph).values():
        if node.name in sources:
            source = sources[node.name]
            kind = TensorKind.STATE if source in changed else TensorKind.WEIGHT
            given.append(Given(node.name, kind, flat.names[source]))
        else:
            given.append(Given(node.name, TensorKind.INPUT, position=next(users)))
    return given


def _lift_constants(joint: Any, given: list[Given], fake: Any) -> dict[str, Any]:
    """Let tensors that the module's code made while it was traced, as `torch.tensor(0.5)`, be weights."""
    graph = joint.graph
    constants: dict[str, Any] = {}
    nodes: dict[str, Any] = {}
    last = list(placeholders(graph).values())[-1]
    for node in list(graph.nodes):
        if node.op != "get_attr":
            continue
        source = str(node.target)
        if source not in nodes:
            with graph.inserting_after(last):
                nodes[source] = last = graph.placeholder(source)
            constants[source] = getattr(joint, source)
            known = node.meta.get("val")  # not before PyTorch 2.7
            last.meta["val"] = fake.from_tensor(constants[source]) if known is None else known
            given.append(Given(last.name, TensorKind.WEIGHT, source))
        node.replace_all_uses_with(nodes[source])
        graph.erase_node(node)
    return constants


def _results(graph: Any, signature: Any, flat: _Flat) -> list[Result]:
    """Leaves come in the order: changed buffers, the module's outputs, gradients."""
    leaves = next(node for node in reversed(graph.nodes) if node.op == "output").args[0]
    buffers = list(signature.buffers_to_mutate.values())
    trained = [key for key, parameter in flat.module.named_parameters() if parameter.requires_grad]
    outputs = len(leaves) - len(buffers) - len(trained)
    roles = [("update", flat.names[each]) for each in buffers]
    roles += [("loss" if i == 0 else "output", "") for i in range(outputs)]
    roles += [("gradient", flat.names[each]) for each in trained]
    return [Result(getattr(leaf, "name", ""), 0, *role) for leaf, role in zip(leaves, roles, strict=True)]


class _Scopes:
    """Which layer each node comes from, noted while the graph grows: hooks of the layers see it."""

    def __init__(self, module: Any) -> None:
        self._began: list[Any] = []
        self._layer: dict[str, str] = {}
        for path, layer in module.named_modules():
            layer.register_forward_pre_hook(self._enter)
            layer.register_forward_hook(self._leave(path))

    def _enter(self, *_: Any) -> None:
        self._began.append(_last_node())

    def _leave(self, scope: str) -> Callable[..., None]:
        def hook(*_: Any) -> None:
            began, node = self._began.pop(), _last_node()
            while node is not None and node is not began and node.op != "root":
                self._layer.setdefault(node.name, scope)  # inner layers come first
                node = node.prev

        return hook

    def finish(self, graph: Any) -> set[str]:
        """The names of the backward nodes. Each belongs to the layer whose results it needs."""
        position = {node: i for i, node in enumerate(graph.nodes)}
        backward: set[str] = set()
        scope = ""
        for node in graph.nodes:
            if node.op != "call_function":
                continue
            if node.name not in self._layer:
                backward.add(node.name)
                made = (n for n in node.all_input_nodes if n.op == "call_function")
                needed = [n for n in made if n.name not in backward]
                if needed:
                    scope = self._layer[max(needed, key=position.__getitem__).name]
            own = self._layer.get(node.name, scope)
            node.meta["nn_module_stack"] = {own: (own, None)}
        return backward


def _last_node() -> Any:
    """The newest node of the graph that is being traced, if one is."""
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    mode = get_proxy_mode()
    return None if mode is None else next(iter(reversed(mode.tracer.graph.nodes)), None)
