"""`loadmaster train`: train an agent's policy, and keep it in a file to start from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.cli.answer import Answer, Table, Usage
from loadmaster.cli.files import OverwriteOption, check_free, writing
from loadmaster.cli.model import MachineOption, Model
from loadmaster.cli.plan import SetOption, parse_settings, seconds_of
from loadmaster.cli.progress import LiveLine, gap_text, say
from loadmaster.errors import nearest
from loadmaster.units import show_time

if TYPE_CHECKING:
    from loadmaster.mapping.problem import Mapping
    from loadmaster.search.solver import Solution

AGENTS = ("egrl", "pg", "muzero", "go")
"""The solvers whose learner becomes a policy."""
MAPS = 4000
"""Evaluated on each model by default, for policies that map."""


def command(
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="egrl; pg: its learner alone; muzero; go.")],
    out: Annotated[Path, typer.Option(metavar="NPZ", help="Write the policy here.")],
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL...", help="One or several: in turn; muzero, go: together, MODEL@MACHINE too."
        ),
    ] = None,
    machine: MachineOption = None,
    budget: Annotated[
        int | None, typer.Option(min=1, help="Maps, or games, to evaluate on each model. [egrl: 4000]")
    ] = None,
    time_limit: Annotated[
        str | None, typer.Option(metavar="TIME", help="muzero, go: stop after this long, such as 20m.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same policy.")] = 0,
    settings: SetOption = None,
    init: Annotated[
        str | None, typer.Option(metavar="POLICY", help="Start from pretrained:bert, or a file of 'train'.")
    ] = None,
    run: Annotated[Path | None, typer.Option(metavar="DIR", help="Keep run folders in this folder.")] = None,
    resume: Annotated[
        Path | None,
        typer.Option(metavar="NPZ", help="muzero, go: go on from the .state.npz beside a policy."),
    ] = None,
    split: Annotated[
        str | None, typer.Option(metavar="NAME", help="go: train on the graphs of this split.")
    ] = None,
    mode: Annotated[
        str, typer.Option(metavar="MODE", help="go: 'batch', many graphs together; or 'one'.")
    ] = "batch",
    overwrite: OverwriteOption = False,
) -> Answer:
    """Train on models one after the other, each from the policy that the last one left; muzero
    trains on all of them together.

    The file holds the parameters and what made them, as plain arrays; 'plan --init FILE' starts
    from it, 'transfer FILE' tries it as it is.

    Example: loadmaster train egrl bert --machine nnp-i --budget 4000 --out bert.npz

    Example: loadmaster train muzero alexnet-train wavenet --machine tpu-v4i-16m --time-limit 20m --out p.npz

    Example: loadmaster train go --split train --time-limit 25m --out go.npz
    """
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
    if agent == "go":
        from loadmaster.cli.train_go import Asked, train_go

        seconds = seconds_of(time_limit, "--time-limit")
        return train_go(
            Asked(models, machine, out, split, mode, budget, seconds, seed, options, init, resume, run)
        )
    if not models or split is not None:
        raise Usage("give the models to train on", object="MODEL", remedy=f"write 'train {agent} MODEL'")
    if agent == "muzero":
        from loadmaster.cli.train_muzero import Lessons, train_muzero

        limit = seconds_of(time_limit, "--time-limit")
        return train_muzero(
            Lessons(models, machine, out, budget, limit, seed, dict(options), init, resume, overwrite)
        )
    if time_limit is not None or resume is not None:
        raise Usage(
            "--time-limit and --resume are for muzero and go",
            object="--time-limit",
            remedy="give --budget, and --init to go on from a policy",
        )
    rows: list[dict[str, Any]] = []
    from loadmaster.planner.facts import describe_mapping as head
    from loadmaster.mapping.problem import Mapping

    for name in models:
        model = Model(name)
        problem = Mapping(model.load(), model.machine(machine))
        say(head(problem, name))
        solution = _trained(
            problem, agent, options | ({} if init is None else {"init": init}), budget or MAPS, seed, run
        )
        rows.append(_row(name, problem, solution))
        _save(out, agent, problem, solution, rows, seed, options)
        init = str(out)  # the next model goes on from here
        if solution.extra.get("interrupted"):
            break
    cells = [
        (
            row["model"],
            show_time(row["compiler_picoseconds"]),
            "–" if row["picoseconds"] is None else show_time(row["picoseconds"]),
            "–" if row["speedup"] is None else f"{row['speedup']:.3f} ×",
            gap_text(row["gap"]),
            f"{row['evaluations']:,}",
            f"{row['took_seconds']:.1f} s",
        )
        for row in rows
    ]
    columns = ("trained on", "compiler", agent, "over compiler", "gap to bound", "evaluations", "took")
    ending = f"wrote {out}\nuse it:  loadmaster plan MODEL --solver egrl --init {out}\ntry it:  loadmaster transfer {out} MODEL"
    return Answer(rows, [Table(columns, cells), ending], more={"out": str(out)})


def _trained(
    problem: Mapping, agent: str, options: dict[str, Any], budget: int, seed: int, run: Path | None
) -> Solution:
    from loadmaster.runs.session import Interrupted, run_solver
    from loadmaster.search.registry import make_solver
    from loadmaster.search.solver import Budget

    solver = make_solver("mapping", agent, options)
    solution = run_solver(solver, problem, Budget(budget), seed, folder=run, display=LiveLine())
    if "policy" not in solution.extra:
        raise Interrupted(
            f"training on '{problem.program.name}' ended before there was a policy",
            object=problem.program.name,
            remedy="let it run longer",
        )
    return solution


def _row(name: str, problem: Mapping, solution: Solution) -> dict[str, Any]:
    value = solution.value
    return {
        "model": name,
        "machine": problem.machine.name,
        "picoseconds": value,
        "compiler_picoseconds": problem.compiler_ps,
        "speedup": None if value is None else problem.compiler_ps / value,
        "gap": solution.gap,
        "evaluations": solution.evaluations,
        "took_seconds": solution.seconds,
        "run": solution.extra.get("run"),
    }


def _save(
    out: Path,
    agent: str,
    problem: Mapping,
    solution: Solution,
    rows: list[dict[str, Any]],
    seed: int,
    options: dict[str, Any],
) -> None:
    from loadmaster.host import command_line, versions
    from loadmaster.mapping.egrl.agent import save_policy

    memories = [problem.machine.memories[number].name for number in problem.memories]
    about = {
        "agent": agent,
        "command": command_line(),
        "seed": seed,
        "settings": options,
        "versions": versions(),
        "memories": memories,
        "trained_on": [
            {key: row[key] for key in ("model", "machine", "evaluations", "picoseconds", "speedup", "gap")}
            for row in rows
        ],
    }
    with writing(out):
        save_policy(out, solution.extra["policy"], about)
