"""`loadmaster run`: a PyTorch model on a real device as a plan says, measured."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.cli.answer import Answer, OverwriteOption, Table, Usage, check_free
from loadmaster.cli.model import Model, refuse_for_run, size_of
from loadmaster.cli.progress import say
from loadmaster.errors import Refused
from loadmaster.units import PICOSECONDS, show_bytes, show_time

if TYPE_CHECKING:
    from loadmaster.execute.ready import Agreement
    from loadmaster.execute.run_plan import PlannedRun

HELD = {"planned": "the arena and what libraries keep"}
"""What the reserved bytes are, by placement; else PyTorch's allocator has them."""

LATE = 0.1
SLOW_HOST = "slower than predicted: if the host can't keep up with so many short ops, --cuda-graph helps"


OTHER_DEVICE = "the prediction is for '{}' and the run was on {}: the two times are not to be compared"


def command(
    model: Annotated[str, typer.Argument(metavar="RUN|MODEL", help="A run, or a PyTorch module:function.")],
    plan: Annotated[
        Path | None, typer.Argument(metavar="PLAN|RUN", help="A plan file made for the model, or its run.")
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(
            "--machine", "-m", metavar="MACHINE", help="A name or a TOML file. [the run's, or h200]"
        ),
    ] = None,
    capacity: Annotated[
        list[str], typer.Option(metavar="NAME=SIZE", help="Capacity the plan was made for.")
    ] = [],  # noqa: B006
    device: Annotated[
        str | None,
        typer.Option(help="cuda, cuda:1 or cpu. [what it was captured for, else a GPU if there is one]"),
    ] = None,
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
    activations that it does not keep live in pinned host memory. A run has the model, its options,
    the machine and the costs: nothing is said again.

    Example: loadmaster run runs/A

    Example: loadmaster run net:build plan.json --machine h200 --capacity hbm=40GiB
    """
    from loadmaster.machine import load_machine
    from loadmaster.program.importers.torch.captured import capture_device
    from loadmaster.runs.folder import RunFolder, is_run
    from loadmaster.search.request import parse_capacity

    own = Path(model) if plan is None else plan
    where = load_machine(machine or "h200") if not is_run(own) else None
    if where is None:
        refuse_for_run(own, machine, capacity)
        folder, where = RunFolder.open(own), load_machine(str(own / "machine.toml"))
        name_it = f"go where it is, or name it: loadmaster run MODEL {shlex.quote(str(own))}"
        read = Model.of_run(own, name_it) if plan is None else Model.recorded(folder.about) or Model(model)
        model, plan = read.source if plan is None else model, folder.plan_file
        if not read.spec.is_function:
            raise Usage(
                f"'{read.source}' is no PyTorch function, and these alone are run",
                object=read.source,
                remedy="see 'loadmaster export --help' for the runtimes of others",
            )
        train, split, device = train or read.train, split or read.split, device or read.device
        costs = costs or folder.costs
    if plan is None:
        raise Usage(f"there is no plan of '{model}'", object="PLAN", remedy="give its file, or its run")
    device = device or capture_device(None)
    if out is not None:
        check_free(out, overwrite, plan, *([inputs] if inputs else []))
    from loadmaster.execute.run_plan import run_plan

    ran = run_plan(
        model,
        plan,
        where,
        capacity=parse_capacity(capacity),
        device=device,
        costs=costs,
        budget=size_of(budget, "--budget"),
        repeats=repeats,
        warmups=warmups,
        cuda_graph=cuda_graph,
        placement=placement,
        timings=timings,
        training=train,
        split_over=size_of(split, "--split"),
        verify=verify,
        inputs=inputs,
        weights=weights,
        results=out,
        say=say,
    )
    rows = _rows(model, device, ran)
    blocks = blocks_of(rows, ran.agreement, one_by_one=device != "cpu" and not cuda_graph)
    return Answer(rows, blocks, ran.program.warnings, _failure(ran.agreement))


def _rows(model: str, device: str, ran: PlannedRun) -> list[dict[str, Any]]:
    agreed, measured, predicted = ran.agreement, ran.measured, ran.predicted_ps / PICOSECONDS
    ordinary = ran.ordinary
    difference = predicted / measured.seconds - 1 if measured.seconds else 0.0
    rows: list[dict[str, Any]] = [
        {
            "what": "total",
            "model": model,
            "machine": ran.machine.name,
            "device": device,
            "plan": ran.plan.hash,
            "seconds": measured.seconds,
            "runs": list(measured.runs),
            "predicted_seconds": predicted,
            "difference": difference if ran.comparable else None,
            "ordinary_seconds": None if ordinary is None else ordinary.seconds,
            "compared": 0 if agreed is None else agreed.compared,
            "identical": None if agreed is None else agreed.identical,
            "largest_difference": None if agreed is None else agreed.largest,
        },
        {
            "what": "memory",
            "name": ran.machine.memories[ran.machine.reach[0][0]].name,
            "plan_bytes": ran.plan_bytes,
            "peak_bytes": measured.peak_bytes,
            "reserved_bytes": measured.reserved_bytes,
            "capacity_bytes": ran.capacity,
            "ordinary_bytes": None if ordinary is None else ordinary.peak_bytes,
            "placement": ran.placement,
        },
    ]
    names = ran.program.op_name
    return rows + [
        {"what": "op", "op": op, "name": names[op], "start_seconds": start, "end_seconds": end}
        for op, (start, end) in sorted(measured.last.op_seconds.items())
    ]


def blocks_of(
    rows: list[dict[str, Any]], agreed: Agreement | None, *, one_by_one: bool = False
) -> list[str | Table]:
    """`one_by_one`: the host sent each op to the device, and could be what took so long."""
    total, memory = rows[0], rows[1]
    comparable = total["difference"] is not None
    text = {True: "the same, bit for bit", False: "close", None: "not compared"}[total["identical"]]
    if agreed is not None and not agreed.identical:
        text = f"largest difference {agreed.largest:.2g} of the largest value, in {agreed.where}"
    share = f" ({total['difference']:+.1%})" if comparable else f" on {total['machine']}"
    cells = [
        ("measured", _seconds(total["seconds"])),
        ("predicted", f"{_seconds(total['predicted_seconds'])}{share}"),
        (
            f"peak of {memory['name']}",
            f"{show_bytes(memory['peak_bytes'])} of {show_bytes(memory['capacity_bytes'])}",
        ),
        (HELD.get(memory["placement"], "held by the allocator"), show_bytes(memory["reserved_bytes"])),
    ]
    if total["ordinary_seconds"] is not None:
        factor = total["seconds"] / total["ordinary_seconds"] if total["ordinary_seconds"] else 1.0
        more = memory["peak_bytes"] / memory["ordinary_bytes"] if memory["ordinary_bytes"] else 1.0
        cost = f"the plan takes {factor:.2f} times as long in {more:.0%} of the memory"
        peak = show_bytes(memory["ordinary_bytes"])
        cells.append(("ordinary run", f"{_seconds(total['ordinary_seconds'])}, peak {peak}: {cost}"))
    cells.append(("results", text))
    table = Table(("what", "value"), cells, f"{total['model']} on {total['device']}")
    if not comparable:
        there = "a CPU" if total["device"] == "cpu" else "a GPU"
        return [table, OTHER_DEVICE.format(total["machine"], there)]
    late = one_by_one and total["difference"] < -LATE
    return [table, SLOW_HOST] if late else [table]


def _seconds(seconds: float) -> str:
    return show_time(round(seconds * PICOSECONDS))


def _failure(agreed: Agreement | None) -> Refused | None:
    if agreed is None or agreed.close:
        return None
    return Refused(
        f"{agreed.where} differs from the ordinary run by {agreed.largest:.3g} of its largest value",
        object=agreed.where,
        number=agreed.largest,
        remedy="check the plan and the inputs",
    )
