"""`loadmaster train`: train an agent's policy, and keep it in a file to start from elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.cli.answer import Answer, OverwriteOption, Table, Usage, check_free
from loadmaster.cli.model import MachineOption
from loadmaster.cli.plan import SetOption, parse_settings, seconds_of
from loadmaster.cli.progress import LiveLine, gap_text, say
from loadmaster.errors import nearest
from loadmaster.files import writing
from loadmaster.units import show_time

if TYPE_CHECKING:
    from loadmaster.graph.go.cases import Case
    from loadmaster.machine.machine import Machine
    from loadmaster.malloc_game.muzero.paper.training import Progress
    from loadmaster.malloc_game.problem import MallocGame
    from loadmaster.program.program import Program
    from loadmaster.search.solver import Solution

AGENTS = ("egrl", "muzero", "go")
"""The solvers whose learner becomes a policy."""
MODES = ("batch", "one")


def command(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="egrl, muzero or go.")],
    out: Annotated[Path, typer.Option(metavar="NPZ", help="Write the policy here.")],
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL...",
            help="MODEL or MODEL@MACHINE, together; egrl, muzero: beside their random cases.",
        ),
    ] = None,
    machine: MachineOption = None,
    budget: Annotated[
        int | None, typer.Option(min=1, help="Games to evaluate on each model; egrl, muzero: generations.")
    ] = None,
    time_limit: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Stop after this long, such as 20m; egrl: each of its two views."),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same policy.")] = 0,
    settings: SetOption = None,
    init: Annotated[
        str | None,
        typer.Option(metavar="POLICY", help="Start from a policy that comes along, or a file of 'train'."),
    ] = None,
    run: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep run folders in this folder.")] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="NPZ", help="Go on from the .state.npz beside a policy.")
    ] = None,
    split: Annotated[
        str | None, typer.Option(metavar="NAME", help="go: train on the graphs of this split.")
    ] = None,
    mode: Annotated[str, typer.Option(help="go: 'batch', many graphs together; or 'one'.")] = "batch",
    workers: Annotated[
        str | None,
        typer.Option(metavar="WHERE", help="egrl, muzero: share the work out, such as local:4 or ray:8."),
    ] = None,
    overwrite: OverwriteOption = False,
) -> Answer:
    """Train one policy: egrl and muzero on many programs and machines (and on MODELs of yours, if you give
    some), go, and muzero as published (--set profile=paper), on the models given, together.

    The file holds the parameters and what made them, as plain arrays; 'plan --init FILE' starts
    from it, 'transfer FILE' tries it as it is.

    Example: loadmaster train egrl --time-limit 10m --workers local:4 --out egrl.npz

    Example: loadmaster train muzero --workers local:2 --out player.npz

    Example: loadmaster train muzero alexnet-train --machine tpu-v4i-16m --set profile=paper --time-limit 20m --out p.npz

    Example: loadmaster train go --split train --time-limit 25m --out go.npz
    """
    from shlex import join

    from loadmaster.learn.checkpoints import state_path

    if agent not in AGENTS:
        raise Usage(
            f"'{agent}' has no policy to train{nearest(agent, AGENTS)}",
            object=agent,
            remedy=f"use {' or '.join(AGENTS)}",
        )
    if out.suffix != ".npz":
        raise Usage(f"'{out}' must end in .npz", object=str(out), remedy="give policy.npz")
    check_free(out, overwrite)
    options, models = parse_settings(settings or []), models or []
    seconds = seconds_of(time_limit, "--time-limit")
    common: dict[str, Any] = {"out": out, "seed": seed, "options": options, "init": init}
    if agent == "go":
        return _train_go(models, machine, split, mode, budget, seconds, resume, run, common)
    profile = str(options.pop("profile", agent)) if agent == "muzero" else agent
    if profile not in (agent, "paper"):
        raise Usage(
            f"there is no profile '{profile}' to train", object="profile", remedy="use muzero or paper"
        )
    if split is not None or (not models and profile == "paper"):
        raise Usage("give the models to train on", object="MODEL", remedy=f"write 'train {agent} MODEL'")
    if profile == "paper":
        return _train_paper(models, machine, budget, seconds, resume, overwrite, common)
    own = _own(models, machine)
    distribute = None if workers is None else _distribute(workers)
    train = _train_muzero if agent == "muzero" else _train_egrl
    words = [*models, *([] if machine is None else ["--machine", machine])]
    words += [word for text in settings or [] for word in ("--set", text)] + (
        ["--seed", str(seed)] * bool(seed)
    )
    more = f"more:    loadmaster train {agent} --init {out} --out MORE.npz"
    if time_limit is not None and budget is None:  # nothing but the clock ended it
        words += [
            "--time-limit",
            time_limit,
            "--resume",
            str(state_path(out)),
            "--out",
            str(out),
            "--overwrite",
        ]
        more = f"go on:   loadmaster train {agent} {join(words)}"
    return train(own, budget, seconds, resume, distribute, common, more)


def _run_solver(run: Path | None) -> Callable[..., Solution]:
    """Shows how it goes, and writes a run folder if the user wants one."""
    from loadmaster.runs.session import run_solver

    return partial(run_solver, folder=run, display=LiveLine())


def _own(models: list[str], machine: str | None) -> list[tuple[Program, Machine]]:
    """A user's programs, each with its machine."""
    from loadmaster.planner.source import split_machine

    own = []
    for name in models:
        source, on = split_machine(name, machine, say)
        own.append((source.load(), source.machine(on)))
    return own


