"""`loadmaster plan`: decide where tensors live and when they move, or where and when ops run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from loadmaster.cli.answer import Answer, OverwriteOption, Usage, check_free
from loadmaster.cli.bank import KEPT, BankOption, BankStartsOption, known_answers
from loadmaster.cli.model import MachineOption, Model, takes_model
from loadmaster.cli.progress import LiveLine, say

if TYPE_CHECKING:
    from loadmaster.planner import Result
    from loadmaster.runs.bank import Bank
    from loadmaster.search.request import PlanRequest

WHAT, SEARCH, MEASURE = "What is decided", "How it is sought", "Measured in place of simulated"
BESIDE = "What it is held against"
"""Panels of `plan --help`."""
Value = int | float | bool | str
SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="An option of the solver, such as population=40.",
        rich_help_panel=SEARCH,
    ),
]


@takes_model
def command(
    model: Model,
    machine: MachineOption = None,
    solver: Annotated[
        str | None,
        typer.Option(
            help="egrl, exact, msa, …: see 'loadmaster solvers'. By default auto.", rich_help_panel=SEARCH
        ),
    ] = None,
    problem: Annotated[
        str | None,
        typer.Option(
            help="mapping: a memory per tensor for life; malloc-game: copies in and out, "
            "use by use; offload: the same where ops work in the first memory alone; graph: fusion, devices and order; allocation: offsets in one memory; "
            "order: the least peak. By default what suits the machine and the solver.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    objective: Annotated[
        str,
        typer.Option(
            help="time; peak-memory: the order of the ops that needs the fewest bytes; "
            "bytes-moved: the fewest bytes through the slowest memory.",
            rich_help_panel=WHAT,
        ),
    ] = "time",
    tasks: Annotated[
        str | None,
        typer.Option(
            help="On several devices: what is decided. [default: placement,fusion,schedule]",
            rich_help_panel=WHAT,
        ),
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option(
            help="What is placed as one: op, scope or coplace. [default: auto]", rich_help_panel=WHAT
        ),
    ] = None,
    base: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PART=NAME",
            help="What stands where nothing is decided: fusion=none|fixed|cost_model, "
            "placement=expert|single|m_topo, schedule=fifo|critical_path.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Most plans to evaluate. [default: 4000; with --time-limit: any number]",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    time_limit: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Stop after this long. [auto and exact solvers: 60s; else none]",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(min=0, help="The same seed gives the same plan. [default: 0]", rich_help_panel=SEARCH),
    ] = None,
    settings: SetOption = None,
    init: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY",
            help="Start from a policy that comes along, or a file of 'train'.",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    capacity: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MEMORY=SIZE",
            help="Another capacity, such as sram=2MiB, or hbm=50% of what the model needs.",
            rich_help_panel=WHAT,
        ),
    ] = None,
    evaluator: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="Measures: gets the plan as JSON, prints seconds. executor:cuda runs plans here.",
            rich_help_panel=MEASURE,
        ),
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Measurements per map.", rich_help_panel=MEASURE)] = 5,
    timeout: Annotated[
        str, typer.Option(metavar="TIME", help="Longest a measurement may take.", rich_help_panel=MEASURE)
    ] = "60s",
    noise: Annotated[
        float,
        typer.Option(help="Standard deviation of simulated times, as a share.", rich_help_panel=MEASURE),
    ] = 0.0,
    workers: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            help="Who evaluates: local:N, ray:N or ray://HOST:PORT. [this process]",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    run: Annotated[
        Path, typer.Option(metavar="DIR", help="Keep a run folder in this.", rich_help_panel=KEPT)
    ] = Path("runs"),
    no_run: Annotated[
        bool, typer.Option("--no-run", help="Keep no run folder.", rich_help_panel=KEPT)
    ] = False,
    resume: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Go on with a run, as it was started; --budget may grow.",
            rich_help_panel=KEPT,
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="JSON", help="Write the plan here too.", rich_help_panel=KEPT)
    ] = None,
    bank: BankOption = None,
    bank_starts: BankStartsOption = False,
    before: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The known method that plans are held against. [what you would have: one arena, the compiler's]",
            rich_help_panel=BESIDE,
        ),
    ] = None,
    exact_seconds: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Seek the optimum this long, for comparison; 0: don't. [default: 30]",
            rich_help_panel=BESIDE,
        ),
    ] = None,
    fits: Annotated[
        bool,
        typer.Option(
            "--fits",
            help="Only say whether it fits: exit 0 yes, 1 no (proven), 4 not known.",
            rich_help_panel=BESIDE,
        ),
    ] = False,
    pin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TENSOR=MEMORY[@OFFSET]", help="Decided already: a tensor's memory.", rich_help_panel=WHAT
        ),
    ] = None,
    pin_op: Annotated[
        list[str] | None,
        typer.Option(
            "--pin-op", metavar="OP=DEVICE", help="Decided already: an op's device.", rich_help_panel=WHAT
        ),
    ] = None,
    keep_order: Annotated[
        bool,
        typer.Option("--keep-order", help="In an arena: leave the ops in their order.", rich_help_panel=WHAT),
    ] = False,
    recompute: Annotated[
        bool | None,
        typer.Option(
            "--recompute/--no-recompute",
            help="In a training step: run ops again where that is quicker than keeping what they made. "
            "[default: where plans are simulated, or run by the executor]",
            rich_help_panel=WHAT,
        ),
    ] = None,
    report: Annotated[
        bool, typer.Option("--report", help="Write report.html into the run folder.", rich_help_panel=KEPT)
    ] = False,
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

    Example: loadmaster plan resnet50 --machine nnp-i --bank plans
    """
    from loadmaster.graph.kind import parse_base
    from loadmaster.planner.planner import resume_problem, solve_request, solve_resumed
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
    answers = known_answers(bank, bank_starts)
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
    display = LiveLine()
    display.doing(f"set-up: reading {model.source}")
    search = SearchOptions(
        solver=solver,
        options=parse_settings(settings or []) | ({} if init is None else {"init": init}),
        evaluations=budget,
        seconds=limit,
        seed=seed,
        folder=None if no_run else run,
        resume=resume,
        out=out,
        before=before,
        exact_seconds=exact_seconds,
        workers=workers,
        bank=answers,
        source=model.source,
        arguments=model.measured_by(evaluator).arguments(),
        costs=model.costs,
        calibrate=model.measured_by(evaluator).calibrate_line,
        display=display,
        say=say,
    )
    if resume is not None:
        resumed = resume_problem(resume, evaluator, request, model.spec)
        return _answer(solve_resumed(resumed, search), model, report)
    if fits:
        from loadmaster.cli.plan_show import render_fit
        from loadmaster.planner.planner import check_fit

        if _is_micro(request, model):
            return _fits_micro(request, model, limit, out, answers)
        found, program = check_fit(request, limit, model.source, out, answers)
        return render_fit(found, program, out)
    about_machine = ["--machine", machine] if machine is not None else []
    about_machine += [word for size in capacity or () for word in ("--capacity", size)]
    return _answer(solve_request(request, search), model, report, about_machine)


