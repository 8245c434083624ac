"""`loadmaster run`: a PyTorch model on a real device as a plan says, measured; without a plan, one is made first."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.cli.answer import Answer, OverwriteOption, Table, Usage, check_free
from loadmaster.cli.model import Model, check_function, refuse_folder, refuse_for_run, size_of
from loadmaster.cli.plan import seconds_of
from loadmaster.cli.progress import LiveLine, gap_text, say
from loadmaster.errors import Refused
from loadmaster.units import PICOSECONDS, show_bytes, show_time

if TYPE_CHECKING:
    from loadmaster.execute.ready import Agreement
    from loadmaster.execute.run_plan import PlannedRun, PlanSearch

PLANNING = "Without a plan: how one is sought"
"""A panel of `run --help`."""
HELD = {"planned": "the arena and what libraries keep"}
"""What the reserved bytes are, by placement; else PyTorch's allocator has them."""

LATE = 0.1
SLOW_HOST = "slower than predicted: if the host can't keep up with so many short ops, --cuda-graph helps"


OTHER_DEVICE = "the prediction is for '{}' and the run was on {}: the two times are not to be compared"


def command(
    model: Annotated[str, typer.Argument(metavar="RUN|MODEL", help="A run, or a PyTorch module:function.")],
    plan: Annotated[
        Path | None,
        typer.Argument(
            metavar="PLAN|RUN", help="A plan file made for the model, or its run. [one is made now]"
        ),
    ] = None,
    machine: Annotated[
        str | None,
        typer.Option(
            "--machine",
            "-m",
            metavar="MACHINE",
            help="A name or a TOML file. [the run's, or h200; without a plan this computer, as measured]",
        ),
    ] = None,
    capacity: Annotated[
        list[str],
        typer.Option(
            metavar="NAME=SIZE",
            help="Capacity the plan was made for, or is to be made for: hbm=40GiB, or hbm=50% of what the model needs.",
        ),
    ] = [],  # noqa: B006
    device: Annotated[
        str | None,
        typer.Option(help="cuda, cuda:1 or cpu. [what it was captured for, else a GPU if there is one]"),
    ] = None,
    costs: Annotated[
        Path | None,
        typer.Option(
            help="The cost table that the plan was made with. [without a plan the ops are measured, once]"
        ),
    ] = None,
    budget: Annotated[
        str | None, typer.Option(help="Bytes of fast memory a plan may have; else the capacity.")
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
    inputs: Annotated[
        Path | None, typer.Option(help="An .npz file with the inputs, by name or in order.")
    ] = None,
    weights: Annotated[str, typer.Option(help="The module's own, or random.")] = "module",
    out: Annotated[Path | None, typer.Option(help="Write the results to an .npz file.")] = None,
    time_limit: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Search this long. [default: 20s]", rich_help_panel=PLANNING),
    ] = None,
    evaluations: Annotated[
        int | None,
        typer.Option(
            min=1, help="Most plans to evaluate. [as many as there is time for]", rich_help_panel=PLANNING
        ),
    ] = None,
    plan_out: Annotated[
        Path | None,
        typer.Option(
            metavar="JSON",
            help="Write the plan; beside it the machine and the costs, where they were measured.",
            rich_help_panel=PLANNING,
        ),
    ] = None,
    overwrite: OverwriteOption = False,
) -> Answer:
    """Run a model under a budget of fast memory: time, peak, and whether results are the same.

    Without a plan one is made: this computer and the model's ops are measured, unless that was done
    before, and the plan is sought with the one build and the one capture that the run needs.

    The plan is checked first, and one that needs more than it may have is refused. Weights and
    activations that it does not keep live in pinned host memory. A run has the model, its options,
    the machine and the costs: nothing is said again.

    Example: loadmaster run net:build --capacity hbm=50%

    Example: loadmaster run runs/A

    Example: loadmaster run net:build plan.json --machine h200 --capacity hbm=40GiB
    """
    from loadmaster.machine import load_machine
    from loadmaster.program.importers import as_module
    from loadmaster.program.importers.torch.captured import capture_device
    from loadmaster.runs.folder import RunFolder, is_run
    from loadmaster.search.request import parse_capacity

    own, model = Path(model) if plan is None else plan, as_module(model)
    sought = {"--time-limit": time_limit, "--evaluations": evaluations, "--plan-out": plan_out}
    typed, search, where = Model(model, train=train, split=split, device=device), None, None
    if plan is None and not is_run(own):
        search = _search(typed, sought, budget, machine, costs)
        where = None if machine is None else load_machine(machine)
    else:
        _refuse_search(own, sought)
        where = load_machine(machine or "h200") if not is_run(own) else None
    if is_run(own):
        refuse_for_run(own, machine, capacity)
        folder, where = RunFolder.open(own), load_machine(str(own / "machine.toml"))
        name_it = f"go where it is, or name it: loadmaster run MODEL {shlex.quote(str(own))}"
        read = Model.of_run(own, name_it) if plan is None else Model.recorded(folder.about) or Model(model)
        model, plan = read.source if plan is None else model, folder.plan_file
        check_function(read, "see 'loadmaster export --help' for the runtimes of others")
        train, split, device = train or read.train, split or read.split, device or read.device
        costs = costs or folder.costs
    followed = search or plan
    assert followed is not None
    device = device or capture_device(None)
    files = [] if search is None or search.files is None else search.files.written
    for path in files if out is None else [*files, out]:
        check_free(path, overwrite, *(each for each in (plan, inputs, costs, machine) if each is not None))
    if out in files:
        raise Usage(
            f"--out '{out}' is a file of the plan",
            object="--out",
            number=str(out),
            remedy="give another name",
        )
    from loadmaster.execute.run_plan import run_plan

    ran = run_plan(
        model,
        followed,
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
    planning = ran.planning
    if out is not None:
        blocks.append(f"wrote {out}")
    if planning is not None and planning.written:
        about = ["--machine", machine, *_options("--capacity", capacity)] if machine is not None else []
        about += ["--weights", weights] if weights != "module" else []
        again = _again(replace(typed, costs=costs), planning.written, about)
        blocks += [f"wrote {', '.join(map(str, planning.written))}", f"again:  {again}"]
    warnings = (*ran.program.warnings, *(() if planning is None else planning.warnings))
    return Answer(rows, blocks, warnings, _failure(ran.agreement))


def _search(
    model: Model, sought: Mapping[str, Any], budget: str | None, machine: str | None, costs: Path | None
) -> PlanSearch:
    """How the plan is sought; what is only about one that is there already is refused."""
    from loadmaster.execute.run_plan import SEARCH_SECONDS, PlanFiles, PlanSearch

    check_function(model, "give module:function, a plan or a run")
    if budget is not None:
        raise Usage(
            f"--budget is for a plan that is there, and there is none of '{model.source}'",
            object="--budget",
            number=budget,
            remedy="give --capacity, which one is made for",
        )
    limit, out = sought["--time-limit"], sought["--plan-out"]
    seconds = SEARCH_SECONDS if limit is None else seconds_of(limit, "--time-limit")
    if seconds == 0:
        raise Usage(
            "--time-limit 0 leaves no time to search", object="--time-limit", number=limit, remedy="write 20s"
        )
    files = None if out is None else PlanFiles.beside(out, machine=machine is None, costs=costs is None)
    return PlanSearch(seconds, sought["--evaluations"], files, LiveLine())


def _refuse_search(plan: Path, sought: Mapping[str, Any]) -> None:
    """Options of a search make no sense where there is a plan."""
    refuse_folder(plan)
    for option, value in sought.items():
        if value is not None:
            raise Usage(
                f"{option} is for a plan that is sought, and '{plan}' has one",
                object=option,
                number=str(value),
                remedy="leave it out, or the plan",
            )


def _options(option: str, values: Sequence[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


def _again(model: Model, written: Sequence[Path], about: Sequence[str]) -> str:
    """The command that runs a plan that was written, with what it belongs to."""
    plan, *others = written
    for path in others:
        about = [*about, "--machine" if path.suffix == ".toml" else "--costs", str(path)]
    source, *options = model.typed()
    return shlex.join(["loadmaster", "run", source, str(plan), *options, *about])


def _rows(model: str, device: str, ran: PlannedRun) -> list[dict[str, Any]]:
    agreed, measured, predicted = ran.agreement, ran.measured, ran.predicted_ps / PICOSECONDS
    ordinary = ran.ordinary
    difference = predicted / measured.seconds - 1 if measured.seconds else 0.0
    planning = ran.planning
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
            "measuring_seconds": None if planning is None else planning.measuring_seconds,
            "planning_seconds": None if planning is None else planning.seconds,
            "bound_seconds": None if planning is None else planning.bound_ps / PICOSECONDS,
            "gap": None if planning is None else planning.gap,
            "files": [] if planning is None else [str(path) for path in planning.written],
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
        *_planning_cells(total),
        (
            f"peak of {memory['name']}",
            f"{show_bytes(memory['peak_bytes'])} of {show_bytes(memory['capacity_bytes'])}",
        ),
        (HELD.get(memory["placement"], "held by the allocator"), show_bytes(memory["reserved_bytes"])),
    ]
    if total["ordinary_seconds"] is not None:
        factor = total["seconds"] / total["ordinary_seconds"] if total["ordinary_seconds"] else 1.0
        cost, peak = f"the plan takes {factor:.2f} times as long", ""
        if memory["ordinary_bytes"]:
            peak = f", peak {show_bytes(memory['ordinary_bytes'])}"
            cost += f" in {memory['peak_bytes'] / memory['ordinary_bytes']:.0%} of the memory"
        cells.append(("ordinary run", f"{_seconds(total['ordinary_seconds'])}{peak}: {cost}"))
    cells.append(("results", text))
    table = Table(("what", "value"), cells, f"{total['model']} on {total['device']}")
    if not comparable:
        there = "a CPU" if total["device"] == "cpu" else "a GPU"
        return [table, OTHER_DEVICE.format(total["machine"], there)]
    late = one_by_one and total["difference"] < -LATE
    return [table, SLOW_HOST] if late else [table]


def _planning_cells(total: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What planning took and proved, where it was done here."""
    if total["planning_seconds"] is None:
        return []
    took = f"{total['planning_seconds']:.1f} s, after {total['measuring_seconds']:.1f} s of measuring"
    bound = f"{_seconds(total['bound_seconds'])} (gap {gap_text(total['gap'])})"
    return [("bound", bound), ("planned in", took)]


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
