"""`write_report`: one HTML file about runs or plans. What it shows is what `ReportFacts` says."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from loadmaster.errors import LoadmasterError
from loadmaster.files import replacing
from loadmaster.machine.machine import Machine
from loadmaster.mapping.bytes_moved import counts_bytes
from loadmaster.plan import Plan, load_planned
from loadmaster.planner.planner import KINDS
from loadmaster.program.program import Program
from loadmaster.report.page import Columns, render_page
from loadmaster.report.rows import list_changes, list_transitions, list_view, plan_row, read_measured
from loadmaster.report.subject import (
    Subject,
    check_same_subject,
    compute_value,
    find_before,
    make_problem_key,
    read_plan,
    read_run,
)
from loadmaster.report.view import View, count_transitions, strip_rows, strip_tensors
from loadmaster.runs.folder import is_run
from loadmaster.runs.history import History
from loadmaster.search.request import BadRequest
from loadmaster.simulate.bounds import time_bounds


@dataclass(frozen=True)
class ReportFacts:
    """What was written. `rows` are the figures on the page."""

    path: Path
    bytes: int
    rows: list[dict[str, Any]] = field(repr=False)
    warnings: list[str] = field(default_factory=list)


def write_report(
    sources: str | Path | Sequence[str | Path],
    out: str | Path,
    measured: Path | None = None,
    before: str | None = None,
) -> ReportFacts:
    """Write one offline HTML page about runs.

    Args:
      sources: a run's folder, or a plan's file inside one, held against its baseline; two of them: the change from
        the first to the second; more: the best beside the others.
      out: the page; a file that is there is replaced.
      measured: what `loadmaster run --json` printed for the plan that is shown.
      before: the baseline of the run that it is held against; by default the one that the run was.

    Returns:
      where it was written, its bytes, and the figures on the page as rows.
    """
    paths = [Path(path) for path in ([sources] if isinstance(sources, str | Path) else sources)]
    if not paths:
        raise LoadmasterError("there is nothing to report", object="RUN", remedy="give a run")
    runs = {path: read_run(path) for path in paths if is_run(path)}
    subjects: list[Subject] = []
    for path in paths:
        like = next(iter([*runs.values(), *subjects]), None)
        subjects.append(runs[path] if path in runs else read_plan(path, like))
    return report_subjects(subjects, Path(out), measured, before)


def write_plan_report(
    program: Program,
    machine: Machine,
    plans: Sequence[tuple[str, Plan]],
    out: Path,
    measured: Path | None = None,
) -> ReportFacts:
    """A report about one plan (name, decisions), or the change from the first to the second."""
    subjects = [Subject(name, program, machine, plan) for name, plan in plans]
    for subject in subjects:
        subject.value = compute_value(subject)
        if subject.plan.fusion is None or (subject.plan.fusion < 0).all():
            subject.bound = time_bounds(program, machine).together
            subject.bound_method = "every op alone, capacities left out"
    return report_subjects(subjects, out, measured)


def report_files(
    program: Program, machine: Machine, files: Sequence[Path], out: Path, measured: Path | None = None
) -> ReportFacts:
    """A report about the plan in a file, about the change from one to another of two, or (no file) about a plan
    that decides nothing."""
    if len(files) > 2:
        raise BadRequest(
            f"{len(files)} plans are too many for one report",
            object="PLAN",
            number=len(files),
            remedy="give one plan, or two to compare",
        )
    found = [load_planned(file, program, machine) for file in files] or [(program, Plan())]
    about = found[0][0]
    if any(other.hash != about.hash for other, _ in found):
        raise BadRequest(
            "the plans run other ops again, so they are about different programs",
            object=str(files[1]),
            remedy="give one plan",
        )
    names = [file.name for file in files] or ["nothing decided"]
    plans = [(name, plan) for name, (_, plan) in zip(names, found, strict=True)]
    return write_plan_report(about, machine, plans, out, measured)


def report_subjects(
    subjects: list[Subject], out: Path, measured: Path | None = None, before: str | None = None
) -> ReportFacts:
    """Two subjects: from the first to the second. Else the best of them, against its baseline."""
    columns, content = collect_content(subjects, measured, before)
    data = render_page(columns, content).text.encode("utf-8")
    with replacing(out) as temporary:
        temporary.write_bytes(data)
    return ReportFacts(out, len(data), content["rows"], content["warnings"])


def collect_content(
    subjects: list[Subject], measured: Path | None = None, before: str | None = None
) -> tuple[Columns, dict[str, Any]]:
    """What a report's page shows: its columns, and all else."""
    check_same_subject(subjects)
    warnings = []
    if len({make_problem_key(subject) for subject in subjects if subject.run is not None}) > 1:
        warnings.append("the runs were not about the same problem: their values may not compare")
    if len(subjects) == 2:
        old, new = subjects
        same = old.plan.hash == new.plan.hash
        warnings += [f"'{old.name}' and '{new.name}' have equal plans"] if same else []
        found = None if same else old
    else:
        new = min(subjects, key=lambda s: (s.value is None, s.value or 0))
        found = find_before(new, before)
    if counts_bytes(new.machine):
        warnings.append("the objective is bytes moved: in the pictures a nanosecond is one byte")
    warnings += [text for text in (new.note, *new.program.warnings) if text]
    columns = Columns()
    content, rows = _content(new, found, subjects, columns)
    rows += [] if measured is None else read_measured(measured, new)
    return columns, {**content, "rows": rows, "warnings": warnings}


