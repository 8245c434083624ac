"""The graph that ExecuTorch runs as a Program: lowered, with every tensor it plans memory for.

Constants are where the program file is: they can't be moved. Inputs are copied into planned
memory by the runtime, which is one op here, before all others. Results that nobody reads take
memory all the same.
"""

from __future__ import annotations

import copy
import importlib.metadata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from typing import Any

from loadmaster.errors import BadProgram, MissingPackage, require
from loadmaster.program.importers import load_function
from loadmaster.program.importers.torch.costs import Call
from loadmaster.program.importers.torch.graph import (
    Graph,
    Step,
    Value,
    call_of,
    emit,
    is_getitem,
    made,
    scope_of,
    type_of,
)
from loadmaster.program.importers.torch.importer import exported_program, made_on_cpu, model_and_inputs, quiet
from loadmaster.program.program import Program, TensorKind

# The one place that knows ExecuTorch's interfaces: lowering, the hook of its memory planner.
#
# They move between versions, so a version that was not tried is refused. Lowering consumes an edge
# program: every use works on a copy of it.

VERSIONS = ("1.5.",)
ALIGNMENT = 16
"""Of offsets and sizes in all arenas: ExecuTorch's default."""
SEED = 0
"""Weights that a user's function draws are the same in every process."""

Algorithm = Callable[..., Any]
"""(alignment, specs, graph module, signature, padding) -> its MemoryAlgoResult."""
Reader = Callable[[Any, Any], None]
"""(graph module, signature), right before memory is planned; it may move nodes."""


@dataclass(frozen=True)
class Lowered:
    """A module in ExecuTorch's edge dialect, with its example inputs."""

    name: str
    module: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    edge: Any


def check_version() -> None:
    """Refuse a version of ExecuTorch whose interfaces were never tried."""
    require("executorch", "executorch")
    version = importlib.metadata.version("executorch")
    if not version.startswith(VERSIONS):
        raise MissingPackage(
            f"ExecuTorch {version} was never tried with this version of Loadmaster",
            object="executorch",
            number=version,
            remedy=f"pip install 'executorch=={VERSIONS[-1]}*'",
        )


def lower(spec: str) -> Lowered:
    """Lower what 'module:function' gives to the edge dialect."""
    check_version()
    torch = require("torch", "torch")
    with quiet(), torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        return lower_module(*model_and_inputs(made_on_cpu(load_function(spec)), spec), name=spec)


def lower_module(
    module: Any, args: Sequence[Any], kwargs: dict[str, Any] | None = None, *, name: str
) -> Lowered:
    """Lower a module with its example inputs."""
    check_version()
    torch, exir = require("torch", "torch"), _exir()
    with quiet(), torch.no_grad():
        exported = exported_program(module, args, kwargs, name)
        edge = exir.to_edge(exported)
    return Lowered(name, module, tuple(args), dict(kwargs or {}), edge)


def planned(lowered: Lowered, algorithm: Algorithm, reader: Reader) -> Any:
    """ExecuTorch's program with memory planned by `algorithm`."""
    torch, exir = require("torch", "torch"), _exir()
    planning = require("executorch.exir.memory_planning", "executorch")
    passes = require("executorch.exir.passes", "executorch")
    # Several algorithms would be compared by their bytes in all arenas together: give one.
    suite = planning.MemoryPlanningAlgorithmSuite([algorithm])

    class Planning(passes.MemoryPlanningPass):  # type: ignore[misc, name-defined]
        def run(self, graph_module: Any, graph_signature: Any = None) -> Any:
            reader(graph_module, graph_signature)
            return super().run(graph_module, graph_signature)

    step = Planning(memory_planning_algo=suite, alignment=ALIGNMENT)
    with quiet(), torch.no_grad():
        config = exir.ExecutorchBackendConfig(memory_planning_pass=step)
        return copy.deepcopy(lowered.edge).to_executorch(config)


def greedy(*args: Any) -> Any:
    """ExecuTorch's default planner: one arena."""
    return require("executorch.exir.memory_planning", "executorch").greedy(*args)


