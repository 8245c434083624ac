"""`loadmaster plan`: decide where tensors live and when they move, or where and when ops run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loadmaster.cli.answer import Answer, Usage
from loadmaster.cli.files import OverwriteOption, check_free
from loadmaster.cli.model import MachineOption, Model, takes_model

if TYPE_CHECKING:
    from loadmaster.cli.planning import Wanted
    from loadmaster.machine import Machine
    from loadmaster.problems.problem import Problem

Value = int | float | bool | str
PLANNED = ("mapping", "malloc-game", "graph")
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="An option of the solver, such as population=40."),
]  # fmt: skip


@takes_model
def command(
    model: Model,
    machine: MachineOption = None,
    solver: Annotated[
        str | None,
        typer.Option(help="egrl, exact, msa, …: see 'loadmaster solvers'. By default auto."),
    ] = None,
    problem: Annotated[
        str | None,
        typer.Option(
            help="mapping: a memory per tensor for life; malloc-game: copies in and out, "
            "use by use; graph: fusion, devices and order. By default what suits the machine "
            "and the solver."
        ),
    ] = None,
    objective: Annotated[
        str,
        typer.Option(
            help="time, or peak-memory: the order of the ops that needs the fewest bytes."
        ),
    ] = "time",
    tasks: Annotated[
        str | None,
        typer.Option(
            help="On several devices: what is decided. [default: placement,fusion,schedule]"
        ),
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option(help="What is placed as one: op, scope or coplace. [default: auto]"),
    ] = None,
    base: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART=NAME",
            help="What stands where nothing is decided: fusion=none|fixed|cost_model, "
            "placement=expert|single|m_topo, schedule=fifo|critical_path.",
        ),
    ] = None,
    budget: Annotated[
        int | None, typer.Option(min=1, help="Most plans to evaluate. [default: 4000]")
    ] = None,
    time_limit: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="Stop after this long. [auto and exact solvers: 60s; else none]"
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="The same seed gives the same plan. [default: 0]")
    ] = None,
    settings: SetOption = None,
    init: Annotated[
        str | None,
        typer.Option(metavar="POLICY", help="Start from pretrained:bert, or a file of 'train'."),
    ] = None,
    capacity: Annotated[
        list[str] | None,
        typer.Option(metavar="MEMORY=SIZE", help="Another capacity, such as sram=2MiB."),
    ] = None,
    evaluator: Annotated[
        str | None,
        typer.Option(metavar="COMMAND", help="Measures: gets the plan as JSON, prints seconds."),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Measurements per map.")] = 5,
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="Longest a measurement may take.")
    ] = "60s",
    noise: Annotated[
        float, typer.Option(help="Standard deviation of simulated times, as a share.")
    ] = 0.0,
    run: Annotated[Path, typer.Option(metavar="DIR", help="Keep a run folder in this.")] = Path(
        "runs"
    ),
    no_run: Annotated[bool, typer.Option("--no-run", help="Keep no run folder.")] = False,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Go on with a run, as it was started; --budget may grow."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="JSON", help="Write the plan here too.")
    ] = None,
    exact_seconds: Annotated[
        float, typer.Option(min=0, help="Seek the optimum this long, for comparison; 0: don't.")
    ] = 30.0,
    overwrite: OverwriteOption = False,
) -> Answer:
    """Find where tensors live and when they move; on several devices, what is fused, where every op
    runs and who goes first. Every plan is checked before it is shown.

    The table has the solver beside known methods' plans, and the proven optimum or bound.
    Solvers of the mapping problem: white-box ones read the model and the machine; black-box ones
    see only how long the maps take that they try, as on real hardware.

    Example: loadmaster plan resnet50 --machine nnp-i --solver egrl --budget 4000

    Example: loadmaster plan bert-base --machine tpu-v4i --solver msa

    Example: loadmaster plan gnmt-4 --machine p100x4 --tasks placement,fusion,schedule --solver anneal

    Example: loadmaster plan model.onnx --objective peak-memory
    """
    from loadmaster.cli.planning import Wanted, resumed_problem

    if out is not None:
        check_free(out, overwrite)
    options = parse_settings(settings or []) | ({} if init is None else {"init": init})
    limit = seconds_of(time_limit, "--time-limit")
    wanted = Wanted(solver, options, budget, limit, seed, None if no_run else run, resume, out, exact_seconds)  # fmt: skip
    if resume is not None:
        if machine or capacity or evaluator or noise or problem or tasks or groups or base:
            raise Usage("--resume takes machine, capacities, problem with its tasks, evaluator and noise from the run",
                        object="--resume", remedy="leave them out")  # fmt: skip
        return _planned(resumed_problem(resume, model.load()), wanted, model.source)
    from loadmaster.cli.plan_peak import peak_problem, wants_peak

    about_graphs = _only_graphs(tasks, groups, base)
    if wants_peak(objective, problem):
        if about_graphs:
            raise Usage(f"{about_graphs} is about times on several devices", object=about_graphs,
                        remedy="leave it out")  # fmt: skip
        if evaluator or noise:
            raise Usage("--evaluator and --noise are about times", object="--objective", number=objective,
                        remedy="leave them out")  # fmt: skip
        ordered = peak_problem(model.load(), machine, tuple(capacity or ()))
        return _planned(ordered, wanted, model.source)
    from loadmaster.machine.presets import with_capacities

    chosen = with_capacities(model.machine(machine), tuple(capacity or ()))
    kind = _kind(problem or ("graph" if about_graphs else None), solver, chosen)
    if about_graphs and kind != "graph":
        raise Usage(f"{about_graphs} is for the graph problem, not for {kind}", object=about_graphs,
                    remedy="leave it out, or give --problem graph")  # fmt: skip
    if kind != "mapping" and (evaluator or noise):
        raise Usage("--evaluator and --noise are for the mapping problem", object="--problem",
                    number=kind, remedy="leave them out, or give --problem mapping")  # fmt: skip
    if evaluator is not None and noise:
        raise Usage("--noise is for simulated times and --evaluator measures", object="--noise",
                    remedy="give one of them")  # fmt: skip
    if kind == "malloc-game":
        from loadmaster.problems.malloc_game.problem import MallocGame

        return _planned(MallocGame(model.load(), chosen), wanted, model.source)
    if kind == "graph":
        from loadmaster.cli.plan_graph import graph_problem

        graph = graph_problem(model.load(), chosen, tasks, groups or "auto", base or ())
        return _planned(graph, wanted, model.source)
    from loadmaster.cli.plan_mapping import measured_problem, simulated_problem

    if evaluator is not None:
        longest = seconds_of(timeout, "--timeout") or 60.0
        measured = measured_problem(model.load(), chosen, evaluator, repeats, longest)
        return _planned(measured, wanted, model.source)
    return _planned(simulated_problem(model.load(), chosen, noise, seed or 0), wanted, model.source)


def _planned(problem: Problem, wanted: Wanted, source: str) -> Answer:
    from loadmaster.cli.plan_game import plan_game
    from loadmaster.cli.plan_graph import plan_graph
    from loadmaster.cli.plan_mapping import plan_mapping
    from loadmaster.cli.plan_peak import plan_peak
    from loadmaster.problems.graph import GraphOptimization
    from loadmaster.problems.malloc_game.problem import MallocGame
    from loadmaster.problems.mapping import Mapping
    from loadmaster.problems.order.problem import PeakOrder

    if isinstance(problem, MallocGame):
        return plan_game(problem, wanted, source)
    if isinstance(problem, Mapping):
        return plan_mapping(problem, wanted, source)
    if isinstance(problem, GraphOptimization):
        return plan_graph(problem, wanted, source)
    if isinstance(problem, PeakOrder):
        return plan_peak(problem, wanted, source)
    raise Usage(f"run '{wanted.resume}' is about {problem.kind}, which 'plan' does not solve",
                object=str(wanted.resume), remedy="see 'loadmaster runs'")  # fmt: skip


def _only_graphs(tasks: str | None, groups: str | None, base: list[str] | None) -> str | None:
    """The first option given that other problems do not have."""
    given = {"--tasks": tasks, "--groups": groups, "--base": base}
    return next((name for name, value in given.items() if value is not None and value != []), None)


def _kind(problem: str | None, solver: str | None, machine: Machine) -> str:
    """Which problem is meant: named, or the one that the solver solves, or by the machine."""
    from loadmaster.solvers.registry import kinds_with

    if problem is not None:
        if problem not in PLANNED:
            raise Usage(f"there is no problem '{problem}' to plan", object="--problem", number=problem,
                        remedy=f"use {' or '.join(PLANNED)}")  # fmt: skip
        return problem
    solved = [kind for kind in PLANNED if solver is None or kind in kinds_with(solver)]
    # Where copies only use idle bandwidth, moving tensors is what the machine was made for.
    suits = "malloc-game" if machine.rules.copies == "idle" else "mapping"
    if len(machine.devices) > 1:
        suits = "graph"
    return suits if suits in solved or not solved else solved[0]


def parse_settings(texts: list[str]) -> dict[str, Value]:
    """NAME=VALUE as a whole number, a number, true or false, or text."""
    options: dict[str, Value] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise Usage(f"--set '{text}' is not NAME=VALUE", object="--set", number=text,
                        remedy="write --set population=40")  # fmt: skip
        options[name] = _value(value)
    return options


def _value(text: str) -> Value:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def seconds_of(text: str | None, option: str) -> float | None:
    from loadmaster.units import parse_time

    if text in (None, "none", "unlimited"):
        return None
    if minutes := re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?(?:m|min)", text):
        return 60 * float(minutes[1])
    try:
        return parse_time(text, option) / 10**12
    except ValueError as error:
        raise Usage(
            str(error), object=option, number=text, remedy="write 60s, 20m or 5000ms"
        ) from None
