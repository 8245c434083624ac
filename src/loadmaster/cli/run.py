"""`loadmaster run`: a PyTorch model on a real device as a plan says, measured."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.cli.answer import Answer, Usage
from loadmaster.cli.files import OverwriteOption, check_free
from loadmaster.cli.model import size_of
from loadmaster.cli.progress import say
from loadmaster.cli.run_show import blocks_of, failure_of, rows_of, write_results
from loadmaster.errors import BadProgram, require

if TYPE_CHECKING:
    from loadmaster.execute.ready import Agreement, Ready
    from loadmaster.execute.results import Measured
    from loadmaster.planner.capacity import KernelRoom
    from loadmaster.program import Program

_MOST_INPUTS = 2**36
"""Bytes of a file, also unpacked: inputs are the user's own, and may be large and all zeros."""


def command(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A PyTorch module:function.")],
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file made for it.")],
    machine: Annotated[
        str, typer.Option("--machine", "-m", metavar="MACHINE", help="A name or a TOML file.")
    ] = "h200",
    capacity: Annotated[
        list[str], typer.Option(metavar="NAME=SIZE", help="Capacity the plan was made for.")
    ] = [],  # noqa: B006
    device: Annotated[str, typer.Option(help="cuda, cuda:1 or cpu.")] = "cuda",
    costs: Annotated[Path | None, typer.Option(help="The cost table that the plan was made with.")] = None,
    budget: Annotated[
        str | None, typer.Option(help="Bytes of fast memory it may have; else the capacity.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Runs that count.")] = 5,
    warmups: Annotated[int, typer.Option(min=0, help="Runs before that don't.")] = 2,
    cuda_graph: Annotated[
        bool, typer.Option("--cuda-graph", help="Capture the run as one CUDA graph.")
    ] = False,
    placement: Annotated[
        str, typer.Option(help="planned: results at the plan's offsets; allocator: PyTorch's; arena: copied.")
    ] = "planned",
    timings: Annotated[bool, typer.Option("--timings", help="Time every op.")] = False,
    train: Annotated[bool, typer.Option("--train", help="A training step: loss, gradients.")] = False,
    split: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Weights above it are cut into slices.")
    ] = None,
    verify: Annotated[bool, typer.Option(help="Compare with the ordinary run.")] = True,
    inputs: Annotated[Path | None, typer.Option(help="An .npz file with the inputs, in order.")] = None,
    weights: Annotated[str, typer.Option(help="The module's own, or random.")] = "module",
    out: Annotated[Path | None, typer.Option(help="Write the results to an .npz file.")] = None,
    overwrite: OverwriteOption = False,
) -> Answer:
    """Run a model under a budget of fast memory: time, peak, and whether results are the same.

    The plan is checked first, and one that needs more than it may have is refused. Weights and
    activations that it does not keep live in pinned host memory.

    Example: loadmaster run net:build plan.json --machine h200 --capacity hbm=40GiB
    """
    from loadmaster.execute import own_allocator

    if device != "cpu":
        own_allocator.fewer_holes()
    require("torch", "torch")
    from loadmaster.execute.executor import Executor, backend_for
    from loadmaster.execute.ready import WEIGHTS, make_ready
    from loadmaster.machine import load_machine
    from loadmaster.plan import load_planned
    from loadmaster.planner.capacity import parse_capacity, with_bytes, with_shares
    from loadmaster.simulate import simulate

    if weights not in WEIGHTS:
        raise Usage(
            f"--weights can't be '{weights}'",
            object="--weights",
            number=weights,
            remedy=f"use {' or '.join(WEIGHTS)}",
        )
    if out is not None:
        check_free(out, overwrite, plan, *([inputs] if inputs else []))
    most, split_over = size_of(budget, "--budget"), size_of(split, "--split")
    if device != "cpu" and placement == "planned":
        own_allocator.install()  # only before CUDA is first used
    backend_for(device).close()  # no device: told before anything is made
    sizes = parse_capacity(capacity)
    chosen = with_bytes(load_machine(machine), sizes)
    ready = make_ready(model, device, training=train, weights=weights, split_over=split_over)
    base, room = _with_costs(ready, costs, device)
    chosen = with_shares(chosen, sizes, base, room.needed)
    program, decided = load_planned(plan, base, chosen)
    captured = ready.captured if program.repeats is None else ready.captured.repeated(program.repeats.ops)
    predicted = simulate(program, chosen, decided).total_ps
    given = ready.inputs if inputs is None else _inputs(inputs, ready)
    wanted = _ordinary(ready, device) if verify and inputs is None else None
    say(f"{model} on {device}: {len(decided.copy_rows):,} copies a run{_again(program)}")
    with Executor(
        captured,
        decided,
        chosen,
        device,
        ready.weights,
        capacity=most,
        workspace=room.kept,
        placement=placement,
        graph=cuda_graph,
        timings=timings,
    ) as executor:
        measured = executor.measure(*given, repeats=repeats, warmups=warmups)
        allowed, held, placed = executor.capacity, executor.script.peak, executor.placement
        agreed = _agreement(measured, wanted)
        if out is not None:
            write_results(out, measured)
    rows = rows_of(model, chosen, decided, device, measured, predicted, agreed)
    rows.append(
        {
            "what": "memory",
            "name": chosen.memories[chosen.reach[0][0]].name,
            "plan_bytes": held,
            "peak_bytes": measured.peak_bytes,
            "reserved_bytes": measured.reserved_bytes,
            "capacity_bytes": allowed,
            "placement": placed,
        }
    )
    rows += [
        {"what": "op", "op": op, "name": program.op_name[op], "start_seconds": start, "end_seconds": end}
        for op, (start, end) in sorted(measured.last.op_seconds.items())
    ]
    blocks = blocks_of(rows, agreed, asked_one_by_one=device != "cpu" and not cuda_graph)
    return Answer(rows, blocks, program.warnings, failure_of(agreed))


