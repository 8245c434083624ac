"""`loadmaster train`: train an agent's policy, and keep it in a file to start from elsewhere; `loadmaster transfer`:
what such a policy decides for models that it has not seen."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.cli.answer import Answer, OverwriteOption, Table, Usage, check_free
from loadmaster.cli.model import MachineOption, Model
from loadmaster.cli.plan import SetOption, parse_settings, seconds_of
from loadmaster.cli.progress import gap_text, say
from loadmaster.errors import nearest
from loadmaster.files import writing
from loadmaster.units import show_time

if TYPE_CHECKING:
    from loadmaster.machine.machine import Machine
    from loadmaster.malloc_game.muzero.paper.training import Progress
    from loadmaster.malloc_game.problem import MallocGame
    from loadmaster.program.program import Program

AGENTS = ("egrl", "muzero", "go")
"""The solvers whose learner becomes a policy."""


def command(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="egrl, muzero or go.")],
    out: Annotated[Path, typer.Option(metavar="NPZ", help="Write the policy here.")],
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="MODEL...", help="MODEL or MODEL@MACHINE, together, beside random cases."),
    ] = None,
    machine: MachineOption = None,
    budget: Annotated[
        int | None,
        typer.Option(min=1, help="Generations; go: rounds; muzero as published: games of each model."),
    ] = None,
    time_limit: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Stop after about this long, such as 20m; what takes longer to begin with is refused.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same policy.")] = 0,
    settings: SetOption = None,
    init: Annotated[
        str | None,
        typer.Option(metavar="POLICY", help="Start from a policy that comes along, or a file of 'train'."),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="NPZ", help="Go on from the .state.npz beside a policy.")
    ] = None,
    workers: Annotated[
        str | None, typer.Option(metavar="WHERE", help="Share the work out, such as local:4 or ray:8.")
    ] = None,
    overwrite: OverwriteOption = False,
) -> Answer:
    """Train one policy on many programs and machines (and on MODELs of yours, if you give some); muzero as
    published (--set profile=paper) on the models given, together.

    The file holds the parameters and what made them, as plain arrays; 'plan --init FILE' starts
    from it, 'transfer FILE' tries it as it is.

    Example: loadmaster train egrl --time-limit 10m --workers local:4 --out egrl.npz

    Example: loadmaster train muzero --workers local:2 --out player.npz

    Example: loadmaster train muzero alexnet-train --machine tpu-v4i-16m --set profile=paper --time-limit 20m --out p.npz

    Example: loadmaster train go --time-limit 25m --workers local:2 --out go.npz
    """
    from loadmaster.learn.checkpoints import state_path
    from loadmaster.runs.session import Interrupted

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
    profile = str(options.pop("profile", agent)) if agent == "muzero" else agent
    if profile not in (agent, "paper"):
        raise Usage(
            f"there is no profile '{profile}' to train", object="profile", remedy="use muzero or paper"
        )
    if not models and profile == "paper":
        raise Usage("give the models to train on", object="MODEL", remedy=f"write 'train {agent} MODEL'")
    sets = [word for text in settings or [] for word in ("--set", text)]
    seeded = ["--seed", str(seed)] if seed else []
    if profile == "paper":
        more_of_it = ["--time-limit", str(time_limit)] if budget is None else ["--budget", str(2 * budget)]
        then = (sets, [*seeded, *more_of_it])
        return _train_paper(models, machine, budget, seconds, resume, overwrite, common, then)
    own = _own(models, machine)
    distribute = None if workers is None else _distribute(workers)
    train = {"egrl": _train_egrl, "muzero": _train_muzero, "go": _train_go}[agent]
    words = [*models, *([] if machine is None else ["--machine", machine]), *sets, *seeded]
    words += [] if budget is None else ["--budget", str(budget)]
    words += [] if time_limit is None else ["--time-limit", time_limit]
    words += [] if workers is None else ["--workers", workers]
    state = state_path(out)
    words += ["--resume", str(state), "--out", str(out), "--overwrite"]
    go_on = join(["loadmaster", "train", agent, *words])
    limit = ["--time-limit", time_limit] if agent == "go" and time_limit is not None else []
    again = [*limit, "--init", str(out), "--out", f"{out.stem}-more.npz"]
    more = f"more:    {join(['loadmaster', 'train', agent, *again])}"
    if (
        time_limit is not None and budget is None and agent != "go"
    ):  # nothing but the clock ended it; go has no more rounds
        more = f"go on:   {go_on}"
    use = _typed(models[0], machine) if models else list(TRY[agent])
    before = _written(state)
    try:
        return train(own, budget, seconds, resume, distribute, common, (use, more))
    except KeyboardInterrupt:
        if _written(state) in (None, before) and resume is None:
            raise  # nothing was learned that is kept
        raise Interrupted(
            "interrupted, what was learned is kept", object=agent, remedy=f"go on with {go_on}"
        ) from None


def _written(path: Path) -> int | None:
    """When a file was written; None if there is none."""
    return path.stat().st_mtime_ns if path.is_file() else None


TRY = {"egrl": ("resnet50", "--machine", "nnp-i"), "muzero": ("alexnet-train",), "go": ("txl-2",)}
"""A workload for what was trained on none of the user's."""


