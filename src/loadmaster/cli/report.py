"""`loadmaster report`: one HTML file about runs or plans, to be opened from disk."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from loadmaster.cli.answer import Answer, OverwriteOption, check_free
from loadmaster.cli.model import (
    CapacityOption,
    MachineOption,
    Model,
    refuse_for_run,
    sized_machine,
    takes_model,
)
from loadmaster.files import writing
from loadmaster.units import show_bytes

if TYPE_CHECKING:
    from loadmaster.report import ReportFacts


@takes_model
def command(
    model: Model,
    more: Annotated[
        list[Path] | None, typer.Argument(metavar="RUN|PLAN", help="Further runs or plans.")
    ] = None,
    machine: MachineOption = None,
    capacity: CapacityOption = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="HTML", help="The file. [a run's own report.html, or ./report.html]"),
    ] = None,
    measured: Annotated[
        Path | None, typer.Option(metavar="JSON", help="What 'loadmaster run --json' printed for the plan.")
    ] = None,
    before: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The baseline of the run that it is held against. [the run's]"),
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    overwrite: OverwriteOption = False,
) -> Answer:
    """Memories with addresses over time, copies, devices, peaks, learning curves, what changed.

    One run or plan is held against its baseline. Of two, the change from the first to the second
    is shown; of more runs, the best one and the curves of all. The file needs no network.

    Example: loadmaster report runs/A

    Example: loadmaster report runs/A runs/B --out change.html

    Example: loadmaster report resnet50 plan.json --machine nnp-i --out plan.html
    """
    from loadmaster.report import write_report
    from loadmaster.report.subject import is_plan, own_report
    from loadmaster.runs.folder import is_run

    paths = [Path(model.source), *(more or [])]
    file = out or Path("report.html")
    if not is_run(paths[0]) and not is_plan(paths[0]):
        check_free(file, overwrite, *paths)
        return _answer(_of_model(model, machine, capacity, list(more or []), file, measured), show)
    refuse_for_run(paths[0], machine, capacity)
    own = own_report(paths)
    if out is None and own is not None:
        file = own
    else:
        check_free(file, overwrite, *paths)
    with writing(file):
        return _answer(write_report(paths, file, measured, before), show)


def _of_model(
    model: Model,
    machine: str | None,
    capacity: list[str] | None,
    files: list[Path],
    out: Path,
    measured: Path | None,
) -> ReportFacts:
    from loadmaster.report import report_files

    # A name that is nothing should not hear about machines.
    base = model.load(None if machine is None else model.machine(machine))
    chosen = sized_machine(model.machine(machine), model, base, capacity)
    with writing(out):
        return report_files(base, chosen, files, out, measured)


def _answer(facts: ReportFacts, show: bool) -> Answer:
    if show:
        import webbrowser

        webbrowser.open(facts.path.resolve().as_uri())
    rows: list[dict[str, Any]] = [
        {"what": "report", "file": str(facts.path), "bytes": facts.bytes},
        *facts.rows,
    ]
    return Answer(rows, [f"wrote {facts.path} ({show_bytes(facts.bytes)})"], tuple(facts.warnings))


# Typer shows the first argument by this name: it may be a run or a plan as well as a model.
_signature = inspect.signature(command)
_first = _signature.parameters["source"].replace(
    annotation=Annotated[
        str, typer.Argument(metavar="RUN|PLAN|MODEL", help="A run, a plan in a run, or a model.")
    ]
)
command.__signature__ = _signature.replace(  # type: ignore[attr-defined]
    parameters=[_first, *list(_signature.parameters.values())[1:]]
)
command.__annotations__["source"] = _first.annotation
