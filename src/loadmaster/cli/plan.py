"""`loadmaster plan`: decide where tensors live and when they move, or where and when ops run."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loadmaster.cli.answer import Answer, OverwriteOption, Usage, check_free
from loadmaster.cli.model import MachineOption, Model, takes_model
from loadmaster.cli.progress import LiveLine, say

if TYPE_CHECKING:
    from loadmaster.planner import Result, SearchOptions
    from loadmaster.search.request import PlanRequest

Value = int | float | bool | str
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="An option of the solver, such as population=40."),
]


@takes_model
def command(
    model: Model,
    machine: MachineOption = None,
    solver: Annotated[
        str | None, typer.Option(help="egrl, exact, msa, …: see 'loadmaster solvers'. By default auto.")
    ] = None,
    problem: Annotated[
        str | None,
        typer.Option(
            help="mapping: a memory per tensor for life; malloc-game: copies in and out, "
            "use by use; offload: the same where ops work in the first memory alone; graph: fusion, devices and order; allocation: offsets in one memory; "
            "order: the least peak. By default what suits the machine and the solver."
        ),
    ] = None,
    objective: Annotated[
        str,
        typer.Option(
            help="time; peak-memory: the order of the ops that needs the fewest bytes; "
            "bytes-moved: the fewest bytes through the slowest memory."
        ),
    ] = "time",
    tasks: Annotated[
        str | None,
        typer.Option(help="On several devices: what is decided. [default: placement,fusion,schedule]"),
    ] = None,
    groups: Annotated[
        str | None, typer.Option(help="What is placed as one: op, scope or coplace. [default: auto]")
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
        int | None,
        typer.Option(min=1, help="Most plans to evaluate. [default: 4000; with --time-limit: any number]"),
    ] = None,
    time_limit: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Stop after this long. [auto and exact solvers: 60s; else none]"),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help="The same seed gives the same plan. [default: 0]")
    ] = None,
    settings: SetOption = None,
    init: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY", help="Start from pretrained:go, or a file of 'train' (egrl: --set policy=FILE)."
        ),
    ] = None,
    capacity: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MEMORY=SIZE",
            help="Another capacity, such as sram=2MiB, or hbm=50% of what the model needs.",
        ),
    ] = None,
    evaluator: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="Measures: gets the plan as JSON, prints seconds. executor:cuda runs plans here.",
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Measurements per map.")] = 5,
    timeout: Annotated[str, typer.Option(metavar="TIME", help="Longest a measurement may take.")] = "60s",
    noise: Annotated[float, typer.Option(help="Standard deviation of simulated times, as a share.")] = 0.0,
    workers: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE", help="Who evaluates: local:N, ray:N or ray://HOST:PORT. [this process]"
        ),
    ] = None,
    run: Annotated[Path, typer.Option(metavar="DIR", help="Keep a run folder in this.")] = Path("runs"),
    no_run: Annotated[bool, typer.Option("--no-run", help="Keep no run folder.")] = False,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="Go on with a run, as it was started; --budget may grow."),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="JSON", help="Write the plan here too.")] = None,
    exact_seconds: Annotated[
        float, typer.Option(min=0, help="Seek the optimum this long, for comparison; 0: don't.")
    ] = 30.0,
    fits: Annotated[
        bool, typer.Option("--fits", help="Only say whether it fits: exit 0 yes, 1 no (proven), 4 not known.")
    ] = False,
    pin: Annotated[
        list[str] | None,
        typer.Option(metavar="TENSOR=MEMORY[@OFFSET]", help="Decided already: a tensor's memory."),
    ] = None,
    pin_op: Annotated[
        list[str] | None,
        typer.Option("--pin-op", metavar="OP=DEVICE", help="Decided already: an op's device."),
    ] = None,
    keep_order: Annotated[
        bool, typer.Option("--keep-order", help="In an arena: leave the ops in their order.")
    ] = False,
    recompute: Annotated[
        bool | None,
        typer.Option(
            "--recompute/--no-recompute",
            help="In a training step: run ops again where that is quicker than keeping what they made. "
            "[default: where plans are simulated, or run by the executor]",
        ),
    ] = None,
    report: Annotated[bool, typer.Option("--report", help="Write report.html into the run folder.")] = False,
    overwrite: OverwriteOption = False,
) -> Answer:
    """Find where tensors live and when they move; on several devices, what is fused, where every op
    runs and who goes first. Every plan is checked before it is shown.

    The table has the solver beside known methods' plans, and the proven optimum or bound.
    Solvers of the mapping problem: white-box ones read the model and the machine; black-box ones
    see only how long the maps take that they try, as on real hardware.

    Example: loadmaster plan resnet50 --machine nnp-i --solver egrl --budget 4000

    Example: loadmaster plan bert-base --machine tpu-v4i --solver msa

    Example: loadmaster plan gnmt-4 --machine p100x4 --tasks placement,fusion,schedule --solver search

    Example: loadmaster plan model.onnx --objective peak-memory

    Example: loadmaster plan model.onnx --machine arena:256KiB --fits
    """
    from loadmaster.graph.kind import parse_base
    from loadmaster.planner.planner import resume_problem, resumed_costs, solve_request, solve_resumed
    from loadmaster.planner.search import SearchOptions
    from loadmaster.search.request import (
        PinTexts,
        PlanRequest,
        ProblemEvaluator,
        parse_capacity,
        parse_objective,
    )

    if out is not None:
        check_free(out, overwrite, model.source)
    if report and (no_run or fits):
        raise Usage(
            "--report shows a run, and none is kept",
            object="--report",
            remedy="leave --no-run and --fits out",
        )
    limit, measuring = seconds_of(time_limit, "--time-limit"), None
    if evaluator is not None and resume is None:
        from loadmaster.execute.evaluator import choose_evaluator

        measuring = choose_evaluator(evaluator, model.spec, seconds_of(timeout, "--timeout") or 60.0, say)
    request = PlanRequest(
        measuring if isinstance(measuring, ProblemEvaluator) else model.spec.planned(),
        None if machine is None else model.machine(machine),
        problem=problem,
        solver=solver,
        objective=parse_objective(objective),
        capacity=parse_capacity(capacity or ()),
        costs=model.costs,
        pins=PinTexts(tuple(pin or ()), tuple(pin_op or ())),
        recompute=recompute,
        keep_order=keep_order,
        evaluator=measuring,
        repeats=repeats,
        noise=noise,
        seed=seed or 0,
        tasks=None if tasks is None else tuple(task.strip() for task in tasks.split(",")),
        groups=groups,
        base=parse_base(base or ()),
        say=say,
    )
    search = SearchOptions(
        solver=solver,
        options=parse_settings(settings or []) | ({} if init is None else {"init": init}),
        evaluations=budget,
        seconds=limit,
        seed=seed,
        folder=None if no_run else run,
        resume=resume,
        out=out,
        exact_seconds=exact_seconds,
        workers=workers,
        source=model.source,
        model=model.measured_by(evaluator).words,
        arguments=model.arguments(),
        display=LiveLine(),
        say=say,
    )
    if resume is not None:
        resumed = resume_problem(resume, request, model.spec, evaluator, model.typed())
        later = replace(model, costs=resumed_costs(resumed, resume, model.spec))
        search = replace(search, model=later.words)
        return _answer(solve_resumed(resumed, search), search, model, report)
    if fits:
        from loadmaster.cli.plan_show import render_fit
        from loadmaster.planner.planner import check_fit

        if _is_micro(request, model):
            return _fits_micro(request, model, limit, out)
        found, program = check_fit(request, limit, model.source, out)
        return render_fit(found, program, out)
    return _answer(solve_request(request, search), search, model, report)


def _is_micro(request: PlanRequest, model: Model) -> bool:
    """Whether one arena of TFLite Micro is meant."""
    from loadmaster.allocation.auto import is_arena

    return model.source.lower().endswith(".tflite") and is_arena(request.own_machine)


def _fits_micro(request: PlanRequest, model: Model, limit: float | None, out: Path | None) -> Answer:
    """Whether a .tflite file fits one arena: TFLite Micro's own needs count too."""
    from loadmaster.cli.plan_show import render_fit
    from loadmaster.export.tflm_fits import SECONDS, fit_plan
    from loadmaster.planner.search import write_plan

    machine = request.own_machine
    program = request.load_program(machine)
    say(f"{model.source} on {machine.name}: does it fit? Offsets and, if need be, the order are decided")
    pins = request.resolve_pins(program, machine)
    seconds = SECONDS if limit is None else limit
    found, arena = fit_plan(model.source, program, machine, pins, seconds, request.keep_order, request.seed)
    if found.plan is not None and out is not None:
        write_plan(found.plan, program, machine, out)
    return render_fit(found, program, out, arena)