def _typed(model: str, machine: str | None) -> list[str]:
    """MODEL@MACHINE, or a MODEL on the machine that is given, as other commands take it."""
    name, _, own = model.partition("@")
    on = own or machine
    return [name, *([] if on is None else ["--machine", on])]


def _use(agent: str, policy: Path, words: list[str], *options: str) -> str:
    """The line that plans with a policy, as it can be typed."""
    return join(["loadmaster", "plan", *words, "--solver", agent, *options, "--init", str(policy)])


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
    then: tuple[list[str], str],
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
    use, more = then
    ending = (
        f"wrote {out}\nuse it:  {_use('egrl', out, use)}\n"
        f"try it:  {join(['loadmaster', 'transfer', str(out), *use])}\n"
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
    then: tuple[list[str], str],
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
    use, more = then
    ending = f"wrote {out}\nuse it:  {_use('muzero', out, use)}\n{more}"
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
    then: tuple[list[str], list[str]],
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
    sets, more_of_it = then
    on = [] if machine is None else ["--machine", machine]
    again = [*sets, *more_of_it, "--resume", str(state), "--out", str(out), "--overwrite"]
    ending = (
        f"wrote {out} and {state} after {trained.gradient_steps:,} gradient steps\n"
        f"use it:  {_use('muzero', out, _typed(models[0], machine), *sets)}\n"
        f"go on:   {join(['loadmaster', 'train', 'muzero', *models, *on, *again])}"
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
    own: list[tuple[Program, Machine]],
    budget: int | None,
    seconds: float | None,
    resume: Path | None,
    workers: Any,
    common: dict[str, Any],
    then: tuple[list[str], str],
) -> Answer:
    from loadmaster.graph.go.training import train

    out: Path = common["out"]
    if budget is not None:
        common["options"]["rounds"] = budget
    with writing(out):
        row = train(own=own, seconds=seconds, resume=resume, workers=workers, report=say, **common)
    ranked = row["changes_area_under_curve"]
    cells = [
        (
            f"{row['graphs']:,}",
            f"{row['placements']:,}",
            f"{row['changes']:,}",
            f"{100 * row['changes_better']:.1f} %",
            "–" if ranked is None else f"{100 * ranked:.1f} %",
            f"{row['took_seconds']:.1f} s",
        )
    ]
    columns = ("graphs", "placements", "small changes", "for the better", "ranked above others", "took")
    use, more = then
    ending = f"wrote {out}\nuse it:  {_use('go', out, use)}\n{more}"
    return Answer([{"what": "graphs", **row}], [Table(columns, cells), ending], more={"out": str(out)})


def transfer(
    policy: Annotated[
        str, typer.Argument(metavar="POLICY", help="pretrained:scores, or a file of 'train egrl'.")
    ],
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Models to decide for.")],
    machine: MachineOption = None,
) -> Answer:
    """What EGRL's policy decides for each model at once: no search, nothing learned, one evaluation.

    Both views (nominal: with the machine's rates; strict: without) stand beside themselves untrained,
    the compiler's map and everything in the slowest memory. Every map fits.

    Example: loadmaster transfer pretrained:scores resnet50 resnet101 --machine nnp-i
    """
    from loadmaster.mapping.egrl import transfer as decide
    from loadmaster.mapping.problem import Mapping

    def problems() -> Iterator[tuple[str, Mapping]]:
        for name in models:
            model = Model(name)
            yield name, Mapping(model.load(), model.machine(machine))

    rows = decide(policy, problems())
    cells = [
        (
            row["model"],
            row["name"],
            show_time(row["picoseconds"]),
            f"{row['speedup']:.3f} ×",
            gap_text(row["gap"]),
        )
        for row in rows
    ]
    columns = ("model", "map", "time", "over compiler", "gap to bound")
    return Answer(rows, [Table(columns, cells, policy)], more={"policy": policy})