def banked(banks: Sequence[tuple[str, int, int]]) -> Algorithm:
    """Its planner for several arenas: (name, bytes, number), fastest first."""
    module = require("executorch.exir.banked_memory_planning", "executorch")
    target = module.TargetMemoryMap([module.Bank(*bank) for bank in banks])
    return module.BankedGreedy(target)  # type: ignore[no-any-return]


def result_of(places: dict[Any, tuple[int, int]], sizes: list[int]) -> Any:
    """Its result type from spec -> (arena, offset) and the bytes of the arenas."""
    planning = require("executorch.exir.memory_planning", "executorch")
    specs = {spec: planning.SpecAllocResult(arena, 0, offset) for spec, (arena, offset) in places.items()}
    return planning.MemoryAlgoResult(specs, sizes)


def refuse_unsupported(lowered: Lowered, graph_module: Any, signature: Any) -> None:
    """Refuse what plans can't express: branches and loops, and buffers that a run changes."""
    inner = [m for m in graph_module.modules() if m is not graph_module and hasattr(m, "graph")]
    if inner:
        raise BadProgram(
            f"'{lowered.name}' has {len(inner)} branches or loops",
            object=lowered.name,
            number=len(inner),
            remedy="export a module without torch.cond and loops",
        )
    changed = sorted(signature.buffers_to_mutate.values()) if signature is not None else []
    if changed:
        raise BadProgram(
            f"'{lowered.name}' changes its buffer '{changed[0]}'",
            object=changed[0],
            number=len(changed),
            remedy="give the buffer as an input and an output",
        )


@contextmanager
def _without_chatter() -> Iterator[None]:
    """Its packages write lines of their own to standard error when they are imported."""
    import io

    with redirect_stderr(io.StringIO()), quiet():
        yield


def _exir() -> Any:
    with _without_chatter():
        return require("executorch.exir", "executorch")


def is_alloc(node: Any) -> bool:
    """Whether a node only stands for memory."""
    return bool(node.target is require("executorch.exir.memory", "executorch").alloc)


def is_view(node: Any) -> bool:
    """Whether a node shows another's memory."""
    return bool(node.target is require("executorch.exir.memory", "executorch").view)


INPUTS = "inputs"
"""The op that copies the inputs in."""
NO_TENSOR = -1


@dataclass
class Recorded:
    """A graph as it is right before its memory is planned. Specs are ExecuTorch's, nodes are FX's."""

    program: Program
    tensor_of: dict[Any, int]
    """Spec -> tensor of the Program, or NO_TENSOR: it has no bytes."""
    nodes: list[Any]
    """All nodes in order; an op's `op_source` is a position in this."""
    results: list[list[Any]] = field(default_factory=list)
    """The specs of the results of every op of the Program, those without bytes too."""
    own: Any = None
    """ExecuTorch's program with its memory planned."""


def import_executorch_spec(spec: str, *, strict: bool = False) -> Program:
    """The lowered graph of what 'module:function' gives."""
    return record(lower(spec), greedy, strict=strict).program


def record(lowered: Lowered, algorithm: Algorithm, *, strict: bool = False) -> Recorded:
    """Read the graph whose memory is planned, and let `algorithm` plan it."""
    found: list[Recorded] = []

    def reader(graph_module: Any, signature: Any) -> None:
        refuse_unsupported(lowered, graph_module, signature)
        found.append(recorded(graph_module, signature, lowered.name, strict=strict))

    own = planned(lowered, algorithm, reader)
    if len(found) != 1:
        raise BadProgram(
            f"'{lowered.name}' has {len(found)} methods",
            object=lowered.name,
            number=len(found),
            remedy="export a module with one method",
        )
    found[0].own = own
    return found[0]