def _answer(result: Result, search: SearchOptions, model: Model, report: bool) -> Answer:
    """What is shown of a result, with the report of its run if one is to be written."""
    from loadmaster.cli.plan_show import render

    answer = render(result, model.source, search.model, model.spec.is_function)
    if not report or result.run is None:
        return answer
    from loadmaster.report import write_report

    page = write_report(result.run, result.run / "report.html").path
    return replace(
        answer, blocks=[*answer.blocks, f"report:  {page}"], more={**answer.more, "report": str(page)}
    )


def parse_settings(texts: list[str]) -> dict[str, Value]:
    """NAME=VALUE as a whole number, a number, true or false, or text."""
    options: dict[str, Value] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            raise Usage(
                f"--set '{text}' is not NAME=VALUE",
                object="--set",
                number=text,
                remedy="write --set population=40",
            )
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
    """Seconds of an option's text, such as '30s', '2 min' or 'none' (None: no limit)."""
    from loadmaster.units import parse_time

    if text in (None, "none", "unlimited"):
        return None
    if minutes := re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?(?:m|min)", text):
        return 60 * float(minutes[1])
    try:
        return parse_time(text, option) / 10**12
    except ValueError as error:
        raise Usage(str(error), object=option, number=text, remedy="write 60s, 20m or 5000ms") from None
