"""A module's forward pass as a functional graph of ATen calls, through torch.export."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadmaster.errors import BadProgram, require
from loadmaster.program.importers.torch.importer import exported_program, quiet
from loadmaster.program.importers.torch.roles import Given, Result, Traced, drop_idle, placeholders, tidy
from loadmaster.program.program import TensorKind


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
