"""`loadmaster replay`: does what a run claims still hold?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from loadmaster.cli.answer import Answer, Table, Usage
from loadmaster.errors import Refused

_MOST_SHOWN = 20


def command(
    run: Annotated[Path, typer.Argument(metavar="RUN|FILE", help="A run's folder, or a file inside one.")],
    tolerance: Annotated[float, typer.Option(min=0.0, help="Relative difference that is let pass.")] = 0.0,
) -> Answer:
    """Check and score every stored plan again, and hold each figure in the log to the result.

    With a plan inside a run, that plan alone. Exit code 1 if a claim does not hold.

    Example: loadmaster replay runs/20270114-091502-mobilenet-imxrt1170-auto-0

    Example: loadmaster validate best.json
    """
    from loadmaster.runs.replay import replay

    folder, only = _target(run)
    found = replay(folder, tolerance=tolerance, only=only)
    rows: list[dict[str, Any]] = [
        {
            "where": claim.where,
            "event": claim.event,
            "plan": claim.plan,
            "claimed": claim.claimed,
            "now": claim.now,
            "unit": found.unit,
            "holds": claim.holds,
            "message": claim.fault,
        }
        for claim in found.claims
    ]
    plans = sum(claim.event in ("improve", "baseline", "choose") for claim in found.claims)
    broken = found.broken
    blocks: list[str | Table] = []
    if broken:
        cells = [(c.where, c.event, (c.plan or "–")[:12], str(c.fault)) for c in broken[:_MOST_SHOWN]]
        blocks.append(Table(("where", "event", "plan", "what does not hold"), cells))
    blocks.append(
        f"{folder.name}: {plans:,} plans checked and scored again, "
        f"{len(found.claims) - len(broken):,} of {len(found.claims):,} claims hold"
    )
    error = None
    if broken:
        error = Refused(
            f"{len(broken):,} claims do not hold, the first: {broken[0]}",
            object=folder.name,
            number=len(broken),
        )
    return Answer(rows, blocks, tuple(found.warnings), error)


def _target(path: Path) -> tuple[Any, str | None]:
    """The run, and the one plan of it that was asked for."""
    from loadmaster.plan import load_plan
    from loadmaster.runs import RunFolder
    from loadmaster.runs.compare import run_of
    from loadmaster.search.registry import load_problem

    if path.is_dir():
        return RunFolder.open(path), None
    home = run_of(path) if path.is_file() else None
    if home is None:
        raise Usage(
            f"'{path}' is neither a run nor a file inside one",
            object=str(path),
            remedy="see 'loadmaster runs'",
        )
    if path.suffix != ".json" or path.name == "run.json":
        return home, None
    if path.parent.name == "plans":
        return home, path.stem  # the replay compares the name with the content
    problem = load_problem(home.path)
    return home, load_plan(path, problem.program, problem.machine).hash
