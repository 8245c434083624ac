"""The one place that knows ExecuTorch's interfaces: lowering, the hook of its memory planner.

They move between versions, so a version that was not tried is refused. Lowering consumes an edge
program: every use works on a copy of it.
"""

from __future__ import annotations

import copy
import importlib.metadata
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from typing import Any

from loadmaster.errors import BadProgram, MissingPackage, require
from loadmaster.program.importers import load_function
from loadmaster.program.importers.torch.importer import exported_program, model_and_inputs, quiet

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
        return lower_module(*model_and_inputs(load_function(spec)(), spec), name=spec)


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
