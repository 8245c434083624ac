"""`run_plan`: a PyTorch model on a device as a plan's file says, measured, and compared with the ordinary run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from loadmaster.arrays import read_npz
from loadmaster.errors import BadProgram, require
from loadmaster.execute import own_allocator
from loadmaster.files import replacing
from loadmaster.machine.machine import Machine
from loadmaster.offload.kind import KernelRoom, kernel_room, with_shares
from loadmaster.plan import Plan, load_planned
from loadmaster.program.measured_costs import apply_costs, read_costs
from loadmaster.program.program import Program
from loadmaster.search.request import BadRequest, Capacity, say_nothing, with_bytes
from loadmaster.simulate import simulate

if TYPE_CHECKING:
    from loadmaster.execute.executor import Executor, Measured, Results
    from loadmaster.execute.ready import Agreement, OrdinaryRun, Ready

_MOST_INPUTS = 2**36
"""Bytes of a file, also unpacked: inputs are the user's own, and may be large and all zeros."""


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """What a run took and held."""

    program: Program
    """With the ops that the plan runs again."""
    machine: Machine
    plan: Plan
    measured: Measured
    predicted_ps: int
    agreement: Agreement | None
    """With the ordinary run, where that was made."""
    ordinary: OrdinaryRun | None
    comparable: bool
    """Whether the prediction is for the kind of device that it ran on."""
    capacity: int
    """Bytes of fast memory that it might have."""
    plan_bytes: int
    """Those that the plan holds at most."""
    placement: str


def run_plan(
    model: str,
    plan: Path,
    machine: Machine,
    *,
    capacity: Capacity,
    device: str = "cuda",
    costs: Path | None = None,
    budget: int | None = None,
    repeats: int = 5,
    warmups: int = 2,
    cuda_graph: bool = False,
    placement: str = "planned",
    timings: bool = False,
    training: bool = False,
    split_over: int | None = None,
    verify: bool = True,
    inputs: Path | None = None,
    weights: str = "module",
    results: Path | None = None,
    say: Callable[[str], None] = say_nothing,
) -> PlannedRun:
    """Run a 'module:function' of PyTorch as a plan says.

    Args:
      capacity: the capacity that the plan was made for; `costs`: the cost table.
      budget: bytes of fast memory that it may have; else the capacity.
      repeats, warmups: runs that count, and runs before that don't.
      placement: 'planned': results at the plan's offsets; 'allocator': PyTorch's; 'arena': copied.
      inputs: an .npz file with the inputs, in order; by default those of the function.
      weights: 'module' or 'random'.
      results: an .npz file for outputs, gradients and updates.
    """
    if device != "cpu":
        own_allocator.fewer_holes()  # only before PyTorch is first imported
    require("torch", "torch")
    from loadmaster.execute.executor import Executor, backend_for
    from loadmaster.execute.ready import WEIGHTS, agreement, make_ready
    from loadmaster.execute.speeds import is_measured_on_cpu

    if weights not in WEIGHTS:
        raise BadRequest(
            f"--weights can't be '{weights}'",
            object="--weights",
            number=weights,
            remedy=f"use {' or '.join(WEIGHTS)}",
        )
    if device != "cpu" and placement == "planned":
        own_allocator.install()  # only before CUDA is first used
    backend_for(device).close()  # no device: said before anything is made
    machine = with_bytes(machine, capacity)
    ready = make_ready(model, device, training=training, weights=weights, split_over=split_over)
    base, room = _with_costs(ready, costs, device)
    machine = with_shares(machine, capacity, base, room.needed)
    program, decided = load_planned(plan, base, machine)
    repeated = program.repeats
    captured = ready.captured if repeated is None else ready.captured.repeated(repeated.ops)
    predicted = simulate(program, machine, decided).total_ps
    given = ready.inputs if inputs is None else _read_inputs(inputs, ready)
    ordinary = None
    if verify and inputs is None:
        ordinary = _run_ordinarily(ready, device, repeats, warmups, say)
    again = "" if repeated is None else f", {len(repeated.ops):,} ops run again"
    say(f"{model} on {device}: {len(decided.copy_rows):,} copies a run{again}")
    with Executor(
        captured,
        decided,
        machine,
        device,
        ready.weights,
        capacity=budget,
        workspace=room.kept,
        placement=placement,
        graph=cuda_graph,
        timings=timings,
    ) as executor:
        measured = executor.measure(*given, repeats=repeats, warmups=warmups)
        agreed = None
        if ordinary is not None:
            agreed = agreement(_comparable_results(executor, measured, given), ordinary.values)
        if results is not None:
            _write_results(results, measured)
        return PlannedRun(
            program,
            machine,
            decided,
            measured,
            predicted,
            agreed,
            ordinary,
            is_measured_on_cpu(machine) == (device == "cpu"),
            executor.capacity,
            executor.script.peak,
            executor.placement,
        )


def _with_costs(ready: Ready, costs: Path | None, device: str) -> tuple[Program, KernelRoom]:
    """The program as the plan knows it: a cost table is part of it. And what the plan leaves to kernels."""
    program = ready.captured.program
    table = None if costs is None else read_costs(costs)
    known = program if table is None else apply_costs(program, table)
    return known, kernel_room(program.n_ops, table, device)


def _read_inputs(path: Path, ready: Ready) -> list[Any]:
    def refused(reason: str) -> BadProgram:
        return BadProgram(
            f"inputs '{path}' can't be read: {reason}", object=str(path), remedy="write them with numpy.savez"
        )

    torch = require("torch", "torch")
    read = read_npz(path, refused, most_file=_MOST_INPUTS, most_bytes=_MOST_INPUTS)
    arrays, expected = list(read.values()), ready.inputs
    if len(arrays) != len(expected):
        raise BadProgram(
            f"'{path}' has {len(arrays)} arrays and the model takes {len(expected)} inputs",
            object=str(path),
            number=len(arrays),
            remedy="give one for each, in order",
        )
    return [torch.from_numpy(array).to(like.dtype) for array, like in zip(arrays, expected, strict=True)]


def _run_ordinarily(
    ready: Ready, device: str, repeats: int, warmups: int, say: Callable[[str], None]
) -> OrdinaryRun | None:
    """The model as PyTorch runs it, if that can be and fits into the device."""
    from loadmaster.execute.ready import ordinary_run

    torch = require("torch", "torch")
    try:
        return ordinary_run(ready, device, repeats=repeats, warmups=warmups)
    except Exception as error:  # the user's own code, as the user has it
        if own_allocator.is_shortage(error):
            say("the ordinary run does not fit into the device: results are not compared")
        else:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            say(f"the ordinary run fails, so results are not compared: {reason}")
        return None
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _comparable_results(executor: Executor, measured: Measured, inputs: Sequence[Any]) -> Results:
    """The last results; of a model that draws random numbers, those with the ordinary run's."""
    from loadmaster.execute.ready import SEED
    from loadmaster.program.importers.torch.graph import is_random

    if not any(is_random(node) for node in executor.captured.graph.nodes):
        return measured.last
    require("torch", "torch").manual_seed(SEED)
    return executor.run(*inputs)


def _write_results(path: Path, measured: Measured) -> None:
    results = measured.last
    named = {f"output_{i}": value for i, value in enumerate(results.outputs) if value is not None}
    named |= {f"gradient_{name}": value for name, value in results.gradients.items()}
    named |= {f"update_{name}": value for name, value in results.updates.items()}
    torch = require("torch", "torch")
    arrays = {
        name: (value.float() if value.dtype == torch.bfloat16 else value).cpu().numpy()
        for name, value in named.items()
    }
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)