def _distribute(workers: str) -> Any:
    from loadmaster.runs.workers import distribute_function

    return partial(distribute_function, workers=workers)


def _train_egrl(
    own: list[tuple[Program, Machine]],
    budget: int | None,
    seconds: float | None,
    resume: Path | None,
    workers: Any,
    common: dict[str, Any],
    more: str,
) -> Answer:
    from loadmaster.mapping.egrl.training import train

    out: Path = common["out"]
    with writing(out):
        rows = train(
            own=own, generations=budget, seconds=seconds, resume=resume, workers=workers, report=say, **common
        )
    cells = [
        (
            row["view"],
            f"{row['generations']:,}",
            f"{-100 * row['validation']:.2f} %",
            f"{row['took_seconds']:.1f} s",
        )
        for row in rows
    ]
    columns = ("view", "generations", "less time than density", "took")
    ending = (
        f"wrote {out}\nuse it:  loadmaster plan MODEL --solver egrl --init {out}\n"
        f"try it:  loadmaster transfer {out} MODEL\n"
        f"{more}"
    )
    title = "on validation cases, in the mean of logarithms"
    return Answer(rows, [Table(columns, cells, title), ending], more={"out": str(out)})


def _train_muzero(
    own: list[tuple[Program, Machine]],
    budget: int | None,
    seconds: float | None,
    resume: Path | None,
    workers: Any,
    common: dict[str, Any],
    more: str,
) -> Answer:
    from loadmaster.malloc_game.muzero.training import train

    out: Path = common["out"]
    with writing(out):
        row = train(
            own=own, generations=budget, seconds=seconds, resume=resume, workers=workers, report=say, **common
        )
    cells = [
        (
            f"{row['generations']:,}",
            f"{-100 * row['validation']:.2f} %",
            f"{100 * row['openings'][-1]:.2f} %",
            f"{row['took_seconds']:.1f} s",
        )
    ]
    columns = ("generations", "at once, validation cells", "best opening, training cells", "took")
    ending = f"wrote {out}\nuse it:  loadmaster plan MODEL --solver muzero --init {out}\n{more}"
    title = "less time than msa-refined, in the mean of logarithms"
    return Answer([row], [Table(columns, cells, title), ending], more={"out": str(out)})


def _train_paper(
    models: list[str],
    machine: str | None,
    budget: int | None,
    seconds: float | None,
    resume: Path | None,
    overwrite: bool,
    common: dict[str, Any],
) -> Answer:
    from loadmaster.learn.checkpoints import state_path
    from loadmaster.malloc_game.muzero.paper.training import train
    from loadmaster.runs.log import Log

    out: Path = common["out"]
    state, log_file = state_path(out), out.with_suffix(".log.jsonl")
    if not resume:
        check_free(state, overwrite)
    logs: list[Log] = []

    def log(progress: Progress) -> None:
        """One line, the same names as in the log of a run: means over all programs."""
        if not logs:  # a new log, or the one that a resumed training has left
            if resume is None:
                log_file.unlink(missing_ok=True)
            logs.append(Log(log_file, create=not log_file.exists()))
        logs[0].append(
            "progress",
            progress.seconds,
            progress.evaluations,
            best=None,
            bound=None,
            gap=progress.gap,
            evals_per_s=progress.evaluations / max(progress.seconds, 1e-9),
            metrics=progress.metrics,
        )

    try:
        with writing(out):
            trained = train(
                [(name, _game(name, machine)) for name in models],
                evaluations=budget,
                seconds=seconds,
                resume=resume,
                report=say,
                log=log,
                **common,
            )
    finally:
        for each in logs:
            each.close()
    cells = [
        (
            row["model"],
            f"{row['moves']:,}",
            show_time(row["all_slow_picoseconds"]),
            "–" if row["picoseconds"] is None else show_time(row["picoseconds"]),
            f"{row['share_saved']:.3f}",
            gap_text(row["gap"]),
            f"{row['evaluations']:,}",
        )
        for row in trained.rows
    ]
    columns = (
        "trained on",
        "moves",
        "all-slow",
        "best game",
        "share of the savings",
        "gap to bound",
        "games",
    )
    ending = (
        f"wrote {out} and {state} after {trained.gradient_steps:,} gradient steps\n"
        f"use it:  loadmaster plan MODEL --solver muzero --set profile=paper --init {out}\n"
        f"go on:   loadmaster train muzero MODEL… --set profile=paper --resume {state} --out {out} --overwrite"
    )
    more = {
        "out": str(out),
        "state": str(state),
        "log": str(log_file),
        "gradient_steps": trained.gradient_steps,
        "seconds_split": trained.seconds,
    }
    return Answer(trained.rows, [Table(columns, cells), ending], more=more)