def _content(
    new: Subject, old: Subject | None, subjects: list[Subject], columns: Columns
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    program, machine = new.program, new.machine
    views = [View(new, "after")] + ([] if old is None else [View(old, "before")])
    rows = [plan_row(view.subject, view.role) for view in views]
    rows += [plan_row(other, "other") for other in subjects if other is not new and other is not old]
    strip: dict[str, Any] | None = None
    if old is not None:
        found = count_transitions(program, views[1].memories, views[0].memories)
        rows += list_transitions(found, [memory.name for memory in machine.memories])
        if found is not None:
            tensors = strip_tensors(program)
            for view in views:
                for name, row in zip(("results", "weights"), strip_rows(tensors, view.memories), strict=True):
                    columns.add(f"strip.{view.role}.{name}", row)
            columns.add("strip.results", tensors[0])
            columns.add("strip.weights", tensors[1])
            strip = {"memories": found.memories}
        rows += list_changes(old, new)
    for view in views:
        rows += list_view(view)
    _add_program(columns, program)
    return {
        "head": _head(new, old),
        "program": {"name": program.name, "ops": program.n_ops, "tensors": program.n_tensors},
        "memories": [memory.name for memory in machine.memories],
        # Buffers have no costs: their ops are moments, and picoseconds would say nothing.
        "timed": bool(program.op_flops.any() or program.costs is not None),
        "views": [view.write(columns, f"v{number}") for number, view in enumerate(views)],
        "curves": _curves(subjects, new.unit),
        "strip": strip,
        "unit": new.unit,
    }, rows


def _add_program(columns: Columns, program: Program) -> None:
    columns.add_texts("op.name", program.op_name)
    columns.add_texts("op.kinds", program.op_kind.values)
    columns.add("op.kind", program.op_kind.codes)
    columns.add_texts("tensor.name", program.tensor_name)
    columns.add("tensor.kind", program.tensor_kind)
    columns.add("tensor.bytes", program.storage_bytes)
    columns.add_texts("tensor.dtypes", program.tensor_dtype.values)
    columns.add("tensor.dtype", program.tensor_dtype.codes)
    columns.add("tensor.shape_start", program.tensor_shape_start)
    columns.add("tensor.shape", program.tensor_shape)
    columns.add("tensor.root", program.tensor_alias)
    real = ~program.op_view[program.read_op]
    root, op = program.tensor_alias[program.read_tensor[real]], program.read_op[real]
    order = np.argsort(root, kind="stable")
    counts = np.bincount(root, minlength=program.n_tensors)
    columns.add("tensor.reader_start", np.concatenate([[0], np.cumsum(counts)]))
    columns.add("tensor.reader", op[order])
    columns.add("tensor.writer", program.producer)


def _head(new: Subject, old: Subject | None) -> dict[str, Any]:
    """What stands above everything: texts by label, the empty ones left out by the page."""
    about = {} if new.run is None else new.run.about
    history, versions = new.history, about.get("versions")
    return {
        "program": new.program.name,
        "machine": new.machine.name,
        "problem": new.kind,
        "description": new.machine.description,
        "name": new.name,
        "solver": about.get("solver", {}).get("name"),
        "seed": about.get("seed"),
        "created": about.get("created"),
        "ended": None if history is None else history.state,
        "evaluations": None if history is None else history.evaluations,
        "seconds": None if history is None else history.seconds,
        "bound_method": new.bound_method,
        "space": None if new.problem is None or new.kind not in KINDS else KINDS[new.kind].space,
        "before": None if old is None else old.name,
        "command": shlex.join(["loadmaster", *map(str, about["command"])]) if about else None,
        "version": versions.get("loadmaster") if isinstance(versions, dict) else None,
        "violations": [str(violation) for violation in new.violations[:20]],
    }


_MOST_POINTS = 4_000


def _curves(subjects: list[Subject], unit: str) -> dict[str, Any] | None:
    return collect_curves(
        [
            (subject.name, {} if subject.run is None else subject.run.about, subject.history)
            for subject in subjects
            if subject.history is not None
        ],
        unit,
    )


def collect_curves(runs: list[tuple[str, dict[str, Any], History]], unit: str) -> dict[str, Any] | None:
    """Of runs, each by its name, its `run.json` and its log; None if none has a curve worth a picture."""
    lines = [_curve(*run) for run in runs]
    if not any(len(line["evaluations"]) > 1 for line in lines):
        return None
    known: dict[str, int] = {}
    for _, _, history in runs:
        for line in history.of("baseline"):
            known.setdefault(str(line["name"]), int(line["value"]))
    bounds = [history.bound.value for _, _, history in runs if history.bound is not None]
    bound = max(bounds, default=None) or None  # 0: nothing is known
    return {"runs": lines, "baselines": list(known.items()), "bound": bound, "unit": unit}


def _curve(name: str, about: dict[str, Any], history: History) -> dict[str, Any]:
    curve, lines = _thinned(history.curve), _thinned(history.improvements)
    bounds = _thinned([line for line in history.of("bound") if line["value"] > 0])
    solver = about.get("solver", {})
    return {
        "name": name,
        # Runs of one solver with equal settings are one group: they differ in their seeds.
        "group": json.dumps([solver.get("name"), solver.get("options")], sort_keys=True),
        "solver": str(solver.get("name")),
        "seed": about.get("seed"),
        "evaluations": [evaluations for evaluations, _ in curve],
        "values": [value for _, value in curve],
        "seconds": [float(line["t"]) for line in lines],
        "values_by_seconds": [int(line["value"]) for line in lines],
        "last_evaluation": history.evaluations,
        "last_second": history.seconds,
        "bounds": {
            "evaluations": [int(line["evals"]) for line in bounds],
            "seconds": [float(line["t"]) for line in bounds],
            "values": [int(line["value"]) for line in bounds],
        },
    }


def _thinned(points: list[Any]) -> list[Any]:
    """Enough of them for a picture, the last one among them."""
    step = -(-len(points) // _MOST_POINTS) or 1
    kept = points[::step]
    return kept if not points or kept[-1] is points[-1] else [*kept, points[-1]]