def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run's folder.")],
    budget: Annotated[
        int | None, typer.Option(min=1, help="Most plans to evaluate, all sessions together. [the run's]")
    ] = None,
    time_limit: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Stop after this long, all sessions together. [the run's]"),
    ] = None,
    evaluator: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND", help="Of a run that was measured: its command, which is typed again."
        ),
    ] = None,
    workers: Annotated[
        str | None, typer.Option(metavar="WHERE", help="Who evaluates: local:N, ray:N or ray://HOST:PORT.")
    ] = None,
    exact_seconds: Annotated[
        float | None, typer.Option(min=0, help="Seek the optimum this long, for comparison. [the run's]")
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="JSON", help="Write the plan here too.")] = None,
    report: Annotated[bool, typer.Option("--report", help="Write report.html into the run folder.")] = False,
    overwrite: OverwriteOption = False,
) -> Answer:
    """Go on with a run where it was left; it has the model, the machine and every option.

    The result is that of a run that nobody interrupted. One that has ended goes on if it is given more.

    Example: loadmaster resume runs/A

    Example: loadmaster resume runs/A --budget 20000
    """
    from loadmaster.planner.planner import resume_problem, solve_resumed
    from loadmaster.planner.search import SearchOptions
    from loadmaster.runs.folder import RunFolder, model_file

    if out is not None:
        check_free(out, overwrite)
    problem, about = resume_problem(run, evaluator), RunFolder.open(run).about
    model, file = Model.recorded(about) or Model(problem.program.name), model_file(about)
    search = SearchOptions(
        evaluations=budget,
        seconds=seconds_of(time_limit, "--time-limit"),
        resume=run,
        out=out,
        exact_seconds=exact_seconds,
        workers=workers,
        source=model.source,
        calibrate=model.calibrate_line,
        display=LiveLine(),
        say=say,
    )
    answer = _answer(solve_resumed(problem, search), model, report)
    changed = None if file is None else file.change()
    if file is None or changed is None:
        return answer
    warning = f"'{file.path}' (SHA-256 {file.sha256[:16]}…) {changed}: the run is about the model as it was"
    return replace(answer, warnings=(*answer.warnings, warning))


def _is_micro(request: PlanRequest, model: Model) -> bool:
    """Whether one arena of TFLite Micro is meant."""
    from loadmaster.allocation.auto import is_arena

    return model.source.lower().endswith(".tflite") and is_arena(request.own_machine)


def _fits_micro(
    request: PlanRequest, model: Model, limit: float | None, out: Path | None, bank: Bank | None
) -> Answer:
    """Whether a .tflite file fits one arena: TFLite Micro's own needs count too."""
    from loadmaster.cli.plan_show import render_fit
    from loadmaster.export.tflm_fits import SECONDS, fit_plan
    from loadmaster.planner.search import write_plan

    machine = request.own_machine
    program = request.load_program(machine)
    say(f"{model.source} on {machine.name}: does it fit? Offsets and, if need be, the order are decided")
    pins = request.resolve_pins(program, machine)
    seconds = SECONDS if limit is None else limit
    found, arena = fit_plan(
        model.source, program, machine, pins, seconds, request.keep_order, request.seed, bank
    )
    if found.plan is not None and out is not None:
        write_plan(found.plan, program, machine, out)
    return render_fit(found, program, out, arena)


def _answer(result: Result, model: Model, report: bool, about_machine: Sequence[str] = ()) -> Answer:
    """What is shown of a result, with the report of its run if one is to be written."""
    from loadmaster.cli.plan_show import render

    answer = render(result, model, about_machine)
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