def _again(program: Program) -> str:
    return "" if program.repeats is None else f", {len(program.repeats.ops):,} ops run again"


def _with_costs(ready: Ready, costs: Path | None, device: str) -> tuple[Program, KernelRoom]:
    """The program as the plan knows it: a cost table is part of it. And what the plan leaves to kernels."""
    from loadmaster.planner.capacity import kernel_room
    from loadmaster.program.measured_costs import apply_costs, read_costs

    program = ready.captured.program
    table = None if costs is None else read_costs(costs)
    known = program if table is None else apply_costs(program, table)
    return known, kernel_room(program.n_ops, table, device)


def _inputs(path: Path, ready: Ready) -> list[Any]:
    from loadmaster.arrays import read_npz

    torch = require("torch", "torch")
    arrays = list(
        read_npz(
            path,
            lambda reason: BadProgram(
                f"inputs '{path}' can't be read: {reason}",
                object=str(path),
                remedy="write them with numpy.savez",
            ),
            most_file=_MOST_INPUTS,
            most_bytes=_MOST_INPUTS,
        ).values()
    )
    wanted = ready.inputs
    if len(arrays) != len(wanted):
        raise BadProgram(
            f"'{path}' has {len(arrays)} arrays and the model takes {len(wanted)} inputs",
            object=str(path),
            number=len(arrays),
            remedy="give one for each, in order",
        )
    return [torch.from_numpy(array).to(like.dtype) for array, like in zip(arrays, wanted, strict=True)]


def _ordinary(ready: Ready, device: str) -> dict[str, Any] | None:
    from loadmaster.execute.own_allocator import is_shortage
    from loadmaster.execute.ready import ordinary_run

    torch = require("torch", "torch")
    try:
        return ordinary_run(ready, device)
    except RuntimeError as error:
        if not is_shortage(error):
            raise
        say("the ordinary run does not fit into the device: results are not compared")
        return None
    finally:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _agreement(measured: Measured, wanted: dict[str, Any] | None) -> Agreement | None:
    from loadmaster.execute.ready import agreement

    return None if wanted is None else agreement(measured.last, wanted)
