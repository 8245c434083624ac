"""An ExecuTorch program read back as a plan, and run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from loadmaster.errors import require
from loadmaster.export.executorch_plans import planned_program
from loadmaster.export.executorch_reduce import placement
from loadmaster.export.rules import NotExported
from loadmaster.plan.plan import NO_OFFSET, Plan
from loadmaster.plan.static import HOME
from loadmaster.program.importers.executorch.importer import INPUTS, NO_TENSOR, Recorded
from loadmaster.program.importers.executorch.lower import SEED, Lowered

EAGER_TOLERANCE = 1e-4
"""Relative, to the largest number of an output: the runtime's kernels add up in another order."""


def read_back(own: Any, recorded: Recorded, order: list[int], arenas: Mapping[int, int]) -> Plan:
    """The placement that a finished program holds, found by its instructions.

    Instruction k is the k-th op in `order`; the places of its results are its last arguments.
    """
    method, program = planned_program(own), recorded.program
    memory_of = {arena: memory for memory, arena in arenas.items()}
    memory = np.full(program.n_tensors, HOME, dtype=np.int64)
    offset = np.full(program.n_tensors, NO_OFFSET, dtype=np.int64)
    ops = [op for op in order if not program.op_view[op] and program.op_name[op] != INPUTS]
    calls = [step.instr_args for chain in method.chains for step in chain.instructions]
    if len(calls) != len(ops):
        raise NotExported(
            f"the program has {len(calls)} instructions for {len(ops)} ops",
            object=program.name,
            number=len(calls),
            remedy="report the model: it can't be verified",
        )
    found = [
        (recorded.results[op], _results(method, call, len(recorded.results[op])))
        for op, call in zip(ops, calls, strict=True)
    ]
    if INPUTS in program.op_name:
        planned = [index for index in method.inputs if hasattr(method.values[index].val, "sizes")]
        found.append((recorded.results[program.op_name.index(INPUTS)], planned))
    for specs, indices in found:
        for spec, index in zip(specs, indices, strict=True):
            tensor = recorded.tensor_of[spec]
            if tensor != NO_TENSOR:
                place = method.values[index].val.allocation_info
                memory[tensor] = memory_of.get(int(place.memory_id), HOME)
                offset[tensor] = int(place.memory_offset_low) + (int(place.memory_offset_high) << 32)
    return placement(program, memory, offset, order)


def _results(method: Any, call: Any, count: int) -> list[int]:
    """The values that an instruction writes: before the last argument, which names them all again."""
    arguments = list(call.args)
    flat: list[int] = []
    for index in reversed(arguments[:-1]):
        value = method.values[index].val
        flat = [
            *(list(value.items) if hasattr(value, "items") and not hasattr(value, "sizes") else [index]),
            *flat,
        ]
        if len(flat) >= count:
            break
    return flat[-count:] if count else []


def run(own: Any, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of a program in ExecuTorch's runtime."""
    runtime = require("executorch.runtime", "executorch").Runtime.get()
    method = runtime.load_program(bytes(own.buffer)).load_method("forward")
    return [output.clone() for output in method.execute(list(inputs)) if hasattr(output, "clone")]


def sample_inputs(lowered: Lowered) -> list[Any]:
    """Inputs like the example's: new random numbers where it has numbers, the same indices."""
    torch = require("torch", "torch")
    pytree = require("torch.utils._pytree", "torch")
    generator = torch.Generator().manual_seed(SEED)
    flat = pytree.tree_leaves((lowered.args, lowered.kwargs))
    return [
        torch.randn(x.shape, generator=generator, dtype=x.dtype)
        if hasattr(x, "is_floating_point") and x.is_floating_point()
        else x
        for x in flat
    ]


def eager(lowered: Lowered, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of the module itself."""
    torch = require("torch", "torch")
    pytree = require("torch.utils._pytree", "torch")
    _, shape = pytree.tree_flatten((lowered.args, lowered.kwargs))
    args, kwargs = pytree.tree_unflatten(list(inputs), shape)
    with torch.no_grad():
        outputs = pytree.tree_leaves(lowered.module(*args, **kwargs))
    return [output for output in outputs if hasattr(output, "clone")]


def difference(a: Sequence[Any], b: Sequence[Any]) -> float:
    """The largest difference of two lists of outputs, relative to the largest number of each."""
    torch = require("torch", "torch")
    if len(a) != len(b):
        return float("inf")
    worst = 0.0
    for x, y in zip(a, b, strict=True):
        if x.shape != y.shape:
            return float("inf")
        if x.numel():
            x, y = x.to(torch.float64), y.to(torch.float64)
            gap = float((x - y).abs().max() / y.abs().max().clamp_min(1e-30))
            worst = max(worst, gap if gap == gap else float("inf"))
    return worst