def _game(name: str, machine: str | None) -> MallocGame:
    """Of MODEL, or of MODEL@MACHINE where that is another machine; 'synthetic-07' is a made-up model."""
    from loadmaster.malloc_game.problem import MallocGame
    from loadmaster.planner.source import split_machine
    from loadmaster.program.zoo.synthetic import find_synthetic

    source, on = split_machine(name, machine, say)
    return MallocGame(find_synthetic(source.name) or source.load(), source.machine(on))


def _train_go(
    models: list[str],
    machine: str | None,
    split: str | None,
    mode: str,
    budget: int | None,
    seconds: float | None,
    resume: Path | None,
    run: Path | None,
    common: dict[str, Any],
) -> Answer:
    from loadmaster.graph.go.training import SYNTHETIC, train

    if mode not in MODES:
        raise Usage(f"there is no --mode '{mode}'", object="--mode", remedy=f"use {' or '.join(MODES)}")
    if mode == "one":
        if len(models) != 1 or split or resume:
            raise Usage(
                "--mode one trains on one model",
                object="--mode",
                number=len(models),
                remedy="give one MODEL, or --mode batch",
            )
        return _train_go_one(models[0], machine, budget, seconds, run, common)
    if seconds is None:
        raise Usage(
            "training over many graphs has no end", object="--time-limit", remedy="give --time-limit 25m"
        )
    synthetic = int(common["options"].get("synthetic", SYNTHETIC))
    cases = _go_cases(models, machine, split, synthetic, common["seed"])
    out: Path = common["out"]
    with writing(out):
        found = train(
            cases,
            seconds=seconds,
            resume=resume,
            split=split,
            report=say,
            about={"models": models, "synthetic": synthetic},
            **common,
        )
    return _go_answer(found, out)


def _train_go_one(
    name: str,
    machine: str | None,
    budget: int | None,
    seconds: float | None,
    run: Path | None,
    common: dict[str, Any],
) -> Answer:
    from loadmaster.graph import GraphOptimization
    from loadmaster.graph.go.training import train_one
    from loadmaster.planner.source import split_machine

    source, on = split_machine(name, machine, say)
    problem = GraphOptimization(source.load(), source.machine(on))
    out: Path = common["out"]
    with writing(out):
        row = train_one(
            problem, name=name, evaluations=budget, seconds=seconds, run_solver=_run_solver(run), **common
        )
    cells = [
        (
            row["model"],
            show_time(row["base_picoseconds"]),
            "–" if row["picoseconds"] is None else show_time(row["picoseconds"]),
            gap_text(row["gap"]),
            f"{row['evaluations']:,}",
            f"{row['updates']:,}",
        )
    ]
    columns = ("trained on", "base plan", "go", "gap to bound", "evaluations", "updates")
    return Answer([row], [Table(columns, cells), _go_ending(out)], more={"out": str(out)})


def _go_cases(
    models: list[str], machine: str | None, split: str | None, synthetic: int, seed: int
) -> list[Case]:
    """Those of a split, or MODEL@MACHINE by name, jointly and placed alone."""
    from loadmaster.graph.go.cases import JOINT, PLACED, Case, cases_of
    from loadmaster.planner.source import split_machine

    if bool(models) == bool(split):
        raise Usage(
            "give models, or a split of them", object="MODEL", remedy="give --split train, or MODEL@MACHINE…"
        )
    if split:
        return cases_of(split, synthetic, seed)
    found = []
    for name in models:
        source, on = split_machine(name, machine)
        found += [Case(source.name, on or source.machine(None).name, *what) for what in (JOINT, PLACED)]
    return found


def _go_answer(found: list[dict[str, Any]], out: Path) -> Answer:
    """The likeliest plan of each graph, beside the base plan and the best that is known."""
    from loadmaster.graph import UNFIT

    def fitting(value: int) -> int | None:
        return value if 0 <= value < UNFIT else None

    rows = [
        {
            "what": "case",
            "case": row["case"],
            "picoseconds": fitting(row["value"]),
            "best_picoseconds": fitting(row["best"]),
            "base_picoseconds": row["reference"],
        }
        for row in found
    ]
    names = ("base_picoseconds", "best_picoseconds", "picoseconds")
    cells = [
        (row["case"], *("does not fit" if row[name] is None else show_time(row[name]) for name in names))
        for row in rows
    ]
    columns = ("trained on", "base plan", "best known", "the policy's likeliest plan")
    return Answer(rows, [Table(columns, cells), _go_ending(out)], more={"out": str(out)})


def _go_ending(out: Path) -> str:
    return f"wrote {out}\nuse it:  loadmaster plan MODEL --solver go --init {out}"