def recorded(graph_module: Any, signature: Any, name: str, *, strict: bool = False) -> Recorded:
    """The Program of a lowered graph, and which tensors its specs are."""
    graph, values = _Reader(signature).read(graph_module)
    every = {step.name: list(step.results) for step in graph.steps}
    for step in graph.steps:  # what has no bytes has no place
        step.results = [value for value in step.results if value.bytes]
        step.operands = [value for value in step.operands if value.bytes]
    graph.outputs = [value for value in graph.outputs if value.bytes]
    idle = [step for step in graph.steps if not step.results]
    if idle:
        raise BadProgram(
            f"op '{idle[0].name}' makes nothing",
            object=idle[0].name,
            number=len(idle),
            remedy="give inputs that are not empty",
        )
    program = emit(graph, name, strict=strict, fixed=True)
    specs = {id(value): spec for spec, value in values.items()}
    results = [[specs[id(v)] for v in every[step.name] if id(v) in specs] for step in graph.steps]
    tensor_of = {spec: value.root.tensor if value.bytes else NO_TENSOR for spec, value in values.items()}
    return Recorded(program, tensor_of, list(graph_module.graph.nodes), results)


class _Reader:
    """Walks a lowered graph once."""

    def __init__(self, signature: Any) -> None:
        self._signature = signature
        self._graph = Graph()
        self._values: dict[Any, list[Value]] = {}
        self._of_spec: dict[Any, Value] = {}
        self._callers: list[Value] = []
        self._inputs: list[Value] = []

    def read(self, graph_module: Any) -> tuple[Graph, dict[Any, Value]]:
        """The steps, and the value of every spec that memory is planned for."""
        graph, values = self._graph, self._values
        for position, node in enumerate(graph_module.graph.nodes):
            if node.op == "placeholder":
                self._given(node)
            elif node.op == "output":
                outputs = [v for part in node.all_input_nodes for v in values.get(part, [])]
                graph.outputs += [value for value in outputs if value.given is None]
            elif is_getitem(node):
                values[node] = [self._of_spec[node.meta["spec"]]]
            elif node.op == "call_function" and not is_alloc(node):
                self._call(node, position)
        if self._inputs:
            types = [value.type for value in self._inputs]
            call = Call("alias", {"inputs": types}, types)
            graph.steps.insert(0, Step(INPUTS, call, self._callers, self._inputs))
        return graph, self._of_spec

    def _given(self, node: Any) -> None:
        spec, signature = node.meta.get("spec"), self._signature
        if not hasattr(spec, "lifetime"):
            return  # a number or a flag
        type = type_of(spec, node.name)
        if spec.const:
            tables = (
                signature.inputs_to_parameters,
                signature.inputs_to_buffers,
                signature.inputs_to_lifted_tensor_constants,
            )
            name = next((table[node.name] for table in tables if node.name in table), node.name)
            value = Value(type, name, type.bytes, given=TensorKind.WEIGHT, fast=False)
            self._graph.given.append(value)
        else:
            caller = Value(type, f"{node.name}.caller", type.bytes, given=TensorKind.INPUT)
            self._graph.given.append(caller)
            self._callers.append(caller)
            value = made(type, node.name)
            self._inputs.append(value)
            self._of_spec[spec] = value
        self._values[node] = [value]

    def _call(self, node: Any, position: int) -> None:
        found = node.meta.get("spec")
        parts = list(found) if isinstance(found, list | tuple) else [found]
        specs = [part for part in parts if hasattr(part, "lifetime")]
        if not specs:
            self._graph.folded += 1
            return
        if any(spec.storage_base is not None for spec in specs):
            raise BadProgram(
                f"'{node.name}' is planned inside another tensor",
                object=node.name,
                remedy="leave out passes that share storage",
            )
        results = [type_of(spec, node.name) for spec in specs]
        call, operands = call_of(node, self._values, results)
        view = is_view(node)
        base = operands[0] if view else None
        names = [node.name if i == 0 else f"{node.name}:{i}" for i in range(len(results))]
        values = [made(type, name, base) for type, name in zip(results, names, strict=True)]
        self._values[node] = values
        if not view:
            self._of_spec.update(zip(specs, values, strict=True))
        self._graph.steps.append(
            Step(node.name, call, operands, list(values), scope_of(node), position, view)
        )
