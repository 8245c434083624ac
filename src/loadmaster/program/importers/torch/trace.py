"""A module as a functional graph of ATen calls: its forward pass, or a training step with all gradients.

Tensors have shapes, types and a device, and no data: tracing costs no memory.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from loadmaster.errors import BadProgram, require
from loadmaster.program.importers.torch.graph import Given, Result, Traced, drop_idle, placeholders, tidy
from loadmaster.program.importers.torch.importer import exported_program, quiet
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
    # What the memo holds counts as copied already: no weight is ever duplicated, ties are kept.
    twin = copy.deepcopy(module, memo)
    return twin, *tree_map_only(torch.Tensor, fake, (tuple(args), dict(kwargs or {})))


def trace_forward(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Traced:
    """The ops that the module calls, composite ones such as attention in one piece."""
    torch = require("torch", "torch")
    with quiet(), torch.no_grad():
        exported = exported_program(module, args, kwargs, name).run_decompositions({})
    drop_idle(exported.graph)
    specs = exported.graph_signature.output_specs
    changed = {spec.target for spec in specs if spec.kind.name == "BUFFER_MUTATION"}
    leaves = next(node for node in reversed(exported.graph.nodes) if node.op == "output").args[0]
    results = [_result(spec, leaf, name) for spec, leaf in zip(specs, leaves, strict=True)]
    traced = Traced(exported.graph, _given(exported, changed), results, dict(exported.constants))
    share_tied(traced, module)
    tidy(traced, name)
    return traced


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


_PREFIX = "whole."
"""How the wrapper's names for parameters begin."""


def trace_step(module: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str) -> Traced:
    """Forward and backward of a module whose first output is its loss."""
    require("torch", "torch")
    from torch._functorch.aot_autograd import aot_export_module

    flat, inputs, positions = _flattened(module, args, kwargs)
    scopes = _Scopes(flat)
    try:
        with quiet():
            joint, signature = aot_export_module(flat, inputs, trace_joint=True, output_loss_index=0)
    except Exception as error:  # the tracer has dozens of ways to say no
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise BadProgram(
            f"no gradients can be traced through '{name}': {reason}",
            object=name,
            remedy="let the first output be a scalar loss that every parameter that "
            "requires a gradient takes part in",
        ) from error
    graph = joint.graph
    drop_idle(graph)
    results = _results(graph, signature, _summed(graph, flat))
    traced = Traced(graph, _training_inputs(graph, signature, positions), results)
    traced.backward |= scopes.finish(graph)
    share_tied(traced, module)
    tidy(traced, name)
    return traced


def _flattened(
    module: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Any, tuple[Any, ...], list[int]]:
    """The module as one of plain tensors in and out, its tensors, and where those came from."""
    torch = require("torch", "torch")
    from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

    leaves, shape = tree_flatten((tuple(args), dict(kwargs)))
    positions = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    class Flat(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.whole = module

        def forward(self, *tensors: Any) -> Any:
            filled = list(leaves)
            for position, tensor in zip(positions, tensors, strict=True):
                filled[position] = tensor
            a, k = tree_unflatten(filled, shape)
            found = [leaf for leaf in tree_leaves(self.whole(*a, **k)) if isinstance(leaf, torch.Tensor)]
            return (*found[:1], *(leaf.detach() for leaf in found[1:]))

    return Flat(), tuple(leaves[i] for i in positions), positions


def _training_inputs(graph: Any, signature: Any, positions: Sequence[int]) -> list[Given]:
    sources = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    changed = set(signature.buffers_to_mutate.values())
    given: list[Given] = []
    users = iter(positions)
    for node in graph.nodes:
        if node.op != "placeholder":
            break
        if node.name in sources:
            source = sources[node.name]
            kind = TensorKind.STATE if source in changed else TensorKind.WEIGHT
            given.append(Given(node.name, kind, source.removeprefix(_PREFIX)))
        else:
            given.append(Given(node.name, TensorKind.INPUT, position=next(users)))
    return given


def _summed(graph: Any, flat: Any) -> list[str]:
    """The names of the trained parameters. One that has several names has a gradient for each: let
    the graph return their sum under the first name."""
    torch = require("torch", "torch")
    trained = [(path, p) for path, p in flat.named_parameters(remove_duplicate=False) if p.requires_grad]
    output = next(node for node in reversed(graph.nodes) if node.op == "output")
    leaves = list(output.args[0])
    kept, gradients = leaves[: -len(trained)], leaves[-len(trained) :]
    position = {node: i for i, node in enumerate(graph.nodes)}
    names: dict[int, str] = {}
    total: dict[int, Any] = {}
    for (path, parameter), gradient in zip(trained, gradients, strict=True):
        key = id(parameter)
        if key in names:
            later = max(total[key], gradient, key=position.__getitem__)
            with graph.inserting_after(later):
                add = graph.call_function(torch.ops.aten.add.Tensor, (total[key], gradient))
            like = gradient.meta["val"]
            with like.fake_mode:
                add.meta["val"] = torch.empty_like(like)
            gradient, position[add] = add, position[later]
        names.setdefault(key, path)
        total[key] = gradient
    output.args = ((*kept, *total.values()),)
    return list(names.values())


def _results(graph: Any, signature: Any, trained: Sequence[str]) -> list[Result]:
    """Leaves come in the order: changed buffers, the module's outputs, gradients."""
    leaves = next(node for node in reversed(graph.nodes) if node.op == "output").args[0]
    buffers = list(signature.buffers_to_mutate.values())
    outputs = len(leaves) - len(buffers) - len(trained)
    roles = [("update", each.removeprefix(_PREFIX)) for each in buffers]
    roles += [("loss" if i == 0 else "output", "") for i in range(outputs)]
    roles += [("gradient", each.removeprefix(_PREFIX)) for each in trained]
    return [Result(getattr(leaf, "name", ""), 0, *role) for leaf, role in zip(leaves, roles, strict=True)]


class _Scopes:
    """Which layer each node comes from, noted while the graph grows: hooks of the layers see it."""

    def __init__(self, flat: Any) -> None:
        self._began: list[Any] = []
        self._layer: dict[str, str] = {}
        for path, layer in flat.named_modules():
            layer.register_forward_pre_hook(self._enter)
            layer.register_forward_hook(self._leave(path))

    def _enter(self, *_: Any) -> None:
        self._began.append(_last_node())

    def _leave(self, path: str) -> Callable[..., None]:
        scope = path.removeprefix(_PREFIX.rstrip(".")).strip(".")

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
